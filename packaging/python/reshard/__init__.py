"""Rewrites large-model checkpoints between parallel layouts and formats.

The functions start the program `reshard` and return its JSON documents as typed dictionaries. Nothing of a checkpoint is read in this process, except the
tensors that are asked for. An error of the program is an exception with its sentence and its exit code:

    report = reshard.run({"source": {"path": "/train/moe"}, "target": {"path": "/next/moe", "format": "huggingface"}})
    gate = reshard.open("/next/moe")["layer.3.experts.gate"]
"""

from ._checkpoint import Checkpoint, Slice, TensorInfo, open
from ._commands import Job, convert, diff, digest, extract, inspect, ls, nightly, plan, run, suspects, verify, version, view
from ._documents import (
    ComparedTensor,
    Comparison,
    Digest,
    DigestedTensor,
    ExtractedTensor,
    Extraction,
    Inspection,
    ListedTensor,
    Listing,
    OwnVerification,
    Save,
    Suspect,
    Version,
)
from ._errors import (
    InputOutputError,
    InternalError,
    InterruptedError,
    JobError,
    ReshardError,
    ResourceError,
    SelfCheckError,
    SourceError,
    StallError,
    TargetError,
)
from ._program import launcher_path, program_path
from ._report import Conversion, Night, PlanFigures, PlanReport, RunFigures, RunReport

__all__ = [
    "Checkpoint",
    "ComparedTensor",
    "Comparison",
    "Conversion",
    "Digest",
    "DigestedTensor",
    "ExtractedTensor",
    "Extraction",
    "InputOutputError",
    "Inspection",
    "InternalError",
    "InterruptedError",
    "Job",
    "JobError",
    "ListedTensor",
    "Listing",
    "Night",
    "OwnVerification",
    "PlanFigures",
    "PlanReport",
    "ReshardError",
    "ResourceError",
    "RunFigures",
    "RunReport",
    "Save",
    "SelfCheckError",
    "Slice",
    "SourceError",
    "StallError",
    "Suspect",
    "TargetError",
    "TensorInfo",
    "Version",
    "convert",
    "diff",
    "digest",
    "extract",
    "inspect",
    "launcher_path",
    "ls",
    "nightly",
    "open",
    "plan",
    "program_path",
    "run",
    "suspects",
    "verify",
    "version",
    "view",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # asked of the program, which is not started before
        return version()["version"]
    raise AttributeError(f"module 'reshard' has no attribute {name!r}")
