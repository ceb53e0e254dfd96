"""The checkpoints of tests/data/golden, which reshard 0.1.0 wrote: version 1 of the digest and of reshard.json means what it meant then.

If a test here fails, the program has changed, not the file: mend the program (tests/data/golden/README.md).
"""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from reshard_job import BINARY, command, manifest_of

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
sys.path.insert(1, str(ROOT / "docs"))

from digest import digest, total  # noqa: E402

SHA256 = "38f48fc4c086687cd2f87db2248a55de24e0d8df962925f1c15a9bfc54ebf9a1"
CHECKPOINTS = (
    "dcp", "fsdp_dtensor", "hdf5", "huggingface", "huggingface-dtypes", "huggingface-fp8", "huggingface-qwen3_5", "mp_rank", "mp_rank-optimizer", "torch_dist",
    "torch_dist-fp8", "torch_dist-optimizer")  # fmt: skip
NAMES = {path.stem: path for path in (GOLDEN / "names").iterdir()}
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "I16": torch.int16, "U16": torch.uint16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32, "C64": torch.complex64, "F64": torch.float64, "I64": torch.int64,
    "U64": torch.uint64, "C128": torch.complex128, "C32": torch.complex32, "F4_X2": torch.float4_e2m1fn_x2}  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    root = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "v1.tar.xz") as archive:
        archive.extractall(root, filter="data")
    return root


def recorded(folder):
    return {tensor["name"]: tensor["crc64"] for tensor in manifest_of(folder)["tensors"]}


def by_name(tensors):
    return sorted(tensors, key=lambda tensor: tensor["name"])


def shown(value):
    return f"{value:016x}"


def test_the_files_are_those_of_then(golden):
    assert hashlib.sha256((GOLDEN / "v1.tar.xz").read_bytes()).hexdigest() == SHA256, "these files are never made again"
    assert sorted(path.name for path in golden.iterdir()) == sorted(CHECKPOINTS)


def test_all_dtypes_and_members_are_in_it(golden):
    records = [manifest_of(golden / name) for name in CHECKPOINTS]
    tensors = [tensor for record in records for tensor in record["tensors"]]
    assert {tensor["dtype"] for tensor in tensors} == set(DTYPES)
    assert any(tensor.get("add") for tensor in tensors) and any(record["objects"] for record in records)
    assert any(tensor["name"].endswith("(exp_avg_sq)") for tensor in tensors)
    assert any(tensor["shape"] == [] for tensor in tensors) and any(0 in tensor["shape"] for tensor in tensors)


def members_of_the_page():
    """Table -> member -> type, from docs/digest.md."""
    tables = {}
    for line in (ROOT / "docs" / "digest.md").read_text().splitlines():
        if header := re.match(r"\| (member[a-z ]*) \| type \|", line):
            rows = tables.setdefault(header[1], {})
        elif row := re.match(r"\| `(\w+)` \| ([a-z ]+) \|", line):
            rows[row[1]] = row[2]
    return tables


IS = {
    "text": lambda value: isinstance(value, str), "integer": lambda value: type(value) is int, "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list), "list of texts": lambda value: all(isinstance(one, str) for one in value),
    "list of integers": lambda value: all(type(one) is int for one in value)}  # fmt: skip


def check_members(item, members, optional=()):
    assert members.keys() - item.keys() <= set(optional) and item.keys() <= members.keys(), item.keys()
    assert all(IS[members[key]](value) for key, value in item.items()), item


def check_record(record):
    tables = members_of_the_page()
    check_members(record, tables["member"], ("frozen", "vocab", "stamps", "block_bytes", "blocks"))
    for tensor in record["tensors"]:
        check_members(tensor, tables["member of a tensor"], ("axes", "add"))
        assert "axes" not in tensor or len(tensor["axes"]) == len(tensor["shape"]) > 0
    for one in record["objects"]:
        check_members(one, {key: tables["member of a tensor"][key] for key in ("name", "shape", "crc64")})
    for file in record["files"]:
        check_members(file, tables["member of a file"])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_page_lists_all_members(name, golden):
    check_record(manifest_of(golden / name))


def test_what_is_written_today_has_the_same_members_and_tensors(golden, program, scratch):
    """A member that is new here is a row of the page; one that is gone is a fault."""
    there = program.run(golden / "torch_dist-fp8", scratch / "there", "huggingface", ranks=1)
    record = manifest_of(there)
    check_record(record)
    assert record["version"] == 1 and record["total"] == manifest_of(golden / "torch_dist-fp8")["total"] == total(record["tensors"])


@pytest.mark.skipif(not BINARY, reason="needs the program")
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_program_reads_them_and_finds_their_digests(name, golden):
    if name == "hdf5" and json.loads(command("--version", "--json").stdout)["hdf5"] == "not built in":
        pytest.skip("this build has no HDF5")
    outcome = command("verify", golden / name, "--replicas")
    assert outcome.returncode == 0 and outcome.stdout.startswith("OK: "), outcome.stdout + outcome.stderr
    record = manifest_of(golden / name)
    found = json.loads(command("digest", golden / name, "--json", *(["--map", "none"] if record["map"] == "none" else [])).stdout)
    assert by_name(found["tensors"]) == by_name({"axes": [], **tensor} for tensor in record["tensors"])
    assert found["total"] == record["total"] == total(record["tensors"]) and found["notes"] == []


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name.startswith("huggingface")])
def test_the_specification_finds_the_same_in_hugging_face_folders(name, golden):
    done = subprocess.run([sys.executable, ROOT / "docs" / "digest.py", golden / name, *([NAMES[name]] if name in NAMES else [])],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all digests are those of reshard.json\n"), done.stdout + done.stderr


def test_live_tensors_of_pytorch_have_the_digests_of_the_file(golden):
    state = load_file(golden / "huggingface-dtypes" / "model.safetensors")
    assert {name: shown(digest(tensor)) for name, tensor in state.items()} == recorded(golden / "huggingface-dtypes")


def test_what_pytorch_loads_from_dcp_has_the_recorded_digests(golden):
    state = {tensor["name"]: torch.empty(tensor["shape"], dtype=DTYPES[tensor["dtype"]]) for tensor in manifest_of(golden / "dcp")["tensors"]}
    dcp.load(state, checkpoint_id=golden / "dcp", no_dist=True)
    assert {name: shown(digest(tensor)) for name, tensor in state.items()} == recorded(golden / "dcp")


def test_objects_have_the_digest_of_the_bytes_that_their_name_tells(golden):
    for one in manifest_of(golden / "dcp")["objects"]:
        file, _, begin = one["name"].rpartition(":")
        data = (golden / "dcp" / file).read_bytes()[int(begin) :][: one["shape"][0]]
        assert shown(digest(torch.frombuffer(bytearray(data), dtype=torch.uint8))) == one["crc64"]


def test_what_h5py_finds_has_the_recorded_digests(golden):
    from hdf5_reading import read_container

    tensors, _ = read_container(golden / "hdf5")
    assert {name: shown(digest(tensor)) for name, (tensor, _, _) in tensors.items()} == recorded(golden / "hdf5")


# --- ranks of a trainer -------------------------------------------------------------------------------------------


def shards(golden):
    """(tp, pp, ep) -> the state that a rank of Megatron loads"""
    folders = sorted((golden / "mp_rank" / "release").iterdir())
    return {tuple(map(int, folder.name.split("_")[2:])): torch.load(folder / "model_optim_rng.pt", weights_only=False)["model"] for folder in folders}


def test_ranks_add_their_shares(golden):
    """What a trainer does with its live weights: each rank sums up its own pieces, at their places in the logical tensors, and one xor joins them."""
    shapes = {tensor["name"]: tensor["shape"] for tensor in manifest_of(golden / "mp_rank")["tensors"]}
    sums = dict.fromkeys(("attn.q", "attn.v", "lm_head", "experts.gate", "experts.down"), 0)

    def add(name, piece, *offset):
        piece = piece.reshape(*(1,) * (len(shapes[name]) - piece.dim()), *piece.shape)
        sums[name] ^= digest(piece, shapes[name], offset)

    heads, dim, hidden = shapes["attn.q"][2:]
    for (tp, pp, ep), state in shards(golden).items():
        if ep == 0:  # the same in all expert-parallel ranks
            group = state["decoder.layers.0.self_attention.linear_qkv.weight"].reshape(heads + 2, dim, hidden)
            add("attn.q", group[:heads], pp, tp, 0, 0, 0)
            add("attn.v", group[heads + 1], pp, tp, 0, 0)
            if pp == 2:
                rows = state["output_layer.weight"]
                add("lm_head", rows[: max(0, shapes["lm_head"][0] - tp * len(rows))], min(tp * len(rows), shapes["lm_head"][0]), 0)
        for expert in range(2) if pp > 0 else ():
            at = pp - 1, 2 * ep + expert
            gate, _ = state[f"decoder.layers.0.mlp.experts.linear_fc1.weight{expert}"].chunk(2)
            down = state[f"decoder.layers.0.mlp.experts.linear_fc2.weight{expert}"]
            add("experts.gate", gate, *at, tp * len(gate), 0)
            add("experts.down", down, *at, 0, tp * down.shape[1])
    expected = recorded(golden / "mp_rank")
    assert {name: shown(value) for name, value in sums.items()} == {name: expected[name] for name in sums}
