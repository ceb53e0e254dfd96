"""One function for each command that answers with a document."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Union, cast, overload

from ._documents import Comparison, Digest, Extraction, Inspection, Listing, OwnVerification, Suspect, Version
from ._errors import ReshardError, error_of
from ._job_text import job_text, value_text
from ._program import call, call_with_code, command, reading_options
from ._report import Night, PlanReport, RunReport

Path = Union[str, "os.PathLike[str]"]
Progress = Union[bool, Callable[[dict[str, Any]], None]]
Job = Union[Path, Mapping[str, Any]]  # a file, or the tables of one: {"source": {"path": …}, "target": {…}}

_Terms = tuple[Union[str, None], Union[Path, None], str]  # map, config and prefix of one of two checkpoints


def inspect(
    path: Path,
    *,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    expert_parallel_size: int | None = None,
    expert_tensor_parallel_size: int | None = None,
) -> Inspection:
    """What a checkpoint is, with the evidence. `result["sound"]` is False where headers lack something or disagree; `verify` reads values."""
    sizes = {
        "tensor": tensor_parallel_size,
        "pipeline": pipeline_parallel_size,
        "expert": expert_parallel_size,
        "expert-tensor": expert_tensor_parallel_size,
    }
    words = [f"--{name}-parallel-size={size}" for name, size in sizes.items() if size is not None]
    found, code = call_with_code(["inspect", os.fspath(path), *words])
    return cast(Inspection, {**found, "sound": code == 0})


def plan(job: Job, *, set: Mapping[str, Any] | None = None, ranks: int = 1, launcher: Sequence[str] | None = None) -> PlanReport:
    """What `run` would read, move and write. `set` overrides keys: {"target.layout.tp": 4}."""
    return cast(PlanReport, _with_job("plan", job, set, [], ranks, launcher, False))


def run(
    job: Job,
    *,
    set: Mapping[str, Any] | None = None,
    fresh: bool = False,
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
    progress: Progress = False,
) -> RunReport:
    """Converts, and returns the report. `launcher`: the words before the program, such as ["srun", "-n", "8"]. `progress`: True shows it on standard
    error; a function is called with each event (docs/while-a-job-runs.md), such as {"type": "progress", "stage": "copy", "done_bytes": …}.
    """
    return cast(RunReport, _with_job("run", job, set, ["--fresh"] if fresh else [], ranks, launcher, progress))


def convert(
    source: Path,
    target: Path,
    *,
    format: str | None = None,
    layout: Mapping[str, int] | None = None,
    dtype: str | None = None,
    reference: Path | None = None,
    replace: bool = False,
    set: Mapping[str, Any] | None = None,
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
    progress: Progress = False,
) -> RunReport:
    """`run` without a job file: `layout={"tp": 2}`; `set` has further keys of a job, as there."""
    sizes = ",".join(f"{axis}={size}" for axis, size in (layout or {}).items())
    given = {"format": format, "layout": sizes, "dtype": dtype, "reference": None if reference is None else os.fspath(reference)}
    words = [word for name, value in given.items() if value for word in (f"--{name}", value)] + (["--replace"] if replace else [])
    words = ["convert", os.fspath(source), os.fspath(target), *words, *_settings(set)]
    return cast(RunReport, call(words, ranks=ranks, launcher=launcher, progress=progress))


def ls(path: Path, *, logical: bool = False, map: str = "auto", config: Path | None = None, prefix: str = "") -> Listing:
    """The stored tensors with their places, or the logical ones, by headers alone."""
    return cast(Listing, call(["ls", os.fspath(path), *(["--logical"] if logical else []), *reading_options(map, config, prefix)]))


def extract(
    path: Path,
    output: Path,
    *patterns: str,
    at: Mapping[str, int] | None = None,
    replace: bool = False,
    map: str = "auto",
    config: Path | None = None,
    prefix: str = "",
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
) -> Extraction:
    """Writes logical tensors, or their parts `at` indices such as {"layer": 3}, into one safetensors file."""
    words = ["extract", os.fspath(path), *patterns, "-o", os.fspath(output), *reading_options(map, config, prefix)]
    words += [word for axis, index in (at or {}).items() for word in ("--at", f"{axis}={index}")] + (["--force"] if replace else [])
    return cast(Extraction, call(words, ranks=ranks, launcher=launcher))


def digest(
    path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", ranks: int = 1, launcher: Sequence[str] | None = None
) -> Digest:
    """The digest of every logical tensor and, as `result["total"]`, of the model: the same in every layout and format."""
    return cast(Digest, call(["digest", os.fspath(path), *reading_options(map, config, prefix)], ranks=ranks, launcher=launcher))


@overload
def verify(path: Path, *, map: str = ..., ranks: int = ..., launcher: Sequence[str] | None = ...) -> OwnVerification: ...


@overload
def verify(
    path: Path,
    other: Path,
    *,
    map: str = ...,
    map_a: str | None = ...,
    map_b: str | None = ...,
    config_a: Path | None = ...,
    config_b: Path | None = ...,
    prefix_a: str = ...,
    prefix_b: str = ...,
    weights_only: bool = ...,
    ranks: int = ...,
    launcher: Sequence[str] | None = ...,
) -> Comparison: ...


def verify(
    path: Path,
    other: Path | None = None,
    *,
    map: str = "auto",
    map_a: str | None = None,
    map_b: str | None = None,
    config_a: Path | None = None,
    config_b: Path | None = None,
    prefix_a: str = "",
    prefix_b: str = "",
    weights_only: bool = False,
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
) -> Comparison | OwnVerification:
    """Compares two checkpoints bit by bit (`result["same"]`), or one with its own records (`result["sound"]`). `…_a` is of `path`, `…_b` of `other`."""
    paths = [os.fspath(one) for one in (path, other) if one is not None]
    words = _comparing(map, (map_a, config_a, prefix_a), (map_b, config_b, prefix_b), weights_only)
    found = call(["verify", *paths, *words], ranks=ranks, launcher=launcher)
    return cast(OwnVerification, found) if other is None else cast(Comparison, found)


def diff(
    path: Path,
    other: Path,
    *,
    map: str = "auto",
    map_a: str | None = None,
    map_b: str | None = None,
    config_a: Path | None = None,
    config_b: Path | None = None,
    prefix_a: str = "",
    prefix_b: str = "",
    weights_only: bool = False,
    ranks: int = 1,
    launcher: Sequence[str] | None = None,
) -> Comparison:
    """How much two checkpoints differ, tensor by tensor, in `result["tensors"]`; `result["same"]` where they do not. Options as of `verify`."""
    words = _comparing(map, (map_a, config_a, prefix_a), (map_b, config_b, prefix_b), weights_only)
    return cast(Comparison, call(["diff", os.fspath(path), os.fspath(other), *words], ranks=ranks, launcher=launcher))


def suspects(
    path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", ranks: int = 1, launcher: Sequence[str] | None = None
) -> list[Suspect]:
    """What a sound model does not have: an empty list for a sound one."""
    found = call(["suspects", os.fspath(path), *reading_options(map, config, prefix)], ranks=ranks, launcher=launcher)
    return [Suspect(**one) for one in found["suspects"]]


def nightly(
    job: Path, *, set: Mapping[str, Any] | None = None, ranks: int = 1, launcher: Sequence[str] | None = None, progress: Progress = False
) -> Night:
    """Converts the newest complete checkpoint of a training directory, if it is not converted yet. `job` is the file of `reshard nightly`."""
    return cast(Night, _with_job("nightly", job, set, [], ranks, launcher, progress))


def view(
    path: Job,
    output: Path,
    other: Path | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    map: str = "auto",
    config: Path | None = None,
    prefix: str = "",
) -> None:
    """Draws a checkpoint, a job (its file or its tables, `set` as of `run`), or where two checkpoints differ (`other`), as an HTML page."""
    others = [] if other is None else [os.fspath(other)]
    words = ["-o", os.fspath(output), *reading_options(None if map == "auto" else map, config, prefix), *_settings(set)]
    with _file_of(path) as file:
        command(["view", file, *others, *words])


def version() -> Version:
    """The program's version, and the MPI library that it runs with."""
    return cast(Version, call(["--version"]))


def _comparing(map: str, a: _Terms, b: _Terms, weights_only: bool) -> list[str]:
    return [*reading_options(map), *reading_options(*a, "-a"), *reading_options(*b, "-b"), *(["--weights-only"] if weights_only else [])]


def _settings(set: Mapping[str, Any] | None) -> list[str]:
    return [word for key, value in (set or {}).items() for word in ("--set", f"{key}={value_text(value)}")]


@contextmanager
def _file_of(job: Job, launcher: Sequence[str] | None = None) -> Iterator[str]:
    """The path of a job, or a temporary file with its tables, which errors name `job`."""
    if not isinstance(job, Mapping):
        yield os.fspath(job)
        return
    # In the current folder for a launcher of several nodes, which have no common /tmp.
    with tempfile.NamedTemporaryFile("w", prefix=".reshard-job-", suffix=".toml", dir=None if launcher is None else os.curdir, encoding="utf-8") as file:
        file.write(job_text(job))
        file.flush()
        try:
            yield file.name
        except ReshardError as error:  # the file is gone then, and its lines with it
            raise error_of(re.sub(re.escape(file.name) + r"(:\d+)*", "job", error.sentence), error.code) from None


def _with_job(
    command: str, job: Job, set: Mapping[str, Any] | None, words: list[str], ranks: int, launcher: Sequence[str] | None, progress: Progress
) -> dict[str, Any]:
    with _file_of(job, launcher) as file:
        return call([command, file, *words, *_settings(set)], ranks=ranks, launcher=launcher, progress=progress)
