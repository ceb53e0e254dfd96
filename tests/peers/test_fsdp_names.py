"""`fsdp_dtensor` of models whose keys differ between Megatron releases or layouts: multi-token prediction, and biases of experts.

The keys are those of Megatron-Core 0.16's transformer/fsdp_dtensor_checkpoint.py: its own functions are asked which of them they split and renumber.
"""

import json

import pytest

from dcp_cases import names_of
from family_models import FAMILIES, save_family
from peer_types import TE_GROUPED, Layout
from reshard_job import command

PREFIX = "model.module."


def keys_of(root):
    return {entry["name"].removeprefix(PREFIX) for entry in json.loads(command("ls", "--json", root).stdout)["tensors"]}


def grouped(layout):
    return {"layout": layout.toml()} | names_of(TE_GROUPED)


def test_biases_of_experts_have_numbers_where_a_rank_has_all_experts(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["gpt-oss"])
    there = program.run(folder, scratch / "fsdp", "fsdp_dtensor", target_options=grouped(Layout(tp=2)))
    experts = range(6)
    biases = {f"decoder.layers.0.mlp.experts.linear_fc1.bias{expert}_{half}" for expert in experts for half in "wv"}
    biases |= {f"decoder.layers.0.mlp.experts.linear_fc2.bias{expert}" for expert in experts}
    assert biases <= keys_of(there)
    back = program.run(there, scratch / "back", "huggingface", target_options={"reference": folder})
    assert command("verify", back, folder).returncode == 0
    refused = program.attempt(folder, scratch / "none", "fsdp_dtensor", target_options=grouped(Layout(ep=2)))
    assert refused.returncode != 0 and "bias" in refused.stderr


@pytest.mark.long
def test_megatron_core_numbers_weights_of_experts_alone():
    from megatron.core.transformer.fsdp_dtensor_checkpoint import get_expert_index_from_key

    assert get_expert_index_from_key("decoder.layers.0.mlp.experts.linear_fc1.weight3") == 3
    assert get_expert_index_from_key("decoder.layers.0.mlp.experts.linear_fc1.bias3") is None
    assert get_expert_index_from_key("decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.bias") == 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["transformer_layer", "mtp_model_layer"])
def test_multi_token_prediction_keeps_the_name_of_the_sources_release(name, program, scratch):
    family = FAMILIES["glm4-moe-mtp"]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout(tp=1).toml()} | names_of(family.form))
    if name == "transformer_layer":
        older(tree)
    there = program.run(tree, scratch / "fsdp", "fsdp_dtensor", target_options={"layout": Layout(tp=2).toml()})
    inner = {key.split(".")[3] for key in keys_of(there) if key.startswith("mtp.layers.0.") and "mlp" in key}
    assert inner == {name}
    back = program.run(there, scratch / "back", "huggingface", target_options={"reference": folder})
    assert command("verify", back, folder).returncode == 0
    refused = program.attempt(folder, scratch / "none", "fsdp_dtensor", target_options={"layout": Layout(tp=2).toml()})
    assert refused.returncode == 2 and "transformer_layer up to Megatron-Core 0.16" in refused.stderr


def older(tree):
    """The names of releases up to 0.16."""
    import torch

    from numpy_megatron import SHARD_FILE, iteration_folder

    for file in iteration_folder(tree).glob(f"mp_rank_*/{SHARD_FILE}"):
        content = torch.load(file, weights_only=False)
        model = content["model"]
        content["model"] = type(model)((key.replace(".mtp_model_layer.", ".transformer_layer."), value) for key, value in model.items())
        torch.save(content, file)
    (tree / "reshard.json").unlink()
