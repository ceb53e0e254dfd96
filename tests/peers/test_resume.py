"""Jobs that were interrupted go on where they stopped: the target has the same bytes as one made in one go, and what was done is not done again."""

import functools
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

import bad_sources
from bad_job import INTERRUPTED, IO, MARK, TARGET, BadJobs, expect, wait_until
from reshard_job import tree_hashes

MODEL = bad_sources.DENSE.with_(layers=4, hidden=1024, heads=16, groups=16, head_dim=64, ffn=2816, vocab=1024, dtype="float32")  # 200 MB
MEMORY = "8 MiB"  # rounds of about 2 MB, 100 of them
ROUND_BYTES = 4 << 20  # none is larger
INTERRUPTIONS = int(os.environ.get("RESHARD_TEST_INTERRUPTIONS", "8"))
SHIM = os.environ.get("RESHARD_DELAY_SHIM")
WRITE_MILLISECONDS = 10  # what each write into the staging folder of a job that is to be interrupted takes longer

pytestmark = pytest.mark.skipif(not SHIM, reason="RESHARD_DELAY_SHIM is not set: a job may be done before its signal comes")
FORMATS = {
    "megatron": {"layout": "{ tp = 4 }"},
    "torch_dist": {"layout": "{ tp = 2 }"},
    "huggingface": {},
    "hdf5": {"part_bytes": "40 MB"},
}


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="reshard-resume-")


@functools.cache
def tree():
    return bad_sources.large_tree(Path(folder().name) / "source", MODEL)


@functools.cache
def whole(target_format):
    """The hashes of the files that a run makes which nobody disturbs, and how many bytes it writes."""
    (Path(folder().name) / target_format).mkdir()
    jobs = BadJobs(Path(folder().name) / target_format)
    outcome = jobs.run(text(jobs, target_format), ranks=2, options=["--json"])
    assert outcome.code == 0, outcome.error
    return tree_hashes(jobs.target), json.loads(outcome.out)["run"]["bytes_written"]


def text(jobs, target_format="megatron", **options):
    model = {"map": "llama"} if target_format in ("huggingface", "hdf5") else {}
    target_options = FORMATS[target_format] | options.pop("target_options", {})
    return jobs.text(options.pop("source", tree()), target_format, target_options=target_options, model=model, memory=MEMORY, **options)


def events(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def attempt(jobs, job_text, number=None, writes=20, ranks=2, settings=(), prefix=()):
    """Runs the job to its end; with a signal its writes are slow, and after so many of them the signal comes to a rank, or SIGKILL to all."""
    log = jobs.scratch / f"events{jobs.count}"
    job = jobs.start(job_text, ranks, prefix=[*(slow_writes(jobs) if number else ()), *prefix], settings=settings, options=["--events", log])
    if number:
        wait_until(lambda: job.process.poll() is not None or writes_so_far(jobs) >= writes, 30)
        if number == signal.SIGKILL:
            job.kill()
        else:
            jobs.signal(job.ranks()[0] if job.ranks() else job.process.pid, number)
    outcome = job.wait()
    return outcome, events(log)


def slow_writes(jobs):
    """What to put in front of each rank, so that a job lasts as long on a fast machine as a test needs to interrupt it."""
    delay, log = jobs.scratch / "delay", jobs.scratch / "writes"
    delay.write_text(str(WRITE_MILLISECONDS))
    log.unlink(missing_ok=True)
    return ["env", f"LD_PRELOAD={SHIM}", "RESHARD_DELAY_PATH=.part-", f"RESHARD_DELAY_FILE={delay}", f"RESHARD_DELAY_LOG={log}"]


def writes_so_far(jobs):
    log = jobs.scratch / "writes"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def written(log):
    """What a run says it has written."""
    return log[-1]["report"]["run"]["bytes_written"]


def reused(log):
    return next((event["bytes_reused"] for event in log if event["type"] == "resume"), 0)


def gone_on(log):
    return any(event["type"] == "resume" for event in log)


def assert_tidy(jobs):
    assert [path.name for path in jobs.parent.iterdir()] == ["target"]


# --- interrupted anywhere ---------------------------------------------------------------------------------------------


@pytest.mark.long_but("megatron")
@pytest.mark.parametrize("target_format", FORMATS)
def test_a_run_goes_on_where_a_signal_stopped_it(target_format, bad_jobs):
    expected, total = whole(target_format)
    job = text(bad_jobs, target_format)
    outcome, log = attempt(bad_jobs, job, signal.SIGUSR1)
    expect(outcome, INTERRUPTED, ("Nothing was published", "again"))
    assert log[-1]["type"] == "result" and log[-1]["exit_code"] == INTERRUPTED
    assert not bad_jobs.target.exists()
    outcome, log = attempt(bad_jobs, job)
    assert outcome.code == 0, outcome.error
    assert gone_on(log) and reused(log) > 0
    assert written(log) + reused(log) == total, "a tidy stop loses nothing"
    assert tree_hashes(bad_jobs.target) == expected
    assert_tidy(bad_jobs)


@pytest.mark.parametrize("number, transport, count", [
    (signal.SIGKILL, "auto", 3), *[pytest.param(number, transport, INTERRUPTIONS, marks=pytest.mark.long)
                                   for number in (signal.SIGUSR1, signal.SIGKILL) for transport in ("auto", "mpi")]])
def test_interruptions_one_after_the_other(number, transport, count, bad_jobs):
    """The chain comes to an end, and every run loses at most what its ranks had in hand."""
    expected, total = whole("megatron")
    choice = random.Random(f"{number} {transport}")
    job, ranks, done = text(bad_jobs), 2, 0
    settings = [f"run.transport={transport}"]
    for interruption in range(count):
        outcome, log = attempt(bad_jobs, job, number, choice.randrange(1, 60), ranks, settings)
        while outcome.code == TARGET:  # ranks of the run before, which was killed, are still on their way out
            time.sleep(0.2)
            outcome, log = attempt(bad_jobs, job, number, choice.randrange(1, 60), ranks, settings)
        if outcome.code == 0:
            break
        assert outcome.code in (INTERRUPTED, 137, -signal.SIGKILL), outcome.error
        assert not bad_jobs.target.exists()
        assert interruption == 0 or gone_on(log) or reused(log) == 0
        assert reused(log) >= done, f"interruption {interruption}: {reused(log)} reused, {done} were sure before"
        done = reused(log)
    while not bad_jobs.target.exists():
        outcome, log = attempt(bad_jobs, job, ranks=ranks, settings=settings)
        assert outcome.code in (0, TARGET), outcome.error
    assert tree_hashes(bad_jobs.target) == expected
    assert_tidy(bad_jobs)
    assert total <= written(log) + reused(log) <= total + 2 * ranks * ROUND_BYTES


@pytest.mark.long
def test_a_run_that_read_back_goes_on_with_reading_back(bad_jobs):
    expected, total = whole("megatron")
    log_file = bad_jobs.scratch / "events"
    job = bad_jobs.start(text(bad_jobs), 2, options=["--events", log_file])
    wait_until(lambda: job.process.poll() is not None or (log_file.exists() and '"stage": "verify", "state": "begin"' in log_file.read_text()), 30)
    for rank in job.ranks():
        bad_jobs.signal(rank, signal.SIGTERM)
    outcome = job.wait()
    if outcome.code != 0:  # else it was done before the signal came
        expect(outcome, INTERRUPTED, ("Nothing was published",))
        outcome, log = attempt(bad_jobs, text(bad_jobs))
        assert outcome.code == 0 and reused(log) == total and written(log) == 0
    assert tree_hashes(bad_jobs.target) == expected
    assert_tidy(bad_jobs)


def test_another_number_of_ranks_goes_on_too(bad_jobs):
    expected, total = whole("megatron")
    job = text(bad_jobs)
    for ranks in (3, 1):
        outcome, _ = attempt(bad_jobs, job, signal.SIGUSR1, ranks=ranks)
        assert outcome.code == INTERRUPTED, outcome.error
    outcome, log = attempt(bad_jobs, job, ranks=4)
    assert outcome.code == 0, outcome.error
    assert gone_on(log) and written(log) + reused(log) == total
    assert tree_hashes(bad_jobs.target) == expected


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_a_job_that_was_suspended_for_longer_than_a_stall_goes_on(transport, bad_jobs):
    """As `scontrol suspend` does it: the time in which all ranks stand still is no stall."""
    job = bad_jobs.start(text(bad_jobs), 2, prefix=slow_writes(bad_jobs), settings=["run.stall_seconds=3", f"run.transport={transport}"])
    wait_until(lambda: job.process.poll() is not None or writes_so_far(bad_jobs) >= 20, 30)
    ranks = job.ranks()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for rank in ranks:
            bad_jobs.signal(rank, number)
        if number == signal.SIGSTOP:
            time.sleep(6)
    (bad_jobs.scratch / "delay").write_text("0")
    outcome = job.wait()
    assert len(ranks) == 2 and outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("megatron")[0]
    assert_tidy(bad_jobs)


# --- what must not be mixed -------------------------------------------------------------------------------------------


def interrupted(jobs, job, **options):
    outcome, log = attempt(jobs, job, signal.SIGUSR1, **options)
    expect(outcome, INTERRUPTED, ("Nothing was published",))
    assert jobs.journal().is_dir() and jobs.part().is_dir()
    return log


def assert_afresh(jobs, outcome, log, why, expected):
    assert outcome.code == 0, outcome.error
    assert not gone_on(log) and reused(log) == 0
    warnings = log[-1]["report"]["warnings"]
    assert any("not resumed" in line and why in line for line in warnings), warnings
    assert tree_hashes(jobs.target) == expected
    assert_tidy(jobs)


def planned(jobs, job_text):
    """What a plan says of the interrupted run; it changes nothing."""
    before = tree_hashes(jobs.parent)
    outcome = jobs.run(job_text, ranks=2, options=["--dry-run", "--json"])
    assert outcome.code == 0, outcome.error
    assert tree_hashes(jobs.parent) == before
    return json.loads(outcome.out).get("interrupted")


def test_another_job_begins_afresh(bad_jobs):
    expected, _ = whole("torch_dist")
    assert planned(bad_jobs, text(bad_jobs)) is None
    interrupted(bad_jobs, text(bad_jobs))
    same, other = planned(bad_jobs, text(bad_jobs)), planned(bad_jobs, text(bad_jobs, "torch_dist"))
    assert same["next_run"] == "resumes" and same["earlier_runs"] == 1 and 0 < same["bytes_written"] < same["bytes"], same
    assert other["next_run"] == "starts afresh" and "the job has changed" in other["why_not"] and other["folder"] == same["folder"], other
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs, "torch_dist")), "the job has changed", expected)


def test_a_source_that_was_written_since_begins_afresh(bad_jobs):
    source = shutil.copytree(tree(), bad_jobs.scratch / "source")
    expected, _ = whole("megatron")
    job = text(bad_jobs, source=source)
    interrupted(bad_jobs, job)
    os.utime(bad_sources.shard(source, "mp_rank_01_001"))
    assert_afresh(bad_jobs, *attempt(bad_jobs, job), "the source has changed", expected)


@pytest.mark.long
def test_another_memory_size_begins_afresh(bad_jobs):
    """Cells are cut for the memory that there is."""
    expected, _ = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs), settings=["run.memory=3 MiB"]), "run.memory", expected)


@pytest.mark.long
def test_on_demand_a_run_begins_afresh(bad_jobs):
    expected, _ = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    log = bad_jobs.scratch / "log"
    outcome = bad_jobs.run(text(bad_jobs), ranks=2, options=["--fresh", "--events", log])
    assert_afresh(bad_jobs, outcome, events(log), "--fresh", expected)


@pytest.mark.long
def test_a_file_that_is_gone_begins_afresh(bad_jobs):
    expected, _ = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    next(bad_jobs.part().rglob("*.pt")).unlink()
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs)), "missing or has another size", expected)


@pytest.mark.long
def test_another_spelling_of_the_same_places_goes_on(bad_jobs):
    interrupted(bad_jobs, text(bad_jobs))
    respelt = text(bad_jobs, target=bad_jobs.target.parent / "." / ".." / bad_jobs.target.parent.name / bad_jobs.target.name)
    outcome, log = attempt(bad_jobs, respelt)
    assert outcome.code == 0 and gone_on(log), outcome.error
    assert tree_hashes(bad_jobs.target) == whole("megatron")[0]


@pytest.mark.long
def test_files_beside_a_source_of_one_file_do_not_matter(bad_jobs):
    outcome = bad_jobs.run(bad_jobs.text(tree(), "hdf5", target=bad_jobs.scratch / "container", model={"map": "llama"}), ranks=2)
    assert outcome.code == 0, outcome.error
    job = bad_jobs.text(bad_jobs.scratch / "container" / "model.h5", "huggingface", model={"map": "llama"}, memory=MEMORY)
    interrupted(bad_jobs, job)
    (bad_jobs.scratch / "container" / "job.log").write_text("another line")
    outcome, log = attempt(bad_jobs, job)
    assert outcome.code == 0 and gone_on(log), outcome.error
    assert_tidy(bad_jobs)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["part", "resume"])
def test_a_folder_that_was_moved_away_is_not_followed(ending, bad_jobs):
    interrupted(bad_jobs, text(bad_jobs))
    elsewhere, folder_of_run = bad_jobs.scratch / "elsewhere", bad_jobs.left(ending)
    shutil.move(folder_of_run, elsewhere)
    folder_of_run.symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs)), "is not a folder", whole("megatron")[0])
    assert sorted(path.name for path in elsewhere.iterdir()) == before and not bad_jobs.target.is_symlink()


def test_a_damaged_journal_costs_time_and_no_byte(bad_jobs):
    expected, total = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    for journal in bad_jobs.journal().glob("0000-*"):
        content = journal.read_bytes()
        journal.write_bytes(content[: len(content) * 2 // 3] + os.urandom(50))
    outcome, log = attempt(bad_jobs, text(bad_jobs))
    assert outcome.code == 0, outcome.error
    assert 0 < reused(log) < total and tree_hashes(bad_jobs.target) == expected


@pytest.mark.long
def test_strange_things_in_the_journal_folder_and_the_staging_folder(bad_jobs):
    """What cannot be read counts for nothing; what does not belong there is not published."""
    expected, total = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    journal, staging = bad_jobs.journal(), bad_jobs.part()
    (journal / "0000-00007").mkdir()
    (journal / "0000-00007" / "file").write_text("x")
    (journal / "0000-00008").symlink_to("/dev/zero")
    shutil.copy(journal / "0000-00000", journal / "0000-00009")  # says again what is said already
    (journal / "0000.base").write_bytes(os.urandom(1000))
    (journal / "notes").write_text("x")
    (staging / "folder" / "below").mkdir(parents=True)
    (staging / "folder" / "below" / "file").write_text("x")
    (staging / "link").symlink_to(bad_jobs.scratch)
    outcome, log = attempt(bad_jobs, text(bad_jobs))
    assert outcome.code == 0, outcome.error
    assert 0 < reused(log) < total and tree_hashes(bad_jobs.target) == expected
    assert not (bad_jobs.target / "folder").exists() and not (bad_jobs.target / "link").is_symlink()
    assert_tidy(bad_jobs)


def test_bytes_that_changed_between_the_runs_are_found(bad_jobs):
    """Somebody wrote into the staging folder: the comparison with what was read says so, nothing is published, and the next run begins afresh."""
    expected, _ = whole("megatron")
    interrupted(bad_jobs, text(bad_jobs))
    changed = 0
    for file in bad_jobs.part().rglob("*.pt"):
        content = bytearray(file.read_bytes())
        for at in range(4096, len(content), 65536):
            if any(content[at : at + 64]):
                content[at] ^= 1
                changed += 1
        file.write_bytes(content)
    assert changed
    outcome, _ = attempt(bad_jobs, text(bad_jobs))
    expect(outcome, 7, ("Nothing was published",))
    assert not any(bad_jobs.parent.iterdir())
    outcome, log = attempt(bad_jobs, text(bad_jobs))
    assert outcome.code == 0 and not gone_on(log)
    assert tree_hashes(bad_jobs.target) == expected


@pytest.mark.long
def test_a_replaced_target_stays_until_the_end(bad_jobs):
    expected, _ = whole("megatron")
    bad_jobs.old_target()
    job = text(bad_jobs, target_options={"replace": True})
    interrupted(bad_jobs, job)
    assert (bad_jobs.target / MARK).read_text() == "precious"
    outcome, log = attempt(bad_jobs, job)
    assert outcome.code == 0 and gone_on(log)
    assert tree_hashes(bad_jobs.target) == expected
    assert_tidy(bad_jobs)


@pytest.mark.long
def test_where_ranks_write_together_a_run_begins_afresh(bad_jobs):
    expected, _ = whole("hdf5")
    job = text(bad_jobs, "hdf5", target_options={"io": "independent"})
    outcome, _ = attempt(bad_jobs, job, signal.SIGUSR1)
    assert outcome.code == INTERRUPTED, outcome.error
    outcome, log = attempt(bad_jobs, job)
    assert outcome.code == 0 and not gone_on(log), outcome.error
    assert tree_hashes(bad_jobs.target) == expected


# --- writes that the device lost ------------------------------------------------------------------------------------------


def lost_writes(jobs):
    """What to put in front of each rank, so that no sync of the target's weight files succeeds."""
    return ["env", f"LD_PRELOAD={os.environ['RESHARD_CALL_SHIM']}:{SHIM}", "RESHARD_CALLS=fsync:/model_optim_rng.pt:EIO"]


@pytest.mark.long
def test_a_sync_that_fails_is_told_once_and_ends_the_job(bad_jobs):
    """No reading back here: the job has nothing but the system's word."""
    outcome, log = attempt(bad_jobs, text(bad_jobs), settings=["run.verify=streamed"], prefix=lost_writes(bad_jobs))
    expect(outcome, IO, ("fsync", ".pt"))
    assert not any(bad_jobs.parent.iterdir())


@pytest.mark.long
def test_after_lost_writes_a_run_begins_afresh(bad_jobs):
    expected, _ = whole("megatron")
    settings = ["run.verify=streamed"]
    outcome, _ = attempt(bad_jobs, text(bad_jobs), signal.SIGUSR1, settings=settings, prefix=lost_writes(bad_jobs))
    expect(outcome, INTERRUPTED, ("Nothing was published",))
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs), settings=settings), "a sync failed", expected)


@pytest.mark.long
def test_after_lost_writes_of_an_earlier_run_the_next_one_begins_afresh(bad_jobs):
    """The sync at the beginning of a run that goes on is the one that is told."""
    expected, _ = whole("megatron")
    settings = ["run.verify=streamed"]
    attempt(bad_jobs, text(bad_jobs), signal.SIGKILL, settings=settings)  # nothing was synced
    outcome, _ = attempt(bad_jobs, text(bad_jobs), settings=settings, prefix=lost_writes(bad_jobs))
    expect(outcome, IO, ("fsync", ".pt"))
    assert_afresh(bad_jobs, *attempt(bad_jobs, text(bad_jobs), settings=settings), "a sync failed", expected)


# --- leftovers --------------------------------------------------------------------------------------------------------


def test_clean_removes_what_an_interrupted_run_left(bad_jobs):
    interrupted(bad_jobs, text(bad_jobs))
    neighbours = {".other.part-0123456789abcdef", ".target.parts", ".target.part-0123", "target2"}
    for name in neighbours:
        (bad_jobs.parent / name).mkdir()
    outcome = bad_jobs.command("clean", bad_jobs.target)
    assert outcome.code == 0, outcome.error
    assert {path.name for path in bad_jobs.parent.iterdir()} == neighbours
    again = bad_jobs.command("clean", bad_jobs.target)
    assert again.code == 0 and "nothing" in again.out


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "link"])
def test_clean_leaves_whatever_has_the_targets_name(kind, bad_jobs):
    interrupted(bad_jobs, text(bad_jobs))
    if kind == "file":
        bad_jobs.target.write_text("precious")
    else:
        bad_jobs.target.symlink_to(tree())
    outcome = bad_jobs.command("clean", bad_jobs.target)
    assert outcome.code == 0, outcome.error
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_clean_needs_a_name(bad_jobs):
    expect(bad_jobs.command("clean", ""), 2, ("empty",))


@pytest.mark.long
def test_events_are_not_added_to_another_file(bad_jobs):
    job = bad_jobs.scratch / "job1.toml"
    outcome = bad_jobs.run(text(bad_jobs), options=["--events", job])
    expect(outcome, 2, ("other data than events", "Choose another path"))
    assert job.read_text() == text(bad_jobs)


def test_clean_does_not_disturb_a_running_job(bad_jobs):
    job = bad_jobs.start(text(bad_jobs), 1, prefix=slow_writes(bad_jobs))
    wait_until(lambda: bad_jobs.journal().exists() or job.process.poll() is not None)
    expect(bad_jobs.command("clean", bad_jobs.target), TARGET, ("another job", "Wait"))
    assert job.wait().code == 0
