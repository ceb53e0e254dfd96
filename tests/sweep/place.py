"""Where a point of the sweep runs: a folder with a job, and the program with or without the shim."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

BINARY = os.path.abspath(os.environ.get("RESHARD_BIN", ""))
SHIM = os.path.abspath(os.environ.get("RESHARD_SWEEP_SHIM", ""))
TIMEOUT_SECONDS = 60
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_odls_base_sigkill_timeout": "0",
    # Starts in a tenth of a second: no look for fast networks, no helper process for the only rank.
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_hwloc_base_binding_policy": "none", "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
}
HANGS = "hangs"


@dataclass
class Fault:
    """What the shim does, and at which call; `lasting`: from there on at every call of these functions."""

    name: str = "none"
    call: int = 0
    rank: int = 0
    lasting: tuple = ()
    hold_seconds: float = 0.0

    def environment(self):
        last = {"RESHARD_SWEEP_LAST": str(1 << 60), "RESHARD_SWEEP_FUNCTIONS": ",".join(self.lasting)} if self.lasting else {}
        return last | {"RESHARD_SWEEP_FAULT": self.name, "RESHARD_SWEEP_CALL": str(self.call), "RESHARD_SWEEP_RANK": str(self.rank),
                       "RESHARD_SWEEP_SECONDS": str(self.hold_seconds)}


@dataclass
class Outcome:
    code: object  # a number, or HANGS
    said: str


@dataclass
class Call:
    number: int
    function: str
    path: str  # relative to the place's folder, or below "source"


class Place:
    def __init__(self, folder, source, ranks=1, watch_source=False, always=""):
        self.folder = Path(folder)
        self.out = self.folder / "out"
        self.log = self.folder / "calls"
        self.source = Path(source)
        self.ranks = ranks
        self.watch_source = watch_source
        self.always = always

    def clear(self):
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.out.mkdir(parents=True)

    def command(self, arguments, shim):
        own = [BINARY, *arguments]
        if self.ranks == 1:
            return own
        words = [word for name, value in shim.items() for word in ("-x", f"{name}={value}")]
        return ["mpirun", "--bind-to", "none", "-n", str(self.ranks), *words, *own]

    def run(self, arguments, fault=None):
        """`fault` of None: without the shim, but for functions that the file system does not have."""
        self.log.unlink(missing_ok=True)
        shim = {}
        if fault or self.always:
            folders = [self.out, self.source] if self.watch_source else [self.out]
            shim = {"LD_PRELOAD": SHIM, "RESHARD_SWEEP_FOLDERS": ":".join(map(str, folders)), "RESHARD_SWEEP_LOG": str(self.log),
                    "RESHARD_SWEEP_ALWAYS": self.always} | (fault or Fault()).environment()
        session = self.folder / "mpi"  # jobs that start together must not share one
        session.mkdir(exist_ok=True)
        environment = os.environ | ENVIRONMENT | {"TMPDIR": str(session)} | (shim if self.ranks == 1 else {})
        process = subprocess.Popen(self.command(list(map(str, arguments)), shim), cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            said = process.communicate(timeout=TIMEOUT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            end_group(process)
            return Outcome(HANGS, "")
        return Outcome(128 - process.returncode if process.returncode < 0 else process.returncode, said)

    def calls(self):
        """What the shim has seen, and the calls that it broke."""
        seen, broken = [], []
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else []:
            number, function, path = line.lstrip("!").removesuffix(" (deleted)").split(" ", 2)
            call = Call(int(number), function, path.replace(str(self.folder) + "/", "").replace(str(self.source), "source"))
            seen.append(call)
            if line.startswith("!"):
                broken.append(call)
        return seen, broken


def end_group(process):
    """The process and all that it started: it leads a session of its own."""
    os.killpg(process.pid, 9)
    process.communicate()
