"""Rewrites large-model checkpoints between parallel layouts and formats.

The functions start the program `reshard` and return its JSON documents as dictionaries. Nothing of a checkpoint is read in this process, except the
tensors that are asked for. An error of the program is an exception with its sentence and its exit code:

    report = reshard.run({"source": {"path": "/train/moe"}, "target": {"path": "/next/moe", "format": "huggingface"}})
    gate = reshard.open("/next/moe")["layer.3.experts.gate"]
"""

from ._checkpoint import Checkpoint, Slice, TensorInfo, open
from ._commands import Job, Suspect, diff, digest, inspect, nightly, plan, run, suspects, verify, version, view
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

__all__ = [
    "Checkpoint",
    "InputOutputError",
    "InternalError",
    "InterruptedError",
    "Job",
    "JobError",
    "ReshardError",
    "ResourceError",
    "SelfCheckError",
    "Slice",
    "SourceError",
    "StallError",
    "Suspect",
    "TargetError",
    "TensorInfo",
    "diff",
    "digest",
    "inspect",
    "launcher_path",
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
