"""Our reader and writer of torch files against torch, pickle and zipfile.

RESHARD_PROBE is the path of probe (tests/support/probe/torch_file.cpp).
"""

import argparse
import collections
import datetime
import decimal
import fractions
import functools
import io
import json
import math
import operator
import os
import pathlib
import pickle
import random
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

sys.path.insert(0, str(Path(__file__).parent))
import unknown_classes as unknown  # noqa: E402

TOOL = os.environ.get("RESHARD_PROBE")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")

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
}
NEW = [True, False]
CONTAINER = {True: "zip", False: "legacy"}


def run(*words):
    return subprocess.run([TOOL, "torch-file", *map(str, words)], capture_output=True, encoding="utf-8", errors="surrogatepass", timeout=300)


def tool(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words):
    done = run(*words)
    assert done.returncode == 3, (done.returncode, done.stderr)
    return done.stderr


def bits_of(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def same(a, b, seen=None):
    """Equality with types, tensors bit for bit, NaN equal to itself, and cycles walked once."""
    seen = set() if seen is None else seen
    if (id(a), id(b)) in seen:
        return True
    seen.add((id(a), id(b)))
    if type(a) is not type(b):
        return False
    attributes = same(vars(a), vars(b), seen) if isinstance(a, (dict, list, tuple)) and hasattr(a, "__dict__") else True
    if isinstance(a, torch.Tensor):
        described = [(t.dtype, t.shape, t.requires_grad, getattr(t, "__dict__", None)) for t in (a, b)]
        return described[0] == described[1] and (a.device.type == "meta" or torch.equal(bits_of(a), bits_of(b)))
    if isinstance(a, dict):
        return attributes and list(a.keys()) == list(b.keys()) and all(same(a[k], b[k], seen) for k in a)
    if isinstance(a, (list, tuple)):
        return attributes and len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b))
    if isinstance(a, argparse.Namespace):
        return same(vars(a), vars(b), seen)
    if isinstance(a, (functools.partial, operator.itemgetter)):
        return same(a.__reduce__()[1:], b.__reduce__()[1:], seen)
    if isinstance(a, io.BytesIO):
        return (a.getvalue(), a.tell()) == (b.getvalue(), b.tell())
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


def check_zip(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.date_time == (1980, 0, 0, 0, 0, 0)
            assert entry.flag_bits == (0x808 if entry.file_size else 0x800)
            with open(path, "rb") as file:
                file.seek(entry.header_offset + 26)
                name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            assert (entry.header_offset + 30 + name_bytes + extra_bytes) % 64 == 0


def copied(folder, value, new=True, weights_only=False, **options):
    """What torch loads from our copy of the file torch saved. weights_only: both must load that way too, not only if the original does."""
    original, copy = folder / "original.pt", folder / "copy.pt"
    torch.save(value, original, _use_new_zipfile_serialization=new, **options)
    tool("list", original)
    tool("copy", original, copy)
    check_zip(copy)
    tool("copy", copy, folder / "again.pt")
    assert pickle_bytes(copy) == pickle_bytes(folder / "again.pt")
    try:
        expected = torch.load(original, weights_only=True)
    except (pickle.UnpicklingError, UnicodeDecodeError):  # the second for lone surrogates
        assert not weights_only
    except AttributeError as error:
        # torch writes untyped storages into the old container, but its reader of that container does not know them.
        assert not new and "UntypedStorage" in str(error)
        assert not weights_only or same(torch.load(copy, weights_only=True), value)
    else:
        assert same(torch.load(copy, weights_only=True), expected)
    return torch.load(copy, weights_only=False)


def without_the_hash(path):
    """The bytes of a torch file with zeros for the hash that torch makes of it, which is its last record, and for that record's CRC."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entry = archive.infolist()[-1]
    assert entry.filename.endswith("/.data/serialization_id") and entry.file_size == 40
    name_bytes, extra_bytes = struct.unpack_from("<HH", data, entry.header_offset + 26)
    payload = entry.header_offset + 30 + name_bytes + extra_bytes
    data[payload : payload + 40] = b"0" * 40
    data[payload + 44 : payload + 48] = bytes(4)  # in the descriptor
    directory = data.rfind(b"PK\1\2")
    data[directory + 16 : directory + 20] = bytes(4)
    return bytes(data)


def pickle_bytes(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read(path.stem + "/data.pkl")


@pytest.mark.parametrize("new", NEW, ids=CONTAINER.get)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(scratch, name, new):
    raw = torch.arange(48 * 16, dtype=torch.int64).to(torch.uint8)
    if name == "BOOL":
        raw = raw % 2
    tensor = raw.view(DTYPES[name])
    value = {"flat": tensor, "matrix": tensor.reshape(6, -1), "scalar": tensor[5].clone(), "empty": tensor[:0].clone()}
    assert same(copied(scratch, value, new, weights_only=True), value)
    listed = json.loads(tool("list", scratch / "copy.pt"))["tensors"]
    assert {entry["dtype"] for entry in listed} == {name}
    assert [tuple(entry["shape"]) for entry in listed] == [tuple(t.shape) for t in value.values()]
    assert all(entry["strides"] == [] for entry in listed)


@pytest.mark.parametrize("new", NEW, ids=CONTAINER.get)
def test_views_come_out_contiguous(scratch, new):
    base = torch.arange(120, dtype=torch.float32)
    grid = base.reshape(10, 12)
    value = {
        "base": base,
        "transposed": grid.t(),
        "slice": grid[2:7, 3:9],
        "steps": grid[::3, ::5],
        "column": grid[:, 4],
        "expanded": grid[1].expand(4, 12),
        "element": grid[3, 3],
        "permuted": base.reshape(2, 3, 4, 5).permute(3, 1, 0, 2),
        "empty": grid[:, 4:4],
        "odd offset": base[7:],
        "fp8 view": torch.arange(40, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(5, 8).t(),
    }
    result = copied(scratch, value, new, weights_only=True)
    assert same(result, value)
    assert all(tensor.is_contiguous() for tensor in result.values())
    storages = {tensor.untyped_storage().data_ptr() for tensor in result.values() if tensor.numel()}
    assert len(storages) == len(value) - 1


@pytest.mark.parametrize("new", NEW, ids=CONTAINER.get)
def test_parameters_and_attributes(scratch, new):
    parameter = torch.nn.Parameter(torch.randn(3, 4))
    frozen = torch.nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    marked = torch.nn.Parameter(torch.randn(2))
    marked.tensor_model_parallel = True
    marked.partition = {"dim": 0, "also": [1, 2]}
    tagged = torch.zeros(3)
    tagged.note = "attribute"
    tagged8 = torch.zeros(3, dtype=torch.float8_e5m2)
    tagged8.note = "attribute"
    leaf = torch.zeros(2, requires_grad=True)
    value = [parameter, frozen, marked, tagged, tagged8, leaf, parameter]
    result = copied(scratch, value, new)
    assert same(result, value)
    assert result[0] is result[6]


def test_state_dict_of_a_module(scratch):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).bfloat16()
    value = module.state_dict()
    result = copied(scratch, value, weights_only=True)
    assert same(result, value)
    assert result._metadata == value._metadata
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.randn(5, 4).bfloat16()).sum().backward()
    optimizer.step()
    assert same(copied(scratch, optimizer.state_dict(), weights_only=True), optimizer.state_dict())


def strange_values():
    shared = [1, 2]
    holder = unknown.Plain(name="holder")
    with_class = unknown.ListWithName([1, 2])
    with_class.name = "list"
    dict_with_class = unknown.DictWithName(a=1)
    dict_with_class.name = "dict"
    reduced = unknown.Reduced(1, "two")
    reduced.state = {"deep": [holder]}
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**300, -(10**300)],
        "floats": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324],
        "strings": ["", "ascii", "ünïcödé", "漢字", "😀", "nul\0inside", "new\nline", "\ud800 lone", "x" * 70000],
        "bytes": [b"", b"ascii", bytes(range(256)), b"\xff" * 3000],
        "bytearray": [bytearray(), bytearray(b"\x00\xff")],
        "containers": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, set(), {1, 2}, frozenset(), frozenset({3})],
        "long list": list(range(2001)),
        "long dict": {str(i): i for i in range(1001)},
        "keys": {1: "int", (1, 2): "tuple", None: "none", torch.float32: "dtype", frozenset({1}): "frozenset", 1.5: "float"},
        "nested": [[[[[["deep"]]]]], {"a": {"b": {"c": ()}}}],
        "shared": [shared, shared, {"again": shared}],
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "default": collections.defaultdict(list, {"k": [1]}),
        "counter": collections.Counter("hello"),
        "deque": collections.deque([1, 2], maxlen=5),
        "namespace": argparse.Namespace(
            mode=unknown.Colour.RED, dtype=torch.bfloat16, path=pathlib.Path("/a/b/c"), nothing=None, sizes=[[1, 2], [3, (4, None)]], signal=signal.SIGTERM
        ),
        "enums": [unknown.Colour.GREEN, unknown.Mode.READ | unknown.Mode.WRITE, unknown.Colour.RED],
        "unknown": [holder, holder, unknown.Slotted(1, [2]), unknown.WithKeywords(1, b=2), reduced, with_class, dict_with_class, unknown.Frozen(1, "x")],
        "named tuple": unknown.Point(1, 2),
        "torch": [torch.Size([2, 3]), torch.device("cuda", 1), torch.float8_e4m3fn],
        "functions": [len, math.sqrt, os.path.join, functools.partial(int, base=2), operator.itemgetter(1), unknown.Plain],
        "library": [datetime.datetime(2024, 1, 2, 3, 4, 5), decimal.Decimal("1.25"), fractions.Fraction(1, 3), complex(1, -2), range(3, 9, 2), slice(1, 2), ...],
        "paths": [pathlib.PurePosixPath("a"), pathlib.Path(".")],
        "streams": [io.BytesIO(b"extra \x00\xff state"), io.BytesIO()],
        "numpy": [numpy.arange(6, dtype=numpy.float32).reshape(2, 3), numpy.float64(2.5), numpy.zeros((0, 3)), numpy.array(["a", "bc"]), numpy.dtype("int16")],
        "numpy random": numpy.random.RandomState(3).get_state(),
        "python random": random.Random(5).getstate(),
    }


def test_a_name_with_a_dot_is_not_written(scratch):
    original = scratch / "original.pt"
    torch.save([unknown.Outer.Inner], original, pickle_protocol=4)
    assert "Outer.Inner" in tool("list", original)
    assert "'Outer.Inner' of module 'unknown_classes' has a dot" in refused("copy", original, scratch / "copy.pt")


def test_cycles(scratch):
    cyclic = [1]
    cyclic.append(cyclic)
    result = copied(scratch, cyclic, weights_only=False)
    assert result[0] == 1 and result[1] is result
    holder = unknown.Plain()
    holder.me = (holder, [holder])
    result = copied(scratch, holder, weights_only=False)
    assert result.me[0] is result and result.me[1][0] is result
    tuple_in_itself = ([],)
    tuple_in_itself[0].append(tuple_in_itself)
    result = copied(scratch, tuple_in_itself, weights_only=False)
    assert result[0][0] is result


@pytest.mark.long_but("*-zip-2", "*-legacy-4")
@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("new", NEW, ids=CONTAINER.get)
@pytest.mark.parametrize("name", strange_values())
def test_values_that_are_no_tensors(scratch, name, new, protocol):
    value = strange_values()[name]
    assert same(copied(scratch, value, new, pickle_protocol=protocol), value)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("pickler", [pickle.Pickler, pickle._Pickler], ids=["c", "python"])
def test_plain_pickles_of_every_protocol(scratch, protocol, pickler):
    for name, value in strange_values().items():
        if protocol < 2 and name in ("unknown", "functions", "streams"):
            continue  # Python itself cannot write slots, nested classes and streams that early
        stream = io.BytesIO()
        pickler(stream, protocol).dump(value)
        (scratch / "in.pkl").write_bytes(stream.getvalue())
        tool("pickle", scratch / "in.pkl", scratch / "out.pkl")
        result = (scratch / "out.pkl").read_bytes()
        assert result[:2] == b"\x80\x02", name
        assert same(pickle.loads(result), value), (name, protocol)


def test_sharing_is_kept(scratch):
    shared = {"x": [1]}
    text = "".join(["not ", "interned"])
    tensor = torch.ones(3)
    result = copied(scratch, {"a": shared, "b": (shared, shared["x"]), "t": [tensor, tensor], "s": [text, text]})
    assert result["a"] is result["b"][0]
    assert result["a"]["x"] is result["b"][1]
    assert result["t"][0] is result["t"][1]


def test_our_pickle_is_torchs_own_for_a_checkpoint(scratch):
    """Byte for byte, when torch's file has compact storages and no two equal strings at different places."""
    value = {
        "args": argparse.Namespace(hidden_size=64, lr=0.1, params_dtype=torch.bfloat16, names=["q", "k"], nothing=None),
        "iteration": 100000,
        "checkpoint_version": 3.0,
        "model": collections.OrderedDict(
            [("w1", torch.randn(3, 4).bfloat16()), ("w2", torch.zeros(0)), ("w3", torch.zeros(4, dtype=torch.float8_e4m3fn)), ("state", io.BytesIO(b"\x80"))]
        ),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sizes": (1, (2, 3), torch.Size([4, 5])),
        "seen": {1, 2, 3},
        "big": 1 << 100,
        "list": list(range(1500)),
    }
    copied(scratch, value)
    assert pickle_bytes(scratch / "copy.pt") == pickle_bytes(scratch / "original.pt")


def test_tensor_subclasses_and_bare_storages_are_refused(scratch):
    class_of = type("Tagged", (torch.Tensor,), {"__module__": "unknown_classes"})
    unknown.Tagged = class_of
    values = [torch.zeros(3).as_subclass(class_of), torch.zeros(3).untyped_storage(), torch.complex(torch.ones(2), torch.ones(2)).conj()]
    for value in values:
        torch.save([value], scratch / "in.pt")
        tool("list", scratch / "in.pt")
        assert "outside a plain tensor" in refused("copy", scratch / "in.pt", scratch / "out.pt")


def test_quantised_and_sparse_tensors(scratch):
    torch.save(torch.zeros(3, device="meta"), scratch / "meta.pt")
    tool("copy", scratch / "meta.pt", scratch / "out.pt")
    assert torch.load(scratch / "out.pt", weights_only=True).device.type == "meta"
    sparse = torch.eye(3).to_sparse()
    torch.save(sparse, scratch / "sparse.pt")
    tool("copy", scratch / "sparse.pt", scratch / "out.pt")
    assert torch.equal(torch.load(scratch / "out.pt", weights_only=True).to_dense(), sparse.to_dense())


def test_a_state_setter_is_refused(scratch):
    value = unknown.BySetter()
    value.x = 1
    torch.save(value, scratch / "in.pt")
    assert "thrown away" in refused("copy", scratch / "in.pt", scratch / "out.pt")


def test_files_without_crcs_are_read(scratch):
    torch.serialization.set_crc32_options(False)
    try:
        assert same(copied(scratch, [torch.ones(5)]), [torch.ones(5)])
    finally:
        torch.serialization.set_crc32_options(True)


def test_torchscript_is_refused(scratch):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), scratch / "in.pt")
    assert "TorchScript" in refused("list", scratch / "in.pt")


def test_a_stream_and_other_alignments(scratch):
    stream = io.BytesIO()
    torch.save({"w": torch.arange(5)}, stream)
    (scratch / "in.pt").write_bytes(stream.getvalue())
    assert json.loads(tool("list", scratch / "in.pt"))["tensors"][0]["shape"] == [5]
    tool("copy", scratch / "in.pt", scratch / "out.pt")
    assert torch.equal(torch.load(scratch / "out.pt", weights_only=True)["w"], torch.arange(5))


def test_zip_files_packed_again_by_python(scratch):
    torch.save({"w": torch.arange(5)}, scratch / "in.pt")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(scratch / "in.pt") as source, zipfile.ZipFile(scratch / "packed.pt", "w", method) as target:
            for name in source.namelist():
                target.writestr(name, source.read(name))
        if method == zipfile.ZIP_STORED:
            tool("copy", scratch / "packed.pt", scratch / "out.pt")
            assert torch.equal(torch.load(scratch / "out.pt", weights_only=True)["w"], torch.arange(5))
        else:
            assert "compressed (method 8)" in refused("list", scratch / "packed.pt")


@pytest.mark.parametrize(
    "value",
    [
        {
            "w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
            "empty": torch.empty(0),
            "scalar": torch.tensor(5),
            "fp8": torch.zeros(7, dtype=torch.float8_e4m3fn),
            "complex": torch.zeros(3, dtype=torch.complex64),
        },
        [torch.full((i % 4,), i % 251, dtype=torch.uint8) for i in range(300)],
        torch.nn.Linear(3, 4).state_dict(),
        torch.nn.Parameter(torch.ones(3)),
        {"no": ["tensors"]},
        [torch.zeros(1)] * 3,
    ],
    ids=["types", "many", "module", "parameter", "none", "shared"],
)
def test_every_byte_is_torchs(scratch, value):
    (scratch / "copy").mkdir()
    torch.save(value, scratch / "model.pt")
    stream = io.BytesIO()
    torch.save(value, stream)
    (scratch / "archive.pt").write_bytes(stream.getvalue())
    for name in ("model.pt", "archive.pt"):
        tool("copy", scratch / name, scratch / "copy" / name)
        assert without_the_hash(scratch / "copy" / name) == without_the_hash(scratch / name)


def offsets(path):
    """Where torch thinks the storages are, computed without a look at the records."""
    value = torch.load(path, map_location="meta", weights_only=True)
    return [tensor.untyped_storage()._checkpoint_offset for tensor in (value.values() if isinstance(value, dict) else value)]


# Sizes and places of records on either side of 2^32 - 1, where 64-bit fields begin. All cases were compared once; these two take seconds.
@pytest.mark.long
@pytest.mark.parametrize("sizes", [[(1 << 32) - 1, 7], [5, (1 << 32) - 1 - 16 - 960, 3]], ids=["size", "place"])
def test_the_border_of_four_gibibytes(scratch, sizes):
    with open(scratch / "zeros", "wb") as file:
        file.truncate(1 << 32)
    values = [torch.from_file(str(scratch / "zeros"), shared=False, size=size, dtype=torch.uint8) for size in sizes]
    torch.save(values, scratch / "big.pt")
    (scratch / "copy").mkdir()
    tool("sparse", scratch / "copy" / "big.pt", *sizes)
    paths = [scratch / "big.pt", scratch / "copy" / "big.pt"]
    assert paths[0].stat().st_size == paths[1].stat().st_size
    around = []
    for path in paths:
        with open(path, "rb") as file:
            head = file.read(4096)
            file.seek(path.stat().st_size - 4096)
            tail = bytearray(file.read())
        directory = tail.rfind(b"PK\1\2")
        hash_at = tail.rfind(b"FB", 0, directory)  # its padding ends where the hash begins
        hash_at += 4 + struct.unpack_from("<H", tail, hash_at + 2)[0]
        for at, count in ((hash_at, 40), (hash_at + 44, 4), (directory + 16, 4)):
            tail[at : at + count] = bytes(count)
        around.append((head, tail))
    assert around[0] == around[1]
    assert offsets(paths[0]) == offsets(paths[1])


@pytest.mark.parametrize("mmap", [False, True])
def test_mapped_loading(scratch, mmap):
    value = {f"w{i}": torch.full((i,), i, dtype=torch.float32) for i in range(30)}
    torch.save(value, scratch / "in.pt")
    tool("copy", scratch / "in.pt", scratch / "cp.pt")
    assert offsets(scratch / "cp.pt") == offsets(scratch / "in.pt")
    assert same(torch.load(scratch / "cp.pt", weights_only=True, mmap=mmap), value)
    options = torch.utils.serialization.config.load
    before = options.calculate_storage_offsets
    options.calculate_storage_offsets = True
    try:
        assert same(torch.load(scratch / "cp.pt", weights_only=True, mmap=mmap), value)
    finally:
        options.calculate_storage_offsets = before


@pytest.mark.long
def test_files_above_four_gibibytes(scratch):
    path = scratch / "sparse.pt"
    five_gibibytes = 5 << 30
    tool("sparse", path, five_gibibytes, five_gibibytes)
    assert path.stat().st_size > 2 * five_gibibytes
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        assert sizes["sparse/data/1"] == five_gibibytes
        assert archive.read("sparse/version") == b"3\n"
    tensors = torch.load(path, weights_only=True, mmap=True)
    assert [tensor.numel() for tensor in tensors] == [five_gibibytes] * 2
    assert tensors[1][-1] == 0
    listed = json.loads(tool("list", path))["tensors"]
    assert [entry["size_bytes"] for entry in listed] == [five_gibibytes] * 2


@pytest.mark.long
def test_more_records_than_sixteen_bits_count(scratch):
    value = [torch.full((1,), i, dtype=torch.int32) for i in range(66000)]
    assert same(copied(scratch, value, weights_only=False), value)
