"""The batch scripts under a real Slurm: exit codes, arrays, the nightly job."""

import shutil
import subprocess
from pathlib import Path

import pytest

from checkpoints import same_trees
from cluster import SCRIPTS, checked, wait_until

SMALL = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1"]
SAMPLE = Path(__file__).resolve().parents[1] / "data" / "moe-tp2-pp2-ep2"


@pytest.fixture
def full_disk(place):
    folder = place.folder / "full"
    folder.mkdir()
    checked(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder])
    yield folder
    checked(["umount", folder])


def test_sbatch_ends_with_the_code_of_the_ranks(cluster, place, full_disk):
    wrong = place.folder / "wrong.toml"
    wrong.write_text("[target]\n")
    cases = [(0, [place.job]), (2, [wrong]), (3, [place.job, "--set", f"source.path={place.folder}/nowhere"]),
             (4, [place.job]), (6, [place.job, "--set", f"target.path={full_disk}/target"])]
    for code, arguments in cases:
        done = cluster.try_client("sbatch", "--wait", "--parsable", *SMALL, SCRIPTS / "reshard.sbatch", *arguments, cwd=place.folder,
                                  environment=place.environment)
        number = done.stdout.strip()
        log = (place.folder / f"reshard-{number}.log").read_text()
        assert done.returncode == code, f"{arguments}: exit {done.returncode}, not {code}\n{log}"
        [entry] = wait_until(lambda: cluster.completions(number), "a line in the completion log")
        assert entry["JobState"] == ("FAILED" if code else "COMPLETED") and entry["ExitCode"] == f"{code}:0"
        assert code == 0 or "error: " in log
    assert (place.folder / "target" / ".metadata").exists()


@pytest.mark.long
def test_an_array_runs_all_jobs_and_one_of_two_with_the_same_target(cluster, place, undisturbed):
    names = ["a", "b", "c", "twice", "d", "twice", "e", "f"]
    jobs = [place.write_job(f"job-{i}.toml", place.folder / "out" / name) for i, name in enumerate(names)]
    (place.folder / "list.txt").write_text("".join(f"{job}\n" for job in jobs))
    place.delay(10)  # so that all of them are at work when the last one begins
    array = cluster.submit([*SMALL, "--ntasks-per-node=1", "--array=1-8"], SCRIPTS / "array.sbatch", "list.txt", cwd=place.folder,
                           environment=place.environment)
    wait_until(lambda: len(list((place.folder / "out").glob(".*.part-*"))) == 7, array.describe)
    place.delay(0)
    codes = [cluster.job(f"{array.number}_{i + 1}").wait_for_end() for i in range(8)]
    assert sorted((codes[3], codes[5])) == [0, 4], codes
    assert codes[:3] + [codes[4]] + codes[6:] == [0] * 6, codes
    for name in set(names):
        same_trees(place.folder / "out" / name, undisturbed)
    loser = place.folder / f"reshard-array-{array.number}_{4 if codes[3] else 6}.log"
    assert "/out/twice" in loser.read_text()
    assert not list((place.folder / "out").glob(".*")), "something hidden was left"


def test_the_nightly_job_converts_what_is_new_and_then_rests(cluster, place):
    train = place.folder / "train"
    shutil.copytree(SAMPLE, train)
    options = [SCRIPTS / "nightly.toml", "--set", f"source.path={train}", "--set", f"target.path={place.folder}/serving"]
    first, second = [cluster.submit(SMALL, SCRIPTS / "nightly.sbatch", *options, cwd=place.folder, environment=place.environment) for _ in range(2)]
    assert second.facts()["Dependency"].startswith("singleton"), "the second does not wait for the first"
    assert first.wait_for_end() == 0, first.describe()
    [made] = (place.folder / "serving").iterdir()
    stamp = made.stat().st_mtime_ns
    assert second.wait_for_end() == 0, second.describe()
    assert "up to date" in second.log()
    assert list((place.folder / "serving").iterdir()) == [made] and made.stat().st_mtime_ns == stamp
    assert made.name.startswith("iter_") and (made / "reshard.json").exists()


@pytest.mark.long
def test_srun_alone_and_in_an_allocation(cluster, place, undisturbed):
    """What the documentation gives for interactive use."""
    done = cluster.try_client("srun", "-n", "3", "--mpi=pmix", "--kill-on-bad-exit=1", place.program, "run", place.job)
    assert done.returncode == 0, done.stderr
    same_trees(place.target, undisturbed)
    again = place.write_job("again.toml", place.folder / "again")
    done = cluster.try_client("salloc", "-n", "2", "mpirun", "-n", "2", "--bind-to", "none", place.program, "run", again)
    assert done.returncode == 0, done.stderr
    same_trees(place.folder / "again", undisturbed)
    done = subprocess.run([*cluster.launcher(), "srun", "-n", "2", "--mpi=pmix", place.program, "verify", place.target, place.folder / "again"],
                          env=cluster.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
