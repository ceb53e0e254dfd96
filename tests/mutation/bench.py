"""Compiles, links and tests changed sources, on top of a build folder that has the tests (build/test).

A change touches no file of the tree and none of the build: the changed copy of the source is compiled beside it, and each test program is linked anew with
that object in front of the libraries. Of what it and the group of its source in a library both define, the linker takes the first.
"""

import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# The processor time of a test, which the shell knows, is the last line.
TIMED = '"$@"; code=$?; times; exit $code'
WORDS_OF_CODES = {128 + signal.SIGXCPU: "ran too long", 128 + signal.SIGABRT: "aborted", 128 + signal.SIGSEGV: "crashed", 128 + signal.SIGILL: "crashed"}
MEMORY_BYTES = 12 << 30


@dataclass(frozen=True)
class Test:
    name: str
    command: tuple
    environment: tuple
    folder: str  # tests/core/layout
    program: Path


@dataclass(frozen=True)
class Outcome:
    passed: bool
    why: str
    cpu_seconds: float
    failed: list


def sandbox(folder):
    """A changed program may remove and write what it likes: it sees the machine read-only, with temporary files of its own."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SystemExit("error: bwrap is not there, and a changed program may remove any file: apt-get install bubblewrap")
    return [bwrap, "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent", "--chdir", str(folder)]


def output_of(*command, folder):
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


class Bench:
    def __init__(self, build, scratch):
        self.build, self.scratch = Path(build), Path(scratch)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.root = Path(re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", (self.build / "CMakeCache.txt").read_text(), re.M)[1])
        self.lock = threading.Lock()
        self.known_file = self.scratch / "tests.json"
        self.known = json.loads(self.known_file.read_text()) if self.known_file.exists() else {}

    # The unchanged tree.

    def build_tests(self, jobs):
        subprocess.run(["cmake", "--build", str(self.build), f"-j{jobs}"], check=True, stdout=subprocess.DEVNULL)

    def read_build(self):
        self.compile_of = {}
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            file, command = Path(entry["file"]), shlex.split(entry["command"])
            inside = [file] if "Unity" not in file.parts else [Path(f) for f in re.findall(r'^#include "(.*)"', file.read_text(), re.M)]
            self.compile_of.update({str(f.relative_to(self.root)): command for f in inside if f.is_relative_to(self.root) and not f.is_relative_to(self.build)})
        tests = json.loads(output_of("ctest", "--show-only=json-v1", folder=self.build))["tests"]
        self.tests = [t for t in map(self.test_of, tests) if t is not None]

    def test_of(self, entry):
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        labels, command = set(properties.get("LABELS", [])), entry.get("command", [])
        inside = re.search(re.escape(str(self.build)) + r"/(tests/[\w/]+)", " ".join(command))
        if not inside or not labels & {"unit", "mpi", "threads"} or labels & {"large", "gpu"}:
            return None
        if re.search(r"\.np[4-9]$", entry["name"]):  # the same tests as on fewer ranks, and slow where cores are few
            return None
        program = Path(inside[0])
        if program.is_dir() or not os.access(program, os.X_OK):
            return None
        return Test(entry["name"], tuple(command), tuple(properties.get("ENVIRONMENT", [])), str(Path(inside[1]).parent), program)

    # Tests, nearest and fastest first.

    def read_reach(self, file):
        """Which functions each test reaches: a file that reach.py has written."""
        reach = json.loads(Path(file).read_text())
        self.functions, self.reached_by = {}, {}
        for number, (source, first, last) in enumerate(reach["functions"]):
            self.functions.setdefault(source, []).append((first, last, number))
        for name, numbers in reach["tests"].items():
            for number in numbers:
                self.reached_by.setdefault(number, set()).add(name)

    def reaching(self, file, line):
        """Names of the tests that reach a line's function, or the function before it that ends last; of a table, those of the whole source."""
        inside = [number for first, last, number in self.functions.get(file, []) if first <= line <= last]
        numbers = inside or [number for _, _, number in self.functions.get(file, [])]
        return set().union(*(self.reached_by.get(number, set()) for number in numbers))

    def tests_for(self, file, line):
        names = self.reaching(file, line)

        def order(test):
            parts, own = Path(file).parent.parts, Path(test.folder).parts[1:]
            near = next((i for i, (a, b) in enumerate(zip(parts, own)) if a != b), min(len(parts), len(own)))
            return (Path(file).stem not in test.name, -near, self.known.get(test.name, {}).get("seconds") or 1)

        return sorted((t for t in self.tests if t.name in names), key=order)

    def usual_seconds(self, test):
        """Processor time that it takes without a change; None when it fails even so."""
        known = self.known.get(test.name)
        if not known or known["measured"] < test.program.stat().st_mtime:
            self.measure(test)
        return self.known[test.name]["seconds"]

    def measure(self, test):
        """Runs a test without a change. Cases that fail then are left out."""
        self.known[test.name] = known = {"measured": time.time(), "seconds": None, "without": []}
        outcome = self.run(test, test.program, 300, 900, fail_fast="0")
        if not outcome.passed and outcome.failed:
            known["without"] = outcome.failed
            outcome = self.run(test, test.program, 300, 900)
        if outcome.passed:
            known["seconds"] = outcome.cpu_seconds
        if not outcome.passed or known["without"]:
            print(f"not used, as it fails without a change: {test.name} {' '.join(known['without']) or outcome.why}", flush=True)
        self.known_file.write_text(json.dumps(self.known, indent=1))

    def run(self, test, program, cpu_limit, wall_limit, fail_fast="1"):
        environment = dict(os.environ, GTEST_FAIL_FAST=fail_fast, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        environment.update(e.split("=", 1) for e in test.environment)
        environment.pop("TMPDIR", None)

        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_limit) + 1, int(cpu_limit) + 2))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        without = ":".join(self.known[test.name]["without"])
        words = [word.replace(str(test.program), str(program)) for word in test.command]
        words = [f"{word}-{without}" if without and word.startswith("--gtest_filter=") else word for word in words]
        process = subprocess.Popen([*sandbox(self.build), "bash", "-c", TIMED, "bash", *words], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, preexec_fn=limits, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=wall_limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome(False, "ran too long", float(cpu_limit), [])
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        told = output.decode(errors="replace")
        seconds = sum(60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", told.rstrip().rsplit("\n", 1)[-1]))
        if process.returncode == 0:
            return Outcome(True, "", seconds, [])
        failed = list(dict.fromkeys(re.findall(r"\[  FAILED  \] (\w[\w/]*\.[\w/]+)", told)))
        return Outcome(False, failed[0] if failed else WORDS_OF_CODES.get(process.returncode, f"exit code {process.returncode}"), seconds, failed)

    # One change.

    def compile(self, file, source, place):
        """The object of a changed source; None when it does not compile."""
        changed = place / file
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(source)
        made, words, headers, rest = place / "changed.o", [], None, iter(self.compile_of[file])
        for word in rest:
            if word in ("-MT", "-MF"):
                next(rest)
            elif word == "-include":
                headers = next(rest)
            elif word in ("-o", "-c"):
                next(rest)
                words += [word, str(made if word == "-o" else changed)]
            elif not re.fullmatch(r"-O\w|-g\d?|-W\S*|-MD|(\S*/)?ccache", word):
                words.append(word)
        at = words.index("--param") if "--param" in words else None
        if at is not None:
            del words[at:at + 2]
        words[0] = "clang++-16"  # with its headers precompiled it takes a third of GCC's time
        flags = ["-O0", "-g0", "-w"]
        if headers is not None:
            flags += self.precompiled(headers, [w for w in words if w.startswith(("-D", "-std", "-I", "-isystem")) and not w.startswith("-Dreshard_")])
        return made if subprocess.run([words[0], *flags, *words[1:]], cwd=self.build, capture_output=True).returncode == 0 else None

    def precompiled(self, header, words):
        """The headers that each source of the build is given, compiled once for each set of macros."""
        made = self.scratch / f"{hashlib.sha256(' '.join([header, *words]).encode()).hexdigest()[:16]}.pch"
        with self.lock:
            if not made.exists():
                subprocess.run(["clang++-16", "-O0", "-g0", "-w", *words, "-fpch-instantiate-templates", "-x", "c++-header", header, "-o", str(made)], check=True)
        return ["-include-pch", str(made)]

    def link(self, test, changed, place):
        """The test's program with the changed object; made once for all tests of a program."""
        program = place / test.program.name
        if program.exists():
            return program
        command = output_of("ninja", "-t", "commands", "-s", str(test.program.relative_to(self.build)), folder=self.build).strip().splitlines()[-1]
        first = f" -Wl,--strip-debug,-z,muldefs {shlex.quote(str(changed))} -o {shlex.quote(str(program))}"
        command = re.sub(r" -o \S+", lambda _: first, command, count=1)
        if shutil.which("mold") and "-fuse-ld" not in command:
            command = command.replace(" -o ", " -fuse-ld=mold -o ", 1)
        subprocess.run(command, shell=True, cwd=self.build, check=True, capture_output=True)
        return program
