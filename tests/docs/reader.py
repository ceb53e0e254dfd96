"""Somebody who does what a page says, in a folder of his own."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TIMEOUT_SECONDS = float(os.environ.get("RESHARD_TEST_TIMEOUT", "240"))


# Reads a cell as a line of JSON, and answers with what it printed and the traceback.
SESSION = """
import contextlib, io, json, sys, traceback
cells = {"__name__": "__main__"}
for line in sys.stdin:
    said, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(json.loads(line), "cell", "exec"), cells)
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([said.getvalue(), failed]), flush=True)
"""


class Mismatch(AssertionError):
    pass


class Reader:
    def __init__(self, page, folder, program):
        self.page = page
        self.world = folder / "world"  # what the page calls /
        self.folder = folder / "here"  # where the page's commands run
        self.folder.mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        (programs / "reshard").symlink_to(program)
        self.environment = os.environ | {
            "PATH": f"{programs}:{HERE / 'slurm_stub'}:{os.environ['PATH']}",
            "RESHARD_BIN": str(program), "OMP_NUM_THREADS": "1", "OMPI_MCA_hwloc_base_binding_policy": "none", "NO_COLOR": "1",
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_odls_base_sigkill_timeout": "0", "OMPI_MCA_mpi_yield_when_idle": "1",  # as in tests/peers
            "HOME": str(folder), "TMPDIR": str(folder),
        }
        for name in ("configs", "packaging", "scripts", "slurm", "tests"):  # pages are read in a source tree
            (self.folder / name).symlink_to(REPOSITORY / name)
        self.said = None
        self.session = None
        self.build_world()

    def build_world(self):
        for root in self.page.roots:
            self.really(root).parent.mkdir(parents=True, exist_ok=True)
        samples = {path for _, path in self.page.data}
        for root in self.page.roots - samples:
            self.really(root).mkdir(parents=True, exist_ok=True)
        for sample, path in self.page.data:
            archive, _, inner = sample.partition(":")
            if not inner:
                shutil.copytree(REPOSITORY / "tests" / "data" / sample, self.really(path))
                continue
            unpacked = self.world / f".{archive}"
            if not unpacked.exists():
                with tarfile.open(REPOSITORY / "tests" / "data" / archive) as packed:
                    packed.extractall(unpacked)
            shutil.copytree(unpacked / inner, self.really(path))

    def really(self, path):
        return self.world / path.lstrip("/")

    def placed(self, text):
        """The text with the page's paths as they are here."""
        for root in sorted(self.page.roots, key=len, reverse=True):
            text = re.sub(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])", str(self.really(root)), text)
        return text

    def follow(self, block):
        begin = time.monotonic()
        try:
            if block.kind == "toml":
                target = self.folder / block.file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(self.placed(block.text))
                block.result = "written"
            elif block.kind == "text":
                self.compare(block)
                block.result = "as printed"
            elif block.kind == "python":
                self.execute(block)
                block.result = "passes"
            else:
                self.say(block)
                block.result = "passes with a stand-in for Slurm" if block.slurm else "passes"
        except (Mismatch, subprocess.TimeoutExpired) as problem:
            block.result = "FAILS"
            raise Mismatch(f"{block.page}:{block.line}: {block.first}\n{problem}") from None
        finally:
            block.seconds = time.monotonic() - begin

    def say(self, block):
        script = f"set -euo pipefail\nsource {REPOSITORY}/scripts/mpi_environment.sh\n{self.placed(block.text)}"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS)
        self.said = done.stdout.replace(str(self.world), "").replace(str(self.folder), "")
        if done.returncode != block.exit:
            raise Mismatch(f"exit code {done.returncode}, the page says {block.exit}\n{self.said[-6000:]}")

    def execute(self, block):
        if self.session is None:
            there = self.environment | {"PYTHONPATH": str(REPOSITORY / "packaging/python"), "PYTHONDONTWRITEBYTECODE": "1"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.session = subprocess.Popen([sys.executable, "-c", SESSION], cwd=self.folder, env=there, **pipes)
        self.session.stdin.write(json.dumps(self.placed(block.text)) + "\n")
        self.session.stdin.flush()
        said, failed = json.loads(self.session.stdout.readline() or '["", "Python has ended"]')
        self.said = said.replace(str(self.world), "")
        if failed:
            raise Mismatch(f"{self.said}{failed}")

    def close(self):
        """Ends the page's Python."""
        if self.session is not None:
            self.session.stdin.close()
            self.session.wait(TIMEOUT_SECONDS)
            self.session.stdout.close()
            self.session = None

    def compare(self, block):
        if self.said is None:
            raise Mismatch("no commands stand above this output")
        lines, at, skip = self.said.splitlines(), 0, False
        for wanted in block.text.splitlines():
            if wanted.strip() == "…":
                skip = True
                continue
            while skip and at < len(lines) and not fits(wanted, lines[at]):
                at += 1
            if at >= len(lines) or not fits(wanted, lines[at]):
                raise Mismatch(f"the page: {wanted}\nprinted:\n{self.said[-6000:]}")
            at, skip = at + 1, False
        if not skip and at != len(lines):
            raise Mismatch(f"more was printed than the page shows:\n{self.said[-6000:]}")


def fits(wanted, line):
    """"…" stands for anything, and how far columns are apart does not matter."""
    wanted, line = (" ".join(text.split()) for text in (wanted, line))
    return re.fullmatch(".*".join(re.escape(part.strip()) for part in wanted.split("…")), line) is not None
