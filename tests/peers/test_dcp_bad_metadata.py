"""Damaged and hostile .metadata files: an error with exit code 3 in little time and memory, or what torch reads too."""

import copy
import json
import os
import pathlib
import pickle
import random
import struct
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dcp_metadata import TOOL, as_described, banded, described, outcome, with_megatron  # noqa: E402
from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: E402
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex  # noqa: E402

pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")


def wrong_values():
    scalars = [None, True, -1, 1 << 63, 1 << 70, 0.5, "text", b"bytes", 1j, object, pathlib.Path("/x")]
    return [*scalars, (), ("a",), (1, "a"), torch.Size([1]), [], ["a"], {}, {"a": 1}, {1}, frozenset()]


def fields():
    """Every attribute of every object, as (how to find the object in a Metadata, the attribute)."""
    name = "decoder.layers.1.weight"

    def tensor(m):
        return m.state_dict_metadata[name]

    def key(m):
        return next(key for key in m.storage_data if key.fqn == name)

    yield lambda m: m, ["state_dict_metadata", "planner_data", "storage_data", "mcore_data"]
    yield tensor, ["properties", "size", "chunks"]
    yield lambda m: tensor(m).chunks[2], ["offsets", "sizes"]
    yield key, ["fqn", "offset", "index"]
    yield lambda m: m.storage_data[key(m)], ["relative_path", "offset", "length", "transform_descriptors"]


def read_as_torch_does(data):
    """Whether what torch makes of the bytes has everything where a load looks for it, with the right types."""
    try:
        metadata = pickle.loads(data)
        expected = as_described(metadata)
        json.dumps(expected)
    except Exception:
        return None
    return expected


@pytest.mark.long_but("0")
@pytest.mark.parametrize("place", range(5))
def test_wrong_values_in_every_field(scratch, place):
    find, names = list(fields())[place]
    refused = 0
    for name in names:
        for value in wrong_values():
            metadata = with_megatron(banded())
            del metadata.all_local_plans
            target = find(metadata)
            object.__setattr__(target, name, value)
            # A changed key no longer has its old hash: pickling goes over the items in their order all the same.
            data = pickle.dumps(metadata)
            code = outcome(scratch, data)
            refused += code == 3
            if code == 0:
                assert described(scratch / "hostile.metadata") == read_as_torch_does(data), (name, value)
    assert refused > 10 * len(names)


@pytest.mark.parametrize("value", wrong_values(), ids=str)
def test_wrong_parts_of_containers(scratch, value):
    def spoilt(change):
        metadata = banded()
        change(metadata)
        return outcome(scratch, pickle.dumps(metadata))

    name = "decoder.layers.0.weight"
    assert spoilt(lambda m: m.state_dict_metadata.update({name: value})) == 3
    assert spoilt(lambda m: m.state_dict_metadata[name].chunks.append(value)) == 3
    assert spoilt(lambda m: m.storage_data.update({MetadataIndex("x"): value})) == 3
    if not isinstance(value, (list, dict, set)):
        assert spoilt(lambda m: m.storage_data.update({value: _StorageInfo("a", 0, 1)})) == 3
        if not isinstance(value, str):
            assert spoilt(lambda m: m.state_dict_metadata.update({value: BytesStorageMetadata()})) == 3
            assert spoilt(lambda m: m.planner_data.update({value: ("a",)})) == 3
    if not isinstance(value, tuple) or any(not isinstance(step, (str, int)) for step in value):
        assert spoilt(lambda m: m.planner_data.update({name: value})) == 3


@pytest.mark.long
def test_cut_short_at_every_place(scratch):
    data = pickle.dumps(with_megatron(banded(2, 3)))
    lengths = random.Random(3).sample(range(len(data)), 250) + list(range(8)) + [len(data) - 1]
    for length in lengths:
        assert outcome(scratch, data[:length]) == 3, length
    assert outcome(scratch, data) == 0


@pytest.mark.long
def test_changed_bytes_are_read_or_refused(scratch):
    data = pickle.dumps(banded(2, 3))
    source = random.Random(4)
    codes = []
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(source.randint(1, 3)):
            changed[source.randrange(len(changed))] = source.choice([0, 1, 0x2E, 0x7F, 0x80, 0x94, 0xFF, source.randrange(256)])
        codes.append(outcome(scratch, bytes(changed)))
    assert 3 in codes


HEAD = b"\x80\x04"
BOMBS = {
    "memo of one value": HEAD + b"N" + b"\x94" * 3_000_000 + b".",
    "memo far away": HEAD + b"Nr\xff\xff\xff\x7f.",
    "memo far away, often": HEAD + b"N" + b"".join(b"r" + struct.pack("<I", i * 65536) for i in range(60000)) + b".",
    "lists": HEAD + b"]" * 10_000_000 + b".",
    "dicts dropped": HEAD + b"}0" * 5_000_000 + b"N.",
    "nested tuples": HEAD + b"N" + b"\x85" * 5_000_000 + b".",
    "doubling tuples": HEAD + b"N" + b"2\x86" * 2_000_000 + b".",
    "marks": HEAD + b"(" * 20_000_000,
    "values": HEAD + b"N" * 20_000_000,
    "string of 4 GiB": HEAD + b"X\xff\xff\xff\xffhi.",
    "string of 2^63": HEAD + b"\x8d" + struct.pack("<Q", 1 << 63) + b"hi.",
    "bytes of 2^64": HEAD + b"\x8e" + b"\xff" * 8 + b"hi.",
    "bytearray of 2^64": b"\x80\x05\x96" + b"\xff" * 8 + b"hi.",
    "integer of 2 GiB": HEAD + b"\x8b\xff\xff\xff\x7f.",
    "frames": HEAD + b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f" * 100000 + b"N.",
    "a list in itself": HEAD + b"]\x94h\x00a.",
    "a dict in itself": HEAD + b"}\x94\x8c\x01kh\x00s.",
    "a call": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00exit\x85R.",
    "an unknown object": b"\x80\x02cevil\nThing\n)\x81}b.",
    "an extension": HEAD + b"\x82\x01.",
    "text opcodes": b"\x80\x02(I1\nI2\nl.",
    "no pickle": b"PK\x03\x04" + b"\x00" * 1000,
    "empty": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_hostile_streams(scratch, name):
    assert outcome(scratch, BOMBS[name]) == 3


def test_a_call_in_the_file_is_not_made(scratch):
    class Touch:
        def __reduce__(self):
            return os.mkdir, (str(scratch / "made"),)

    metadata = banded()
    metadata.extra = Touch()
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    assert described(scratch / "in") == as_described(banded())
    assert not (scratch / "made").exists()


def test_hostile_shapes_and_places(scratch):
    name = "decoder.layers.0.weight"

    def refused(change):
        metadata = copy.deepcopy(banded())
        change(metadata)
        return outcome(scratch, pickle.dumps(metadata)) == 3

    def place(**values):
        def change(metadata):
            for key, value in values.items():
                setattr(next(iter(metadata.storage_data.values())), key, value)

        return change

    def tensor(change):
        return lambda metadata: change(metadata.state_dict_metadata[name])

    assert refused(place(length=0))
    assert refused(place(length=-1))
    assert refused(place(offset=-1))
    assert refused(place(offset=(1 << 63) - 1, length=2))
    for path in ["", "/x", "../x", "a/../../x", "a//b", "a/", ".", "..", "a\0"]:
        assert refused(place(relative_path=path)), path
    assert refused(tensor(lambda t: setattr(t, "size", torch.Size([1 << 40, 1 << 40, 1]))))
    assert refused(tensor(lambda t: setattr(t, "size", (-3, 10, 70000))))
    assert refused(tensor(lambda t: setattr(t, "size", (1,) * 100)))
    assert refused(tensor(lambda t: setattr(t.chunks[0], "sizes", (2, 2, 70001))))
    assert refused(tensor(lambda t: setattr(t.chunks[0], "offsets", (-1, 0, 0))))
    assert refused(tensor(lambda t: setattr(t.chunks[0], "offsets", (0, 0))))
    assert refused(tensor(lambda t: setattr(t.chunks[0], "offsets", (0, 0, 1 << 62))))
    assert refused(lambda m: m.storage_data.pop(next(iter(m.storage_data))))
    assert refused(lambda m: m.storage_data.pop(MetadataIndex("rng/shard_0_1")))
    assert refused(lambda m: m.state_dict_metadata.update(other=BytesStorageMetadata()))
