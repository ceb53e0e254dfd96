"""`reshard nightly` with nightly.backfill and nightly.after: older checkpoints in their turn, and a command for each finished target."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from bad_job import INTERRUPTED, SOURCE, TARGET, TIMEOUT_SECONDS, wait_until
from reshard_job import BINARY
from test_nightly import age, cut_short, held, interrupted_night, nights  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
AFTER = 9
BACKFILL = "backfill = true\n"


def night(nights, more, *settings, code=0, **options):
    """The document, and what was said on stderr."""
    process = nights.start(*settings, options=["--json"], more=more, **options)
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == code, f"exit {process.returncode}: {err}{out}"
    return json.loads(out), err


def done(told):
    """[(name, action)] of the conversions, in their order."""
    return [(Path(one["target"]).name[-1], one["action"]) for one in told["conversions"]]


def saves(nights, *steps):
    for step in steps:
        nights.save(f"iter_{step:07d}")


def spoil(folder):
    """A weight is changed: complete by its headers, and not by its checksums."""
    path = folder / "mp_rank_00" / "model_optim_rng.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    age(folder)


def command(nights, text):
    """A command in a file of its own, whose calls are counted in `calls`."""
    script = nights.scratch / "after.sh"
    script.write_text(f'echo "$1" >> {nights.scratch}/calls\n{text}\n')
    return f'after = "sh {script} \\"$1\\""\n'


def calls(nights):
    path = nights.scratch / "calls"
    return [Path(line).name[-1] for line in path.read_text().splitlines()] if path.exists() else []


def test_older_checkpoints_follow_the_newest(nights):
    saves(nights, 1, 2, 3, 4)
    spoil(nights.train / "iter_0000003")
    cut_short(nights.train / "iter_0000001" / "mp_rank_01" / "model_optim_rng.pt")
    age(nights.train)
    told, err = night(nights, BACKFILL, code=SOURCE)
    assert done(told) == [("4", "converted"), ("3", "failed"), ("2", "converted")]
    assert told["action"] == "converted" and told["target"] == str(nights.serving / "iter_0000004") and told["exit_code"] == SOURCE
    assert "report" not in told and told["conversions"][0]["report"]["target"]["path"] == told["target"]
    assert told["conversions"][1]["exit_code"] == SOURCE and told["conversions"][1]["error"] in err
    assert [skip["name"] for skip in told["skipped"]] == ["iter_0000001"]
    assert nights.converted() == ["iter_0000002", "iter_0000004"]
    shutil.rmtree(nights.train / "iter_0000003")
    age(nights.save("iter_0000003"), 1800)  # saved again
    told, _ = night(nights, BACKFILL)
    assert done(told) == [("4", "up_to_date"), ("3", "converted")]
    assert done(night(nights, BACKFILL)[0]) == [("4", "up_to_date")]
    assert "conversions" not in night(nights, "")[0]


@pytest.mark.long
def test_only_what_would_stay_is_converted(nights):
    saves(nights, 1, 2, 3, 4)
    told, _ = night(nights, BACKFILL, keep=2)
    assert done(told) == [("4", "converted"), ("3", "converted")] and told["removed"] == []
    assert done(night(nights, BACKFILL, keep=2)[0]) == [("4", "up_to_date")]
    shutil.rmtree(nights.train / "iter_0000003")
    shutil.rmtree(nights.serving / "iter_0000004")
    told, _ = night(nights, BACKFILL, keep=2)  # number 3 still counts without its source
    assert done(told) == [("4", "converted")] and nights.converted() == ["iter_0000003", "iter_0000004"]


def test_nothing_is_removed_in_a_night_whose_command_fails(nights):
    saves(nights, 1)
    night(nights, "", keep=1)
    saves(nights, 2)
    told, _ = night(nights, command(nights, "exit 7"), keep=1, code=AFTER)
    assert told["action"] == "converted" and told["removed"] == [] and nights.converted() == ["iter_0000001", "iter_0000002"]
    told, _ = night(nights, command(nights, "exit 0"), keep=1)
    assert told["action"] == "up_to_date" and told["removed"] == [str(nights.serving / "iter_0000001")]


def test_warnings_come_before_the_command(nights):
    age(nights.save("iter_0000001", kind="hf"))
    told, err = night(nights, command(nights, "echo words of the command"), target_format="huggingface")
    assert told["warnings"]
    for warning in told["warnings"]:
        assert err.index(f"warning: {warning}") < err.index("words of the command")
    assert err.count("warning: ") == len(told["warnings"])


@pytest.mark.long_but("1")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_command_is_run_until_it_has_succeeded(ranks, nights):
    saves(nights, 1)
    fails = nights.scratch / "fails"
    fails.touch()
    more = command(nights, f'test "$RESHARD_TARGET" = "$1" && test -f "$RESHARD_RECORD" && test -d "$RESHARD_SOURCE" || exit 5\n'
                           f'echo words of the command\ntest ! -e {fails} || exit 7')
    target = nights.serving / "iter_0000001"
    told, err = night(nights, more, code=AFTER, ranks=ranks)
    assert told["action"] == "converted" and told["after"]["state"] == "failed" and told["after"]["exit_code"] == AFTER
    assert "words of the command" in err and f"{target}: is complete, but nightly.after = " in err and "ended with exit code 7" in err
    assert nights.converted() == ["iter_0000001"]
    fails.unlink()
    told, _ = night(nights, more, ranks=ranks)
    assert told["action"] == "up_to_date" and told["after"]["state"] == "succeeded" and calls(nights) == ["1", "1"]
    told, _ = night(nights, more, ranks=ranks)
    assert told["after"] is None and calls(nights) == ["1", "1"]
    age(nights.train / "iter_0000001", 1800)  # another time: another source
    assert night(nights, more, ranks=ranks)[0]["after"]["state"] == "succeeded" and len(calls(nights)) == 3
    saves(nights, 2)
    told, _ = night(nights, more, keep=1, ranks=ranks)
    assert told["removed"] == [str(target)] and nights.converted() == [".iter_0000002.after", "iter_0000002"]


@pytest.mark.long
def test_each_older_one_has_its_command(nights):
    saves(nights, 1, 2, 3)
    more = BACKFILL + command(nights, 'case "$1" in *3|*1) exit 1;; esac')
    told, _ = night(nights, more, code=AFTER)
    assert done(told) == [("3", "converted"), ("2", "converted"), ("1", "converted")] and calls(nights) == ["3", "2", "1"]
    assert [one["after"]["state"] for one in told["conversions"]] == ["failed", "succeeded", "failed"]
    told, _ = night(nights, more, code=AFTER)
    assert done(told) == [("3", "up_to_date"), ("1", "up_to_date")] and calls(nights)[3:] == ["3", "1"]
    log = nights.scratch / "events"
    process = nights.start(options=["--quiet", "--events", str(log)], more=BACKFILL + command(nights, "true"))
    assert process.wait(TIMEOUT_SECONDS) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(event["target"][-1], event["state"]) for event in events if event["type"] == "after"] == [
        ("3", "begin"), ("3", "succeeded"), ("1", "begin"), ("1", "succeeded")]
    assert events[-1]["type"] == "result" and len(events[-1]["nightly"]["conversions"]) == 2


@pytest.mark.long
def test_a_plan_lists_all_and_runs_nothing(nights):
    saves(nights, 1, 2)
    process = nights.start(options=["--dry-run", "--json"], more=BACKFILL + command(nights, "true"))
    told = json.loads(process.communicate(timeout=TIMEOUT_SECONDS)[0])
    assert done(told) == [("2", "would convert"), ("1", "would convert")]
    assert nights.converted() == [] and calls(nights) == []


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_long_command_is_no_stall(ranks, nights):
    saves(nights, 1)
    more = command(nights, "sleep 4")
    told, _ = night(nights, more, "run.stall_seconds=1", ranks=ranks)
    assert told["after"]["state"] == "succeeded" and told["after"]["seconds"] > 3
    saves(nights, 2)
    told, err = night(nights, more, "nightly.after_seconds=1", code=AFTER, ranks=ranks)
    assert told["action"] == "converted" and "took longer than nightly.after_seconds = 1" in err


@pytest.mark.long
def test_a_command_may_use_this_program(nights):
    """Under mpirun: it must not take itself for a rank of the job."""
    saves(nights, 1)
    told, err = night(nights, command(nights, f'{BINARY} verify "$1" && mpirun --allow-run-as-root --oversubscribe -n 2 {BINARY} digest "$1"'), ranks=2)
    assert told["after"]["state"] == "succeeded" and "OK: " in err


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_command_and_the_next_night_repeats_it(number, nights):
    saves(nights, 1, 2)
    ready = nights.scratch / "ready"
    more = BACKFILL + command(nights, f"trap 'echo got it; exit 1' TERM\ntouch {ready}\nwhile test ! -e {nights.scratch}/go; do sleep 0.02; done")
    process = nights.start(options=["--json"], more=more)
    wait_until(ready.exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == INTERRUPTED and "got it" in err and "after this job was told to stop" in err
    assert done(json.loads(out)) == [("2", "converted")] and nights.converted() == ["iter_0000002"]
    (nights.scratch / "go").touch()
    told, _ = night(nights, more)
    assert done(told) == [("2", "up_to_date"), ("1", "converted")] and calls(nights) == ["2", "2", "1"]


@pytest.mark.long
def test_one_night_at_a_time_runs_the_command(nights):
    saves(nights, 1)
    ready = nights.scratch / "ready"
    more = command(nights, f"touch {ready}\nwhile test ! -e {nights.scratch}/go; do sleep 0.02; done")
    process = nights.start(more=more)
    wait_until(ready.exists)
    told, err = night(nights, more, code=TARGET)
    assert told["action"] == "up_to_date" and "is locked" in err
    (nights.scratch / "go").touch()
    assert process.communicate(timeout=TIMEOUT_SECONDS) is not None and process.returncode == 0
    assert night(nights, more)[0]["after"] is None and calls(nights) == ["1"]


@pytest.mark.long
def test_what_a_killed_night_left_of_an_older_checkpoint_is_resumed(nights):
    nights.save("iter_0000001", "dense")
    part, journal = interrupted_night(nights, "iter_0000001")
    saves(nights, 2)
    with held(nights.serving / ".iter_0000001.lock"):
        told, _ = night(nights, BACKFILL, code=TARGET)
    assert done(told) == [("2", "converted"), ("1", "failed")]
    assert told["cleaned"] == told["warnings"] == [] and part.is_dir() and journal.is_dir()
    told, _ = night(nights, BACKFILL)
    assert done(told) == [("2", "up_to_date"), ("1", "converted")]
    assert told["conversions"][1]["report"]["run"]["earlier_runs"] == 1 and told["cleaned"] == []
    assert nights.converted() == ["iter_0000001", "iter_0000002"]


@pytest.mark.long
def test_an_older_target_that_is_locked_waits_and_one_of_others_is_named(nights):
    saves(nights, 1, 2, 3)
    (nights.serving / "iter_0000001").mkdir(parents=True)
    (nights.serving / "iter_0000001" / "thesis.tex").write_text("precious")
    with held(nights.serving / ".iter_0000002.lock"):
        told, err = night(nights, BACKFILL, code=TARGET)
    assert done(told) == [("3", "converted"), ("2", "failed")] and "is locked" in err
    assert [skip["name"] for skip in told["skipped"]] == ["iter_0000001"] and "Move it away" in told["skipped"][0]["reason"]
    assert done(night(nights, BACKFILL)[0]) == [("3", "up_to_date"), ("2", "converted")]
    assert (nights.serving / "iter_0000001" / "thesis.tex").read_text() == "precious"
