"""Every family: Hugging Face -> Megatron files -> torch_dist -> Megatron files of another layout -> Hugging Face, and nothing has changed."""

import json
from dataclasses import replace

import pytest
import torch

import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import family_models_recent
import family_models_remote
import family_models_vision
from dcp_cases import names_of
from family_models import logits_of, save_family
from hf_models import assert_same_files, read_hf
from tensor_patterns import assert_same_tensors

FAMILIES = (family_models.FAMILIES | family_models_hybrid.FAMILIES | family_models_more.FAMILIES | family_models_vision.FAMILIES
            | family_models_remote.FAMILIES | family_models_kinds.FAMILIES | family_models_recent.FAMILIES)


@pytest.mark.long_but(
    "llama-tied", "glm4-moe-mtp", "gpt-oss-mxfp4", "qwen3-vl-moe", "deepseek-v3", "qwen3-next", "nemotron-h", "exaone4", "apertus", "glm4-tied",
    "qwen2.5-vl-in-memory", "mimo-v2-flash-mtp", "falcon-h1")
@pytest.mark.parametrize("name", FAMILIES)
def test_there_and_back_changes_nothing(name, program, scratch):
    family = FAMILIES[name]
    folder = save_family(scratch / "folder", family)
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    options = dict(model={"map": family.map or model_type, "unmapped": "keep"} if family.keeps_parts else {})
    names = names_of(family.form)
    first = program.run(folder, scratch / "a", "megatron", target_options={"layout": family.a.toml()} | names, **options)
    dist = program.run(first, scratch / "dist", "torch_dist", target_options={"layout": family.b.toml()} | names, **options)
    second = program.run(dist, scratch / "b", "megatron", target_options={"layout": family.b.toml()} | names, **options)
    back = program.to_hf(second, scratch / "back", target_options={"reference": folder}, **options)
    assert_same_tensors(read_hf(back), read_hf(folder))
    assert_same_files(back, folder)
    assert not family.computes or torch.equal(logits_of(back, family), logits_of(folder, family))


@pytest.mark.long_but("qwen2-moe")
@pytest.mark.parametrize("name", ["llama-tied", "llama-scaled", "qwen2-tied", "qwen2-moe", "deepseek-yarn"])
def test_a_config_made_from_megatrons_arguments_computes_the_same(name, program, scratch):
    family = FAMILIES[name]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()} | names_of(family.form))
    back = program.to_hf(tree, scratch / "back")
    assert_same_tensors(read_hf(back), read_hf(folder))
    assert torch.equal(logits_of(back, family), logits_of(folder, family))


def test_prediction_layers_that_only_the_config_has(program, scratch):
    """transformers saves GLM without the layers for multi-token prediction that its config goes on counting."""
    family = FAMILIES["glm4-moe"]
    folder = save_family(scratch / "folder", replace(family, add=None, ignored=None))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}, indent=2))
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()} | names_of(family.form))
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder})
    assert_same_tensors(read_hf(back), read_hf(folder))
    assert json.loads((back / "config.json").read_text()) == config | {"num_nextn_predict_layers": 0}


@pytest.mark.long_but("deepseek-v2-lite")
@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3", "qwen3-next"])
def test_experts_as_transformers_5_holds_them(name, program, scratch):
    """All experts of a layer in one tensor, which checkpoints of training have where save_pretrained writes one for each."""
    family = FAMILIES[name]
    apart = save_family(scratch / "apart", family)
    more = family.add or dict
    fused = save_family(scratch / "fused", replace(family, add=lambda tensors: family_models.with_fused_experts(more(tensors))))
    assert any(key.endswith(".mlp.experts.gate_up_proj") for key in read_hf(fused))
    dist = program.run(fused, scratch / "dist", "torch_dist", target_options={"layout": family.b.toml()})
    assert_same_tensors(read_hf(program.to_hf(dist, scratch / "back", target_options={"reference": fused})), read_hf(fused))
    assert_same_tensors(read_hf(program.to_hf(dist, scratch / "again", target_options={"reference": apart})), read_hf(apart))
