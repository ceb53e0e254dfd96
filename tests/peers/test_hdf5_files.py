"""Our HDF5 containers against h5py and the HDF5 tools, and our reader against files that h5py wrote, hostile ones among them.

RESHARD_PROBE is the path of probe (tests/support/probe/hdf5.cpp), RESHARD_HDF5 is set where the build has HDF5.
"""

import ctypes
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")
import hdf5_files  # noqa: E402
import hdf5_lies  # noqa: E402
from tensor_patterns import crc64  # noqa: E402

TOOL = os.environ.get("RESHARD_HDF5") and os.environ.get("RESHARD_PROBE")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_HDF5 is not set: this build has no HDF5")

NUMPY = {"U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4", "U64": "u8", "I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8",
         "C64": "c8", "C128": "c16"}


def run(*words, environment=None):
    return subprocess.run([TOOL, "hdf5", *map(str, words)], capture_output=True, text=True, timeout=120, env={**os.environ, **(environment or {})})


def tool(*words, environment=None):
    done = run(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def refusal(path):
    done = run("list", path)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") and str(path) in done.stderr
    assert done.stderr.endswith("\n") and done.stderr[:-1].isprintable(), "the sentence can be shown on a terminal, on one line"
    return done.stderr


def spec_file(folder, tensors, objects=(), attributes=None, **more):
    path = folder / "spec.json"
    path.write_text(json.dumps({"tensors": tensors, "objects": list(objects), "attributes": attributes or {}, **more}))
    return path


def entry(name, dtype, array, **more):
    return {"name": name, "dtype": dtype, "shape": list(array.shape), "data": array.tobytes().hex(), **more}


# What we write.


def numbers(dtype, shape, seed):
    values = np.random.default_rng(seed).integers(0, 120, shape)
    return values.astype(NUMPY[dtype])


def test_h5py_reads_what_we_write(scratch):
    arrays = {f"m/{word.lower()}%": (word, numbers(word, (3, 5), seed)) for seed, word in enumerate(NUMPY)}
    tensors = [entry(name, word, array, axes=["out", "größe"], domain="layer 3:61") for name, (word, array) in arrays.items()]
    tensors += [entry("scalar", "F32", np.array(2.5, "f4")), entry("hollow", "I64", np.zeros((4, 0), "i8"))]
    out = scratch / "out.h5"
    tool("make", spec_file(scratch, tensors, [{"name": "rng/0", "data": "00ff10"}], {"model": '{"a": 1}'}), out)
    with h5py.File(out) as file:
        assert dict(file.attrs) == {"format": b"reshard-hdf5", "format_version": b"1", "software": b"reshard", "complete": 1, "model": b'{"a": 1}'}
        assert sorted(file) == ["objects", "tensors"] and len(file["tensors"]) == len(tensors)
        for name, (word, array) in arrays.items():
            dataset = file["tensors"][name.replace("%", "%25").replace("/", "%2F")]
            assert dataset.dtype == array.dtype and np.array_equal(dataset[()], array), name
            assert [dimension.label for dimension in dataset.dims] == ["out", "größe"]
            assert dataset.attrs["dtype"] == word.encode() and dataset.attrs["domain"] == b"layer 3:61"
            assert dataset.attrs["crc64"].decode() == crc64(array.tobytes())
            assert dataset.chunks is None and len(dataset.attrs) == 4
        assert file["tensors/scalar"][()] == 2.5 and file["tensors/hollow"].shape == (4, 0)
        for item in (file["/"], file["tensors"], file["objects"], file["tensors/scalar"], file["objects/rng%2F0"]):
            assert not item.id.get_create_plist().get_obj_track_times(), "a time would make each run's bytes different"
        assert file["objects/rng%2F0"][()].tobytes() == bytes.fromhex("00ff10")


def test_bf16_is_a_number_for_h5py(scratch):
    values = np.array([0, 1, -2.5, 3.0e38, 1e-40, np.inf, -np.inf, 65280], "f4")
    words = (values.view("u4") >> 16).astype("u2")
    expected = (words.astype("u4") << 16).view("f4")
    tool("make", spec_file(scratch, [{"name": "w", "dtype": "BF16", "shape": [8], "data": words.tobytes().hex()}]), scratch / "out.h5")
    with h5py.File(scratch / "out.h5") as file:
        found = file["tensors/w"][()]
        assert found.dtype == np.float32 and np.array_equal(found, expected)


def test_bf16_is_the_type_that_hdf5_2_names(scratch):
    tool("make", spec_file(scratch, [{"name": "w", "dtype": "BF16", "shape": [2], "data": "00000000"}]), scratch / "out.h5")
    libraries = sorted((Path(h5py.__file__).parent.parent / "h5py.libs").glob("libhdf5-*.so*"))
    if not libraries or h5py.version.hdf5_version_tuple < (2, 0, 0):
        pytest.skip("this h5py brings no HDF5 2")
    library = ctypes.CDLL(str(libraries[0]))
    try:
        named = ctypes.c_int64.in_dll(library, "H5T_FLOAT_BFLOAT16LE_g").value
    except ValueError:
        pytest.skip("this HDF5 names no bfloat16")
    with h5py.File(scratch / "out.h5") as file:
        library.H5Tequal.argtypes = [ctypes.c_int64, ctypes.c_int64]
        assert library.H5Tequal(file["tensors/w"].id.get_type().id, named) == 1


@pytest.mark.parametrize("dtype, shape, stored", [("BOOL", [3], (3,)), ("F8_E4M3", [2, 3], (2, 3)), ("F8_E8M0", [4], (4,)), ("F4", [3, 8], (3, 4)),
                                                  ("F6_E2M3", [2, 4], (2, 3)), ("F4_X2", [3, 2], (3, 2))])
def test_other_dtypes_are_bytes(scratch, dtype, shape, stored):
    data = bytes(range(int(np.prod(stored))))
    tool("make", spec_file(scratch, [{"name": "w", "dtype": dtype, "shape": shape, "data": data.hex()}]), scratch / "out.h5")
    with h5py.File(scratch / "out.h5") as file:
        dataset = file["tensors/w"]
        assert dataset.dtype == np.uint8 and dataset.shape == stored and dataset[()].tobytes() == data
        assert dataset.attrs["dtype"] == dtype.encode()


def test_the_hdf5_tools_list_it(scratch):
    for program in ("h5ls", "h5dump"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed (Debian: hdf5-tools)")
    out = scratch / "out.h5"
    tool("make", spec_file(scratch, [entry("a/b", "F32", np.arange(6, dtype="f4").reshape(2, 3), axes=["out", "in"])]), out)
    listed = subprocess.run(["h5ls", "-r", out], capture_output=True, text=True, check=True).stdout
    assert "/tensors/a%2Fb" in listed and "{2, 3}" in listed
    dumped = subprocess.run(["h5dump", out], capture_output=True, text=True, check=True).stdout
    assert "H5T_IEEE_F32LE" in dumped and '"out", "in"' in dumped and "(1,0): 3, 4, 5" in dumped


def test_runs_give_the_same_bytes(scratch):
    tensors = [entry(f"t{i}", "F32", np.full((i % 7, 50), i, "f4"), axes=["out", "in"]) for i in range(500)]
    spec = spec_file(scratch, tensors, [{"name": "o", "data": "00"}], {"k": "v"})
    for name, perturb in (("a", "0"), ("b", "165"), ("c", "90")):
        tool("make", spec, scratch / f"{name}.h5", environment={"MALLOC_PERTURB_": perturb})
    first = (scratch / "a.h5").read_bytes()
    assert (scratch / "b.h5").read_bytes() == first == (scratch / "c.h5").read_bytes()


def test_the_environment_of_hdf5_does_not_matter(scratch):
    spec = spec_file(scratch, [entry("t", "F32", np.arange(4, dtype="f4"))])
    for setting in ("TRUE", "FALSE", "BEST_EFFORT"):
        tool("make", spec, scratch / "out.h5", environment={"HDF5_USE_FILE_LOCKING": setting})
        assert len(tool("list", scratch / "out.h5", environment={"HDF5_USE_FILE_LOCKING": setting})["tensors"]) == 1


def test_a_file_that_another_process_has_locked_can_be_read(scratch):
    tool("make", spec_file(scratch, [entry("t", "F32", np.arange(4, dtype="f4"))]), scratch / "out.h5")
    with h5py.File(scratch / "out.h5", "a"):
        assert len(tool("list", scratch / "out.h5")["tensors"]) == 1


# What we read.


def check_places(path, found):
    """The bytes at the places that our reader gives are those of the arrays that h5py gives."""
    whole = path.read_bytes()
    with h5py.File(path) as file:
        for tensor in found["tensors"]:
            array = file[tensor["name"]][()]
            assert whole[tensor["offset_bytes"] : tensor["offset_bytes"] + tensor["size_bytes"]] == array.tobytes(), tensor["name"]
            assert tensor["shape"] == list(array.shape)


@pytest.mark.parametrize("libver", [("earliest", "v110"), ("v108", "v110"), ("v110", "v110"), None])
@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_files_of_h5py_read_equal(scratch, libver, userblock):
    path = scratch / "x.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock, track_order=userblock == 512) as file:
        for seed, word in enumerate(NUMPY):
            file[f"g/{word}"] = numbers(word, (3, 5), seed)
        file["flags"] = np.array([[True, False], [False, True]])
        file["deep/er/scalar"] = np.float32(7)
        file["hollow"] = np.zeros((0, 3), "f4")
        file["größe"] = np.arange(3)
        file.create_group("nothing/in/here")
        file.attrs["model"] = "tiny"
        file.attrs["steps"] = 3
    found = tool("list", path)
    assert not found["container"] and found["objects"] == [] and found["attributes"] == {"model": "tiny"}
    expected = {f"g/{word}": word for word in NUMPY} | {"flags": "BOOL", "deep/er/scalar": "F32", "hollow": "F32", "größe": "I64"}
    assert {tensor["name"]: tensor["dtype"] for tensor in found["tensors"]} == expected
    assert all(tensor["digest"] is None for tensor in found["tensors"])
    offsets = [tensor["offset_bytes"] for tensor in found["tensors"]]
    assert offsets == sorted(offsets) and min(offset for offset in offsets if offset) >= userblock
    check_places(path, found)


def test_the_newest_file_version_is_read_or_refused(scratch):
    with h5py.File(scratch / "x.h5", "w", libver="latest") as file:
        file["a"] = np.arange(4)
    done = run("list", scratch / "x.h5")
    assert done.returncode in (0, 3), done.stderr


def test_the_attribute_dtype_wins_where_it_can(scratch):
    path = scratch / "x.h5"
    cases = {"bf16": ("u2", "BF16", "BF16"), "fp8": ("u1", np.bytes_(b"F8_E4M3"), "F8_E4M3"), "f4": ("u1", "F4", "F4"), "wide": ("f4", "F64", "F32"),
             "word": ("f4", "float32", "F32"), "number": ("i4", 7, "I32"), "list": ("f4", ["F32", "BF16"], "F32"), "f6": ("u1", "F6_E2M3", "U8")}
    with h5py.File(path, "w") as file:
        for name, (stored, dtype, _) in cases.items():
            file[name] = np.zeros((2, 4), stored)
            file[name].attrs["dtype"] = dtype
    found = {tensor["name"]: tensor for tensor in tool("list", path)["tensors"]}
    assert {name: tensor["dtype"] for name, tensor in found.items()} == {name: expected for name, (_, _, expected) in cases.items()}
    assert found["f4"]["shape"] == [2, 8] and found["f4"]["size_bytes"] == 8


def test_bf16_of_others_and_labels_are_found(scratch):
    path = scratch / "x.h5"
    with h5py.File(path, "w") as file:
        hdf5_files.low(file, "w", hdf5_files.bf16_type(), (2, 2), data=np.zeros((2, 2), "u2"))
        for dimension, label in zip(file["w"].dims, ("out", "in")):
            dimension.label = label
        file["half"] = np.zeros((2, 2))
        file["half"].dims[1].label = "in"
        file["fixed"] = np.zeros((2, 2))
        file["fixed"].attrs["DIMENSION_LABELS"] = np.array([b"a", b"bc"])
    found = {tensor["name"]: tensor for tensor in tool("list", path)["tensors"]}
    assert found["w"]["dtype"] == "BF16" and found["w"]["axes"] == ["out", "in"]
    assert found["half"]["axes"] == [] and found["fixed"]["axes"] == ["a", "bc"]


@pytest.mark.long
def test_ten_thousand_datasets_of_h5py(scratch):
    with h5py.File(scratch / "x.h5", "w") as file:
        for i in range(10_000):
            file[f"layers/{i // 100}/{i}"] = np.full(3, i, "i4")
    found = tool("list", scratch / "x.h5")
    assert len(found["tensors"]) == 10_000
    check_places(scratch / "x.h5", {"tensors": found["tensors"][::97]})


# What we refuse.


@pytest.mark.parametrize("name, maker, words", hdf5_files.REFUSED, ids=[row[0] for row in hdf5_files.REFUSED])
def test_hostile_files_are_refused(scratch, name, maker, words):
    maker(scratch / "x.h5")
    sentence = refusal(scratch / "x.h5")
    for expected in words:
        assert expected in sentence


def test_there_are_many_hostile_files():
    assert len(hdf5_files.REFUSED) >= 35


@pytest.mark.parametrize("maker", ["external_link", "external_link_to_a_group", "virtual_dataset", "unlimited_virtual_dataset", "external_storage",
                                   "container_whose_tensors_are_elsewhere"])
def test_no_other_file_is_opened(scratch, maker):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    dict((row[0], row[1]) for row in hdf5_files.REFUSED)[maker](scratch / "x.h5")
    trace = scratch / "trace"
    done = subprocess.run(["strace", "-f", "-e", "trace=open,openat,stat,newfstatat,access", "-o", trace, TOOL, "hdf5", "list", scratch / "x.h5"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "x.h5" in trace.read_text() and "x-secret" not in trace.read_text()


def samples(folder):
    hdf5_files.old_sample(folder / "old.h5")
    tensors = [entry(f"layers.{i}.w", "F32", np.arange(24, dtype="f4").reshape(4, 6), axes=["out", "in"], domain="layer 0:2") for i in range(12)]
    tool("make", spec_file(folder, tensors, [{"name": "o", "data": "0011"}], {"k": "v"}), folder / "ours.h5")
    return [folder / "old.h5", folder / "ours.h5"]


def answers_or_refuses(path):
    """True when the file was read: then all that was found lies in it."""
    done = run("list", path)
    assert done.returncode in (0, 3), (done.returncode, done.stderr)
    if done.returncode == 3:
        assert done.stderr.startswith("error: ") and done.stderr[:-1].isprintable(), done.stderr
        return False
    found = json.loads(done.stdout)
    assert all(tensor["offset_bytes"] + tensor["size_bytes"] <= path.stat().st_size for tensor in found["tensors"] + found["objects"])
    return True


def test_cut_files_are_refused(scratch):
    for sample in samples(scratch):
        whole = sample.read_bytes()
        state = random.Random(1)
        cut = scratch / "cut.h5"
        for kept in [0, 1, 7, 8, 9, 48, 96, 512, len(whole) - 1, *(state.randrange(len(whole)) for _ in range(30))]:
            cut.write_bytes(whole[:kept])
            assert not answers_or_refuses(cut), kept


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_flipped_bits_end_in_an_answer_or_a_refusal(scratch, which):
    sample = samples(scratch)[which]
    whole = sample.read_bytes()
    places = [at for at, byte in enumerate(whole) if byte]  # mostly the library's own bytes
    state = random.Random(7 + which)
    flipped = scratch / "flipped.h5"
    read = 0
    for _ in range(200):
        changed = bytearray(whole)
        for _ in range(state.choice([1, 1, 3])):
            changed[state.choice(places)] ^= 1 << state.randrange(8)
        flipped.write_bytes(bytes(changed))
        read += answers_or_refuses(flipped)
    assert 0 < read < 200


@pytest.mark.long
def test_words_of_all_ones_and_huge_numbers_end_in_an_answer_or_a_refusal(scratch):
    sample = samples(scratch)[0]
    whole = sample.read_bytes()
    state = random.Random(9)
    changed_file = scratch / "changed.h5"
    places = [at for at in range(0, len(whole) - 8, 8) if any(whole[at : at + 8])]
    for _ in range(150):
        changed = bytearray(whole)
        at = state.choice(places)
        changed[at : at + 8] = state.choice([b"\xff" * 8, (1 << 40).to_bytes(8, "little"), (1 << 62).to_bytes(8, "little"), bytes(8)])
        changed_file.write_bytes(bytes(changed))
        answers_or_refuses(changed_file)
