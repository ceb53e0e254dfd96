"""LoRA adapters: folders that peft writes become Megatron-Bridge's and mcore-bridge's, in any layout, and peft loads what comes back."""

import json

import pytest
import torch

import cases
from adapter_models import (
    ATTENTION, FILE, MLP, Adapter, Bridge, McoreBridge, adapted_logits, config_of, save_adapter, tensors_of, write_folder, write_tree)
from dcp_reading import whole_tensors
from hf_models import save_hf
from numpy_megatron import iteration_folder, load_shards
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from tensor_patterns import assert_same_tensors, make_globals

LLAMA = cases.LLAMA.with_(layers=3, dtype="float32", tied=True, head_dim=12)
QWEN3 = cases.QWEN3.with_(layers=4, dtype="float32")
MOE = cases.QWEN3_MOE.with_(layers=2, experts=6, dtype="float32")
TOKENS = torch.arange(24).reshape(2, 12) * 5 % 60 + 3
A, B = Layout(tp=2, pp=3), Layout(tp=1, pp=1)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Base models, each made once."""
    folders = {}

    def base(config):
        if config not in folders:
            folders[config] = save_hf(tmp_path_factory.mktemp(config.family), config, make_globals(config))
        return folders[config]

    return base


def chain(program, scratch, source, layouts, adapter="canonical", impl=LOCAL, **options):
    """Folder of peft -> Megatron files -> torch_dist -> Megatron files -> folder of peft."""
    a, b = layouts
    form = {"adapter": adapter}
    first = program.to_megatron(source, scratch / "a", a, impl, target_options=form, **options)
    dist = program.run(first, scratch / "dist", "torch_dist", target_options={"layout": a.toml()})
    second = program.to_megatron(dist, scratch / "b", b, impl)
    return first, dist, second, program.to_hf(second, scratch / "back")


def test_a_folder_of_peft_goes_through_megatron_and_back(bases, program, scratch):
    base = bases(LLAMA)
    source = save_adapter(base, scratch / "peft", rank_pattern={"layers.1.self_attn.q_proj": 6}, alpha_pattern={"o_proj": 3}, use_rslora=True)
    first, dist, _, back = chain(program, scratch, source, (A, B))
    assert_same_tensors(tensors_of(back), tensors_of(source))
    assert (back / "adapter_config.json").read_bytes() == (source / "adapter_config.json").read_bytes()
    assert torch.equal(adapted_logits(base, source, TOKENS), adapted_logits(base, back, TOKENS))
    expected = write_tree(scratch / "made", LLAMA, A, LOCAL, Bridge(LLAMA, Adapter(tensors_of(source)), canonical=True))
    same_trees(first, expected, A)
    assert "decoder.layers.1.self_attention.linear_qkv.adapter.adapter_q.linear_in.weight" in whole_tensors(iteration_folder(dist))


def same_trees(one, other, layout):
    ones, others = load_shards(one, layout), load_shards(other, layout)
    for name, content in others.items():
        for key in [key for key in content if key.startswith("model")]:
            assert_same_tensors({k: v for k, v in ones[name][key].items() if isinstance(v, torch.Tensor)}, content[key])


CASES = {
    "llama-tp2": (LLAMA, Layout(tp=2), LOCAL), "llama-tp2-pp3": (LLAMA, Layout(tp=2, pp=3), TE_SEQUENTIAL),
    "qwen3-tp4-pp2": (QWEN3, Layout(tp=4, pp=2), TE_SEQUENTIAL), "qwen3-vpp2": (QWEN3, Layout(pp=2, vpp=2), LOCAL)}


def maker_of(form, config, adapter):
    return McoreBridge(config, adapter) if form == "mcore-bridge" else Bridge(config, adapter, form == "canonical")


@pytest.mark.long_but("llama-tp2-fused")
@pytest.mark.parametrize("form", ["canonical", "fused", "mcore-bridge"])
@pytest.mark.parametrize("config, layout, impl", CASES.values(), ids=CASES)
def test_a_tree_made_by_hand_becomes_a_folder_of_peft_and_comes_back(config, layout, impl, form, bases, program, scratch):
    peft = save_adapter(bases(config), scratch / "peft", shared=form != "canonical")
    tree = write_tree(scratch / "tree", config, layout, impl, maker_of(form, config, Adapter(tensors_of(peft))))
    target = program.to_hf(tree, scratch / "hf", model={"lora_alpha": "8", "map": config.family})
    assert_same_tensors(tensors_of(target), tensors_of(peft))
    assert torch.equal(adapted_logits(bases(config), target, TOKENS), adapted_logits(bases(config), peft, TOKENS))
    back = program.to_megatron(target, scratch / "again", layout, impl, target_options={"adapter": form}, source_options={"config": str(bases(config))})
    same_trees(back, tree, layout)
