"""Logical tensors of a checkpoint of any format and layout, as arrays."""

from __future__ import annotations

import difflib
import json
import math
import mmap
import operator
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ._errors import InternalError, JobError, ResourceError
from ._program import reading_options
from ._reader import Reader

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
    ckpt.get_slice("embed")[10:20]          rows 10 to 19

    One process reads, until close() or the end of a `with`; a forked or unpickled object starts its own. Any thread may read. Arrays are in memory that
    is theirs, and live on after close(). What is read is compared with sums of it, where the checkpoint has them: complete tensors with reshard.json,
    records of torch files with their CRC-32 (but not by get_slice).
    """

    def __init__(self, path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", framework: str = "np") -> None:
        if framework not in FRAMEWORKS:
            raise JobError(f"framework = {framework!r}: expected one of {', '.join(FRAMEWORKS)}.", 2)
        self.path = os.fspath(path)
        here = os.getcwd()  # a process that is started later may have another folder
        self._opened = (os.path.join(here, self.path), map, None if config is None else os.path.join(here, os.fspath(config)), prefix, framework)
        self._arrays_of = FRAMEWORKS[framework]
        self._reader = Reader(self.path, [self._opened[0], *reading_options(map, self._opened[2], prefix)])
        self._stored: dict[str, TensorInfo] | None = None  # by names in the files, once they are asked for
        hello = self._reader.hello()
        for note in hello["notes"]:
            warnings.warn(note, stacklevel=3)
        self.format = str(hello["format"])
        self.tensors: dict[str, TensorInfo] = _infos(hello)
        self._indices: dict[str, dict[str, list[list[int]]]] = {one["name"]: dict(zip(one["axes"], one["indices"])) for one in hello["tensors"]}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._opened

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process that reads."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<reshard.Checkpoint {self.path!r}: {self.format}, {len(self)} tensors>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self._parsed(name)[0] in self.tensors or name in self._stored_tensors())

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        array: numpy.ndarray[Any, Any] = self._array(self._request(name)[0])
        return array

    def get_slice(self, name: str) -> Slice:
        """A tensor, or the part of it that the name asks for, of which `[…]` reads only what it names, as with the safetensors library."""
        request, info = self._request(name)
        return Slice(lambda cuts: self._array({**request, "cut": cuts}), info)

    def read(self, *patterns: str, **at: int) -> dict[str, numpy.ndarray[Any, Any]]:
        """Several tensors with one reading: `read("experts.*", layer=3)`. A quantised weight means its parts."""
        if not patterns:
            raise JobError("read() needs the name of a tensor or a pattern: '*' means all.", 2)
        return self._arrays(_reading(patterns, at))

    def _arrays(self, request: dict[str, Any]) -> dict[str, Any]:
        _, memory = self._reader.ask(request)
        if memory is None:
            raise InternalError("the program answered without arrays.", 70)
        return self._arrays_of(memory)

    def _array(self, request: dict[str, Any]) -> Any:
        (array,) = self._arrays(request).values()
        return array

    def _request(self, name: str) -> tuple[dict[str, Any], TensorInfo]:
        """What reads the tensor of this name alone, and what is read. KeyError: there is none."""
        tensor, at = self._parsed(name)
        if tensor in self.tensors:
            request = _reading([_literal(tensor)], at)
            info = self.tensors[tensor]
            left = [(size, axis) for size, axis in zip(info.shape, info.axes) if axis not in at]
            return request, TensorInfo(name, info.dtype, tuple(size for size, _ in left), tuple(axis for _, axis in left))
        if name in self._stored_tensors():
            return {"read": [_literal(name)], "stored": True}, self._stored_tensors()[name]
        raise KeyError(self._unknown(name))

    def _stored_tensors(self) -> dict[str, TensorInfo]:
        """Of mp_rank_* folders none: there every rank has a share under the same name."""
        if self._stored is None:
            try:
                self._stored = _infos(self._reader.ask({"stored": True})[0])
            except JobError:
                self._stored = {}
        return self._stored

    def _unknown(self, name: str) -> str:
        part = re.match(r"(?:\w+\.\d+\.)*", name)
        front = part[0] if part else ""
        at = {axis: int(index) for axis, index in re.findall(r"(\w+)\.(\d+)\.", front)}
        near = [self._nearest_part(one, at) for one in difflib.get_close_matches(name[len(front) :], self.tensors)]
        near += difflib.get_close_matches(name, self._stored_tensors())
        hint = f" Did you mean {', '.join(near[:3])}?" if near else ""
        return f"{self.path} has no tensor '{name}'.{hint} Iterate over the checkpoint for all names."

    def _nearest_part(self, tensor: str, at: Mapping[str, int]) -> str:
        """The name of its part at these indices, or at those that it has instead."""
        ends = {axis: (runs[0][0], runs[-1][1] - 1) for axis, runs in self._indices[tensor].items() if runs}
        front = [f"{axis}.{min(max(index, ends[axis][0]), ends[axis][1])}." for axis, index in at.items() if axis in ends]
        return "".join(front) + tensor

    def _has(self, tensor: str, at: Mapping[str, int]) -> bool:
        indices = self._indices[tensor]
        return all(any(begin <= index < end for begin, end in indices.get(axis, ())) for axis, index in at.items())

    def _parsed(self, name: str) -> tuple[str, dict[str, int]]:
        """Takes `AXIS.INDEX.` off the front as long as what is left is no tensor's name. The name itself where the tensor has no such part."""
        at: dict[str, int] = {}
        left = name
        while left not in self.tensors:
            words = left.split(".", 2)
            if len(words) < 3 or not words[1].isdecimal():
                return name, {}
            at[words[0]] = int(words[1])
            left = words[2]
        return (left, at) if self._has(left, at) else (name, {})


def open(path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "", framework: str = "np") -> Checkpoint:
    """Opens a checkpoint of any format by its headers. Needs NumPy, and ml_dtypes for BF16 and FP8: `pip install 'reshard[numpy]'`. With
    `framework="pt"` tensors are PyTorch's, which needs neither.
    """
    return Checkpoint(path, map=map, config=config, prefix=prefix, framework=framework)


def _literal(name: str) -> str:
    """As a pattern that `*` and `?` in it do not widen: `?` matches each."""
    return name.replace("*", "?")


def _reading(patterns: Sequence[str], at: Mapping[str, int]) -> dict[str, Any]:
    """A request for these tensors, at one index of each axis in `at`."""
    request: dict[str, Any] = {"read": list(patterns)}
    return request | {"at": ",".join(f"{axis}={index}" for axis, index in at.items())} if at else request


def _infos(listed: dict[str, Any]) -> dict[str, TensorInfo]:
    return {one["name"]: TensorInfo(one["name"], one["dtype"], tuple(one["shape"]), tuple(one["axes"])) for one in listed["tensors"]}


def _reopened(path: str, map: str, config: str | None, prefix: str, framework: str) -> Checkpoint:
    return Checkpoint(path, map=map, config=config, prefix=prefix, framework=framework)


class Slice:
    """Of a tensor that is not read yet: `[10:20]`, `[3, :, ::2]`, `[..., 0]` reads these elements. Of every second element, those between are read, too."""

    def __init__(self, read: Callable[[list[list[int]]], Any], info: TensorInfo) -> None:
        self._read, self._info = read, info

    def get_shape(self) -> list[int]:
        return list(self._info.shape)

    def get_dtype(self) -> str:
        return self._info.dtype

    def __getitem__(self, index: Any) -> Any:
        words = list(index) if isinstance(index, tuple) else [index]
        shape = self._info.shape
        if any(word is Ellipsis for word in words):
            at = next(place for place, word in enumerate(words) if word is Ellipsis)
            words[at : at + 1] = [slice(None)] * (len(shape) - len(words) + 1)
        if len(words) > len(shape):
            raise IndexError(f"'{self._info.name}' has {len(shape)} dimensions, and {len(words)} indices were given")
        cuts: list[list[int]] = []
        after: list[Any] = []
        for word, size in zip(words, shape):
            if isinstance(word, slice):
                begin, end, step = word.indices(size)
                if step < 1:
                    raise ValueError(f"'{self._info.name}': the step {step} is not read. Read forwards, and turn the array round.")
                cuts.append([begin, max(begin, end)])
                after.append(slice(None, None, step))
            else:
                place = operator.index(word)
                if not -size <= place < size:
                    raise IndexError(f"'{self._info.name}': the index {place} is outside of a dimension of {size}")
                cuts.append([place % size, place % size + 1])
                after.append(0)
        array = self._read(cuts)
        return array if all(word == slice(None, None, 1) for word in after) else array[tuple(after)]


def _entries(data: mmap.mmap) -> dict[str, tuple[str, list[int], int]]:
    """Dtype, shape and place of each tensor of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {name: (one["dtype"], one["shape"], 8 + size + one["data_offsets"][0]) for name, one in header.items() if name != "__metadata__"}


def _arrays(data: mmap.mmap) -> dict[str, Any]:
    import numpy

    entries = _entries(data)
    return {name: numpy.ndarray(shape, dtype=_dtype(name, word), buffer=data, offset=at) for name, (word, shape, at) in entries.items()}


def _torch_tensors(data: mmap.mmap) -> dict[str, Any]:
    import torch

    result = {}
    for name, (word, shape, at) in _entries(data).items():
        dtype = getattr(torch, TORCH.get(word, ""), None)
        if dtype is None:
            raise ResourceError(f"'{name}': this PyTorch has no {word}. Update it, or read the tensor with framework=\"np\".", 6)
        count = math.prod(shape)
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        result[name] = flat.reshape(shape)
    return result


FRAMEWORKS: dict[str, Callable[[mmap.mmap], dict[str, Any]]] = {"np": _arrays, "pt": _torch_tensors}


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
