"""`reshard suspects`: each planted fault is found with its layer and expert, in any format and layout, and sound models have none."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from family_models import save_family
from hf_models import read_hf
from reshard_job import BINARY
from test_families import FAMILIES

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


def suspects(path, ranks=1):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), BINARY, "suspects", path, "--json"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert outcome.returncode in (0, 1), outcome.stderr
    found = json.loads(outcome.stdout)["suspects"]
    assert bool(found) == (outcome.returncode == 1)
    return found


@pytest.mark.long_but("glm4-moe-mtp", "gpt-oss-mxfp4", "nemotron-h")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sound_model_has_none(name, program, scratch):
    assert suspects(save_family(scratch / "folder", FAMILIES[name])) == []


def plant(state):
    """Faults of every kind in a GLM-4 MoE model: what is to be found of each."""
    attention, expert = "model.layers.{}.self_attn.{}_proj.weight".format, "model.layers.2.mlp.experts.{}.{}_proj.weight".format
    state[attention(1, "q")][3, 5] = float("nan")
    state[attention(2, "o")][0, 0] = float("-inf")
    state[expert(2, "gate")].zero_()
    state[expert(3, "up")].fill_(0.5)
    state[expert(1, "down")].copy_(state[expert(0, "down")])
    tiny = state[attention(0, "k")]
    tiny.view(torch.int16).copy_(torch.arange(tiny.numel()).reshape(tiny.shape) % 5 + 1)
    return {
        ("not finite", "layer 1", 1), ("not finite", "layer 2", 1), ("zero", "layer 2, expert 2", 0), ("constant", "layer 2, expert 3", 0),
        ("equal", "layer 2, expert 0", 2), ("subnormal", "layer 0", 0)}


@pytest.mark.parametrize("ranks", [1, 3])
def test_planted_faults_are_found_in_every_layout(ranks, program, scratch):
    family = FAMILIES["glm4-moe-mtp"]
    folder = save_family(scratch / "folder", family)
    state = read_hf(folder)
    planted = plant(state)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    found = {}
    for place in (folder, tree):
        rows = suspects(place, ranks)
        found[place] = [(row["kind"], row["tensor"], row["slice"], row["found"]) for row in rows]
        assert {(row["kind"], row["slice"], row["count"] if row["kind"] in ("not finite", "equal") else 0) for row in rows} == planted
    assert found[folder] == found[tree]


def test_what_is_no_checkpoint_is_refused(tmp_path):
    outcome = subprocess.run([BINARY, "suspects", tmp_path / "nothing"], capture_output=True, text=True, timeout=60)
    assert outcome.returncode in (2, 3) and "nothing" in outcome.stderr
