"""Families that transformers has no class for: the same weights under the names of a family that computes the same give the same Megatron files.

The folder of a twin is the one that family_models_remote.py makes the other from; what only the other has (multi-token prediction, a vision tower) is
left out of the comparison, as is what only the twin's names need.
"""

from dataclasses import replace

import pytest
import torch

from dcp_cases import names_of
from family_models import save_family
from family_models_remote import FAMILIES
from family_models_vision import FAMILIES as VISION_FAMILIES
from hf_models import read_hf
from megatron_args import change_args
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import Layout
from tensor_patterns import assert_same_tensors

OWN = ("mtp.", "vision_tower.", "multi_modal_projector.", "vision_model.", "mlp1.")
COPY = "embedding.word_embeddings.weight"  # a stage with layers for multi-token prediction has it, too


def tensors_of(root):
    """(rank folder, name) -> tensor, of all shards."""
    found = {}
    for shard in sorted(iteration_folder(root).glob(f"*/{SHARD_FILE}")):
        model = torch.load(shard, weights_only=False)["model"]
        found |= {(shard.parent.name, name): value for name, value in model.items() if torch.is_tensor(value)}
    assert found, f"no tensors in {root}"
    return found


@pytest.mark.long_but("ling-2")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_megatron_files_as_the_twin(name, program, scratch):
    family = FAMILIES[name]
    twin = replace(family, add=None, config=None)
    options = dict(target_options={"layout": family.a.toml()} | names_of(family.form))
    ours = program.run(
        save_family(scratch / "folder", family), scratch / "ours", "megatron", model={"unmapped": "drop"} if family.keeps_parts else {}, **options)
    theirs = program.run(save_family(scratch / "twin", twin), scratch / "theirs", "megatron", **options)
    found, expected = tensors_of(ours), tensors_of(theirs)
    found = {key: tensor for key, tensor in found.items() if not key[1].startswith(OWN) and (key in expected or key[1] != COPY)}
    expected = {key: tensor for key, tensor in expected.items() if not key[1].endswith(".expert_bias") or key in found}
    assert found.keys() == expected.keys()
    assert not [key for key in found if not torch.equal(found[key], expected[key])]


@pytest.mark.long
def test_the_halves_of_mimos_input_projection_change_places(program, scratch):
    """MiMo's code puts the hidden state before the embedding, Megatron-Core the embedding before the hidden state; Megatron-Bridge exchanges them, too."""
    family = FAMILIES["mimo"]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout().toml()} | names_of(family.form))
    hidden, embedding = read_hf(folder)["model.mtp_layers.0.input_proj.weight"].chunk(2, dim=1)
    assert torch.equal(tensors_of(tree)["mp_rank_00", "mtp.layers.0.eh_proj.weight"], torch.cat([embedding, hidden], dim=1))


@pytest.mark.long
def test_norms_behind_under_ms_swifts_names_need_no_argument(program, scratch):
    """GLM-4 as ms-swift saves it: norms that are parts of attention and MLP, and args that say nothing of them."""
    family = VISION_FAMILIES["glm4"]
    folder = save_family(scratch / "folder", family)
    names = {"layout": family.a.toml()} | names_of(family.form)
    tree = program.run(folder, scratch / "tree", "megatron", target_options=names)
    change_args(tree, post_norms_apart=None)
    again = program.run(tree, scratch / "again", "megatron", target_options=names)
    back = program.to_hf(again, scratch / "back", target_options={"reference": folder})
    assert_same_tensors(read_hf(back), read_hf(folder))
