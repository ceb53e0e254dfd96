"""Runs one job of the corpus in a work folder of its own and says what came of it, without what varies from run to run."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

MAPS = Path(__file__).resolve().parents[2] / "configs" / "models"
SECONDS = 120
# Of the JSON on stdout: the clock, what disk and memory of the machine happened to be, and how far streams ran ahead.
VARYING = {
    "free_bytes", "planned_memory_bytes", "bytes_verified_early", "write_mode", "peak_memory_bytes", "device_memory_bytes",
    "seconds", "busy_seconds", "stall_seconds", "gib_per_second",
}
TOKEN = re.compile(r"(\.(?:part|resume|old)-)[0-9a-f]{16}")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_odls_base_sigkill_timeout": "0"}
# Of Open MPI, for one rank: no daemon beside it and no look for a network. A job then takes a sixth of the time.
SESSION = "OMPI_MCA_orte_tmpdir_base"  # without a daemon all would share one folder, and remove it for each other
ALONE = {"OMPI_MCA_ess_singleton_isolated": "1", "OMPI_MCA_btl": "self"}


@dataclass
class Outcome:
    """What a job left: `files` is path -> (size, sha256), `said` the JSON on stdout or its text."""

    code: int
    said: object = None
    files: dict = field(default_factory=dict)


class Workshop:
    """A work folder below the corpus: `inputs` and `made` are links, jobs/NAME.toml what is run, out/NAME what it writes.

    Jobs run in it and have relative paths."""

    def __init__(self, corpus, binary, made):
        self.binary, self.folder = str(Path(binary).resolve()), corpus / f"work-{os.getpid()}"
        self.maps = os.path.abspath(os.environ.get("RESHARD_MAPS", MAPS))
        self.folder.mkdir()
        (self.folder / "inputs").symlink_to((corpus / "inputs").resolve())
        (self.folder / "made").symlink_to(made.resolve())

    def remove(self):
        shutil.rmtree(self.folder)

    def run(self, job, ranks=1, memory=None):
        """The outcome, and the folder of the target, which the caller takes away."""
        target = self.folder / job["target"] if job["target"] else None
        words = job["command"] + (["--set", f"run.memory={memory}"] if memory else [])
        self.prepare(job, target)
        with tempfile.TemporaryDirectory(prefix="corpus-") as session:
            environment = os.environ | ENVIRONMENT | (ALONE | {SESSION: session} if ranks == 1 else {}) | {"RESHARD_MAPS": self.maps}
            try:
                told = subprocess.run(
                    [*launcher(ranks), self.binary, *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return Outcome(0, f"still ran after {SECONDS} s"), target
        files = files_below(target, memory and (memory, job["memory"])) if target else {}
        return Outcome(told.returncode, self.normalised(told.stdout), files), target

    def prepare(self, job, target):
        if job["text"] is not None:
            path = self.folder / "jobs" / f"{job['name']}.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(job["text"])
        if target:
            target.parent.mkdir(parents=True, exist_ok=True)
        if job["before"]:
            shutil.copytree(self.folder / job["before"], target)

    def normalised(self, text):
        text = text.replace(str(self.folder.resolve()), "WORK").replace(self.maps, "MAPS")
        text = TOKEN.sub(r"\1TOKEN", text)
        try:
            return without_varying(json.loads(text))
        except ValueError:
            return text


def launcher(ranks):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []


def without_varying(value):
    if isinstance(value, dict):
        return {name: 0 if name in VARYING else without_varying(each) for name, each in value.items()}
    return [without_varying(each) for each in value] if isinstance(value, list) else value


def files_below(folder, memory=None):
    """Path -> [size, sha256] of every file; of links where they lead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = [0, f"link to {os.readlink(path)}"]
        elif path.is_file():
            data = content_of(path, memory)
            found[name] = [len(data), hashlib.sha256(data).hexdigest()]
    return found


def content_of(path, memory=None):
    """The bytes of a file. A job that is run again with other memory has that size in its manifest: there the job's own is put back."""
    data = path.read_bytes()
    if memory and path.name == "reshard.json":
        data = data.replace(f'memory = \\"{memory[0]}\\"'.encode(), f'memory = \\"{memory[1]}\\"'.encode())
    if path.name == "SHA256SUMS":  # the manifest is compared by itself
        data = b"".join(line for line in data.splitlines(True) if not line.endswith(b"  reshard.json\n"))
    return data
