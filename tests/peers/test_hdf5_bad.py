"""HDF5 jobs that are killed, and hostile HDF5 files, through the program itself.

RESHARD_TEST_KILLS is how often a job is killed; RESHARD_TEST_LARGE=1 takes every hostile file along every way.
"""

import functools
import os
import random
import signal
import time

import h5py
import pytest
import torch

import bad_sources
import hdf5_files
import hdf5_lies  # noqa: F401, its files join those of hdf5_files
from bad_job import SOURCE, TARGET, Running, command_of, expect, listing, program_of, wait_until
from hdf5_reading import SINGLE, link_of
from logical_tensors import logical_tensors
from numpy_megatron import write_tree
from peer_types import LOCAL, Layout
from reshard_job import BINARY, RECORDS
from tensor_patterns import make_globals

KILLS = int(os.environ.get("RESHARD_TEST_KILLS", "15"))
LARGE = bool(os.environ.get("RESHARD_TEST_LARGE"))
CONFIG = bad_sources.DENSE.with_(layers=4, hidden=256, heads=4, groups=4, head_dim=64, ffn=704, vocab=1024, dtype="float32")  # 14 MB
ENDINGS = ("all at once", "the launcher", "one rank")


@functools.cache
def expected():
    return {name: each.values for name, each in logical_tensors(CONFIG, make_globals(CONFIG)).items()}


@pytest.fixture
def source(scratch):
    return write_tree(scratch / "source", CONFIG, Layout(tp=2, pp=2), LOCAL, make_globals(CONFIG), enums={"tokenizer_type": "HuggingFaceTokenizer"})


def check_complete(target):
    """Whatever has the target's name is whole: h5py opens it, its last byte to be written says so, and every value is right."""
    assert {path.name for path in target.iterdir()} == {SINGLE, *RECORDS}
    with h5py.File(target / SINGLE) as file:
        assert file.attrs["complete"] == 1 and len(file["tensors"]) == len(expected())
        for name, values in expected().items():
            assert torch.equal(torch.from_numpy(file["tensors"][link_of(name)][()]), values), name


def end(job, way, choice):
    """Kills a job in one of several ways and waits until none of its processes is left."""
    ranks = job.ranks()
    if way == "all at once":
        job.kill()
    elif way == "the launcher":
        job.process.kill()
    elif ranks:
        os.kill(choice.choice(ranks), signal.SIGKILL)
    job.process.wait(30)
    for pid in ranks:
        wait_until(lambda pid=pid: program_of(pid) != BINARY, 30)
    job.wait()


def moments(bad_jobs, text):
    """Seconds until a job begins to write and until its target is there."""
    job = bad_jobs.start(text, 3)
    wait_until(lambda: bad_jobs.part().exists(), 30)
    begin = time.monotonic() - job.begin
    wait_until(bad_jobs.target.exists, 30)
    published = time.monotonic() - job.begin
    outcome = job.wait()
    assert outcome.code == 0, outcome.error
    return begin, published


@pytest.mark.parametrize("kills", [len(ENDINGS), pytest.param(KILLS, marks=pytest.mark.long)], ids=["each way", "many"])
def test_a_kill_at_any_moment_leaves_the_container_absent_or_complete(kills, bad_jobs, source):
    choice, text, published = random.Random(5), bad_jobs.text(source, "hdf5", memory="1 MiB"), 0
    begin, end_of_writing = moments(bad_jobs, text)
    check_complete(bad_jobs.target)
    content = (bad_jobs.target / SINGLE).read_bytes()
    for number in range(kills):
        bad_jobs.clear()
        way, job = ENDINGS[number % len(ENDINGS)], bad_jobs.start(text, 3)
        time.sleep(choice.uniform(0.8 * begin, 1.05 * end_of_writing))
        try:
            end(job, way, choice)
        except ProcessLookupError:
            job.wait()
        if bad_jobs.target.exists():
            published += 1
            check_complete(bad_jobs.target)
            assert (bad_jobs.target / SINGLE).read_bytes() == content, f"kill {number} ({way}): another file"
            continue
        again = bad_jobs.run(text, ranks=3)
        assert again.code == 0, f"kill {number} ({way}): {again.error}"
        assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"], f"kill {number} ({way}): leftovers"
        assert (bad_jobs.target / SINGLE).read_bytes() == content
    print(f"{kills} kills, {published} after the publication")


def test_a_staged_container_says_that_it_is_not_complete(bad_jobs, source):
    """A user who opens what a killed job left behind is told by the file itself."""
    job = bad_jobs.start(bad_jobs.text(source, "hdf5", memory="1 MiB"), 1)
    staged = lambda: bad_jobs.part() / SINGLE  # noqa: E731
    wait_until(lambda: staged().exists() and staged().stat().st_size > 0 or job.process.poll() is not None)
    bad_jobs.signal(job.process.pid, signal.SIGSTOP)
    staged = staged()
    if staged.exists():
        try:
            with h5py.File(staged) as file:
                assert file.attrs["complete"] == 0
        except OSError:
            pass  # no header yet
    job.kill()
    job.wait()
    assert not bad_jobs.target.exists()


def test_a_signal_leaves_no_target(bad_jobs, source):
    job = bad_jobs.start(bad_jobs.text(source, "hdf5", memory="1 MiB"), 1)
    wait_until(lambda: bad_jobs.part().exists() or job.process.poll() is not None)
    bad_jobs.signal(job.process.pid, signal.SIGTERM)
    outcome = job.wait()
    assert outcome.code in (0, 75), outcome.error
    assert bad_jobs.target.exists() == (outcome.code == 0)


# --- hostile files ------------------------------------------------------------------------------------------------

ROWS = [(name, maker, words, way) for number, (name, maker, words) in enumerate(hdf5_files.REFUSED)
        for place, way in enumerate(("inspect", "ls", "job-1", "job-3")) if LARGE or place == number % 4]


def test_there_are_many_hostile_files():
    assert len(hdf5_files.REFUSED) >= 35


@pytest.mark.long_but(
    "external_link-job-3", "cycle_of_groups-inspect", "virtual_dataset-job-1", "gzip-ls", "external_storage_of_the_system-job-3",
    "compound-job-1", "shape_bomb-job-3", "overlap-inspect", "beyond_the_file-job-1", "incomplete-inspect", "container_with_a_bad_digest-ls",
    "container_with_a_group_in_tensors-job-3")
@pytest.mark.parametrize("name, maker, words, way", ROWS, ids=[f"{row[0]}-{row[3]}" for row in ROWS])
def test_hostile_files_are_refused_in_one_sentence(name, maker, words, way, bad_jobs):
    path = bad_jobs.scratch / "source" / "x.h5"
    path.parent.mkdir()
    maker(path)
    if way.startswith("job"):
        outcome = bad_jobs.refused(SOURCE, words, bad_jobs.text(path, "dcp", target_options={"chunks": "whole"}), ranks=int(way[-1]))
    else:
        outcome = Running(command_of([way, path]), bad_jobs.scratch).wait()
        if way == "inspect":  # tells what it can, and what is wrong in a row of its own
            outcome.error = outcome.out.partition("mismatches")[2].strip()
        expect(outcome, SOURCE, words)
    assert "x.h5" in outcome.error and outcome.error.isprintable() and outcome.seconds < 10


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_hostile_file_among_good_ones_is_refused(ranks, bad_jobs):
    folder = bad_jobs.scratch / "source"
    folder.mkdir()
    for number in range(5):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file[f"t{number}"] = torch.arange(4).numpy()
    hdf5_files.soft_link(folder / "3.h5")
    bad_jobs.refused(SOURCE, ("3.h5", "soft link"), bad_jobs.text(folder, "dcp", target_options={"chunks": "whole"}), ranks=ranks)


def test_a_target_that_exists_stays(bad_jobs, source):
    old = bad_jobs.old_target()
    expect(bad_jobs.run(bad_jobs.text(source, "hdf5")), TARGET, ("target", "exists"))
    assert listing(bad_jobs.parent) == old
