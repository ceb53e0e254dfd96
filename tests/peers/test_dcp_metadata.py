"""Our reader and writer of .metadata files against torch.distributed.checkpoint.

RESHARD_DCP_TOOL is the path of dcp_tool (tests/support/dcp_tool.cpp).
"""

import copy
import hashlib
import json
import os
import pathlib
import pickle
import random
import resource
import struct
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: E402
from torch.distributed.checkpoint.metadata import (  # noqa: E402
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType  # noqa: E402

TOOL = os.environ.get("RESHARD_DCP_TOOL")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_DCP_TOOL is not set")

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C32": torch.complex32,
    "C64": torch.complex64,
    "C128": torch.complex128,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4_X2": torch.float4_e2m1fn_x2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
STYLES = ["plain", "compact"]
MEMORY = 1 << 30


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run(*words, preexec=None):
    return subprocess.run([TOOL, *map(str, words)], capture_output=True, encoding="utf-8", errors="surrogatepass", timeout=120, preexec_fn=preexec)


def tool(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(path):
    return json.loads(tool("metadata", path))


def outcome(folder, data):
    """The exit code for these bytes: 0 or 3, under a bound on the memory."""
    path = folder / "hostile.metadata"
    path.write_bytes(data)
    done = run("count", path, preexec=limited)
    assert done.returncode in (0, 3), (done.returncode, done.stderr)
    assert (done.returncode == 3) == done.stderr.startswith("error: "), done.stderr
    return done.returncode


def item(info):
    return {"file": info.relative_path, "offset": info.offset, "length": info.length}


def as_described(metadata):
    """What dcp_tool should say of a Metadata of torch."""
    tensors, objects = [], []
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            objects.append({**item(metadata.storage_data[MetadataIndex(name)]), "name": name})
            continue
        chunks = [
            {**item(metadata.storage_data[MetadataIndex(name, chunk.offsets)]), "offsets": list(chunk.offsets), "sizes": list(chunk.sizes)} for chunk in entry.chunks
        ]
        tensors.append({"name": name, "dtype": NAMES[entry.properties.dtype], "shape": list(entry.size), "chunks": chunks})
    planner = metadata.planner_data
    return {
        "tensors": tensors,
        "objects": objects,
        "planner_data": None if planner is None else [[key, list(path)] for key, path in planner.items()],
        "flattened": [[key, list(facts["nd_reformulated_orig_global_shape"])] for key, facts in (getattr(metadata, "mcore_data", None) or {}).items()],
    }


def save(state, folder):
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return dcp.FileSystemReader(folder).read_metadata()


def emptied(state):
    """The same state dict without what was saved."""
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.numel() * state.element_size(), dtype=torch.uint8).view(state.dtype).reshape(state.shape)
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [emptied(value) for value in state]
    return None


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def check(state, folder):
    """torch's own reading is ours, and torch reads and loads the file that we wrote."""
    metadata = save(state, folder)
    assert described(folder / ".metadata") == as_described(metadata)
    original = (folder / ".metadata").read_bytes()
    for style in STYLES:
        (folder / "original").write_bytes(original)
        tool("rewrite", folder / "original", folder / ".metadata", style)
        again = dcp.FileSystemReader(folder).read_metadata()
        assert again.state_dict_metadata == metadata.state_dict_metadata
        assert again.storage_data == metadata.storage_data
        assert {key.fqn: key.index for key in again.storage_data} == {key.fqn: key.index for key in metadata.storage_data}
        assert again.planner_data == metadata.planner_data
        assert described(folder / ".metadata") == described(folder / "original")
        loaded = emptied(state)
        dcp.load(loaded, checkpoint_id=folder, no_dist=True)
        assert same(loaded, state)
    return metadata


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(scratch, name):
    dtype = DTYPES[name]
    raw = torch.arange(24 * torch.empty(0, dtype=dtype).element_size(), dtype=torch.int64).to(torch.uint8)
    raw = raw % 3 % 2 if dtype == torch.bool else raw
    flat = raw.view(dtype)  # some of these types can do little more than be looked at
    one = raw[: len(raw) // 24].clone().view(dtype).reshape(())
    check({"flat": flat, "cube": flat.reshape(2, 3, 4), "scalar": one, "empty": raw[:0].view(dtype), "thin": raw[:0].view(dtype).reshape(0, 3)}, scratch)


def test_nested_state(scratch):
    state = {
        "model": {"layers": [{"w": torch.randn(3, 4), "b": torch.ones(4)}, {"w": torch.randn(3, 4), "b": torch.zeros(4)}], "name": "ünï \U0001f600"},
        "optimizer": {"state": {"w": {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 2, 2, 2, 2)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95)}]},
        "step": 7,
        "none": None,
        "empty dict": {},
        "empty list": [],
        "transposed": torch.randn(4, 5).t(),
        "deep": {"a": {"b": {"c": {"d": [[torch.arange(3)]]}}}},
        "x" * 300: torch.ones(1),
    }
    metadata = check(state, scratch)
    assert any(isinstance(step, int) for path in metadata.planner_data.values() for step in path)


def test_items_in_folders(scratch):
    """torch takes a relative_path with '/' in it, and so do we."""
    state = {"w": torch.arange(6.0).reshape(2, 3), "o": {"x": 1}}
    metadata = save(state, scratch)
    (scratch / "node0" / "a").mkdir(parents=True)
    for file in scratch.glob("*.distcp"):
        file.rename(scratch / "node0" / "a" / file.name)
    for info in metadata.storage_data.values():
        info.relative_path = "node0/a/" + info.relative_path
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    tool("rewrite", scratch / "in", scratch / ".metadata")
    loaded = emptied(state)
    dcp.load(loaded, checkpoint_id=scratch, no_dist=True)
    assert same(loaded, state)


def banded(names=3, bands=5, files=4):
    metadata = Metadata({}, {}, {}, StorageMeta(checkpoint_id=pathlib.Path("/a/b"), save_id="s", modules=["m"]), "1.0.0")
    for n in range(names):
        name = f"decoder.layers.{n}.weight"
        chunks = [ChunkStorageMetadata(torch.Size([n, 2 * i, 0]), torch.Size([1, 2, 70000])) for i in range(bands)]
        metadata.state_dict_metadata[name] = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size([names, 2 * bands, 70000]), chunks)
        metadata.planner_data[name] = (*name.split("."), n)
        for i, chunk in reversed(list(enumerate(chunks))):
            metadata.storage_data[MetadataIndex(name, chunk.offsets, i)] = _StorageInfo(f"__{i % files}_0.distcp", (n * bands + i) << 33, 280000 + 1577)
    metadata.state_dict_metadata["rng/shard_0_1"] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex("rng/shard_0_1")] = _StorageInfo("__0_0.distcp", 17, 1)
    return metadata


def with_megatron(metadata):
    """With the attributes that Megatron-Core adds."""
    name = next(iter(metadata.state_dict_metadata))
    metadata.mcore_data = {name: {"nd_reformulated_orig_global_shape": (3, 700000)}}
    items = [
        WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, entry.properties, entry.size))
        for index, (entry, chunk) in zip(metadata.storage_data, [(e, c) for e in metadata.state_dict_metadata.values() if hasattr(e, "chunks") for c in e.chunks])
    ]
    metadata.all_local_plans = [SavePlan(items, planner_data={"x": 1}), SavePlan([])]
    return metadata


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("pickler", ["c", "python"])
def test_every_protocol(scratch, protocol, pickler):
    for metadata in (banded(), with_megatron(banded()), banded(40, 30)):
        path = scratch / "in"
        with open(path, "wb") as file:
            (pickle.Pickler if pickler == "c" else pickle._Pickler)(file, protocol).dump(metadata)
        assert described(path) == as_described(metadata)


@pytest.fixture
def stand_in():
    """A module under any name, for classes that are not installed here; gone after the test."""
    added = []

    def module(name, **classes):
        made = types.ModuleType(name)
        for key, value in classes.items():
            value.__module__, value.__qualname__ = name, key
            setattr(made, key, value)
        added.append((name, sys.modules.get(name)))
        sys.modules[name] = made
        return made

    yield module
    for name, old in reversed(added):
        if old is None:
            sys.modules.pop(name)
        else:
            sys.modules[name] = old


def state_of(self):
    return dict(self.__dict__)


def test_classes_of_megatron(scratch, stand_in):
    module = "megatron.core.dist_checkpointing.strategies.torch"
    made = stand_in(module, MCoreMetadata=type("MCoreMetadata", (Metadata,), {}), MCoreSavePlan=type("MCoreSavePlan", (SavePlan,), {}))
    plain = with_megatron(banded())
    metadata = made.MCoreMetadata.__new__(made.MCoreMetadata)
    metadata.__dict__.update(plain.__dict__)
    plan = made.MCoreSavePlan.__new__(made.MCoreSavePlan)
    plan.__dict__.update(plain.all_local_plans[0].__dict__)
    metadata.all_local_plans = [plan]
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    assert module.encode() in (scratch / "in").read_bytes()
    assert described(scratch / "in") == as_described(plain)


def test_tensor_properties_of_torch_2_2(scratch):
    data = pickle.dumps(banded(), 2)
    new = b"torch.distributed.checkpoint.metadata\nTensorProperties\n"
    assert new in data
    data = data.replace(new, b"torch.distributed._shard.sharded_tensor.metadata\nTensorProperties\n")
    data = data.replace(b"torch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n", b"torch.distributed._shard.sharded_tensor.metadata\nMEM_FORMAT_ENCODING\n")
    (scratch / "in").write_bytes(data)
    assert described(scratch / "in") == as_described(banded())


def test_plain_tuples_for_boxes(scratch):
    metadata = banded()
    for entry in metadata.state_dict_metadata.values():
        for chunk in getattr(entry, "chunks", []):
            chunk.offsets, chunk.sizes = tuple(chunk.offsets), tuple(chunk.sizes)
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    assert described(scratch / "in") == as_described(banded())


def test_aliases_and_refused_dtypes(scratch):
    for dtype in (torch.qint8, torch.bits8, torch.quint4x2):
        metadata = banded()
        metadata.state_dict_metadata["decoder.layers.1.weight"].properties.dtype = dtype
        (scratch / "in").write_bytes(pickle.dumps(metadata))
        done = run("count", scratch / "in")
        assert done.returncode == 3 and '"decoder.layers.1.weight"' in done.stderr and str(dtype) in done.stderr
    metadata = banded()
    metadata.state_dict_metadata["decoder.layers.1.weight"].properties.layout = torch.sparse_coo
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    assert "torch.sparse_coo" in run("count", scratch / "in").stderr


def test_compressed_items_are_refused(scratch):
    metadata = banded()
    next(iter(metadata.storage_data.values())).transform_descriptors = ("zstd",)
    (scratch / "in").write_bytes(pickle.dumps(metadata))
    done = run("count", scratch / "in")
    assert done.returncode == 3 and '"zstd"' in done.stderr


def test_the_golden_file(scratch):
    tool("golden-metadata", scratch / ".metadata")
    data = (scratch / ".metadata").read_bytes()
    assert len(data) == 812
    assert hashlib.sha256(data).hexdigest() == "7e8358c60ac81f439cdf6b8c0cec4fe5f97b07c00136f6972b4d18bb2f2bcd90"
    metadata = dcp.FileSystemReader(scratch).read_metadata()
    assert as_described(metadata) == described(scratch / ".metadata")
    assert metadata.state_dict_metadata == {
        "w": TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size([2, 3]), [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3]))])
    }
    assert metadata.planner_data == {"w": ("w",)}


def mutable_parts(value, found):
    """Every list, dict and object that a Metadata leads to, as often as it does."""
    if isinstance(value, dict):
        found.append(value)
        for key, part in value.items():
            mutable_parts(key, found)
            mutable_parts(part, found)
    elif isinstance(value, list):
        found.append(value)
        for part in value:
            mutable_parts(part, found)
    elif type(value).__module__.startswith("torch.distributed"):
        if not hasattr(value, "_value_"):
            found.append(value)
            mutable_parts(vars(value), found)


@pytest.mark.parametrize("style", STYLES)
def test_nothing_that_can_change_is_shared(scratch, style):
    (scratch / "in").write_bytes(pickle.dumps(banded(30, 40)))
    tool("rewrite", scratch / "in", scratch / "out", style)
    metadata = pickle.loads((scratch / "out").read_bytes())
    assert as_described(metadata) == as_described(banded(30, 40))
    found = []
    mutable_parts(metadata, found)
    assert len(found) > 30 * 40 * 3
    assert len({id(part) for part in found}) == len(found)


def test_many_chunks_take_few_bytes(scratch):
    (scratch / "in").write_bytes(pickle.dumps(banded(300, 64)))
    tool("rewrite", scratch / "in", scratch / "out")
    assert (scratch / "out").stat().st_size < 95 * 300 * 64
    again = pickle.loads((scratch / "out").read_bytes())
    assert again.storage_data == banded(300, 64).storage_data
    assert [key.index for key in again.storage_data if key.index is not None] == list(range(64)) * 300


def wrong_values():
    return [None, True, -1, 1 << 63, 1 << 70, 0.5, "text", b"bytes", (), ("a",), (1, "a"), [], ["a"], {}, {"a": 1}, {1}, frozenset(), object, torch.Size([1]), pathlib.Path("/x"), 1j]


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


def test_cut_short_at_every_place(scratch):
    data = pickle.dumps(with_megatron(banded(2, 3)))
    lengths = random.Random(3).sample(range(len(data)), 250) + list(range(8)) + [len(data) - 1]
    for length in lengths:
        assert outcome(scratch, data[:length]) == 3, length
    assert outcome(scratch, data) == 0


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
