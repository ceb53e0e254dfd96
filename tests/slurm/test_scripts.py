"""The batch scripts by themselves, with a stand-in for srun: what they pass on, which exit code they end with, when they ask for another attempt."""

import re
import subprocess

import pytest

from cluster import HERE, SCRIPTS, checked

BATCH = sorted(SCRIPTS.glob("*.sbatch"))
SHELL = BATCH + sorted(HERE.glob("*.sh"))
NAMES = [script.name for script in BATCH]
SHARED = "# --- from here on the same in all scripts of this folder"


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


class Stage:
    """A folder with stand-ins for srun and scontrol that write down how they were called."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "job.toml").write_text("")
        (folder / "list.txt").write_text("job.toml\n")
        self.stand_in("srun", 0)
        self.stand_in("scontrol", 0)

    def stand_in(self, name, code):
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >{self.folder}/{name}.called\nenv >{self.folder}/{name}.environment\nexit {code}\n')
        path.chmod(0o755)

    def called(self, name):
        path = self.folder / f"{name}.called"
        return path.read_text().splitlines() if path.exists() else None

    def run(self, script, arguments=None, log="out.log", **variables):
        settings = {"SLURM_JOB_ID": "17"}
        if script == "array.sbatch":
            settings |= {"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}
        settings |= {"PATH": f"{self.folder}/bin:/usr/bin:/bin"} | variables
        arguments = arguments if arguments is not None else ["list.txt" if script == "array.sbatch" else "job.toml"]
        with (self.folder / log).open("w") as out:
            done = subprocess.run([SCRIPTS / script, *arguments], stdout=out, stderr=subprocess.PIPE, text=True, cwd=self.folder, timeout=20,
                                  env={name: value for name, value in settings.items() if value is not None})
        return done


def test_all_scripts_are_clean_to_shellcheck():
    assert len(SHELL) >= 7
    checked(["shellcheck", *SHELL])


def test_what_the_scripts_share_is_the_same():
    launches = {script.name: script.read_text().split(SHARED)[1] for script in BATCH}
    endings = {text.rsplit("\n", 2)[0] for text in launches.values()}
    assert len(endings) == 1, f"they differ: {launches.keys()}"
    assert all(re.fullmatch(r"launch (run|nightly) .*\"\$@\"", text.rstrip("\n").rsplit("\n", 1)[1]) for text in launches.values())


@pytest.mark.parametrize("script", NAMES)
@pytest.mark.parametrize("code", [0, 42, 137])
def test_the_exit_code_is_that_of_srun(stage, script, code):
    stage.stand_in("srun", code)
    done = stage.run(script)
    assert done.returncode == code, done.stderr
    assert stage.called("scontrol") is None


@pytest.mark.parametrize("script", NAMES)
@pytest.mark.parametrize("mpi, options", [("pmi2", ["--mpi=pmi2"]), ("", [])])
def test_a_site_chooses_how_srun_starts_mpi(stage, script, mpi, options):
    stage.run(script, RESHARD_SRUN_MPI=mpi)
    assert stage.called("srun")[:len(options) + 1] == [*options, "--kill-on-bad-exit=1"]


@pytest.mark.parametrize("script", NAMES)
def test_a_site_has_lines_to_uncomment(script):
    """Each is an option that sbatch knows once the first # is gone, and changes nothing before."""
    lines = (SCRIPTS / script).read_text().splitlines()
    prepared = [line for line in lines if line.startswith("##SBATCH --")]
    assert {line.split("=")[0] for line in prepared} >= {"##SBATCH --account", "##SBATCH --partition", "##SBATCH --qos"}
    assert any(line.startswith("# module load ") for line in lines)


@pytest.mark.parametrize("script", NAMES)
def test_the_command_and_its_options_reach_srun(stage, script):
    file = "list.txt" if script == "array.sbatch" else "job.toml"
    stage.run(script, [file, "--set", "run.memory=2 GiB"], SLURM_CPUS_PER_TASK="6", RESHARD_BIN="/opt/the program")
    command = "nightly" if script == "nightly.sbatch" else "run"
    assert stage.called("srun") == ["--mpi=pmix", "--kill-on-bad-exit=1", "--cpus-per-task=6", "/opt/the program", command, "--events",
                                    f"{stage.folder}/out.events.ndjson", "job.toml", "--set", "run.memory=2 GiB"]


@pytest.mark.parametrize("script", NAMES)
@pytest.mark.parametrize("word", ["--dry-run", "--plan"])
def test_a_plan_gets_no_events(stage, script, word):
    stage.run(script, ["list.txt" if script == "array.sbatch" else "job.toml", word])
    called = stage.called("srun")
    assert "--events" not in called and called[-2:] == ["job.toml", word]


@pytest.mark.parametrize("script", NAMES)
def test_barriers_of_one_kind_unless_the_site_says_otherwise(stage, script):
    for variables, kind in (({}, "ring"), ({"SLURM_PMIX_FENCE": "tree"}, "tree")):
        stage.run(script, **variables)
        assert f"SLURM_PMIX_FENCE={kind}" in (stage.folder / "srun.environment").read_text().splitlines()


def test_events_have_a_place_when_the_log_has_none(stage):
    stage.run("reshard.sbatch", log="out.txt")
    assert f"{stage.folder}/reshard-17.events.ndjson" in stage.called("srun")


@pytest.mark.parametrize("script", NAMES)
@pytest.mark.parametrize("restarts, again", [("0", True), ("2", True), ("3", False)])
def test_a_lost_host_is_tried_again_a_few_times(stage, script, restarts, again):
    stage.stand_in("srun", 8)
    assert stage.run(script, SLURM_RESTART_COUNT=restarts).returncode == 8
    assert (stage.called("scontrol") is not None) == again


@pytest.mark.parametrize("script", NAMES)
def test_a_container_is_given_to_srun(stage, script):
    stage.run(script, RESHARD_IMAGE="reshard.sqsh", RESHARD_MOUNTS="/data:/data")
    here = str(stage.folder)
    expected = ["--container-image=reshard.sqsh", f"--container-mounts={here}:{here},/data:/data", f"--container-workdir={here}",
                "--no-container-mount-home", "reshard"]
    assert stage.called("srun")[3:8] == expected


@pytest.mark.parametrize("script", NAMES)
def test_a_stopped_run_is_queued_again(stage, script):
    stage.stand_in("srun", 75)
    assert stage.run(script).returncode == 75
    assert stage.called("scontrol") == ["requeue", "16_1" if script == "array.sbatch" else "17"]
    assert stage.run(script, SLURM_RESTART_COUNT="19").returncode == 75
    assert stage.called("scontrol") is not None


@pytest.mark.parametrize("script", NAMES)
def test_at_some_point_it_is_enough(stage, script):
    stage.stand_in("srun", 75)
    assert stage.run(script, SLURM_RESTART_COUNT="20").returncode == 75
    assert stage.called("scontrol") is None


def test_a_cluster_that_does_not_requeue_keeps_the_code(stage):
    stage.stand_in("srun", 75)
    stage.stand_in("scontrol", 1)
    done = stage.run("reshard.sbatch")
    assert done.returncode == 75 and "submit it again" in done.stderr


@pytest.mark.parametrize("script", NAMES)
def test_a_missing_file_is_a_mistake_of_the_command_line(stage, script):
    for arguments in ([], ["absent"]):
        done = stage.run(script, arguments)
        assert done.returncode == 2 and "usage" in done.stderr
    assert stage.called("srun") is None


def test_an_array_takes_lists_and_folders(stage):
    jobs = stage.folder / "jobs"
    jobs.mkdir()
    for name in ("b.toml", "a.toml", "notes.txt"):
        (jobs / name).write_text("")
    (stage.folder / "list.txt").write_text("jobs/b.toml\njobs/a.toml\njobs/absent.toml\n")
    for file, index, job in (("list.txt", "1", "jobs/b.toml"), ("list.txt", "2", "jobs/a.toml"), ("jobs", "1", "jobs/a.toml"), ("jobs", "2", "jobs/b.toml")):
        assert stage.run("array.sbatch", [file], SLURM_ARRAY_TASK_ID=index).returncode == 0
        assert stage.called("srun")[-1] == job
    for file, index, said in (("list.txt", "0", "count from 1"), ("list.txt", "4", "3 job files"), ("jobs", "3", "2 job files"),
                              ("list.txt", "3", "absent.toml"), ("jobs", None, "--array=1-N")):
        done = stage.run("array.sbatch", [file], SLURM_ARRAY_TASK_ID=index)
        assert done.returncode == 2 and said in done.stderr


def test_an_index_of_a_line_without_a_job_does_nothing(stage):
    (stage.folder / "list.txt").write_bytes(b"# last night's\r\n\r\n  \njob.toml\r\n")
    for index in ("1", "2", "3"):
        assert stage.run("array.sbatch", SLURM_ARRAY_TASK_ID=index).returncode == 0
        assert stage.called("srun") is None and "names no job file" in (stage.folder / "out.log").read_text()
    assert stage.run("array.sbatch", SLURM_ARRAY_TASK_ID="4").returncode == 0
    assert stage.called("srun")[-1] == "job.toml"
