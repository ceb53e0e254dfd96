"""Targets that cannot be written, sources that are none, and job files with mistakes."""

import subprocess
from pathlib import Path

import pytest

import bad_sources
from bad_job import IO, MARK, RESOURCES, SOURCE, TARGET, USAGE, expect, listing
from reshard_job import job_text, tree_hashes

DENSE_BYTES = 80_000  # about what the dense source takes again as a target


@pytest.fixture
def dense():
    return bad_sources.original("dense")


# --- the target ---------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_existing_target_is_refused_and_replaced_on_demand(ranks, bad_jobs, dense):
    bad_jobs.old_target()
    bad_jobs.refused_early(TARGET, (str(bad_jobs.target.relative_to(bad_jobs.scratch)), "exists already", "replace = true"), bad_jobs.text(dense), ranks=ranks)
    assert (bad_jobs.target / MARK).read_text() == "precious"
    outcome = bad_jobs.run(bad_jobs.text(dense), ranks=ranks, settings=["target.replace=true"])
    assert outcome.code == 0, outcome.error
    assert not (bad_jobs.target / MARK).exists()
    assert (bad_jobs.target / "latest_checkpointed_iteration.txt").read_text() == "1000"
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("verify", ["off", "streamed"])
def test_a_target_whose_record_lists_no_files_is_replaced(verify, bad_jobs, dense):
    text = bad_jobs.text(dense, target_options={"replace": True})
    for _ in range(2):
        outcome = bad_jobs.run(text, settings=[f"run.verify={verify}"])
        assert outcome.code == 0, outcome.error


def test_a_folder_that_is_no_checkpoint_is_not_replaced(bad_jobs, dense):
    bad_jobs.target.mkdir()
    (bad_jobs.target / "thesis.tex").write_text("precious")
    bad_jobs.refused_early(TARGET, ("target", "nor a checkpoint", "Choose another"), bad_jobs.text(dense, target_options={"replace": True}))
    assert (bad_jobs.target / "thesis.tex").read_text() == "precious"


@pytest.mark.long_but("iter_0001000/notes.txt")
@pytest.mark.parametrize("beside", ["notes.txt", "iter_0001000/notes.txt", "logs/events"])
def test_what_lies_beside_a_converted_checkpoint_is_not_replaced(beside, bad_jobs, dense):
    assert bad_jobs.run(bad_jobs.text(dense)).code == 0
    (bad_jobs.target / beside).parent.mkdir(exist_ok=True)
    (bad_jobs.target / beside).write_text("precious")
    bad_jobs.refused_early(TARGET, (beside.split("/")[0], "not part of the checkpoint", "Move it away"), bad_jobs.text(dense, target_options={"replace": True}))
    assert (bad_jobs.target / beside).read_text() == "precious"


STRANGERS = {
    "a trainer's folder": ("weights", ["checkpoint-500/model.safetensors", "optimizer.pt", "runs/events.out", "notes.md", ".git/HEAD"],
                           (".git, checkpoint-500, notes.md and 2 more", "are not part of the checkpoint")),
    "a file beside mp_rank folders": ("flat", ["iter_0001000/mp_rank_00/notes.txt"], ("mp_rank_00/notes.txt, which is not part",)),
    "a file of another program": ("flat", ["args.yaml"], ("args.yaml, which is not part",)),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_lies_in_a_checkpoint_of_another_program_is_not_removed(name, bad_jobs, dense):
    kind, strangers, words = STRANGERS[name]
    if kind == "flat":
        bad_sources.copy_of("flat", bad_jobs.target)
        strangers = [stranger.replace("mp_rank_00", next((bad_jobs.target / "iter_0001000").glob("mp_rank_00*")).name) for stranger in strangers]
        words = [word.replace("mp_rank_00", next((bad_jobs.target / "iter_0001000").glob("mp_rank_00*")).name) for word in words]
    else:
        bad_jobs.target.mkdir()
        for own in ("model.safetensors", "config.json", "tokenizer.json"):
            (bad_jobs.target / own).write_text("precious")
    job = bad_jobs.text(dense, target_options={"replace": True})
    for stranger in strangers:
        (bad_jobs.target / stranger).parent.mkdir(exist_ok=True)
        (bad_jobs.target / stranger).write_text("precious")
    bad_jobs.refused_early(TARGET, (*words, "Move"), job)
    for stranger in strangers:
        assert (bad_jobs.target / stranger).read_text() == "precious"
        (bad_jobs.target / stranger).unlink()
        if not any((bad_jobs.target / stranger).parent.iterdir()):
            (bad_jobs.target / stranger).parent.rmdir()
    assert bad_jobs.run(job).code == 0


def test_a_target_without_a_record_is_replaced_with_all_that_a_job_writes(bad_jobs):
    """What is copied from the source has any name, and no reshard.json lists it."""
    source = bad_sources.copy_of("hf", bad_jobs.scratch / "source")
    (source / "README.md").write_text("a model card")
    job = bad_jobs.text(source, "huggingface", target_options={"replace": True})
    unrecorded = ["run.verify=off"]
    assert bad_jobs.run(job, settings=unrecorded).code == 0
    assert (bad_jobs.target / "README.md").is_file() and not (bad_jobs.target / "reshard.json").exists()
    assert bad_jobs.run(job, settings=unrecorded).code == 0
    (bad_jobs.target / "LICENSE").write_text("precious")
    outcome = bad_jobs.run(job, settings=unrecorded)
    assert outcome.code == TARGET and "holds LICENSE, which is not part" in outcome.error


def test_a_root_with_several_iterations_is_not_replaced(bad_jobs, dense):
    bad_jobs.old_target()
    for number in (1, 2):
        (bad_jobs.target / f"iter_000000{number}").mkdir()
    bad_jobs.refused_early(TARGET, ("iterations", "no more than one"), bad_jobs.text(dense, target_options={"replace": True}))


@pytest.mark.long_but(".next.part-0123456789abcdef", ".next.lock")
@pytest.mark.parametrize("name", [".next.part-0123456789abcdef", ".next.resume-0123456789abcdef", ".next.old-0123456789abcdef", ".next.part", ".next.lock"])
def test_the_names_of_unfinished_targets_are_no_targets(name, bad_jobs, dense):
    bad_jobs.refused_early(USAGE, (name, "Choose another name"), bad_jobs.text(dense, target=bad_jobs.parent / name))


def test_a_target_in_the_source_through_another_mount_is_seen(bad_jobs, dense, scratch):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs unshare(1) and the right to mount")
    twin = scratch / "twin"
    twin.mkdir()
    mounted = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(dense), str(twin)]
    before = listing(dense)
    outcome = bad_jobs.start(bad_jobs.text(dense, target=twin / "inside"), prefix=mounted).wait()
    expect(outcome, USAGE, ("is the source", "through another mount", "outside of the source"))
    assert listing(dense) == before


def test_links_from_the_source_into_the_target_are_seen(bad_jobs, scratch):
    source = bad_sources.copy_of("dense", scratch / "real")
    linked = scratch / "linked"
    linked.mkdir()
    (linked / "iter_0001000").symlink_to(source / "iter_0001000")
    (linked / "latest_checkpointed_iteration.txt").write_text("1000")
    before = listing(source)
    bad_jobs.refused_early(USAGE, ("target", "holds the source's", "outside"), bad_jobs.text(linked, target=source, target_options={"replace": True}))
    assert listing(source) == before


def test_a_refused_source_leaves_the_target_that_was_to_be_replaced(bad_jobs, scratch):
    source = bad_sources.copy_of("dense", scratch / "source")
    bad_sources.cut("mp_rank_01_001", 0.5)(source)
    bad_jobs.old_target()
    bad_jobs.refused(SOURCE, ("mp_rank_01_001",), bad_jobs.text(source, target_options={"replace": True}))


def test_a_file_as_target(bad_jobs, dense):
    bad_jobs.target.write_text("precious")
    bad_jobs.refused_early(TARGET, ("target", "exists already"), bad_jobs.text(dense))
    bad_jobs.refused_early(TARGET, ("target", "not a directory", "Remove it"), bad_jobs.text(dense, target_options={"replace": True}))


def test_a_dangling_link_as_target(bad_jobs, dense):
    bad_jobs.target.symlink_to(bad_jobs.scratch / "nowhere")
    bad_jobs.refused_early(TARGET, ("target", "exists already"), bad_jobs.text(dense))


@pytest.mark.long_but("inside-says1", "..-says3")
@pytest.mark.parametrize("place, says", [
    (".", ("also source.path", "another folder")), ("inside", ("inside the source", "outside")), ("iter_0001000/mp_rank_00_000/x", ("inside the source",)),
    ("..", ("is inside it",))])
def test_a_target_inside_or_around_the_source(place, says, bad_jobs, scratch):
    source = bad_sources.copy_of("dense", scratch / "source")
    before = listing(source)
    bad_jobs.refused_early(USAGE, ("target", "path", *says), bad_jobs.text(source, target=source / place))
    assert listing(source) == before


def test_a_target_that_reaches_the_source_by_a_link(bad_jobs, scratch):
    source = bad_sources.copy_of("dense", scratch / "source")
    (scratch / "link").symlink_to(source)
    bad_jobs.refused_early(USAGE, ("inside the source",), bad_jobs.text(source, target=scratch / "link" / "inside"))


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_file_in_the_place_of_the_targets_parent(ranks, bad_jobs, dense):
    (bad_jobs.parent / "file").write_text("precious")
    bad_jobs.refused_early(TARGET, ("results/file", "target.path"), bad_jobs.text(dense, target=bad_jobs.parent / "file" / "target"), ranks=ranks)


def test_the_root_as_target(bad_jobs, dense):
    bad_jobs.refused_early(USAGE, ("target", "source"), bad_jobs.text(dense, target="/"))


# --- file systems -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(scratch):
    """mounted(options) gives a folder with a fresh tmpfs on it."""
    places = []

    def mount(options):
        place = scratch / f"mount{len(places)}"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True).returncode != 0:
            pytest.skip("this process may not mount a file system")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_read_only_parent(ranks, mounted, bad_jobs, dense):
    place = mounted("size=1m,ro")
    bad_jobs.refused_early(TARGET, (place.name, "Read-only file system"), bad_jobs.text(dense, target=place / "target"), ranks=ranks)
    assert not list(place.iterdir())


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(ranks, mounted, bad_jobs, dense):
    place = mounted("size=64k")
    bad_jobs.refused_early(RESOURCES, (place.name, "64.0 KiB free", "writes 86", "Free"), bad_jobs.text(dense, target=place / "target"), ranks=ranks)
    assert not list(place.iterdir())


@pytest.mark.long_but("3")
@pytest.mark.parametrize("names", [1, 2, 3, 4, 6])
def test_a_disk_without_room_for_more_names(names, mounted, bad_jobs, dense):
    place = mounted(f"size=1m,nr_inodes={names}")
    outcome = bad_jobs.run(bad_jobs.text(dense, target=place / "target", target_options={"layout": "{ tp = 2, pp = 2 }"}))
    expect(outcome, RESOURCES, ("target", "No space left"))
    assert not list(place.iterdir())


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_limit_of_file_sizes_is_met_during_the_run(ranks, bad_jobs, dense):
    prefix = ["prlimit", f"--fsize={DENSE_BYTES // 2}"]
    bad_jobs.refused(RESOURCES, ("model_optim_rng.pt", "File too large"), bad_jobs.text(dense), ranks=ranks, prefix=prefix)


@pytest.mark.long_but("64 TiB")
@pytest.mark.parametrize("memory", ["64 TiB", "9223372036854775807"])
def test_memory_that_is_not_there(memory, bad_jobs, dense):
    """A small job may take less than it is given; otherwise it is an error of resources, never a crash."""
    outcome = bad_jobs.run(bad_jobs.text(dense, memory=memory), ranks=3, settings=["run.transport=mpi"])
    if outcome.code == 0:
        assert bad_jobs.target.exists()
        return
    expect(outcome, RESOURCES, ("memory", "run.memory"))
    assert not bad_jobs.target.exists()


# --- what is no source --------------------------------------------------------------------------------------------------


def empty(path):
    path.mkdir()


def a_file(path):
    path.write_text("text")


def other_files(path):
    path.mkdir()
    (path / "notes.txt").write_text("text")


def torch_dist(path):
    path.mkdir()
    (path / ".metadata").write_bytes(b"")
    (path / "common.pt").write_bytes(b"")


def both_kinds(path):
    bad_sources.copy_of("flat", path)
    for file in bad_sources.original("hf").iterdir():
        (path / file.name).write_bytes(file.read_bytes())


def loop(path):
    path.symlink_to(path)


NO_SOURCES = [
    (lambda path: None, ("source", "does not exist", "link to nothing")), (a_file, ("source", "neither a directory nor an HDF5 file")), (empty, ("source",)),
    (other_files, ("source",)), (torch_dist, ("source", "truncated")), (both_kinds, ("source", "side by side", "source.format")), (loop, ("source",))]


@pytest.mark.long_but("absent-1", "empty-3", "loop-3")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("make, says", NO_SOURCES, ids=["absent", "file", "empty", "other files", "torch_dist", "both kinds", "loop"])
def test_what_is_no_source(make, says, ranks, bad_jobs, scratch):
    make(scratch / "source")
    bad_jobs.refused(SOURCE, says, bad_jobs.text(scratch / "source"), ranks=ranks)


# --- job files ----------------------------------------------------------------------------------------------------------


JOB_LINES = {  # line after [source] path and [target] path and format -> fragments
    "layuot.tp = 2": ("job1.toml:6", "layuot", "did you mean layout?"),
    "layout.tq = 2": ("job1.toml:6", "tq", "did you mean tp?"),
    'layout.tp = "two"': ("job1.toml:6", "tp", "two", "integer"),
    "layout.tp = 2.5": ("job1.toml:6", "tp", "integer"),
    "layout.tp = 0": ("job1.toml:6", "tp = 0"),
    "layout.tp = -1": ("job1.toml:6", "tp = -1"),
    'replace = "yes"': ("job1.toml:6", "replace", "true or false"),
    "layout.tp = 1\nlayout.etp = 2": ("etp = 2", "tp = 1", "Sizes that fit: 1"),
    'reference = "x"': ("reference", "huggingface"),
    '[run]\ndevice = "host"\ntransport = "nccl"': ("transport", "nccl", "mpi"),
    '[run]\ndevice = "tpu"': ("device", "tpu", "host", "cuda"),
    '[run]\nmemory = "1 XiB"': ("memory", "1 XiB"),
    '[run]\nmemory = "1 KiB"': ("memory", "1.0 KiB", "at least 1.0 MiB"),
    '[run]\nthreads = -4': ("threads", "-4"),
    '[run]\nthread = 4': ("thread", "did you mean threads?"),
    "[run\n": ("job1.toml:6", "not TOML"),
    "[source]": ("job1.toml:6", "not TOML"),
}


def test_a_job_file_that_the_system_cannot_read_is_no_mistake_in_it(bad_jobs):
    unreadable = Path("/sys/class/net/lo/speed")  # a regular file, of which no byte can be read
    try:
        unreadable.read_bytes()
    except OSError:
        outcome = bad_jobs.command("plan", unreadable)
        expect(outcome, IO, ("speed: read of", "failed"))
    else:
        pytest.skip("this system can read the file")


@pytest.mark.long_but("layuot.tp = 2", "layout.tp = 0", 'replace = "yes"', r'[run]\ndevice = "tpu"', r"[run\n")
@pytest.mark.parametrize("line", JOB_LINES)
def test_a_mistake_in_the_job_file(line, bad_jobs, dense):
    text = job_text(dense, bad_jobs.target, "megatron", {}, {}, {}, {"memory": "1 MiB"}).split("[model]")[0]
    bad_jobs.refused(USAGE, JOB_LINES[line], text + line + "\n")


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_mistakes_are_said_at_once(ranks, bad_jobs, dense):
    text = f'[source]\npath = 3\nfromat = "megatron"\n[target]\nformat = "gguf"\nlayout.tp = "x"\n[run]\nmemory = true\n'
    says = ("job1.toml:2", "job1.toml:3", "did you mean format?", "gguf", "job1.toml:6", "job1.toml:8", "[target] path is missing")
    bad_jobs.refused(USAGE, says, text, ranks=ranks)


def test_an_unknown_source_format(bad_jobs, dense):
    bad_jobs.refused(USAGE, ("format", "gguf", "huggingface"), bad_jobs.text(dense, source_options={"format": "gguf"}))


@pytest.mark.long
@pytest.mark.parametrize("setting, says", [
    ("target.layout.tp", ("key=value",)), ("target.layuot.tp=2", ("layuot",)), ("tp=2", ("target.layout.tp",)), ("run.memory=lots", ("memory", "lots"))])
def test_a_mistake_on_the_command_line(setting, says, bad_jobs, dense):
    bad_jobs.refused(USAGE, ("--set", *says), bad_jobs.text(dense), settings=[setting])


def test_a_job_file_that_is_not_there(bad_jobs):
    from bad_job import Running, command_of

    for ranks in (1, 3):
        expect(Running(command_of(["run", "none.toml"], ranks), bad_jobs.scratch).wait(), USAGE, ("none.toml",))


def test_a_source_is_never_changed(bad_jobs, dense):
    before = tree_hashes(dense)
    assert bad_jobs.run(bad_jobs.text(dense), ranks=3).code == 0
    assert tree_hashes(dense) == before
