"""Our reader and writer against the safetensors, huggingface_hub and transformers libraries.

RESHARD_PROBE is the path of probe (tests/support/probe/safetensors.cpp).
"""

import json
import os
import random
import struct
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
import safetensors.torch
from safetensors import safe_open

TOOL = os.environ.get("RESHARD_PROBE")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}


def tool(*words):
    done = subprocess.run([TOOL, "safetensors", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def refused(*words):
    done = subprocess.run([TOOL, "safetensors", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    return done.stderr


def random_tensor(random_state, dtype, shape):
    """Any bit pattern, so NaN payloads and denormals are among them; bool has only two."""
    count = torch.Size(shape).numel()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.tensor([random_state.randrange(2 if dtype == torch.bool else 256) for _ in range(count * size)], dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def raw_bytes(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert raw_bytes(found[name]) == raw_bytes(tensor), name


def all_dtypes(seed=1):
    state = random.Random(seed)
    tensors = {f"m.{word}": random_tensor(state, dtype, [3, 5]) for word, dtype in TORCH_DTYPES.items()}
    tensors["scalar"] = random_tensor(state, torch.float32, [])
    tensors["empty"] = torch.empty([0], dtype=torch.bfloat16)
    tensors["hollow"] = torch.empty([4, 0, 3], dtype=torch.float64)
    tensors["näme \"quoted\" \\ / \t"] = random_tensor(state, torch.uint8, [7])
    return tensors


def listed_as(path):
    """What the reference reader's own view of a header is: name -> dtype, shape, bytes."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    rows = [
        {
            "name": name,
            "dtype": entry["dtype"],
            "shape": entry["shape"],
            "offset_bytes": 8 + length + entry["data_offsets"][0],
            "size_bytes": entry["data_offsets"][1] - entry["data_offsets"][0],
        }
        for name, entry in header.items()
    ]
    return metadata, rows


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"a": "1", "b": "é\n\"", "": ""}])
def test_files_of_the_library_read_equal(tmp_path, metadata):
    path = tmp_path / "x.safetensors"
    tensors = all_dtypes()
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    found = tool("list", path)
    expected_metadata, rows = listed_as(path)
    assert found["metadata"] == expected_metadata == (metadata or {})
    key = lambda row: (row["offset_bytes"], row["size_bytes"], row["name"])
    assert sorted(found["tensors"], key=key) == sorted(rows, key=key)
    assert {row["name"] for row in found["tensors"]} == set(tensors)


def test_a_file_without_tensors_reads_equal(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({}, path)
    assert tool("list", path)["tensors"] == []
    tool("copy", path, tmp_path / "y.safetensors")
    assert safetensors.torch.load_file(tmp_path / "y.safetensors") == {}


@pytest.mark.parametrize("word, bits, shape", [("F4", 4, [3, 4]), ("F6_E2M3", 6, [4, 2]), ("F6_E3M2", 6, [8])])
def test_narrow_dtypes_are_accepted_by_the_reference_reader(tmp_path, word, bits, shape):
    elements = 1
    for extent in shape:
        elements *= extent
    data = bytes(range(elements * bits // 8))
    text = json.dumps({"n": {"dtype": word, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    tool("copy", tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    for name in ("x", "y"):
        with safe_open(tmp_path / f"{name}.safetensors", framework="pt") as file:
            assert file.get_slice("n").get_dtype() == word
            assert list(file.get_slice("n").get_shape()) == shape
    assert (tmp_path / "y.safetensors").read_bytes()[-len(data):] == data


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"a": "1", "b": "é\n\""}])
def test_our_copies_load_bit_equal(tmp_path, metadata):
    tensors = all_dtypes(2)
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
    tool("copy", tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert_same(safetensors.torch.load_file(tmp_path / "y.safetensors"), tensors)
    with safe_open(tmp_path / "y.safetensors", framework="pt") as file:
        assert (file.metadata() or {}) == (metadata or {})
        assert_same({name: file.get_tensor(name) for name in file.keys()}, tensors)
    assert (tmp_path / "y.safetensors").read_bytes() == (tmp_path / "x.safetensors").read_bytes()


def test_copies_of_copies_are_the_same_bytes(tmp_path):
    safetensors.torch.save_file(all_dtypes(3), tmp_path / "x.safetensors", metadata={"format": "pt"})
    tool("copy", tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    tool("copy", tmp_path / "y.safetensors", tmp_path / "z.safetensors")
    assert (tmp_path / "y.safetensors").read_bytes() == (tmp_path / "z.safetensors").read_bytes()


def test_random_files_survive_the_copy(tmp_path):
    state = random.Random(4)
    for case in range(25):
        words = list(TORCH_DTYPES.values())
        tensors = {
            f"t{i}": random_tensor(state, state.choice(words), [state.randrange(5) for _ in range(state.randrange(4))])
            for i in range(state.randrange(12))
        }
        safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
        tool("copy", tmp_path / "x.safetensors", tmp_path / "y.safetensors")
        assert_same(safetensors.torch.load_file(tmp_path / "y.safetensors"), tensors)


def mutated(state, whole, header_end):
    """One change of a valid file; the header's length is kept right so that the JSON is what is tested."""
    text = bytearray(whole[8:header_end])
    for _ in range(state.randrange(1, 4)):
        at = state.randrange(len(text))
        kind = state.randrange(3)
        if kind == 0:
            text[at] = state.choice(b'0123456789[]{},:"-.e UF')
        elif kind == 1:
            del text[at]
        else:
            text.insert(at, state.choice(b'0123456789[]{},:"-.e UF'))
    return struct.pack("<Q", len(text)) + bytes(text) + whole[header_end:]


def test_what_we_accept_the_reference_reader_accepts(tmp_path):
    """The other direction does not hold: the reference keeps the last of two equal names and ignores unknown fields."""
    state = random.Random(5)
    source = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(3), "b": torch.zeros(0), "c": torch.ones(2, 2, dtype=torch.uint8)}, source, metadata={"format": "pt"})
    whole = source.read_bytes()
    header_end = 8 + struct.unpack("<Q", whole[:8])[0]
    accepted = 0
    for case in range(400):
        path = tmp_path / "m.safetensors"
        path.write_bytes(mutated(state, whole, header_end))
        done = subprocess.run([TOOL, "safetensors", "list", path], capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 3), (case, done.returncode, done.stderr)
        if done.returncode == 0:
            accepted += 1
            with safe_open(path, framework="pt") as file:
                assert sorted(file.keys()) == sorted(row["name"] for row in json.loads(done.stdout)["tensors"])
    assert accepted > 0


def test_cut_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(100)}, path)
    whole = path.read_bytes()
    for bytes_kept in [0, 1, 7, 8, 9, 50, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:bytes_kept])
        assert "truncated" in refused("list", path)


# Folders.


def tiny_model(seed=0, layers=3):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64
    )
    return transformers.LlamaForCausalLM(config)


def load_folder(folder):
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    tensors = {}
    for name in names:
        tensors.update(safetensors.torch.load_file(folder / name))
    return tensors


def test_sharded_folders_of_transformers_open(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = tool("index", tmp_path)
    assert found["weight_map"] == index["weight_map"]
    assert list(found["weight_map"]) == list(index["weight_map"])
    assert found["files"] == sorted(set(index["weight_map"].values()))
    assert len(found["files"]) > 2
    assert found["index_metadata"] == index["metadata"]
    assert found["config"] == json.loads((tmp_path / "config.json").read_text())
    assert found["warnings"] == []
    assert found["sidecars"] == ["generation_config.json"]


def test_our_folders_load_in_transformers(tmp_path):
    import transformers

    model = tiny_model(seed=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    tool("reshard", tmp_path / "in", tmp_path / "out", 30_000)
    assert_same(load_folder(tmp_path / "out"), load_folder(tmp_path / "in"))
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
    loaded, report = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))


def test_one_small_folder_is_one_file_without_index(tmp_path):
    import transformers

    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    tiny_model(seed=2).save_pretrained(tmp_path / "in", max_shard_size="20KB")
    tool("reshard", tmp_path / "in", tmp_path / "out", 5_000_000_000)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "generation_config.json", "model.safetensors"]
    transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")


def test_a_reference_reproduces_shards_and_index(tmp_path):
    """From another split back to the split of transformers: the index is the same bytes."""
    for name in ("in", "other", "out"):
        (tmp_path / name).mkdir()
    tiny_model(seed=3).save_pretrained(tmp_path / "in", max_shard_size="20KB")
    tool("reshard", tmp_path / "in", tmp_path / "other", 50_000)
    tool("reshard", tmp_path / "other", tmp_path / "out", 50_000, tmp_path / "in")
    index = "model.safetensors.index.json"
    assert (tmp_path / "out" / index).read_bytes() == (tmp_path / "in" / index).read_bytes()
    for path in (tmp_path / "in").glob("*.safetensors"):
        assert_same(safetensors.torch.load_file(tmp_path / "out" / path.name), safetensors.torch.load_file(path))


@pytest.mark.parametrize("limit", [1, 700, 2_000, 4_096, 9_999, 1_000_000])
def test_the_split_is_the_hubs(tmp_path, limit):
    from huggingface_hub import split_torch_state_dict_into_shards

    state = random.Random(limit)
    tensors = {f"t{i:03}": torch.zeros(state.randrange(1, 1500), dtype=torch.uint8) for i in range(40)}
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    safetensors.torch.save_file(tensors, tmp_path / "in" / "model.safetensors")
    tool("reshard", tmp_path / "in", tmp_path / "out", limit)
    split = split_torch_state_dict_into_shards(tensors, max_shard_size=limit)
    files = {path.name: sorted(safetensors.torch.load_file(path)) for path in (tmp_path / "out").glob("*.safetensors")}
    assert files == {name: sorted(names) for name, names in split.filename_to_tensors.items()}
    if split.is_sharded:
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        assert index == {"metadata": split.metadata, "weight_map": split.tensor_to_filename}


def test_the_index_has_the_bytes_that_python_writes(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    tensors = {name: torch.zeros(10, dtype=torch.bfloat16) for name in ("b.weight", "a.weight", "a.10", "a.9", "B", "_")}
    safetensors.torch.save_file(tensors, tmp_path / "in" / "model.safetensors")
    tool("reshard", tmp_path / "in", tmp_path / "out", 40)
    text = (tmp_path / "out" / "model.safetensors.index.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_stale_shards_are_said(tmp_path):
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    safetensors.torch.save_file({"old": torch.zeros(1)}, tmp_path / "model-00099-of-00099.safetensors")
    name = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]["model.norm.weight"]
    tensors = safetensors.torch.load_file(tmp_path / name)
    safetensors.torch.save_file({**tensors, "stray": torch.zeros(1)}, tmp_path / name)
    warnings = " ".join(tool("index", tmp_path)["warnings"])
    assert "model-00099-of-00099.safetensors" in warnings and "stray" in warnings


def test_a_shard_that_lost_a_tensor_is_refused(tmp_path):
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    name = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]["model.norm.weight"]
    tensors = safetensors.torch.load_file(tmp_path / name)
    tensors.pop("model.norm.weight")
    safetensors.torch.save_file(tensors, tmp_path / name)
    assert "model.norm.weight" in refused("index", tmp_path)
