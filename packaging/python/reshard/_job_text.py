"""A job of dictionaries as the TOML text of a job file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import JobError


def value_text(value: Any) -> str:
    """A value as TOML. JSON's strings are strings of TOML, except for DEL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{value_text(str(key))} = {value_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(value_text(one) for one in value) + "]"
    raise JobError(f"{value!r}: a job cannot hold a {type(value).__name__}. Use text, numbers, booleans, lists and dictionaries.", 2)


def job_text(job: Mapping[str, Any]) -> str:
    return "".join(f"{value_text(str(key))} = {value_text(value)}\n" for key, value in job.items())
