"""What torch itself finds in a distributed checkpoint: whole tensors, objects, chunk grids, and where each item lies."""

import io
import struct
import zlib
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from megatron_release import COMMON_ITEM
from tensor_patterns import raw, same_bits


def catalogue(folder):
    return FileSystemReader(folder).read_metadata()


def tensor_entries(folder):
    return {key: entry for key, entry in catalogue(folder).state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)}


def grid(entry):
    """Offsets and sizes of a tensor's chunks, sorted."""
    return sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks)


def grids(folder):
    return {key: grid(entry) for key, entry in tensor_entries(folder).items()}


def whole_tensors(folder):
    """Every tensor, put together by torch's loader in one process."""
    wanted = {key: poisoned(entry.size, entry.properties.dtype) for key, entry in tensor_entries(folder).items()}
    dcp.load(wanted, storage_reader=FileSystemReader(folder), planner=DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    return wanted


def poisoned(size, dtype):
    """A tensor of 0xA5 bytes: what a loader leaves out must not look right by accident."""
    count = torch.empty((), dtype=dtype).element_size()
    whole = torch.full((max(1, torch.Size(size).numel()) * count,), 0xA5, dtype=torch.uint8)
    return whole.view(dtype)[: torch.Size(size).numel()].reshape(size)


def object_bytes(folder):
    """Key -> the stored bytes of every object."""
    tensors, result = tensor_entries(folder), {}
    for index, place in catalogue(folder).storage_data.items():
        if index.fqn not in tensors:
            with open(Path(folder) / place.relative_path, "rb") as file:
                file.seek(place.offset)
                result[index.fqn] = file.read(place.length)
    return result


def overwrite(folder, key, tensor):
    """Puts other numbers into the only chunk of a tensor, and their checksum into descriptor and directory of the item."""
    place = next(place for index, place in catalogue(folder).storage_data.items() if index.fqn == key)
    with open(Path(folder) / place.relative_path, "r+b") as file:
        file.seek(place.offset)
        item = file.read(place.length)
        old, new = raw(torch.load(io.BytesIO(item), weights_only=True)), raw(tensor)
        assert len(new) == len(old)
        start = item.index(old)
        checksums = [struct.pack("<I", zlib.crc32(payload)) for payload in (old, new)]
        assert item.count(checksums[0], start + len(old)) == 2
        file.seek(place.offset)
        file.write(item[:start] + new + item[start + len(old) :].replace(*checksums))


def objects(folder):
    return {key: torch.load(io.BytesIO(data), weights_only=False) for key, data in object_bytes(folder).items()}


def check_catalogue(folder, hints=True, empty_chunks=False):
    """What torch's loaders rely on but do not all check: chunks cover each tensor exactly, every item is whole and of the size and type it claims.

    `hints`: the index of an item is its chunk's place in the list; megatron-core numbers the halves of a gated layer per rank instead.
    `empty_chunks`: torch itself lists the empty pieces of ranks that got nothing."""
    metadata = catalogue(folder)
    entries = {key: entry for key, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)}
    places = {(index.fqn, tuple(index.offset) if index.offset is not None else None): place for index, place in metadata.storage_data.items()}
    expected = {(key, offsets) for key, entry in entries.items() for offsets, _ in grid(entry)}
    expected |= {(key, None) for key in metadata.state_dict_metadata if key not in entries}
    assert set(places) == expected, f"items {sorted(map(str, set(places) ^ expected))[:4]} are listed on one side only"
    for key, entry in entries.items():
        check_cover(key, entry, empty_chunks)
        assert entry.properties.layout == torch.strided and not entry.properties.requires_grad and not entry.properties.pin_memory, key
        assert entry.properties.memory_format == torch.contiguous_format, key
        for offsets, sizes in grid(entry):
            check_item(folder, key, entry, sizes, places[key, offsets])
    for index in metadata.storage_data:
        if hints and index.fqn in entries and index.index is not None:
            assert tuple(entries[index.fqn].chunks[index.index].offsets) == tuple(index.offset), f"{index.fqn}: the hint points at another chunk"
    check_no_overlap(folder, metadata)


def check_cover(key, entry, empty_chunks):
    seen = torch.zeros(tuple(entry.size), dtype=torch.int32)
    for offsets, sizes in grid(entry):
        region = tuple(slice(start, start + extent) for start, extent in zip(offsets, sizes))
        assert all(start >= 0 and start + extent <= limit for start, extent, limit in zip(offsets, sizes, entry.size)), f"{key}: {offsets}+{sizes}"
        assert empty_chunks or entry.size.numel() == 0 or all(sizes), f"{key} has an empty chunk beside others"
        seen[region] += 1
    assert (seen == 1).all(), f"{key}: its chunks leave holes or overlap"


def check_item(folder, key, entry, sizes, place):
    with open(Path(folder) / place.relative_path, "rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
    assert len(data) == place.length, f"{key}: {place.relative_path} ends inside the item"
    tensor = torch.load(io.BytesIO(data), weights_only=True)
    assert tensor.dtype == entry.properties.dtype and tuple(tensor.shape) == sizes, f"{key}: {tensor.dtype} {tuple(tensor.shape)}, not {sizes}"
    assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), key


def check_no_overlap(folder, metadata):
    """Items of one file lie one behind the other; no file holds nothing."""
    by_file = {}
    for place in metadata.storage_data.values():
        by_file.setdefault(place.relative_path, []).append((place.offset, place.offset + place.length))
    for name, spans in by_file.items():
        spans.sort()
        assert all(left[1] <= right[0] for left, right in zip(spans, spans[1:])), f"items overlap in {name}"
    found = {path.name for path in Path(folder).glob("*.distcp")}
    assert found == set(by_file), f"{sorted(found ^ set(by_file))}: files and catalogue disagree"


def assert_same_content(found, expected, view=lambda key, tensor: tensor):
    """The same tensors bit for bit and the same objects byte for byte, however they are cut; `view` is what of a tensor counts. Common state, which
    megatron-core 0.19 keeps among the objects and others in a file, is left to who knows it."""
    left, right = whole_tensors(found), whole_tensors(expected)
    assert left.keys() == right.keys(), sorted(left.keys() ^ right.keys())[:6]
    wrong = [key for key in right if not same_bits(view(key, left[key]), view(key, right[key]))]
    assert not wrong, f"{len(wrong)} of {len(right)} tensors differ, first {wrong[:4]}"
    mine, theirs = ({key: data for key, data in object_bytes(folder).items() if key != COMMON_ITEM} for folder in (found, expected))
    assert mine == theirs, f"objects differ: {sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))[:6]}"


def covers(grid, boxes):
    """Whether each box lies in one chunk of the grid: whoever loads it reads from one place."""
    return all(any(within(box, chunk) for chunk in grid) for box in boxes)


def within(inner, outer):
    return all(begin >= start and begin + extent <= start + limit for begin, extent, start, limit in zip(*inner, *outer))
