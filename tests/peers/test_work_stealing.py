"""A rank that has done its cells does some of a slower rank's (run.work_stealing): the target has the same bytes, nothing of it stays, and a job that is killed
meanwhile is resumed."""

import functools
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

import bad_sources
from bad_job import TARGET, wait_until
from reshard_job import tree_hashes

SHIM = os.environ.get("RESHARD_DELAY_SHIM")
pytestmark = pytest.mark.skipif(not SHIM, reason="RESHARD_DELAY_SHIM is not set: no rank is slower than another")

MODEL = bad_sources.DENSE.with_(layers=4, hidden=512, heads=8, groups=8, head_dim=64, ffn=1408, vocab=1024, dtype="float32")  # 56 MB
MEMORY = "1 MiB"  # rounds of 256 KiB
PARTS = 32  # of each rank; the first is its own
SLOW_MILLISECONDS = 20  # what each write of a slow rank takes longer
FORMATS = {"megatron": {"layout": "{ tp = 4 }"}, "torch_dist": {"layout": "{ tp = 2 }"}, "huggingface": {}, "hdf5": {"part_bytes": "20 MB"}}


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="reshard-hand-out-")


@functools.cache
def tree():
    return bad_sources.large_tree(Path(folder().name) / "source", MODEL)


def text(jobs, target_format="megatron", **options):
    model = {"map": "llama"} if target_format in ("huggingface", "hdf5") else {}
    return jobs.text(tree(), target_format, target_options=FORMATS[target_format], model=model, memory=MEMORY, **options)


@functools.cache
def expected(target_format):
    """What one rank makes."""
    from bad_job import BadJobs
    (Path(folder().name) / target_format).mkdir()
    jobs = BadJobs(Path(folder().name) / target_format)
    report(jobs.run(text(jobs, target_format), options=["--json"]))
    return tree_hashes(jobs.target)


def report(outcome):
    assert outcome.code == 0, outcome.error
    return json.loads(outcome.out)["run"]


def slow(jobs, delays):
    """What to put in front of each rank, so that each write of these takes so many milliseconds longer."""
    for file in jobs.scratch.glob("delay*"):
        file.unlink()
    for rank, milliseconds in delays.items():
        (jobs.scratch / f"delay{rank}").write_text(str(milliseconds))
    return ["env", f"LD_PRELOAD={SHIM}", "RESHARD_DELAY_PATH=.part-", f"RESHARD_DELAY_FILE={jobs.scratch}/delay%r"]


def assert_only_the_target(jobs):
    assert [path.name for path in jobs.parent.iterdir()] == ["target"]
    assert not [path for path in jobs.target.rglob("*") if "claim" in path.name]


@pytest.mark.long_but("megatron-2")
@pytest.mark.parametrize("target_format, ranks", [("megatron", 2), ("megatron", 4), ("torch_dist", 3), ("huggingface", 3), ("hdf5", 2)],
                         ids=lambda value: str(value))
def test_others_do_cells_of_a_slow_rank(target_format, ranks, bad_jobs):
    done = report(bad_jobs.run(text(bad_jobs, target_format), ranks, prefix=slow(bad_jobs, {1: SLOW_MILLISECONDS}), options=["--json"]))
    assert done["cells_handed_out"] > 0
    assert done["bytes_handed_out"] > 0.2 * done["bytes_written"] / ranks, "less than a fifth of what was the slow rank's"
    if (target_format, ranks) == ("megatron", 2):  # the first rank has two of the four files for itself, and parts end within them
        assert done["bytes_verified_early"] > 0
    assert tree_hashes(bad_jobs.target) == expected(target_format)
    assert_only_the_target(bad_jobs)


@pytest.mark.long
@pytest.mark.parametrize("setting", ["run.work_stealing=never", "run.transport=mpi", "run.memory=64 MiB"])
def test_none_do(setting, bad_jobs):
    """Where the job forbids it, where ranks exchange what they read, and where each has too few rounds for it."""
    done = report(bad_jobs.run(text(bad_jobs), 2, prefix=slow(bad_jobs, {1: SLOW_MILLISECONDS}), settings=[setting], options=["--json"]))
    assert done["cells_handed_out"] == done["bytes_handed_out"] == 0
    assert tree_hashes(bad_jobs.target) == expected("megatron")


@pytest.mark.long
@pytest.mark.parametrize("settings", [["run.device=emulated"], ["run.io=direct"], ["run.verify=streamed"], ["run.self_check=100"]], ids=lambda words: words[0])
def test_on_other_paths(settings, bad_jobs):
    done = report(bad_jobs.run(text(bad_jobs), 2, prefix=slow(bad_jobs, {0: SLOW_MILLISECONDS}), settings=settings, options=["--json"]))
    assert done["cells_handed_out"] > 0
    assert tree_hashes(bad_jobs.target) == expected("megatron")
    assert_only_the_target(bad_jobs)


def test_the_text_says_it_in_the_line_of_the_data(bad_jobs):
    outcome = bad_jobs.run(text(bad_jobs), 2, prefix=slow(bad_jobs, {1: SLOW_MILLISECONDS}))
    assert outcome.code == 0, outcome.error
    lines = [line for line in outcome.out.splitlines() if "of it for slower ranks" in line]
    assert len(lines) == 1 and lines[0].startswith("data ")


@pytest.mark.long_but("SIGKILL-3")
@pytest.mark.parametrize("number, ranks", [(number, ranks) for number in (signal.SIGKILL, signal.SIGUSR1) for ranks in (1, 2, 3)],
                         ids=lambda value: getattr(value, "name", str(value)))
def test_a_job_that_is_stopped_meanwhile_is_resumed(number, ranks, bad_jobs):
    """By any number of ranks: what the stopped ranks had claimed and not done means nothing to the next."""
    job = bad_jobs.start(text(bad_jobs), 2, prefix=slow(bad_jobs, {0: 1, 1: SLOW_MILLISECONDS}))  # the stop comes long before the end, however busy the cores
    taken = f"0000.claim-{2 * PARTS - 1:05}"  # of the slow rank's parts the other takes the last one first
    wait_until(lambda: job.process.poll() is not None or (bad_jobs.journal() / taken).exists(), 30)
    assert job.process.poll() is None, "the job was done before it could be stopped"
    if number == signal.SIGKILL:
        job.kill()
    else:
        bad_jobs.signal(job.ranks()[0], number)
    assert job.wait().code != 0
    assert (bad_jobs.journal() / taken).exists() and not bad_jobs.target.exists()
    log = bad_jobs.scratch / "events"
    for _ in range(50):
        outcome = bad_jobs.run(text(bad_jobs), ranks, prefix=slow(bad_jobs, {0: 5}), options=["--events", log])
        if outcome.code != TARGET:  # ranks of the killed run may still be on their way out
            break
        time.sleep(0.2)
    assert outcome.code == 0, outcome.error
    events = [json.loads(line) for line in log.read_text().splitlines()]
    reused = next(event["bytes_reused"] for event in events if event["type"] == "resume")
    done = events[-1]["report"]["run"]
    assert reused > 0 and (done["cells_handed_out"] > 0) == (ranks > 1)
    assert tree_hashes(bad_jobs.target) == expected("megatron")
    assert_only_the_target(bad_jobs)
