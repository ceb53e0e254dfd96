"""The types of what the functions return: dictionaries, the JSON documents of the program. A member of a class `_…Sometimes` may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Histogram = dict[str, int]  # counts of elements by the power of ten of their difference; "0": equal ones


@dataclass(frozen=True)
class Suspect:
    """Of `suspects`: what a sound model does not have. `tensor`: as `reshard.open` takes it; `count`: elements, or parts that are equal."""

    kind: str
    tensor: str
    found: str
    count: int
    cause: str


class Save(TypedDict):
    """Of `inspect` of a folder of a run. `complete` is None where it was not looked at."""

    name: str
    iteration: int | None
    format: str | None
    complete: bool | None
    state: str
    optimizer: str | None
    bytes: int
    age_seconds: int
    marks: list[str]


class DTypeShare(TypedDict):
    tensors: int
    bytes: int


class _InspectionSometimes(TypedDict, total=False):
    format: str
    mismatches: list[str]
    refused: str
    notes: list[str]
    saves: list[Save]
    iteration: int
    model: dict[str, Any]
    model_type: str
    sizes: dict[str, Any]
    optimizer: Any
    rng: bool
    read_as: str
    can_become: str
    quantisation: str
    dtypes: dict[str, DTypeShare]
    tensors: int
    files: int
    elements: int
    shape: dict[str, str]
    written_by: str


class Inspection(_InspectionSometimes):
    """Of `inspect`. Formats have further members. `refused`: why nothing else is known."""

    path: str
    sound: bool


class Place(TypedDict):
    """A stored tensor and a byte of its file; None where the value is computed from several."""

    file: str
    name: str
    offset: int | None


class FirstDifference(TypedDict):
    index: list[int] | None
    place: str
    a_value: str
    b_value: str
    a: Place
    b: Place


class _ComparedTensorSometimes(TypedDict, total=False):
    layer: int
    first: FirstDifference
    max_abs: float | None
    max_abs_at: list[int] | None
    max_rel: float | None
    max_rel_at: list[int] | None
    mean_abs: float | None
    finite: int
    finite_max_abs: float
    finite_max_rel: float
    finite_mean_abs: float
    max_a: float
    max_b: float
    nan_a: int
    nan_b: int
    infinite_a: int
    infinite_b: int
    non_finite_differing: int
    max_abs_in_replicas: float
    max_rel_in_replicas: float
    non_finite_in_replicas: int
    histogram: Histogram


class ComparedTensor(_ComparedTensorSometimes):
    """A tensor, or one layer of it. `first` is there where elements differ. Numbers of differences are those of `diff`; None where an element is not finite.
    Those of replicas in `other` are apart, in `…_in_replicas`, where one differs."""

    name: str
    dtype_a: str
    dtype_b: str
    axes: list[str]
    shape: list[int]
    elements: int
    differing: int
    differing_in_replicas: int


class HeaderDifference(TypedDict):
    kind: str
    tensor: str
    a: str
    b: str
    parts: int


class ConfigDifference(TypedDict):
    key: str
    a: str
    b: str


class NotCompared(TypedDict):
    a: str
    b: str
    optimizer_tensors_only_in_a: int
    optimizer_tensors_only_in_b: int


class _ComparisonSometimes(TypedDict, total=False):
    histogram: Histogram


class Comparison(_ComparisonSometimes):
    """Of `verify` of two checkpoints, whose `tensors` are those that differ, and of `diff`, whose `tensors` are all."""

    a: str
    b: str
    comparison: Literal["bytes", "values"]
    tensors_by: str
    same: bool
    summary: str
    tensors_compared: int
    tensors_differing: int
    bytes: int
    config_differences: list[ConfigDifference]
    configs_not_compared: str
    notes: list[str]
    not_compared: NotCompared
    header_differences: list[HeaderDifference]
    tensors: list[ComparedTensor]


class _OwnVerificationSometimes(TypedDict, total=False):
    files: list[str]
    tensors: list[str]
    replicas: list[str]
    optimizer: list[str]
    parts: list[str]
    note: str


class OwnVerification(_OwnVerificationSometimes):
    """Of `verify` of one checkpoint. A list is there for each kind of thing that was compared with its record, and has a sentence for each fault."""

    path: str
    sound: bool


class _PartVerificationSometimes(TypedDict, total=False):
    part: int
    of: int
    files_read: int
    bytes_read: int
    files: int
    files_read_so_far: int
    oldest: str | None
    record: str
    faults: list[str]
    sound: bool
    error: str


class PartVerification(_PartVerificationSometimes):
    """Of `nightly.verify_subset`: a part of a target's files that was read again, or `error`."""

    path: str


class _DigestedTensorSometimes(TypedDict, total=False):
    add: float


class DigestedTensor(_DigestedTensorSometimes):
    """`add`: stored is the value and so much more."""

    name: str
    dtype: str
    shape: list[int]
    axes: list[str]
    crc64: str


class Digest(TypedDict):
    path: str
    format: str
    map: str
    total: str
    bytes: int
    bytes_read: int
    tensors: list[DigestedTensor]
    notes: list[str]


class _ListedTensorSometimes(TypedDict, total=False):
    shape: list[int]
    axes: list[str]
    file: str
    offset: int
    pieces: int


class ListedTensor(_ListedTensorSometimes):
    """A stored tensor has `file` and `offset`, a logical one `axes` and `pieces`. Formats have further members."""

    name: str
    dtype: str | None
    bytes: int


class Listing(TypedDict):
    """Of `ls`."""

    path: str
    format: str
    kind: Literal["stored", "logical"]
    tensors: list[ListedTensor]


class ExtractedTensor(TypedDict):
    name: str
    dtype: str
    shape: list[int]


class Extraction(TypedDict):
    """Of `extract`: the safetensors file `output` holds `tensors`."""

    path: str
    format: str
    map: str
    output: str
    bytes: int
    tensors: list[ExtractedTensor]


class Skip(TypedDict):
    name: str
    reason: str


class _AfterSometimes(TypedDict, total=False):
    error: str


class After(_AfterSometimes):
    state: Literal["succeeded", "failed"]
    exit_code: int
    seconds: float


class Version(TypedDict):
    """Of `version`: the program and what it was built with. `mpi` is the library that it runs with."""

    name: str
    version: str
    commit: str
    build_type: str
    mpi: str
    hdf5: str
    seccomp: str
    cuda: str
    nccl: str
    date: str
    compiler: str
    flags: str
    built_for: str
    built_with: str
    libraries: Mapping[str, str]
