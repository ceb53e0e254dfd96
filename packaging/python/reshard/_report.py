"""The types of the reports of `plan`, `run` and `nightly`: dictionaries, the JSON documents of the program (docs/while-a-job-runs.md)."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from ._documents import After, PartVerification, Skip


class ReportSource(TypedDict):
    """`save`: the folder in `path` that was taken, None where `path` is the save."""

    path: str
    format: str
    save: str | None
    layout: str


class ReportTarget(TypedDict):
    path: str
    format: str


_From = TypedDict("_From", {"from": str})


class DTypeChange(_From):
    """Of `tensors` tensors; `names` are the first of them."""

    to: str
    tensors: int
    names: list[str]


class LeftOut(TypedDict):
    tensors: int
    bytes: int
    names: list[str]


class _PlanFiguresSometimes(TypedDict, total=False):
    state_bytes: int
    states: list[str]
    left_out: LeftOut
    dtype_changes: list[DTypeChange]
    trained_padding: list[str]
    per_rank: dict[str, Any]
    replaces: bool


class PlanFigures(_PlanFiguresSometimes):
    logical_tensors: int
    source_files: int
    source_tensors: int
    replicas_not_read: int
    target_files: int
    target_tensors: int
    regions: int
    rounds: int
    payload_read_bytes: int
    payload_written_bytes: int
    target_bytes: int
    free_bytes: int
    staging_bytes_per_rank: int
    planned_memory_bytes: int
    transport: str
    device: str
    device_reason: str


class Since(TypedDict):
    """What `target.incremental_from` lets the job take over. `refused`: why nothing, or ""."""

    path: str
    usable_files: int
    usable_bytes: int
    unread_bytes: int
    refused: str


class Interrupted(TypedDict):
    """What an interrupted run has left, and what the next one makes of it. `may_be_active`: why it may still work, or ""."""

    folder: str
    next_run: Literal["starts afresh", "resumes", "renames"]
    why_not: str
    earlier_runs: int
    bytes_written: int
    bytes: int
    may_be_active: str


class PhaseSeconds(TypedDict):
    headers: float
    plan: float
    copy: float
    verify: float
    publish: float
    total: float


class Stage(TypedDict):
    stage: Literal["read", "rearrange", "write", "verify"]
    bytes: int
    busy_seconds: float
    stall_seconds: float
    gib_per_second: float


class SelfCheck(TypedDict):
    elements_per_tensor: int
    seed: str
    tensors: int
    elements: int
    converted: int
    padding: int
    computed: int
    unplaced: int
    not_covered: int
    not_covered_names: list[str]
    wrong: int
    faults: list[str]
    why_not: str
    seconds: float


class TakenOver(TypedDict):
    """Of a previous target."""

    bytes_kept: int
    bytes_filled: int
    files_reused: int
    file_bytes_reused: int
    oldest_verified: str
    tensors_changed: int
    changed: list[str]


class _RunFiguresSometimes(TypedDict, total=False):
    masters_compared: int
    moments_compared: int
    self_check: SelfCheck
    since: TakenOver
    read_amplification: float


class RunFigures(_RunFiguresSometimes):
    """Bytes and counts are those of all ranks."""

    bytes_read: int
    bytes_written: int
    bytes_cloned: int
    bytes_exchanged: int
    bytes_copied: int
    cells_handed_out: int
    bytes_handed_out: int
    read_calls: int
    write_calls: int
    clone_calls: int
    peak_memory_bytes: int
    write_mode: str
    io: dict[str, Any]
    replicas_compared: int
    digests_compared: int
    records_compared: int
    bytes_verified: int
    bytes_verified_early: int
    bytes_shared: int
    total_digest: str
    device_name: str
    bytes_uploaded: int
    bytes_downloaded: int
    device_memory_bytes: int
    seconds: PhaseSeconds
    stages: list[Stage]
    earlier_runs: int
    bytes_reused: int
    write_amplification: float


class _ReportSometimes(TypedDict, total=False):
    parts: str
    since: Since


class _Report(_ReportSometimes):
    """`map`: the model map, "" for none; `job`: the complete job file."""

    source: ReportSource
    target: ReportTarget
    map: str
    ranks: int
    plan: PlanFigures
    warnings: list[str]
    job: str


class Refusal(TypedDict):
    exit_code: int
    error: str


class _PlanReportSometimes(TypedDict, total=False):
    interrupted: Interrupted
    refused: Refusal


class PlanReport(_Report, _PlanReportSometimes):
    """Of `plan`. `refused`: why `run` would not begin."""

    type: Literal["plan"]


class RunReport(_Report):
    """Of `run`."""

    type: Literal["result"]
    run: RunFigures


class _ConversionSometimes(TypedDict, total=False):
    report: RunReport | None
    after: After | None
    exit_code: int
    error: str


class Conversion(_ConversionSometimes):
    """Of `nightly` with `nightly.backfill`."""

    action: str
    source: str
    target: str


class _NightSometimes(TypedDict, total=False):
    report: RunReport | None
    after: After | None
    verified: list[PartVerification]
    conversions: list[Conversion]
    exit_code: int


class Night(_NightSometimes):
    """Of `nightly` (docs/nightly.md): `report` is that of the conversion, None where nothing was to be done."""

    action: Literal["converted", "up_to_date", "waiting", "nothing_complete", "failed"]
    source: str | None
    target: str | None
    skipped: list[Skip]
    removed: list[str]
    cleaned: list[str]
    warnings: list[str]
