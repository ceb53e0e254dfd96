"""Single items of distributed checkpoints: ours read by torch, torch's read by us.

RESHARD_PROBE is the path of probe (tests/support/probe/dcp_item.cpp).
"""

import argparse
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import zipfile

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp

TOOL = os.environ.get("RESHARD_PROBE")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.complex32: "C32",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4_X2",
}
SHAPES = [(), (0,), (5,), (3, 4), (2, 1, 3), (2, 3, 2, 2), (1, 2, 1, 2, 1, 3), (4, 0, 2)]


def run(*words):
    return subprocess.run([TOOL, "dcp-item", *map(str, words)], capture_output=True, text=True, timeout=60)


def tool(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words):
    done = run(*words)
    assert done.returncode == 3, (done.returncode, done.stderr)
    return done.stderr


def shape_word(shape):
    return ",".join(map(str, shape)) or "-"


def raw(count, dtype):
    """A tensor of `count` elements whose bytes are a pattern."""
    pattern = torch.arange(count * dtype.itemsize, dtype=torch.int64) * 7 % 251
    if dtype == torch.bool:
        pattern %= 2
    return pattern.to(torch.uint8).view(dtype)


def bytes_of(tensor):
    """The elements in row-major order. By hand, since torch copies few kinds of strided small floats."""
    storage = numpy.frombuffer(bytes(tensor.detach().untyped_storage()), dtype=numpy.uint8)
    return gathered(storage, tensor.storage_offset() * tensor.itemsize, tensor.shape, tensor.stride(), tensor.itemsize)


def gathered(storage, offset, shape, strides, width):
    if 0 in shape:
        return b""
    view = numpy.lib.stride_tricks.as_strided(storage[offset:], (*shape, width), (*(stride * width for stride in strides), 1))
    return view.tobytes()


def row_major(shape):
    strides = [1] * len(shape)
    for d in range(len(shape) - 1, 0, -1):
        strides[d - 1] = strides[d] * max(shape[d], 1)
    return strides


def read_item(path, offset, length, dtype, shape):
    """What our reader finds: the elements in row-major order, and whether they lie so."""
    found = json.loads(tool("item-read", path, offset, length, DTYPES[dtype], shape_word(shape)))
    content = numpy.frombuffer(path.read_bytes(), dtype=numpy.uint8)
    strides = found["strides"] or row_major(shape)
    return gathered(content, found["payload_offset_bytes"], shape, strides, dtype.itemsize), found["strides"]


def item_of(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def write_item(folder, tensor):
    (folder / "payload").write_bytes(bytes_of(tensor))
    tool("item-write", folder / "item", DTYPES[tensor.dtype], shape_word(tensor.shape), folder / "payload")
    return folder / "item"


def check_offsets(path):
    """torch computes where storages lie, and compares with where they are; and so do we."""
    before = os.environ.get("TORCH_SERIALIZATION_DEBUG")
    os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"
    try:
        torch.load(path, weights_only=True)
    finally:
        os.environ.pop("TORCH_SERIALIZATION_DEBUG")
        if before:
            os.environ["TORCH_SERIALIZATION_DEBUG"] = before
    on_meta = torch.load(path, weights_only=True, map_location="meta")
    with zipfile.ZipFile(path) as archive:
        header = archive.getinfo("archive/data/0").header_offset
    content = path.read_bytes()
    payload = header + 30 + int.from_bytes(content[header + 26 : header + 28], "little") + int.from_bytes(content[header + 28 : header + 30], "little")
    assert on_meta.untyped_storage()._checkpoint_offset == payload


def test_the_golden_item(scratch):
    path = scratch / "golden.item"
    tool("golden-item", path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == "c18f78b17b2c0c4dd7158d87f2e9cf3f3706334ee099b2bfe9d84091e145bee8"
    for options in ({}, {"mmap": True}):
        tensor = torch.load(path, weights_only=True, **options)
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor.view(torch.int16), torch.arange(6, dtype=torch.int16).reshape(2, 3))
    check_offsets(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 7
    if shutil.which("unzip"):
        assert subprocess.run(["unzip", "-tqq", path], timeout=60).returncode == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
def test_torch_reads_our_items(scratch, dtype):
    for shape in SHAPES:
        tensor = raw(int(numpy.prod(shape, dtype=int)), dtype).reshape(shape)
        path = write_item(scratch, tensor)
        for options in ({}, {"mmap": True}):
            read = torch.load(path, weights_only=True, **options)
            assert (read.dtype, read.shape, read.stride(), read.requires_grad) == (dtype, tensor.shape, tensor.stride(), False)
            assert read.storage_offset() == 0
            assert bytes_of(read) == bytes_of(tensor)
            del read
        check_offsets(path)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
def test_we_read_torchs_items(scratch, dtype):
    path = scratch / "__0_0.distcp"
    for shape in SHAPES:
        tensor = raw(int(numpy.prod(shape, dtype=int)), dtype).reshape(shape)
        for before in (0, 77):
            item = item_of(tensor)
            path.write_bytes(b"x" * before + item + b"PK\x05\x06 next")
            assert read_item(path, before, len(item), dtype, shape) == (bytes_of(tensor), [])


def views():
    base = torch.arange(480, dtype=torch.float32)
    image = base.reshape(2, 6, 8, 5)
    yield "channels_last", image.to(memory_format=torch.channels_last)
    yield "transposed", base.reshape(20, 24).t()
    yield "permuted", image.permute(3, 1, 0, 2)
    yield "rows", base.reshape(20, 24)[3:9]
    yield "columns", base.reshape(20, 24)[:, 5:7]
    yield "steps", base.reshape(20, 24)[::3, ::5]
    yield "element", base[77]
    yield "expanded", base[4:8].expand(3, 4)
    yield "empty slice", base.reshape(20, 24)[:, 4:4]
    yield "size one", base.reshape(1, 480, 1)[:, 2:]
    yield "parameter", torch.nn.Parameter(base.reshape(20, 24).t())
    yield "frozen parameter", torch.nn.Parameter(base[:7], requires_grad=False)
    yield "leaf", base.clone().requires_grad_()
    yield "fp8", torch.arange(40, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(5, 8).t()
    yield "bytes of floats", base.view(torch.uint8)[3:90]
    tagged = base[:9].clone()
    tagged.tensor_model_parallel = True
    yield "with attributes", tagged
    marked = torch.nn.Parameter(base[:9].clone())
    marked.partition_dim = 0
    yield "parameter with attributes", marked


@pytest.mark.parametrize("tensor", [pytest.param(tensor, id=name) for name, tensor in views()])
def test_we_read_views(scratch, tensor):
    path = scratch / "__0_0.distcp"
    item = item_of(tensor)
    path.write_bytes(b"y" * 9 + item)
    read, strides = read_item(path, 9, len(item), tensor.dtype, tensor.shape)
    assert read == bytes_of(tensor)
    assert (strides == []) == (tensor.is_contiguous())


class Tagged(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore")
def test_other_tensors_are_refused_by_name(scratch):
    pair = torch.complex(torch.ones(3), torch.ones(3))
    cases = {
        "conjugated or negated": pair.conj(),
        "negated tensor": pair.conj().imag,
        "sparse": torch.eye(3).to_sparse(),
        "meta tensor": torch.zeros(3, device="meta"),
        "of class test_dcp_items.Tagged": torch.zeros(3).as_subclass(Tagged),
        "a list": [torch.zeros(3)],
    }
    for words, value in cases.items():
        path = scratch / "item"
        path.write_bytes(item_of(value))
        sentence = refused("item-read", path, 0, path.stat().st_size, "F32", "3")
        assert words in sentence and '"tensor"' in sentence, sentence
    quantised = scratch / "quantised"
    quantised.write_bytes(item_of(torch.quantize_per_tensor(torch.zeros(3), 0.1, 2, torch.qint8)))
    assert "QInt8Storage" in refused("item-read", quantised, 0, quantised.stat().st_size, "I8", "3")


def test_disagreement_with_the_catalogue(scratch):
    path = scratch / "item"
    path.write_bytes(item_of(torch.zeros(2, 3)))
    size = path.stat().st_size
    for dtype, shape in (("BF16", "2,3"), ("F32", "3,2"), ("F32", "6"), ("I32", "-")):
        sentence = refused("item-read", path, 0, size, dtype, shape)
        assert "holds F32 of shape (2, 3)" in sentence and f"has {dtype} of shape (" in sentence
    for wrong in (0, 1, size - 1, size + 1):
        refused("item-read", path, 0, wrong, "F32", "2,3")


@pytest.mark.long_but("0", "61", "1220", "1769")
@pytest.mark.parametrize("length", range(0, 1800, 61))
def test_cut_short(scratch, length):
    path = scratch / "item"
    item = item_of(torch.zeros(2, 3))
    path.write_bytes(item[:length])
    refused("item-read", path, 0, min(length, len(item) - 1), "F32", "2,3")
    refused("item-read", path, 0, max(length + 1, len(item)), "F32", "2,3")


def test_an_item_of_torch_without_checksums(scratch):
    torch.serialization.set_crc32_options(False)
    try:
        item = item_of(torch.arange(5))
    finally:
        torch.serialization.set_crc32_options(True)
    path = scratch / "item"
    path.write_bytes(item)
    assert read_item(path, 0, len(item), torch.int64, (5,)) == (bytes_of(torch.arange(5)), [])


def state():
    values = {f"dtype.{name}": raw(24, dtype).reshape(4, 6) for dtype, name in DTYPES.items()}
    values |= {name: tensor.detach() for name, tensor in views()}
    values["nested"] = {"list": [torch.ones(2), torch.arange(3)], "number": 5}
    values["scalar"] = torch.tensor(2.5)
    values["none"] = torch.empty(0, 3)
    return values


def test_every_item_of_a_checkpoint_of_torch(scratch):
    dcp.save(state(), checkpoint_id=scratch / "D", no_dist=True)
    catalogue = dcp.FileSystemReader(scratch / "D").read_metadata()
    tensors = {key: value for key, value in catalogue.state_dict_metadata.items() if hasattr(value, "chunks")}
    flat = state()
    checked = 0
    for index, place in catalogue.storage_data.items():
        if index.fqn not in tensors:
            continue
        dtype = tensors[index.fqn].properties.dtype
        shape = tensors[index.fqn].chunks[0].sizes
        read, _ = read_item(scratch / "D" / place.relative_path, place.offset, place.length, dtype, shape)
        if index.fqn in flat:
            assert read == bytes_of(flat[index.fqn]), index.fqn
        checked += 1
    assert checked == len(tensors) > 30


def test_a_checkpoint_of_our_items_with_gaps(scratch):
    """Items of a checkpoint replaced by ours, at places that put their payloads on pages. The rest is torch's."""
    values = {key: value for key, value in state().items() if isinstance(value, torch.Tensor)}
    dcp.save(values, checkpoint_id=scratch / "D", no_dist=True)
    catalogue = dcp.FileSystemReader(scratch / "D").read_metadata()
    content = bytearray()
    for index, place in catalogue.storage_data.items():
        item = write_item(scratch, values[index.fqn])
        payload = json.loads(
            tool("item-read", item, 0, item.stat().st_size, DTYPES[values[index.fqn].dtype], shape_word(values[index.fqn].shape))
        )["payload_offset_bytes"]
        content += bytes((-payload - len(content)) % 4096)
        place.relative_path = "__7_3.distcp"
        place.offset = len(content)
        place.length = item.stat().st_size
        content += item.read_bytes()
    for path in (scratch / "D").glob("*.distcp"):
        path.unlink()
    (scratch / "D" / "__7_3.distcp").write_bytes(content)
    (scratch / "D" / ".metadata").write_bytes(pickle.dumps(catalogue))
    loaded = {key: torch.zeros(value.numel() * value.itemsize, dtype=torch.uint8).view(value.dtype).reshape(value.shape) for key, value in values.items()}
    dcp.load(loaded, checkpoint_id=scratch / "D", no_dist=True)
    for key, value in values.items():
        assert bytes_of(loaded[key]) == bytes_of(value), key


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_common_state_in_both_forms(scratch):
    from megatron.core.transformer.enums import AttnBackend

    args = argparse.Namespace(num_layers=4, params_dtype=torch.bfloat16, attention_backend=AttnBackend.auto, lr=3e-4, spec=None, layers=[0, 1, 1, 0])
    common = {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": 12,
        "content_metadata": {"distrib_optim_sharding_type": "fully_reshardable", "singleton_local_shards": False},
        "optimizer": {"param_groups": [{"lr": 1e-3, "step": 12, "params": [0, 1]}], "extra": torch.arange(6).reshape(2, 3)},
        "empty": torch.empty(0),
    }
    torch.save(common, scratch / "common.pt")
    item = item_of([common])
    (scratch / "item").write_bytes(item)
    tool("list-from-dict", scratch / "common.pt", scratch / "made.item")
    tool("dict-from-list", scratch / "item", scratch / "made.pt")
    assert same(torch.load(scratch / "made.item", weights_only=False), [common])
    assert same(torch.load(scratch / "made.pt", weights_only=False), common)
    with torch.serialization.safe_globals([argparse.Namespace, AttnBackend]):
        assert same(torch.load(scratch / "made.pt", weights_only=True), common)
    for made, original, folder in (("made.item", "item", "archive"), ("made.pt", "common.pt", "common")):
        with zipfile.ZipFile(scratch / made) as ours, zipfile.ZipFile(scratch / original) as theirs:
            assert ours.namelist() == theirs.namelist()
            assert ours.read(f"{folder}/data.pkl") == theirs.read(f"{folder}/data.pkl")
