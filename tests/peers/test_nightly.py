"""`reshard nightly`: which checkpoint of a training directory is converted, and which converted ones stay."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import bad_sources
from bad_job import SOURCE, STALL, TARGET, TIMEOUT_SECONDS, USAGE, environment, family, listing, own_words, program_of, send, wait_until
from reshard_job import BINARY, RECORDS, manifest_of

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
TRACKER = "latest_checkpointed_iteration.txt"
FAULT_SHIM = os.environ.get("RESHARD_FAULT_SHIM")


class Nights:
    """A training directory, a folder of converted checkpoints, and the job file between them."""

    def __init__(self, scratch):
        self.scratch = Path(scratch)
        self.train = self.scratch / "train"
        self.serving = self.scratch / "serving"
        self.train.mkdir()

    def save(self, name, kind="flat"):
        """A Megatron iteration, or a Hugging Face folder, as training would leave it; an hour old."""
        original = bad_sources.original(kind)
        shutil.copytree(original / "iter_0001000" if (original / "iter_0001000").is_dir() else original, self.train / name)
        age(self.train / name)
        return self.train / name

    def track(self, step):
        (self.train / TRACKER).write_text(str(step))

    def job(self, target_format="megatron", keep=0, more=""):
        layout = "layout.tp = 1\n" if target_format == "megatron" else ""
        path = self.scratch / "nightly.toml"
        path.write_text(f'[source]\npath = "{self.train}"\n[target]\npath = "{self.serving}"\nformat = "{target_format}"\n{layout}'
                        f'[run]\nmemory = "1 MiB"\n[nightly]\nkeep = {keep}\n{more}')
        return path

    def start(self, *settings, ranks=1, options=(), exports=None, **job):
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
        sets = [word for setting in settings for word in ("--set", setting)]
        return subprocess.Popen([*launcher, BINARY, "nightly", str(self.job(**job)), *sets, *options], cwd=self.scratch,
                                env=environment() | (exports or {}), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *settings, code=0, **options):
        process = self.start(*settings, **options)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == code, f"exit {process.returncode}: {err}{out}"
        return out if code == 0 else own_words(err)

    def told(self, *settings, **options):
        """The one JSON document."""
        return json.loads(self.run(*settings, options=["--json"], **options))

    def converted(self):
        return sorted(path.name for path in self.serving.iterdir()) if self.serving.exists() else []


def age(folder, seconds=3600):
    past = time.time() - seconds
    for path in [*Path(folder).rglob("*"), Path(folder)]:
        os.utime(path, (past, past))


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_bytes()


@contextlib.contextmanager
def held(path):
    """The lock of a job, as another process holds it."""
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@pytest.fixture
def nights(scratch):
    return Nights(scratch)


@pytest.mark.long_but("1")
@pytest.mark.parametrize("ranks", [1, 3])
def test_targets_of_earlier_nights_are_read_again_part_by_part(ranks, nights):
    more = "verify_subset = 1\n"
    nights.save("iter_0001000")
    nights.track(1000)
    assert nights.told(ranks=ranks, more=more)["verified"] == []  # it has just been read back
    first = nights.serving / "iter_0001000"
    again = nights.told(ranks=ranks, more=more)
    assert again["action"] == "up_to_date" and [(one["path"], one["sound"]) for one in again["verified"]] == [(str(first), True)]
    assert again["verified"][0]["files_read_so_far"] == again["verified"][0]["files"] > 0
    assert "verified          " in nights.run(ranks=ranks, more=more)
    nights.save("iter_0002000")
    nights.track(2000)
    shard = next(path for path in first.rglob("*.pt"))
    shard.write_bytes(shard.read_bytes()[:-1] + bytes([shard.read_bytes()[-1] ^ 1]))
    words = nights.run(ranks=ranks, more=more, code=1)
    assert str(shard) in words and nights.converted() == [".iter_0001000.verified", "iter_0001000", "iter_0002000"]
    kept = nights.told("nightly.keep=1", ranks=ranks, more=more)
    assert kept["removed"] == [str(first)] and [one["path"] for one in kept["verified"]] == [str(nights.serving / "iter_0002000")]
    assert nights.converted() == [".iter_0002000.verified", "iter_0002000"]
    assert "verified" not in nights.told()
    assert "run.verify" in nights.run("run.verify=streamed", more=more, code=USAGE)


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_new_checkpoint_is_converted_once(ranks, nights):
    nights.save("iter_0001000")
    nights.track(1000)
    first = nights.told(ranks=ranks)
    assert first["action"] == "converted" and first["report"] is not None
    target = nights.serving / "iter_0001000"
    assert first["source"] == str(nights.train / "iter_0001000") and first["target"] == str(target)
    assert manifest_of(target)["source"]["path"] == str(nights.train / "iter_0001000")
    before = listing(nights.serving)
    second = nights.told(ranks=ranks)
    assert second["action"] == "up_to_date" and second["report"] is None
    assert nights.run(ranks=ranks).startswith(f"nothing to do: {target} is up to date")
    assert listing(nights.serving) == before


def test_the_result_is_that_of_run(nights, program):
    nights.save("iter_0001000")
    nights.run()
    target = program.run(nights.train / "iter_0001000", nights.scratch / "by-run", "megatron", ranks=1, target_options={"layout": "{ tp = 1 }"},
                         memory="1 MiB")
    assert {k: v for k, v in listing(target).items() if k not in RECORDS} == {
        k: v for k, v in listing(nights.serving / "iter_0001000").items() if k not in RECORDS}


def test_nothing_is_there_yet(nights):
    assert "no complete checkpoint" in nights.run()
    (nights.train / "tensorboard_2026").mkdir()
    (nights.train / "log.txt").write_text("step 5")
    assert nights.told() == {"action": "nothing_complete", "source": None, "target": None, "skipped": [], "removed": [], "cleaned": [], "warnings": [],
                             "report": None}
    assert nights.converted() == []


@pytest.mark.long
def test_the_tracker_has_the_last_word(nights):
    for step in (900, 1000, 1100):
        nights.save(f"iter_{step:07d}")
    nights.track(1000)
    told = nights.told()
    assert nights.converted() == ["iter_0001000"]
    assert [skip["name"] for skip in told["skipped"]] == ["iter_0001100"] and "names step 1000" in told["skipped"][0]["reason"]
    nights.track(1100)
    os.utime(nights.train / "iter_0001100" / "mp_rank_00" / "model_optim_rng.pt")  # named, so it need not settle
    nights.run()
    assert nights.converted() == ["iter_0001000", "iter_0001100"]


@pytest.mark.long
def test_what_changed_just_now_waits(nights):
    nights.save("iter_0000001")
    nights.save("iter_0000002")
    os.utime(nights.train / "iter_0000002" / "mp_rank_01" / "model_optim_rng.pt")
    told = nights.told()
    assert nights.converted() == ["iter_0000001"]
    assert "settle_seconds = 60" in told["skipped"][0]["reason"]
    nights.run("nightly.settle_seconds=0")
    assert nights.converted() == ["iter_0000001", "iter_0000002"]


def cut_short(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 8)


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


DAMAGE = {
    "a shard is missing": ("flat", lambda folder: shutil.rmtree(folder / "mp_rank_01"), "missing: mp_rank_01"),
    "a shard has no file": ("flat", without("mp_rank_01/model_optim_rng.pt"), "mp_rank_01"),
    "a shard is cut short": ("flat", lambda folder: cut_short(folder / "mp_rank_01" / "model_optim_rng.pt"), "mp_rank_01"),
    "a file of the index is missing": ("hf-parts", without(bad_sources.FILES[1]), "00002-of-00002"),
    "a file of the index is cut short": ("hf-parts", lambda folder: cut_short(folder / bad_sources.FILES[1]), "00002-of-00002"),
    "the index is missing": ("hf-parts", without(bad_sources.INDEX), "model"),
    "there is one shard and no index": ("hf-parts", without(bad_sources.INDEX, bad_sources.FILES[1]), "no model.safetensors.index.json yet"),
    "the one file is cut short": ("hf", lambda folder: cut_short(folder / "model.safetensors"), "model.safetensors"),
}


@pytest.mark.long_but("a shard is cut short")
@pytest.mark.parametrize("name", DAMAGE)
def test_an_incomplete_newest_is_skipped(name, nights):
    kind, damage, says = DAMAGE[name]
    nights.save("step-10", kind)
    nights.save("step-20", kind)
    damage(nights.train / "step-20")
    age(nights.train / "step-20")
    told = nights.told()
    assert nights.converted() == ["step-10"]
    assert says in told["skipped"][0]["reason"], told["skipped"]


@pytest.mark.long
@pytest.mark.parametrize("target_format, mark, says", [
    ("torch_dist", ".metadata", "written last"), ("torch_dist", "metadata.json", "metadata.json yet"), ("hdf5", None, "model.h5"),
    ("torch_dist", "item", "truncated")])
def test_other_formats_need_what_is_written_last(target_format, mark, says, nights, program):
    options = {"target_options": {"layout": "{ tp = 1 }"}} if target_format == "torch_dist" else {}
    made = program.run(bad_sources.original("flat"), nights.scratch / "made", target_format, ranks=1, **options)
    (made / "reshard.json").unlink()
    save = next(made.glob("iter_*"), made)
    for step in (10, 20):
        shutil.copytree(save, nights.train / f"iter_{step:07d}")
    newest = nights.train / "iter_0000020"
    if mark == "item":
        cut_short(next(newest.glob("*.distcp")))
    elif mark:
        (newest / mark).unlink()
    else:
        cut_short(newest / "model.h5")
    age(nights.train)
    told = nights.told()
    assert nights.converted() == ["iter_0000010"]
    assert says in told["skipped"][0]["reason"], told["skipped"]


def test_keep_the_last_two_and_nothing_of_others(nights):
    for step in (1, 2, 3, 4):
        nights.save(f"iter_{step:07d}")
        nights.track(step)
        nights.run(keep=0)
    foreign = nights.serving / "iter_0000000"
    shutil.copytree(nights.serving / "iter_0000001", foreign)
    record = manifest_of(foreign)
    record["source"]["path"] = str(nights.scratch / "another-run" / "iter_0000000")
    (foreign / "reshard.json").write_text(json.dumps(record))
    (nights.serving / "aaa").mkdir()
    (nights.serving / "aaa" / "thesis.tex").write_text("precious")
    (nights.serving / "iter_0000001-link").symlink_to("iter_0000001")
    others = listing(foreign)
    told = nights.told(keep=2)  # nothing is to be converted: the surplus goes all the same
    assert told["action"] == "up_to_date"
    assert [Path(path).name for path in told["removed"]] == ["iter_0000001", "iter_0000002"]
    assert nights.converted() == ["aaa", "iter_0000000", "iter_0000001-link", "iter_0000003", "iter_0000004"]
    assert listing(foreign) == others and (nights.serving / "aaa" / "thesis.tex").read_text() == "precious"
    nights.save("iter_0000005")
    nights.track(5)
    told = nights.told(keep=2)
    assert told["action"] == "converted" and [Path(path).name for path in told["removed"]] == ["iter_0000003"]


@pytest.mark.long_but("written")
@pytest.mark.parametrize("verify", ["written", "streamed"])
def test_only_what_a_night_made_and_nobody_changed_is_removed(verify, nights, program):
    for step in (1, 2, 3, 4, 5):
        nights.save(f"iter_{step:07d}")
        if step != 4:
            nights.run(f"run.verify={verify}")
    here = nights.serving
    program.run(nights.train / "iter_0000004", here / "iter_0000004", "megatron", ranks=1, target_options={"layout": "{ tp = 1 }"})
    shutil.copytree(here / "iter_0000001", here / "golden-copy")
    shutil.copytree(here / "iter_0000001", here / "iter_0000000")
    (here / "iter_0000002" / "thesis.txt").write_text("precious")
    inner = next(path for path in (here / "iter_0000003").iterdir() if path.is_dir())
    (inner / "plots").mkdir()
    (here / "notes").mkdir()
    shutil.copy(here / "iter_0000001" / "reshard.json", here / "notes" / "reshard.json")
    (here / "notes" / "thesis.txt").write_text("precious")
    told = nights.told(f"run.verify={verify}", keep=1)
    assert told["removed"] == [str(here / "iter_0000001")]
    assert nights.converted() == ["golden-copy", *[f"iter_{step:07d}" for step in (0, 2, 3, 4, 5)], "notes"]
    warnings = sorted(told["warnings"])
    assert len(warnings) == 2 and "holds thesis.txt" in warnings[0] and str(here / "iter_0000002") in warnings[0]
    assert f"holds {inner.name}/plots" in warnings[1]
    # None of them counts: with keep = 2 the newest two of the nights' own stay, by number although "golden-copy" has none.
    nights.save("iter_0000006")
    assert nights.told(f"run.verify={verify}", keep=2)["removed"] == []
    nights.save("iter_0000007")
    assert nights.told(f"run.verify={verify}", keep=2)["removed"] == [str(here / "iter_0000005")]


def test_a_target_that_is_newer_than_the_current_one_stays(nights):
    for step in (1, 3):
        nights.save(f"iter_{step:07d}")
        nights.run()
    shutil.rmtree(nights.train / "iter_0000003")  # training was set back
    nights.save("iter_0000002")
    told = nights.told(keep=1)
    assert told["target"] == str(nights.serving / "iter_0000002")
    assert told["removed"] == [str(nights.serving / "iter_0000001")]
    assert nights.converted() == ["iter_0000002", "iter_0000003"]


@pytest.mark.long_but("nothing is complete")
@pytest.mark.parametrize("why", ["the tracker is empty", "nothing is complete", "nothing is there"])
def test_no_target_is_surplus_while_none_is_the_current_one(why, nights):
    for step in (1, 3):
        nights.save(f"iter_{step:07d}")
        nights.run()
    shutil.rmtree(nights.train / "iter_0000003")  # training was set back: number 1 is the one that is served
    if why == "the tracker is empty":
        nights.track("")
    else:
        shutil.rmtree(nights.train / "iter_0000001")
    if why == "nothing is complete":
        cut_short(nights.save("iter_0000002") / "mp_rank_01" / "model_optim_rng.pt")
        age(nights.train)
    told = nights.told(keep=1)
    assert told["action"] == ("waiting" if why == "the tracker is empty" else "nothing_complete") and told["removed"] == []
    assert nights.converted() == ["iter_0000001", "iter_0000003"]


@pytest.mark.long
def test_the_events_of_a_quiet_night_tell_what_was_removed(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    nights.save("iter_0000003")
    log = nights.scratch / "events"
    assert nights.run(keep=1, options=["--quiet", "--events", str(log)]) == ""
    results = [event for event in map(json.loads, log.read_text().splitlines()) if event["type"] == "result"]
    assert len(results) == 1 and results[0]["exit_code"] == 0 and results[0]["report"] is not None
    assert results[0]["nightly"]["removed"] == [str(nights.serving / f"iter_{step:07d}") for step in (1, 2)]
    assert results[0]["nightly"]["action"] == "converted"
    nights.run(options=["--quiet", "--events", str(log)])
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["type"] == "result" and last["nightly"]["action"] == "up_to_date" and last["nightly"]["removed"] == []
    nights.track("soon")
    nights.run(options=["--quiet", "--events", str(log)], code=SOURCE)
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["exit_code"] == SOURCE and "expected an iteration number" in last["error"]


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_tracker_is_waited_for(text, nights):
    nights.save("iter_0000001")
    nights.track(text)
    told = nights.told()
    assert told["action"] == "waiting" and told["source"] is None and told["skipped"] == [
        {"name": TRACKER, "reason": "is empty: a program is writing it"}]
    said = nights.run()
    assert said.startswith("nothing to do yet: ") and f"{TRACKER} is empty" in said
    assert nights.converted() == []
    nights.track(1)
    assert nights.told()["action"] == "converted"


@pytest.mark.long
def test_a_night_whose_search_stands_still_is_ended(nights):
    """The search is the work of one rank; the others notice when that one is gone."""
    nights.save("iter_0000001")
    nights.track("")  # looked at for a second
    log = nights.scratch / "events"
    night = nights.start("run.stall_seconds=1", ranks=2, options=["--events", str(log)])
    wait_until(log.exists)
    time.sleep(0.3)
    searching = [pid for pid in family(night.pid) if program_of(pid) == BINARY and b"OMPI_COMM_WORLD_RANK=0\0" in environment_of(pid)]
    assert len(searching) == 1
    send(searching[0], signal.SIGSTOP)
    try:
        _, err = night.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        for pid in [night.pid, *searching]:
            send(pid, signal.SIGKILL)
    assert night.returncode == STALL and "no heartbeat from rank 0 for" in own_words(err)


@pytest.mark.long
def test_a_tracker_that_names_a_missing_step_is_told(nights):
    nights.save("iter_0000001")
    nights.track(7)
    assert nights.told()["action"] == "converted"
    assert f"{TRACKER} names step 7, which has no checkpoint there" in nights.run()


@pytest.mark.long
def test_the_checkpoints_of_a_source_that_is_gone_still_count(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    shutil.rmtree(nights.train / "iter_0000001")
    assert [Path(path).name for path in nights.told(keep=1)["removed"]] == ["iter_0000001"]


@pytest.mark.long
def test_what_cannot_be_removed_is_a_warning(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    with held(nights.serving / ".iter_0000001.lock"):
        told = nights.told(keep=1)
    assert told["removed"] == [] and "not removed" in told["warnings"][0] and "locked" in told["warnings"][0]
    assert (nights.serving / "iter_0000001").is_dir()


def test_a_removal_that_was_cut_short_is_finished(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    (nights.serving / "iter_0000001").rename(nights.serving / ".iter_0000001.removed")
    shutil.rmtree(nights.serving / ".iter_0000001.removed" / "iter_0001000", ignore_errors=True)
    nights.run(keep=2)
    assert nights.converted() == ["iter_0000002"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["link", "folder", "link of a removal"])
def test_what_has_the_name_of_a_removal_is_not_followed_or_deleted(kind, nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    elsewhere = nights.scratch / "elsewhere"
    if kind == "link of a removal":
        shutil.copytree(nights.serving / "iter_0000001", elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "thesis.tex").write_text("precious")
    hidden = nights.serving / ".iter_0000001.removed"
    if kind == "folder":
        elsewhere.rename(hidden)
    else:
        hidden.symlink_to(elsewhere)
    before = listing(hidden.resolve())
    told = nights.told(keep=1)
    assert told["removed"] == [] and len(told["warnings"]) == 1 and f"{hidden}: has the name" in told["warnings"][0]
    assert listing(hidden.resolve()) == before and hidden.is_symlink() == (kind != "folder")
    assert nights.converted() == [hidden.name, "iter_0000001", "iter_0000002"]


def interrupted_night(nights, name):
    """Stopped after it has begun to write; what it left is as old as an hour."""
    for attempt in range(5):  # it may come to its end before the signal
        log = nights.scratch / f"events-{name}-{attempt}"
        process = nights.start(options=["--events", str(log)])
        while process.poll() is None and not (log.exists() and '"state": "begin"' in log.read_text()):
            time.sleep(0.001)
        process.kill()
        process.communicate(timeout=TIMEOUT_SECONDS)
        if not (nights.serving / name).exists():
            break
        shutil.rmtree(nights.serving)
    left = [path for ending in ("part", "resume") for path in nights.serving.glob(f".{name}.{ending}-*")]
    assert len(left) == 2, "the night ended before it could be stopped"
    for path in left:
        age(path)
    return left


def test_what_an_interrupted_night_left_of_an_older_checkpoint_is_removed(nights):
    nights.save("iter_0000001", "dense")
    part, journal = interrupted_night(nights, "iter_0000001")
    assert (journal / "source").read_text() == str(nights.train / "iter_0000001")
    shutil.rmtree(nights.train / "iter_0000001")  # training keeps its last few only
    nights.save("iter_0000002")
    told = nights.told(keep=1)
    assert told["cleaned"] == [str(part)] and told["warnings"] == []
    assert nights.converted() == ["iter_0000002"]


@pytest.mark.long
def test_without_a_journal_what_has_the_name_of_a_source_is_removed(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
    part = f"part-{'0' * 16}"
    for name in ("iter_0000001", "iter_0000002", "iter_0000000"):
        (nights.serving / f".{name}.{part}").mkdir(parents=True)
        age(nights.serving / f".{name}.{part}")
    # Number 2 is converted now, number 0 has no source: whose it is nobody knows.
    said = nights.run()
    assert f"cleaned           {nights.serving / f'.iter_0000001.{part}'}: left by an interrupted nightly run\n" in said
    assert nights.converted() == [f".iter_0000000.{part}", "iter_0000002"]


@pytest.mark.long_but("a night")
@pytest.mark.parametrize("whose", ["a night", "reshard run"])
def test_what_lies_beside_a_target_that_is_up_to_date_is_told(whose, nights):
    """As after a kill behind the exchange of names: then it is the old checkpoint, and takes its place twice."""
    nights.save("iter_0000001")
    nights.run()
    part = nights.serving / f".iter_0000001.part-{'0' * 16}"
    shutil.copytree(nights.serving / "iter_0000001", part)
    if whose == "reshard run":
        journal = nights.serving / f".iter_0000001.resume-{'0' * 16}"
        journal.mkdir()
        age(journal)
    age(part)
    told = nights.told()
    assert told["action"] == "up_to_date"
    assert told["cleaned"] == ([str(part)] if whose == "a night" else [])
    assert [str(part) in line and "reshard clean" in line for line in told["warnings"]] == ([] if whose == "a night" else [True])


@pytest.mark.long
def test_a_checkpoint_that_lost_its_name_to_a_killed_night_gets_it_back(nights):
    nights.save("iter_0000001")
    nights.run()
    (nights.serving / "iter_0000001").rename(nights.serving / f".iter_0000001.old-{'0' * 16}")
    assert nights.told()["action"] == "up_to_date"
    assert nights.converted() == ["iter_0000001"]


@pytest.mark.long
def test_a_target_of_run_is_known_by_its_stamp_and_not_by_clocks(nights, program):
    """The source's host may have a clock that is behind: what was saved after the conversion then looks older than that."""
    for name in ("iter_0000001", "iter_0000002"):
        nights.save(name)
    program.run(nights.train / "iter_0000002", nights.serving / "iter_0000002", "megatron", ranks=1, target_options={"layout": "{ tp = 1 }"},
                memory="1 MiB")
    assert nights.told()["action"] == "up_to_date"
    shard = next(nights.train.glob("iter_0000002/**/*.pt"))
    os.utime(shard, (time.time() - 7200,) * 2)
    assert "the source changed" in nights.run(code=TARGET)


@pytest.mark.long_but("locked", "of another directory")
@pytest.mark.parametrize("why", ["locked", "young", "of run", "newer", "of another directory"])
def test_what_others_may_go_on_with_stays(why, nights):
    nights.save("iter_0000001", "dense")
    part, journal = interrupted_night(nights, "iter_0000001")
    nights.save("iter_0000002" if why != "newer" else "iter_0000000")
    lock = contextlib.nullcontext()
    if why == "locked":
        lock = held(nights.serving / ".iter_0000001.lock")
    elif why == "young":
        (part / "more").touch()
    elif why == "of run":
        (journal / "source").unlink()
    elif why == "newer":
        os.utime(next(nights.train.glob("iter_0000001/**/*.pt")))  # its night comes when it has settled
    else:
        (journal / "source").write_text("/another/train/iter_0000001")
    age(journal)
    before = listing(part)
    with lock:
        told = nights.told()
    assert told["cleaned"] == [] and len(told["warnings"]) == 1
    assert f"`reshard clean {nights.serving / 'iter_0000001'}` removes it" in told["warnings"][0]
    assert listing(part) == before and journal.is_dir()


@pytest.mark.long
@pytest.mark.skipif(not FAULT_SHIM, reason="RESHARD_FAULT_SHIM is not set: locks cannot be taken away")
def test_without_locks_what_an_interrupted_night_left_is_named_and_stays(nights):
    """While a run reads back, nothing tells it from one that is over."""
    nights.save("iter_0000001", "dense")
    part, journal = interrupted_night(nights, "iter_0000001")
    nights.save("iter_0000002")
    without_locks = {"LD_PRELOAD": FAULT_SHIM, "RESHARD_FAULT": "no-locks"}
    told = nights.told(exports=without_locks)
    assert told["action"] == "converted" and told["cleaned"] == [] and len(told["warnings"]) == 1
    clean = [BINARY, "clean", str(nights.serving / "iter_0000001")]
    assert f"`{' '.join(['reshard', *clean[1:]])}` removes it" in told["warnings"][0]
    os.utime(journal / "owner", (time.time() - 120,) * 2)
    refused = subprocess.run(clean, capture_output=True, text=True, env=environment() | without_locks)
    assert refused.returncode == TARGET and "has no locks" in refused.stderr and "after 180 s" in refused.stderr
    assert part.is_dir() and journal.is_dir()
    age(journal)
    assert subprocess.run(clean, capture_output=True, env=environment() | without_locks).returncode == 0
    assert not part.exists() and not journal.exists()


@pytest.mark.long
def test_a_source_that_was_replaced_is_converted_again(nights):
    newest = nights.save("iter_0000001")
    nights.track(1)
    nights.run()
    age(newest, 60)  # another time, and no younger than the target
    told = nights.told()
    assert told["action"] == "converted"
    assert nights.told()["action"] == "up_to_date"
    (nights.train / TRACKER).unlink()
    os.utime(newest / "mp_rank_00" / "model_optim_rng.pt")
    told = nights.told()
    assert told["action"] == "waiting" and nights.converted() == ["iter_0000001"]


@pytest.mark.long
def test_another_job_is_converted_again_another_speed_is_not(nights):
    nights.save("iter_0000001")
    nights.run()
    assert nights.told("run.memory=2 MiB", "run.verify=streamed", "nightly.keep=7")["action"] == "up_to_date"
    assert nights.told("target.layout.tp=2")["action"] == "converted"
    assert nights.told("target.layout.tp=2")["action"] == "up_to_date"


def test_a_target_of_run_is_taken_and_not_replaced(nights, program):
    newest = nights.save("iter_0000001")
    target = program.run(newest, nights.serving / "iter_0000001", "megatron", ranks=1, target_options={"layout": "{ tp = 1 }"})
    assert nights.told()["action"] == "up_to_date"
    os.utime(newest / "mp_rank_00" / "model_optim_rng.pt")
    before = listing(target)
    said = nights.run("nightly.settle_seconds=0", code=TARGET)
    assert str(target) in said and "`reshard run` made it" in said and "target.replace = true" in said
    assert listing(target) == before
    assert nights.told()["action"] == "waiting"
    assert nights.told("nightly.settle_seconds=0", "target.replace=true")["action"] == "converted"


@pytest.mark.long
def test_another_format_is_refused(nights):
    nights.save("iter_0000001")
    nights.run(target_format="hdf5")
    before = listing(nights.serving)
    said = nights.run(code=TARGET)
    assert '"hdf5"' in said and '"megatron"' in said and "another target.path" in said
    assert nights.told(target_format="hdf5")["action"] == "up_to_date"
    assert listing(nights.serving) == before
    assert nights.told("target.replace=true")["action"] == "converted"


@pytest.mark.long
def test_an_outdated_target_with_files_of_others_is_refused(nights):
    newest = nights.save("iter_0000001")
    nights.track(1)
    nights.run()
    precious = nights.serving / "iter_0000001" / "thesis.txt"
    precious.write_text("precious")
    assert nights.told()["action"] == "up_to_date"
    age(newest, 60)
    said = nights.run(code=TARGET)
    assert "holds thesis.txt" in said and precious.read_text() == "precious"
    precious.unlink()
    assert nights.told()["action"] == "converted"


def test_a_name_that_is_taken_is_refused(nights):
    nights.save("iter_0000001")
    taken = nights.serving / "iter_0000001"
    taken.mkdir(parents=True)
    (taken / "thesis.tex").write_text("precious")
    said = nights.run(code=TARGET)
    assert str(taken) in said and "Move it away" in said
    nights.run("target.replace=true", code=TARGET)  # no checkpoint: not even then
    assert (taken / "thesis.tex").read_text() == "precious"


def test_two_nights_at_once(nights):
    nights.save("iter_0000001", "dense")
    pair = [nights.start(ranks=2) for _ in range(2)]
    told = [process.communicate(timeout=TIMEOUT_SECONDS) for process in pair]
    codes = sorted(process.returncode for process in pair)
    assert codes in ([0, 0], [0, TARGET]), told
    if codes[1]:
        assert any("is locked" in err for _, err in told)
    assert nights.converted() == ["iter_0000001"]
    assert nights.told()["action"] == "up_to_date"


def test_dry_run_writes_and_removes_nothing(nights):
    for step in (1, 2):
        nights.save(f"iter_{step:07d}")
        nights.run()
    nights.save("iter_0000003")
    before = listing(nights.serving)
    nights.run(keep=1, options=["--dry-run"])
    told = json.loads(nights.run(keep=1, options=["--dry-run", "--json"]))
    assert told["action"] == "would convert" and told["removed"] == [] and told["target"] == str(nights.serving / "iter_0000003")
    assert listing(nights.serving) == before


@pytest.mark.long
def test_mistakes(nights):
    nights.save("iter_0000001")
    assert "source.path" in nights.run(f"source.path={nights.train / 'nowhere'}", code=SOURCE)
    assert "is a checkpoint itself" in nights.run(f"source.path={nights.train / 'iter_0000001'}", code=USAGE)
    assert 'run.verify = "off"' in nights.run("run.verify=off", code=USAGE)
    nights.track("soon")
    assert "expected an iteration number" in nights.run(code=SOURCE)
    refused = subprocess.run([BINARY, "run", str(nights.job())], capture_output=True, text=True, env=environment())
    assert refused.returncode == USAGE and "only `reshard nightly` uses this table" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_names_that_are_not_utf8_hold_no_other_up(ranks, nights):
    odd = os.fsdecode(b"iter_0000009\xff")
    nights.save("iter_0000001")
    nights.save(odd)
    shutil.copytree(nights.train / "iter_0000001", nights.train / "iter_0000002")
    shutil.move(nights.train / "iter_0000002" / "mp_rank_01", nights.train / "iter_0000002" / os.fsdecode(b"mp_rank_01\xfe"))
    age(nights.train)
    (nights.serving / f".{odd}.part").mkdir(parents=True)
    told = nights.told(ranks=ranks)
    assert told["action"] == "converted" and told["target"] == str(nights.serving / "iter_0000001") and told["warnings"] == []
    assert told["skipped"][0] == {"name": "iter_0000009\\xff", "reason": "has a name that is not UTF-8: rename it"}
    assert [skip["name"] for skip in told["skipped"][1:]] == ["iter_0000002"]
    (nights.serving / "iter_0000001" / odd).touch()
    nights.save("iter_0000003")
    assert "holds iter_0000009\\xff" in nights.told(keep=1, ranks=ranks)["warnings"][0]
    assert (nights.serving / f".{odd}.part").is_dir()


@pytest.mark.long
def test_links_to_a_neighbour_and_unfinished_names_are_passed_over(nights):
    nights.save("iter_0000001")
    (nights.train / "latest").symlink_to("iter_0000001")
    nights.save("tmp-checkpoint-9")
    assert nights.told()["target"].endswith("iter_0000001")
    assert nights.converted() == ["iter_0000001"]


@pytest.mark.long
def test_without_numbers_the_youngest_counts(nights):
    nights.save("best")
    nights.save("final")
    age(nights.train / "best", 1000)
    assert nights.told()["target"].endswith("best")
