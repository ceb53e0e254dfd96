"""Tensors of torchao's classes in PyTorch's distributed checkpoints, as torchao 0.18 and torch saved them (tests/data/make_torchao_sample.py)."""

import json
import math
import shutil
from pathlib import Path

import pytest
from torch.distributed.checkpoint import FileSystemReader

from reshard_job import command

SAMPLE = Path(__file__).parents[1] / "data" / "torchao.tar.xz"
NAMES = ["int8", "float8"]
LAYERS = 8  # q, k, v, o, gate, up, down and the output layer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    there = tmp_path_factory.mktemp("torchao")
    shutil.unpack_archive(SAMPLE, there)
    return there


def items_of(folder):
    """Each key's description and the bytes of its items. torch needs torchao only to load these."""
    metadata = FileSystemReader(folder).read_metadata()
    found = {}
    for index, place in metadata.storage_data.items():
        data = (folder / place.relative_path).read_bytes()[place.offset:place.offset + place.length]
        found.setdefault(index.fqn, []).append((index, data))
    return {key: (metadata.state_dict_metadata[key], sorted(parts, key=lambda part: part[0].offset)) for key, parts in found.items()}


def is_quantised(data):
    return b"torchao.quantization" in data


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_quantised_tensors_are_carried_as_they_are(name, ranks, saved, program, scratch):
    target = program.run(saved / name, scratch / "target", "dcp", ranks=ranks)
    before, after = items_of(saved / name), items_of(target)
    assert before.keys() == after.keys()
    assert {key: one[0] for key, one in before.items()} == {key: one[0] for key, one in after.items()}
    quantised = [key for key, (_, parts) in before.items() if is_quantised(parts[0][1])]
    assert len(quantised) == LAYERS
    for key in quantised:
        assert before[key][1] == after[key][1], key
    assert FileSystemReader(target).read_metadata().planner_data == FileSystemReader(saved / name).read_metadata().planner_data
    assert command("verify", target).returncode == 0


@pytest.mark.parametrize("target", ["huggingface", "hdf5", "torch_dist"])
def test_other_targets_are_refused_with_the_class(target, saved, program, scratch):
    outcome = program.attempt(saved / "int8", scratch / "target", target)
    assert outcome.returncode == 3 and "class torchao.quantization.Int8Tensor" in outcome.stderr and "dequantise" in outcome.stderr, outcome.stderr
    for words in (["verify", saved / "int8", saved / "int8"], ["digest", saved / "int8"]):
        assert "class torchao.quantization.Int8Tensor" in command(*words).stderr


def test_a_changed_model_is_refused(saved, program, scratch):
    outcome = program.attempt(saved / "int8", scratch / "target", "dcp", target_options={"vocab_size": 48, "new_rows": "zero"})
    assert outcome.returncode == 3 and "is a quantised tensor of torchao, whose parts no map describes" in outcome.stderr, outcome.stderr


def test_inspect_and_ls_show_no_plain_tensors(saved):
    shown = json.loads(command("inspect", saved / "float8", "--json").stdout)
    listed = json.loads(command("ls", saved / "float8", "--json").stdout)["tensors"]
    metadata = FileSystemReader(saved / "float8").read_metadata()
    lengths = {index.fqn: place.length for index, place in metadata.storage_data.items()}
    short = {key for key, one in metadata.state_dict_metadata.items() if lengths[key] < 2 * math.prod(one.size)}
    assert short and {one["name"] for one in listed if one["dtype"] == "object"} == short
    assert shown["dtypes"]["object"] == {"tensors": len(short)}
    assert shown["mismatches"] == [] and "torchao.quantization.Float8Tensor" in shown["notes"][0] and shown["can_become"] == "dcp, as it is"
