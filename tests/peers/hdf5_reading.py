"""What h5py finds in our containers: every tensor with its axes and bits, the objects, and whether the file keeps what its format promises."""

from pathlib import Path

import h5py
import numpy as np
import torch

from tensor_patterns import crc64, raw

SINGLE = "model.h5"
INDEX = "model.h5.index.json"
ROOT = {"format": b"reshard-hdf5", "format_version": b"1", "software": b"reshard", "complete": 1}
NUMPY = {
    "BF16": "f4", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "U8": "u1",
    "U16": "u2", "U32": "u4", "U64": "u8", "BOOL": "u1"}  # what h5py makes of a dataset
TORCH = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64, "C128": torch.complex128,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32,
    "U64": torch.uint64, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}


def link_of(name):
    return name.replace("%", "%25").replace("/", "%2F")


def name_of(link):
    return link.replace("%2F", "/").replace("%25", "%")


def stored_bytes(path, dataset):
    """The bytes on disk, past h5py's conversions."""
    size = dataset.id.get_storage_size()
    if not dataset.size:
        return b""
    with open(path, "rb") as file:
        file.seek(dataset.id.get_offset())
        return file.read(size)


def files_of(target):
    target = Path(target)
    return [target] if target.is_file() else sorted(target.glob("*.h5"))


def read_container(target):
    """Name -> (torch tensor, axes, domain) and name -> bytes of objects, over all parts, after checking what holds for every container."""
    tensors, objects = {}, {}
    for path in files_of(target):
        with h5py.File(path) as file:
            check_root(file)
            for link, dataset in file["tensors"].items():
                assert link_of(name_of(link)) == link and name_of(link) not in tensors
                tensors[name_of(link)] = read_tensor(path, dataset)
            for link, dataset in file["objects"].items():
                data = stored_bytes(path, dataset)
                assert dataset.dtype == np.uint8 and dataset.ndim == 1 and dataset[()].tobytes() == data
                assert dataset.attrs["crc64"].decode() == crc64(data), link
                objects[name_of(link)] = data
    return tensors, objects


def check_root(file):
    attributes = dict(file.attrs)
    assert {name: attributes.get(name) for name in ROOT} == ROOT
    assert attributes["complete"].dtype == np.uint8
    assert set(file) == {"tensors", "objects"}


def read_tensor(path, dataset):
    word, data = dataset.attrs["dtype"].decode(), stored_bytes(path, dataset)
    assert dataset.chunks is None and dataset.attrs["crc64"].decode() == crc64(data), dataset.name
    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(TORCH[word]) if data else torch.empty(0, dtype=TORCH[word])
    whole = whole.reshape(dataset.shape)
    check_values(dataset, word, whole, data)
    labels = tuple(dimension.label for dimension in dataset.dims) if dataset.ndim else ()
    return whole, labels if any(labels) else (), dataset.attrs["domain"].decode() if "domain" in dataset.attrs else ""


def check_values(dataset, word, whole, data):
    """What a user of h5py gets: numbers of the nearest type that numpy has, bf16 widened without loss, FP8 as its bytes."""
    found = np.asarray(dataset[()])
    assert found.dtype == np.dtype(NUMPY.get(word, "u1")), f"{dataset.name}: {found.dtype} for {word}"
    expected = raw(whole.float()) if word == "BF16" and whole.numel() else data
    if word == "BF16":  # the library quiets signalling NaNs
        assert np.array_equal(found, np.frombuffer(expected, "f4").reshape(found.shape), equal_nan=True), dataset.name
    else:
        assert found.tobytes() == expected, dataset.name


def root_attributes(path):
    with h5py.File(path) as file:
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in file.attrs.items()}
