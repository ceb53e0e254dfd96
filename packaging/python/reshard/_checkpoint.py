"""Logical tensors of a checkpoint of any format and layout, as arrays."""

from __future__ import annotations

import builtins
import difflib
import json
import math
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ._errors import JobError, ResourceError
from ._program import call, reading_options

if TYPE_CHECKING:
    import numpy

Path = Union[str, "os.PathLike[str]"]

# Of safetensors: the names in NumPy, and in ml_dtypes for what NumPy does not have.
NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


class TensorInfo(NamedTuple):
    """What is known of a tensor without reading it. `axes` names each dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]


class Checkpoint(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """Names to arrays. Each lookup reads one tensor, or the part of it that the name asks for, and nothing else:

    ckpt["experts.gate"]                    all layers and experts
    ckpt["layer.3.experts.gate"]            layer 3
    ckpt["layer.3.expert.5.experts.gate"]   expert 5 of it
    ckpt["model.norm.weight"]               by the name in the files, except of mp_rank_* folders

    An array is a private map of a file without a name: its pages are read when they are touched, and the disk is freed with the array.
    """

    def __init__(self, path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", framework: str = "np") -> None:
        if framework not in FRAMEWORKS:
            raise JobError(f"framework = {framework!r}: expected one of {', '.join(FRAMEWORKS)}.", 2)
        self.path = os.fspath(path)
        self._mapped = FRAMEWORKS[framework]
        self._options = reading_options(map, config, prefix)
        self._stored: dict[str, None] | None = None  # names in the files, once they are asked for
        listed = call(["ls", self.path, "--logical", *self._options])
        self.format = str(listed["format"])
        self.tensors: dict[str, TensorInfo] = {
            one["name"]: TensorInfo(one["name"], one["dtype"], tuple(one["shape"]), tuple(one.get("axes", ()))) for one in listed["tensors"]
        }

    def __repr__(self) -> str:
        return f"<reshard.Checkpoint {self.path!r}: {self.format}, {len(self)} tensors>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self._parsed(name)[0] in self.tensors or name in self._stored_names())

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        tensor, at = self._parsed(name)
        if tensor in self.tensors:
            return self.read(tensor, **at)[tensor]
        if name in self._stored_names():
            return self._extracted([_literal(name)], ["--map", "none"])[name]
        raise KeyError(self._unknown(name))

    def read(self, *patterns: str, **at: int) -> dict[str, numpy.ndarray[Any, Any]]:
        """Several tensors with one reading: `read("experts.*", layer=3)`. A quantised weight means its parts."""
        if not patterns:
            raise JobError("read() needs the name of a tensor or a pattern: '*' means all.", 2)
        words = [f"--at={','.join(f'{axis}={index}' for axis, index in at.items())}"] if at else []
        return self._extracted(patterns, [*words, *self._options])

    def _extracted(self, patterns: Sequence[str], words: Sequence[str]) -> dict[str, numpy.ndarray[Any, Any]]:
        with tempfile.TemporaryDirectory(prefix="reshard-") as folder:
            file = os.path.join(folder, "tensors.safetensors")
            call(["extract", self.path, *patterns, "-o", file, *words])
            return self._mapped(file)

    def _stored_names(self) -> dict[str, None]:
        """Of mp_rank_* folders none: there every rank has a share under the same name."""
        if self._stored is None:
            listed = call(["ls", self.path])["tensors"]
            self._stored = {one["name"]: None for one in listed if "chunk" not in one and one["dtype"] != "object"}
        return self._stored

    def _unknown(self, name: str) -> str:
        part = re.match(r"(?:\w+\.\d+\.)*", name)
        front = part[0] if part else ""
        near = [front + one for one in difflib.get_close_matches(name[len(front) :], self.tensors)]
        near += difflib.get_close_matches(name, self._stored_names())
        hint = f" Did you mean {', '.join(near[:3])}?" if near else ""
        return f"{self.path} has no tensor '{name}'.{hint} Iterate over the checkpoint for all names."

    def _parsed(self, name: str) -> tuple[str, dict[str, int]]:
        """Takes `AXIS.INDEX.` off the front as long as what is left is no tensor's name."""
        at: dict[str, int] = {}
        left = name
        while left not in self.tensors:
            words = left.split(".", 2)
            if len(words) < 3 or not words[1].isdecimal():
                return name, {}
            at[words[0]] = int(words[1])
            left = words[2]
        return left, at


def open(path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", framework: str = "np") -> Checkpoint:
    """Opens a checkpoint of any format by its headers. Needs NumPy, and ml_dtypes for BF16 and FP8: `pip install 'reshard[numpy]'`. With
    `framework="pt"` tensors are PyTorch's, which needs neither.
    """
    return Checkpoint(path, map=map, config=config, prefix=prefix, framework=framework)


def _literal(name: str) -> str:
    """As a pattern that `*` and `?` in it do not widen: `?` matches each."""
    return name.replace("*", "?")


def _entries(path: str) -> tuple[mmap.mmap, dict[str, tuple[str, list[int], int]]]:
    """The bytes of a safetensors file, and dtype, shape and place of each tensor. The file may be removed: what is made of the bytes keeps it."""
    with builtins.open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return data, {name: (one["dtype"], one["shape"], 8 + size + one["data_offsets"][0]) for name, one in header.items() if name != "__metadata__"}


def _arrays(path: str) -> dict[str, Any]:
    import numpy

    data, entries = _entries(path)
    return {name: numpy.ndarray(shape, dtype=_dtype(name, word), buffer=data, offset=at) for name, (word, shape, at) in entries.items()}


def _torch_tensors(path: str) -> dict[str, Any]:
    import torch

    data, entries = _entries(path)
    result = {}
    for name, (word, shape, at) in entries.items():
        dtype = getattr(torch, TORCH.get(word, ""), None)
        if dtype is None:
            raise ResourceError(f"'{name}': this PyTorch has no {word}. Update it, or read the tensor with framework=\"np\".", 6)
        count = math.prod(shape)
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        result[name] = flat.reshape(shape)
    return result


FRAMEWORKS: dict[str, Callable[[str], dict[str, Any]]] = {"np": _arrays, "pt": _torch_tensors}


def _dtype(tensor: str, word: str) -> Any:
    import numpy

    if word in NUMPY:
        return numpy.dtype(NUMPY[word])
    if word not in ML_DTYPES:
        raise ResourceError(f"'{tensor}': NumPy has no {word}. Convert it with `reshard extract` and read the file with another library.", 6)
    try:
        import ml_dtypes
    except ImportError:
        raise ResourceError(f"'{tensor}': NumPy has no {word} without ml_dtypes. Install it with pip install 'reshard[numpy]'.", 6) from None
    return numpy.dtype(getattr(ml_dtypes, ML_DTYPES[word]))
