"""Jobs that are stopped, killed, or meet another job: the target is absent or complete, and the next run succeeds."""

import functools
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch

import bad_sources
from bad_job import INTERRUPTED, STALL, TARGET, expect, listing, shim, wait_until
from numpy_megatron import write_tree
from peer_types import LOCAL, Layout
from reshard_job import tree_hashes
from tensor_patterns import global_shapes

KILLS = 10
LEFT = {".target.part", ".target.resume"}  # by a job that may be gone on with
LARGE = bad_sources.DENSE.with_(layers=4, hidden=1024, heads=16, groups=16, head_dim=64, ffn=2816, vocab=1024, dtype="float32")  # 200 MB
SMALL = LARGE.with_(hidden=256, heads=4, groups=4, ffn=704)  # 14 MB


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="reshard-bad-")


@functools.cache
def tree(config):
    tensors = {name: torch.ones(shape) for name, shape in global_shapes(config).items()}
    return write_tree(Path(folder().name) / str(config.hidden), config, Layout(tp=2, pp=2), LOCAL, tensors)


@pytest.fixture
def large():
    return tree(LARGE)


def started(jobs, source, ranks, memory="1 MiB", **options):
    """A job that has begun to write: with so little memory the rest takes a while."""
    job = jobs.start(jobs.text(source, memory=memory, **options), ranks)
    wait_until(lambda: jobs.part().exists() or job.process.poll() is not None)
    assert job.process.poll() is None, job.wait()
    return job


# --- signals ------------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("15-3", "10-1")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_job_and_leaves_what_the_next_one_goes_on_with(number, ranks, bad_jobs, large):
    job = started(bad_jobs, large, ranks)
    bad_jobs.signal(job.ranks()[0], number)  # one rank alone: the others must learn of it
    outcome = job.wait()
    expect(outcome, INTERRUPTED, ("Nothing was published", "again"))
    assert bad_jobs.names() == LEFT
    assert outcome.seconds < 10


def test_a_signal_during_an_exchange(bad_jobs, large):
    """Messages are under way, so the job is cut off as by a kill: what it leaves has a hidden name, and the next job clears it."""
    job = bad_jobs.start(bad_jobs.text(large), 3, settings=["run.transport=mpi"])
    wait_until(lambda: bad_jobs.part().exists())
    bad_jobs.signal(job.ranks()[-1], signal.SIGTERM)
    expect(job.wait(), INTERRUPTED, ("Nothing was published", "again"))
    assert not bad_jobs.target.exists()
    assert bad_jobs.run(bad_jobs.text(bad_sources.original("dense"))).code == 0
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_a_signal_leaves_the_target_that_was_to_be_replaced(bad_jobs, large):
    old = bad_jobs.old_target()
    job = started(bad_jobs, large, 1, target_options={"replace": True})
    bad_jobs.signal(job.process.pid, signal.SIGTERM)
    expect(job.wait(), INTERRUPTED, ("Nothing was published",))
    assert bad_jobs.names() == LEFT | {"target"}
    assert {name: content for name, content in listing(bad_jobs.parent).items() if name.startswith("target")} == old


def test_the_launchers_signal_reaches_all_ranks(bad_jobs, large):
    job = started(bad_jobs, large, 3)
    bad_jobs.signal(job.process.pid, signal.SIGUSR1)  # mpirun passes it on
    expect(job.wait(), INTERRUPTED, ("Nothing was published",))
    assert bad_jobs.names() == LEFT


# --- kills --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.long)], ids=["few", "many"])
def test_a_kill_at_any_moment_leaves_the_target_absent_or_complete(kills, bad_jobs):
    source, choice = tree(SMALL), random.Random(1)
    text = bad_jobs.text(source, memory="1 MiB", target_options={"layout": "{ tp = 4 }"})
    whole = bad_jobs.run(text, ranks=3)
    assert whole.code == 0, whole.error
    expected = tree_hashes(bad_jobs.target)
    for number in range(kills):
        bad_jobs.clear()
        job = bad_jobs.start(text, 3)
        time.sleep(choice.uniform(0.0, 1.0) * whole.seconds)
        job.kill()
        job.wait()
        complete = bad_jobs.target.exists()
        assert not complete or tree_hashes(bad_jobs.target) == expected, f"kill {number}: an incomplete target"
        again = bad_jobs.run(text, ranks=3)
        assert again.code == (TARGET if complete else 0), f"kill {number}: {again.error}"
        assert tree_hashes(bad_jobs.target) == expected
        if not complete:
            assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"], f"kill {number}: the rerun left what the kill had left"


@pytest.mark.long_but("-1")
@pytest.mark.parametrize("which", [0, -1])
def test_the_loss_of_one_rank_ends_the_job(which, bad_jobs, large):
    job = started(bad_jobs, large, 3)
    bad_jobs.signal(job.ranks()[which], signal.SIGKILL)
    outcome = job.wait()
    assert outcome.code != 0 and outcome.seconds < 15
    assert not bad_jobs.target.exists()


# --- two jobs for one target --------------------------------------------------------------------------------------------


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_second_job_for_the_same_target_is_refused_while_the_first_runs(ranks, bad_jobs, large):
    first = started(bad_jobs, large, 1, memory="1 MiB")
    bad_jobs.signal(first.process.pid, signal.SIGSTOP)  # so that it does run
    second = bad_jobs.start(bad_jobs.text(bad_sources.original("dense"), target_options={"replace": True}), ranks)
    expect(second.wait(), TARGET, ("target", "another job", "Wait"))
    bad_jobs.signal(first.process.pid, signal.SIGCONT)
    outcome = first.wait()
    assert outcome.code == 0, outcome.error
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_of_jobs_started_together_one_wins(bad_jobs):
    sources = [bad_sources.original("dense"), bad_sources.original("flat"), tree(SMALL)]
    outcomes = [job.wait() for job in [bad_jobs.start(bad_jobs.text(source)) for source in sources]]
    assert sorted(outcome.code for outcome in outcomes) == [0, TARGET, TARGET], [outcome.error for outcome in outcomes]
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


# --- a source that changes ----------------------------------------------------------------------------------------------


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_source_that_changes_during_the_run_is_not_published(ranks, bad_jobs, scratch):
    source = shutil.copytree(tree(LARGE), scratch / "source")
    job = started(bad_jobs, source, ranks)
    for pid in job.ranks():
        bad_jobs.signal(pid, signal.SIGSTOP)
    shard = bad_sources.shard(source, "mp_rank_01_001")
    with shard.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    for pid in job.ranks():
        bad_jobs.signal(pid, signal.SIGCONT)
    outcome = job.wait()
    expect(outcome, 5, ("mp_rank_01", "changed", "Nothing was published", "again"))
    assert not listing(bad_jobs.parent)


@pytest.mark.skipif(not os.environ.get("RESHARD_CALL_SHIM"), reason="RESHARD_CALL_SHIM is not set: no call is held")
def test_a_write_that_does_not_return_ends_the_job(bad_jobs):
    job = bad_jobs.start(bad_jobs.text(bad_sources.original("dense")), prefix=shim(f"pwritev2:.target.part-:hold={bad_jobs.scratch}/hold"),
                         settings=["run.stall_seconds=1"])
    expect(job.wait(), STALL, ("no round was read or written for 1 s", "it hangs during writing of", "Check the file systems"))
