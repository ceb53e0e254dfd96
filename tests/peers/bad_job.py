"""Runs jobs that must not succeed: their exit code, their sentence, and what they leave behind."""

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import pytest

import bad_sources
from reshard_job import BINARY, job_text

USAGE, SOURCE, TARGET, IO, RESOURCES, SELF_CHECK, STALL, INTERRUPTED = 2, 3, 4, 5, 6, 7, 8, 75
TIMEOUT_SECONDS = 30
MARK = "generation_config.json"  # in the old target: its name is one of a checkpoint, so target.replace removes it


def environment():
    """As it is now: with the name of the test that runs. Of Open MPI: no look for fast networks at the start, no second of grace at the end when a rank
    has exited with a code."""
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_odls_base_sigkill_timeout": "0"} | os.environ | {"OMP_NUM_THREADS": "1"}


@dataclass
class Outcome:
    code: int
    out: str
    error: str  # what the program itself says after "error: "; the launcher's own words are cut off
    seconds: float


class Running:
    """A job that was started and not yet waited for."""

    def __init__(self, command, folder):
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(), start_new_session=True)

    def wait(self):
        try:
            out, err = self.process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.communicate()
            raise AssertionError(f"the job still ran after {TIMEOUT_SECONDS} s") from None
        return Outcome(self.process.returncode, out, own_words(err), time.monotonic() - self.begin)

    def ranks(self):
        """The processes of the program itself; under a launcher they are its children."""
        return [pid for pid in family(self.process.pid) if program_of(pid) == BINARY]

    def kill(self):
        for pid in reversed(family(self.process.pid)):
            send(pid, signal.SIGKILL)


def family(root):
    """A process and all that descend from it, parents first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                pass  # it ended while we looked
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def own_words(text):
    """From "error: " up to the launcher's report, which begins with a line of dashes."""
    _, found, said = text.partition("error: ")
    return said.split("-" * 40)[0].strip() if found else f"(no error sentence) {text}"


def command_of(arguments, ranks=1, prefix=()):
    """`prefix` starts each rank, so the launcher stays outside its limits."""
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 or prefix else []
    return [*launcher, *prefix, BINARY, *map(str, arguments)]


class BadJobs:
    """Jobs below one folder: job.toml, the source and, in a folder of its own so that leftovers show, the target."""

    def __init__(self, scratch):
        self.scratch = Path(scratch)
        self.parent = self.scratch / "results"
        self.parent.mkdir()
        self.target = self.parent / "target"
        self.count = 0

    def start(self, text, ranks=1, prefix=(), settings=(), options=()):
        self.count += 1
        job = self.scratch / f"job{self.count}.toml"
        job.write_text(text)
        sets = [word for setting in settings for word in ("--set", setting)]
        return Running(command_of(["run", job, *sets, *options], ranks, prefix), self.scratch)

    def run(self, text, ranks=1, **options):
        return self.start(text, ranks, **options).wait()

    def command(self, *arguments):
        """Any other command."""
        return Running(command_of(arguments), self.scratch).wait()

    signal = staticmethod(send)

    def old_target(self):
        """A checkpoint where the target is to be, and a file of its own in it that shows whether it is still there."""
        bad_sources.copy_of("flat", self.target)
        (self.target / MARK).write_text("precious")
        return listing(self.parent)

    def left(self, ending):
        """The folder `.target.<ending>-TOKEN` of an interrupted run, or one that is not there."""
        return next(iter(sorted(self.parent.glob(f".target.{ending}-*"))), self.parent / f".target.{ending}")

    def part(self):
        return self.left("part")

    def journal(self):
        return self.left("resume")

    def names(self):
        """What lies where the target is to be, without the tokens."""
        return {re.sub("-[0-9a-f]{16}$", "", path.name) for path in self.parent.iterdir()}

    def clear(self):
        shutil.rmtree(self.parent)
        self.parent.mkdir()

    def text(self, source, target_format="megatron", source_options=None, target_options=None, model=None, memory="1 MiB", target=None):
        if target_format == "megatron":
            target_options = {"layout": "{ tp = 1 }"} | (target_options or {})
        return job_text(source, target or self.target, target_format, source_options or {}, target_options or {}, model or {}, {"memory": memory})

    def refused(self, code, says, text, **options):
        """Runs a job that must end with this code and a sentence with all these parts, leaving nothing beside or at the target."""
        before = listing(self.parent)
        outcome = self.run(text, **options)
        outcome.error = outcome.error.replace(str(self.scratch), "")  # its random digits would be found where numbers are expected
        expect(outcome, code, says)
        assert outcome.seconds < 10, f"{outcome.seconds:.1f} s for a refusal"
        assert listing(self.parent) == before, f"left behind: {sorted(set(listing(self.parent)) - set(before))}"
        return outcome

    def refused_early(self, code, says, text, options=(), **others):
        """What `run` refuses, a plan refuses with the same code and reason."""
        self.refused(code, says, text, options=options, **others)
        return self.refused(code, says, text, options=[*options, "--dry-run"], **others)


def listing(folder):
    """Relative path -> bytes of every file below a folder; folders and links count too."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def expect(outcome, code, says):
    if os.environ.get("RESHARD_TEST_SHOW"):
        print(f"{outcome.code} {outcome.seconds:.2f} s: {outcome.error}")
    assert outcome.code == code, f"exit {outcome.code}, not {code}: {outcome.error}"
    missing = [part for part in says if part not in outcome.error]
    assert not missing, f"{missing} not said: {outcome.error}"
    assert len(outcome.error) < 4000, "a sentence nobody reads"


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.001)


def shim(*rules):
    """The prefix of a command whose calls get these answers (tests/support/call_shim.cpp)."""
    return ["env", f"LD_PRELOAD={os.environ['RESHARD_CALL_SHIM']}", f"RESHARD_CALLS={';'.join(rules)}"]


class Held:
    """A job that stops at a call until it is let go."""

    def __init__(self, jobs, text, rule, *rules, **options):
        self.file = jobs.scratch / f"hold{jobs.count}"
        self.job = jobs.start(text, prefix=shim(f"{rule}:hold={self.file}:0:1", *rules), **options)
        wait_until(lambda: Path(f"{self.file}.reached").exists() or self.job.process.poll() is not None, 30)
        assert self.job.process.poll() is None, self.job.wait()

    def go(self):
        Path(f"{self.file}.go").touch()
        return self.job.wait()


@dataclass(frozen=True)
class Case:
    """A job that is refused: from which source, damaged how, with which options of BadJobs.text, and what is said."""

    name: str
    kind: str  # a source of bad_sources
    says: tuple
    damage: Callable = None
    code: int = SOURCE
    options: dict = field(default_factory=dict)

    def check(self, jobs, ranks):
        source = bad_sources.original(self.kind)
        if self.damage:
            source = bad_sources.copy_of(self.kind, jobs.scratch / "source")
            self.damage(source)
        return jobs.refused(self.code, self.says, jobs.text(source, **self.options), ranks=ranks)


def with_ranks(cases, step=4):
    """Every case on one rank, some on three as well: no rank may be left waiting for the others."""
    rows = [(case, 1) for case in cases] + [(case, 3) for case in cases[::step]]
    return pytest.mark.parametrize("case, ranks", rows, ids=[f"{case.name}-{ranks}" for case, ranks in rows])
