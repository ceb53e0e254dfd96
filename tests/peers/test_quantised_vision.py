"""Kimi-K2.5 as published: INT4 experts in a language model inside another, whose part of config.json describes them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from family_models import base
from family_models_vision import kimi, published_kimi
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout
from quantised_folders import quantise_folder, stored_bits

pytestmark = pytest.mark.long

TEXT = dict(
    model_type="deepseek_v3", hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, head_dim=None,
    vocab_size=97, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=24, v_head_dim=32, n_routed_experts=6, moe_intermediate_size=64,
    n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, num_experts_per_tok=2, num_nextn_predict_layers=0)


def published(folder):
    torch.manual_seed(3)
    kimi(text=base(**TEXT), tie_word_embeddings=False)().to(torch.bfloat16).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.float() if name.endswith("e_score_correction_bias") else tensor for name, tensor in load_file(path).items()}
    save_file(published_kimi(tensors), path, metadata={"format": "pt"})
    quantise_folder(folder, lambda name: "int4_packed" if ".mlp.experts." in name else None)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def test_int4_experts_beside_a_vision_tower(program, scratch):
    folder = published(scratch / "folder")
    keep = {"map": "kimi_k25", "unmapped": "keep"}
    first = program.to_megatron(folder, scratch / "a", Layout(tp=2, ep=2, etp=1), TE_GROUPED, model=keep)
    dist = program.run(first, scratch / "dist", "torch_dist", model=keep)
    second = program.to_megatron(dist, scratch / "b", Layout(tp=1, ep=3, pp=3), TE_SEQUENTIAL, model=keep)
    back = program.to_hf(second, scratch / "back", target_options={"reference": folder}, model=keep)
    assert stored_bits(back) == stored_bits(folder)
    assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()
