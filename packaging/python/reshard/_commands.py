"""One function for each command that answers with a document."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._job_text import job_text, value_text
from ._program import call, call_with_code

Path = Union[str, "os.PathLike[str]"]
Job = Union[Path, Mapping[str, Any]]  # a file, or the tables of one: {"source": {"path": …}, "target": {…}}


def inspect(
    path: Path,
    *,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    expert_parallel_size: int | None = None,
    expert_tensor_parallel_size: int | None = None,
) -> dict[str, Any]:
    """What a checkpoint is, with the evidence. `result["sound"]` is False where something is missing or disagrees."""
    sizes = {
        "tensor": tensor_parallel_size,
        "pipeline": pipeline_parallel_size,
        "expert": expert_parallel_size,
        "expert-tensor": expert_tensor_parallel_size,
    }
    words = [f"--{name}-parallel-size={size}" for name, size in sizes.items() if size is not None]
    found, code = call_with_code(["inspect", os.fspath(path), *words])
    return {**found, "sound": code == 0}


def plan(job: Job, *, set: Mapping[str, Any] | None = None, ranks: int = 1, launcher: Sequence[str] | None = None) -> dict[str, Any]:
    """What `run` would read, move and write. `set` overrides keys: {"target.layout.tp": 4}."""
    return _with_job("plan", job, set, [], ranks, launcher, False)


def run(
    job: Job,
    *,
    set: Mapping[str, Any] | None = None,
    fresh: bool = False,
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Converts, and returns the report. `launcher`: the words before the program, such as ["srun", "-n", "8"]. `progress`: show it on standard error."""
    return _with_job("run", job, set, ["--fresh"] if fresh else [], ranks, launcher, progress)


def digest(path: Path, *, map: str = "auto", config: Path | None = None, ranks: int = 1, launcher: Sequence[str] | None = None) -> dict[str, Any]:
    """The digest of every logical tensor and, as `result["total"]`, of the model: the same in every layout and format."""
    words = ["digest", os.fspath(path), "--map", map]
    if config is not None:
        words += ["--config", os.fspath(config)]
    return call(words, ranks=ranks, launcher=launcher)


def verify(path: Path, other: Path | None = None, *, ranks: int = 1, launcher: Sequence[str] | None = None) -> dict[str, Any]:
    """Compares two checkpoints bit by bit (`result["same"]`), or one with its own records (`result["sound"]`)."""
    return call(["verify", os.fspath(path), *([] if other is None else [os.fspath(other)])], ranks=ranks, launcher=launcher)


def version() -> dict[str, Any]:
    """The program's version, and the MPI library that it runs with."""
    return call(["--version"])


def _with_job(
    command: str, job: Job, set: Mapping[str, Any] | None, words: list[str], ranks: int, launcher: Sequence[str] | None, progress: bool
) -> dict[str, Any]:
    for key, value in (set or {}).items():
        words += ["--set", f"{key}={value_text(value)}"]
    if not isinstance(job, Mapping):
        return call([command, os.fspath(job), *words], ranks=ranks, launcher=launcher, progress=progress)
    # In the current folder for a launcher of several nodes, which have no common /tmp.
    with tempfile.NamedTemporaryFile("w", prefix=".reshard-job-", suffix=".toml", dir=None if launcher is None else os.curdir, encoding="utf-8") as file:
        file.write(job_text(job))
        file.flush()
        return call([command, file.name, *words], ranks=ranks, launcher=launcher, progress=progress)
