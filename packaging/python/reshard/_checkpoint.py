"""Logical tensors of a checkpoint of any format and layout, as arrays."""

from __future__ import annotations

import builtins
import json
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
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

    An array is a private map of a file without a name: its pages are read when they are touched, and the disk is freed with the array.
    """

    def __init__(self, path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "") -> None:
        self.path = os.fspath(path)
        self._options = reading_options(map, config, prefix)
        listed = call(["ls", self.path, "--logical", *self._options])
        self.format = str(listed["format"])
        self.tensors: dict[str, TensorInfo] = {
            one["name"]: TensorInfo(one["name"], one["dtype"], tuple(one["shape"]), tuple(one.get("axes", ()))) for one in listed["tensors"]
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._parsed(name)[0] in self.tensors

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        tensor, at = self._parsed(name)
        if tensor not in self.tensors:
            raise KeyError(name)
        return self.read(tensor, **at)[tensor]

    def read(self, *patterns: str, **at: int) -> dict[str, numpy.ndarray[Any, Any]]:
        """Several tensors with one reading: `read("experts.*", layer=3)`. A quantised weight means its parts."""
        if not patterns:
            raise JobError("read() needs the name of a tensor or a pattern: '*' means all.", 2)
        words = [f"--at={','.join(f'{axis}={index}' for axis, index in at.items())}"] if at else []
        with tempfile.TemporaryDirectory(prefix="reshard-") as folder:
            file = os.path.join(folder, "tensors.safetensors")
            call(["extract", self.path, *patterns, "-o", file, *words, *self._options])
            return _mapped(file)

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


def open(path: Path, *, map: str = "auto", config: Path | None = None, prefix: str = "") -> Checkpoint:
    """Opens a checkpoint of any format by its headers. Needs NumPy, and ml_dtypes for BF16 and FP8: `pip install 'reshard[numpy]'`."""
    return Checkpoint(path, map=map, config=config, prefix=prefix)


def _mapped(path: str) -> dict[str, numpy.ndarray[Any, Any]]:
    """The tensors of a safetensors file. The file may be removed: the arrays keep it."""
    import numpy

    with builtins.open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    result = {}
    for name, one in header.items():
        if name == "__metadata__":
            continue
        begin, _ = one["data_offsets"]
        result[name] = numpy.ndarray(one["shape"], dtype=_dtype(name, one["dtype"]), buffer=data, offset=8 + size + begin)
    return result


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
