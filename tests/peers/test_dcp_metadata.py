"""Our reader and writer of .metadata files against torch.distributed.checkpoint."""

import hashlib
import pickle
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

sys.path.insert(0, str(Path(__file__).parent))
from dcp_metadata import DTYPES, TOOL, as_described, banded, described, run, tool, with_megatron  # noqa: E402
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata  # noqa: E402
from torch.distributed.checkpoint.planner import SavePlan  # noqa: E402

pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")
STYLES = ["plain", "compact"]


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
        if (a.dtype, a.shape) != (b.dtype, b.shape) or a.numel() == 0:
            return (a.dtype, a.shape) == (b.dtype, b.shape)
        return torch.equal(*(tensor.contiguous().flatten().view(torch.uint8) for tensor in (a, b)))
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
    old_format = b"torch.distributed._shard.sharded_tensor.metadata\nMEM_FORMAT_ENCODING\n"
    data = data.replace(b"torch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n", old_format)
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
