"""Two jobs at one target without locks that reach both, publications that fail, and kills between two renames: what is published is sound, what was
verified is kept, and nothing of another job is touched. The call shim (tests/support/call_shim.cpp) answers, holds and kills."""

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import bad_sources
from bad_job import IO, MARK, SELF_CHECK, TARGET, USAGE, Held, Running, command_of, expect, listing, shim, wait_until
from reshard_job import BINARY, tree_hashes

SHIM = os.environ.get("RESHARD_CALL_SHIM")
NO_LOCKS = "flock::ENOSYS"
LOCKS_OF_ONE_MACHINE = "flock::ok"  # granted to everyone, as by a client that asks no server
HOUR = 3600

pytestmark = pytest.mark.skipif(not (BINARY and SHIM), reason="needs the program and the call shim")


def text_of(jobs, source, replace=False):
    return jobs.text(bad_sources.original(source), target_options={"replace": replace})


def start(jobs, source, *rules, replace=False, **options):
    return jobs.start(text_of(jobs, source, replace), prefix=shim(*rules), **options)


def held(jobs, source, rule, *rules, replace=False, **options):
    return Held(jobs, text_of(jobs, source, replace), rule, *rules, **options)


def run(jobs, source, *rules, **options):
    return start(jobs, source, *rules, **options).wait()


def verified(jobs):
    outcome = jobs.command("verify", jobs.target)
    return outcome.code == 0, outcome.out


@pytest.fixture
def whole(bad_jobs, scratch):
    """The files of an undisturbed run of a source."""

    def hashes(source):
        outcome = bad_jobs.run(bad_jobs.text(bad_sources.original(source), target=scratch / "whole" / source))
        assert outcome.code == 0, outcome.error
        return tree_hashes(scratch / "whole" / source)

    return hashes


# --- one owner ------------------------------------------------------------------------------------------------------------

MOMENTS = {"while it writes": "pwritev2:.part-", "while it reads back": "posix_fadvise:.part-", "before it publishes": "renameat2:.part-"}


@pytest.mark.long_but("before it publishes-3")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_without_locks_a_second_job_is_refused_while_the_first_lives(moment, ranks, bad_jobs, whole):
    first = held(bad_jobs, "dense", MOMENTS[moment], NO_LOCKS)
    expect(run(bad_jobs, "flat", NO_LOCKS, ranks=ranks), TARGET, ("has no locks", "s ago", "Wait"))
    expect(Running([*shim(NO_LOCKS), *command_of(["clean", bad_jobs.target])], bad_jobs.scratch).wait(), TARGET, ("has no locks", "180 s"))
    outcome = first.go()
    assert outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


@pytest.mark.long_but("before it publishes-flock::ok")
@pytest.mark.parametrize("locks", [NO_LOCKS, LOCKS_OF_ONE_MACHINE])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_whose_folder_was_taken_publishes_nothing(moment, locks, bad_jobs, whole):
    """The second job cannot know that the first one lives: its lock is granted, or the first has shown no sign of life for an hour."""
    first = held(bad_jobs, "dense", MOMENTS[moment], locks)
    age_when_still(bad_jobs.parent)
    second = held(bad_jobs, "flat", "renameat2:.part-", locks)
    expect(first.go(), TARGET, ("another job", "Nothing was published"))
    outcome = second.go()
    assert outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("flat") and verified(bad_jobs)[0]
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["EXTRA.pt", "mp_rank_07/model_optim_rng.pt"])
def test_what_another_program_puts_there_is_not_published(name, bad_jobs, whole):
    job = held(bad_jobs, "dense", "posix_fadvise:.part-")
    extra = bad_jobs.part() / name
    extra.parent.mkdir(exist_ok=True)
    extra.write_text("of somebody else")
    expect(job.go(), SELF_CHECK, (name, "did not write", "Nothing was published"))
    assert not bad_jobs.target.exists()
    assert run(bad_jobs, "dense").code == 0 and tree_hashes(bad_jobs.target) == whole("dense")


@pytest.mark.long_but("while it reads back")
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_same_job_goes_on_with_what_another_one_of_it_has(moment, bad_jobs, whole):
    first = held(bad_jobs, "dense", MOMENTS[moment], LOCKS_OF_ONE_MACHINE)
    outcome = run(bad_jobs, "dense", LOCKS_OF_ONE_MACHINE)
    assert outcome.code == 0, outcome.error
    if moment == "before it publishes":
        assert first.go().code == 0, "what it had verified has its name"
    else:
        expect(first.go(), TARGET, ("Nothing was published",))
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]


def test_a_warning_says_that_there_are_no_locks(bad_jobs):
    job = bad_jobs.start(bad_jobs.text(bad_sources.original("dense")), prefix=shim(NO_LOCKS), options=["--json"])
    out, _ = job.process.communicate(timeout=30)
    assert any("has no locks" in line for line in json.loads(out)["warnings"])
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


@pytest.mark.long
def test_without_locks_a_tidy_end_is_gone_on_with_at_once(bad_jobs, whole):
    first = held(bad_jobs, "dense", "posix_fadvise:.part-", NO_LOCKS)
    for rank in first.job.ranks():
        bad_jobs.signal(rank, 15)
    assert first.go().code in (0, 75)
    outcome = run(bad_jobs, "dense", NO_LOCKS)
    assert outcome.code in (0, TARGET) and tree_hashes(bad_jobs.target) == whole("dense")


def test_without_locks_a_killed_job_is_gone_on_with_when_it_is_quiet(bad_jobs, whole):
    first = held(bad_jobs, "dense", "posix_fadvise:.part-", NO_LOCKS)
    first.job.kill()
    first.job.wait()
    expect(run(bad_jobs, "dense", NO_LOCKS), TARGET, ("has no locks", "180 s"))
    age(bad_jobs.parent)
    outcome = run(bad_jobs, "dense", NO_LOCKS)
    assert outcome.code == 0 and tree_hashes(bad_jobs.target) == whole("dense"), outcome.error


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "clean"])
def test_what_an_earlier_version_left_is_removed(kind, bad_jobs):
    for name in (".target.part", ".target.resume"):
        (bad_jobs.parent / name).mkdir()
        (bad_jobs.parent / name / "file").write_text("x")
    outcome = bad_jobs.run(bad_jobs.text(bad_sources.original("dense"))) if kind == "run" else bad_jobs.command("clean", bad_jobs.target)
    assert outcome.code == 0, outcome.error
    assert [path.name for path in bad_jobs.parent.iterdir()] == (["target"] if kind == "run" else [])


def age(folder, seconds=HOUR):
    past = time.time() - seconds
    for path in [*Path(folder).rglob("*"), Path(folder)]:
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (past, past), follow_symlinks=False)


def age_when_still(folder):
    """Of a job that is held at a call: its other threads may still write for a moment."""

    def is_old():
        age(folder)
        time.sleep(0.3)
        return all(time.time() - path.lstat().st_mtime > HOUR / 2 for path in [*Path(folder).rglob("*"), Path(folder)])

    wait_until(is_old, 30)


# --- no work is thrown away -------------------------------------------------------------------------------------------------


@pytest.mark.long_but("EIO-3")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("reason", ["EACCES", "EBUSY", "EXDEV", "ESTALE", "EIO"])
def test_a_verified_target_is_kept_when_it_cannot_be_renamed(reason, ranks, bad_jobs, whole):
    outcome = run(bad_jobs, "dense", f"renameat2:.part-:{reason}", ranks=ranks)
    expect(outcome, IO if reason in ("ESTALE", "EIO") else TARGET, ("cannot be renamed", "is kept", "only rename"))
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in bad_jobs.part().rglob("*")}
    names = {path.relative_to(bad_jobs.part()): stamp for path, stamp in before.items()}
    outcome = run(bad_jobs, "dense", "pwritev2:.part-:EIO", "posix_fadvise:.part-:kill", ranks=ranks, options=["--json"])
    assert outcome.code == 0, outcome.error
    report = json.loads(outcome.out)
    assert report["run"]["bytes_written"] == 0 and report["run"]["bytes_reused"] > 0
    assert {path.relative_to(bad_jobs.target): (path.stat().st_ino, path.stat().st_mtime_ns) for path in bad_jobs.target.rglob("*")} == names
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_a_verified_target_that_was_changed_since_is_not_published_as_it_is(bad_jobs, whole):
    assert run(bad_jobs, "dense", "renameat2:.part-:EACCES").code == TARGET
    file = next(bad_jobs.part().rglob("*.pt"))
    with file.open("r+b") as changed:
        changed.seek(file.stat().st_size // 2)
        changed.write(b"\x55" * 64)
    outcome = bad_jobs.run(bad_jobs.text(bad_sources.original("dense")))
    expect(outcome, 7, ("Nothing was published",))
    assert bad_jobs.run(bad_jobs.text(bad_sources.original("dense"))).code == 0
    assert tree_hashes(bad_jobs.target) == whole("dense")


@pytest.mark.long
@pytest.mark.parametrize("verify", ["off", "streamed"])
def test_other_verifications_are_kept_too(verify, bad_jobs):
    text = bad_jobs.text(bad_sources.original("dense"))
    expect(bad_jobs.run(text, prefix=shim("renameat2:.part-:EACCES"), settings=[f"run.verify={verify}"]), TARGET, ("is kept",))
    outcome = bad_jobs.run(text, prefix=shim("pwritev2:.part-:EIO"), settings=[f"run.verify={verify}"])
    assert outcome.code == 0, outcome.error


def test_a_verified_target_is_kept_when_one_of_its_folders_cannot_be_synced(bad_jobs, whole):
    expect(run(bad_jobs, "dense", "fsync:/mp_rank_00$:EIO:0:1"), IO, ("mp_rank_00", "fsync of directory"))
    outcome = run(bad_jobs, "dense", "pwritev2:.part-:EIO")
    assert outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]


def test_a_published_target_stays_when_its_name_cannot_be_made_durable(bad_jobs, whole):
    """Its folder is synced before anything is written, too: the last of these syncs is meant."""
    bad_jobs.old_target()
    for number in range(12):
        outcome = run(bad_jobs, "dense", f"fsync:/{bad_jobs.parent.name}$:EIO:{number}:1", replace=True)
        assert outcome.code == IO, f"none of {number} syncs was the last one: {outcome.error}"
        if "is complete and in place" in outcome.error:
            break
        assert (bad_jobs.target / MARK).exists()
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]
    assert (bad_jobs.part() / MARK).read_text() == "precious", "until the new name is durable"
    assert bad_jobs.command("clean", bad_jobs.target).code == 0
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("place", ["a mount point", "a mount of the same file system"])
def test_a_mount_point_is_refused_before_any_work(place, bad_jobs):
    bad_jobs.old_target()
    inside = "mount -t tmpfs none" if place == "a mount point" else f"mount --bind {bad_jobs.target}"
    job = bad_jobs.scratch / "job.toml"
    job.write_text(bad_jobs.text(bad_sources.original("dense"), target_options={"replace": True}))
    outcome = with_mounts(bad_jobs, f"{inside} {bad_jobs.target}", "run", job)
    expect(outcome, TARGET, ("is a mount point", "below it"))
    assert {path.name for path in bad_jobs.parent.iterdir()} == {"target"} and (bad_jobs.target / MARK).exists()


# --- two renames ------------------------------------------------------------------------------------------------------------

NO_EXCHANGE = "renameat2:.part-:EINVAL"  # the first `rename` of a staging folder is the trial before anything is written


def killed_between_two_renames(jobs):
    jobs.old_target()
    outcome = run(jobs, "dense", NO_EXCHANGE, "rename:.part-:kill:1", replace=True)
    assert outcome.code in (137, -9), outcome
    assert not jobs.target.exists() and (jobs.left("old") / MARK).read_text() == "precious" and jobs.part().is_dir()


def test_where_names_cannot_be_exchanged_two_renames_do(bad_jobs, whole):
    bad_jobs.old_target()
    outcome = run(bad_jobs, "dense", NO_EXCHANGE, replace=True)
    assert outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("dense")
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_after_a_kill_between_two_renames_the_next_run_finishes(bad_jobs, whole):
    killed_between_two_renames(bad_jobs)
    outcome = run(bad_jobs, "dense", NO_EXCHANGE, "pwritev2:.part-:EIO", replace=True)
    assert outcome.code == 0, outcome.error
    assert tree_hashes(bad_jobs.target) == whole("dense") and verified(bad_jobs)[0]
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_after_a_kill_between_two_renames_clean_gives_the_old_one_its_name_back(bad_jobs):
    killed_between_two_renames(bad_jobs)
    outcome = bad_jobs.command("clean", bad_jobs.target)
    assert outcome.code == 0 and "was renamed back" in outcome.out, outcome.error
    assert (bad_jobs.target / MARK).read_text() == "precious"
    assert [path.name for path in bad_jobs.parent.iterdir()] == ["target"]


def test_when_the_second_rename_fails_the_old_one_gets_its_name_back(bad_jobs, whole):
    bad_jobs.old_target()
    outcome = run(bad_jobs, "dense", NO_EXCHANGE, "rename:.part-:EACCES:1:1", replace=True)
    expect(outcome, TARGET, ("cannot be renamed", "is kept"))
    assert (bad_jobs.target / MARK).read_text() == "precious"
    assert bad_jobs.names() == {"target", ".target.part", ".target.resume"}
    assert run(bad_jobs, "dense", NO_EXCHANGE, replace=True).code == 0
    assert tree_hashes(bad_jobs.target) == whole("dense")


# --- the source by another path -----------------------------------------------------------------------------------------------


def with_mounts(jobs, script, *arguments):
    """The program in a mount namespace of its own."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if os.geteuid() != 0 or probe.returncode != 0:
        pytest.skip("only root may make mounts of its own")
    words = " ".join(f"'{word}'" for word in command_of(arguments))
    return Running(["unshare", "-m", "sh", "-c", f"mount --make-rprivate / && {script} && exec {words}"], jobs.scratch).wait()


@pytest.mark.parametrize("target", ["mount", "mount/inside"])
def test_a_target_that_is_the_source_under_another_mount_is_refused(target, bad_jobs, scratch):
    source = bad_sources.copy_of("flat", scratch / "source")
    before = listing(source)
    (scratch / "mount").mkdir()
    job = scratch / "job.toml"
    job.write_text(bad_jobs.text(source, target=scratch / target, target_options={"replace": True}))
    outcome = with_mounts(bad_jobs, f"mount --bind {source} {scratch / 'mount'}", "run", job)
    expect(outcome, USAGE, ("target", "outside of the source"))
    assert listing(source) == before
