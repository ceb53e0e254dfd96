"""megatron-core's forward pass with converted weights against that of transformers: what a map that is wrong both ways cannot pass."""

from dataclasses import replace

import pytest
import torch

from dcp_cases import names_of
from family_forward import logits_in_megatron
from family_models import FAMILIES, LLAMA4, MOE_A, TOKENS, Family, dense, logits_of, save_family
from peer_types import LOCAL, Layout

pytestmark = pytest.mark.long

# Megatron's attention has no chunks, and normalises q and k in layers without positions too: so neither here, as in Llama 4 Maverick on short texts.
LLAMA4_FAMILY = Family(dense("Llama4", config="Llama4Text", **LLAMA4 | dict(attention_chunk_size=64, use_qk_norm=False)), MOE_A, MOE_A)

# Gemma 3 turns the positions of its windowed layers by another angle than the others: here by the same, which is what Megatron can do by itself.
ONE_ANGLE = {layers: dict(rope_theta=1e4, rope_type="default") for layers in ("full_attention", "sliding_attention")}
GEMMA3_FAMILY = Family(
    dense("Gemma3", config="Gemma3Text", sliding_window=9, num_hidden_layers=7, query_pre_attn_scalar=8, rope_parameters=ONE_ANGLE), MOE_A, MOE_A)

CASES = {  # family -> layout
    "llama-biases": (FAMILIES["llama-biases"], Layout(tp=2)), "qwen2-moe": (FAMILIES["qwen2-moe"], MOE_A), "glm4-moe": (FAMILIES["glm4-moe"], MOE_A),
    "gpt-oss": (FAMILIES["gpt-oss"], MOE_A), "llama4-text": (LLAMA4_FAMILY, MOE_A), "gemma3-text": (GEMMA3_FAMILY, Layout(tp=2)),
    "qwen3-vl-moe": (FAMILIES["qwen3-vl-moe"], MOE_A), "qwen3-vl-moe-published": (FAMILIES["qwen3-vl-moe-published"], Layout(tp=2, ep=2)),
    "minimax-m2": (FAMILIES["minimax-m2"], Layout(pp=2, ep=2, first_stage_layers=3)), "qwen3-moe-fused": (FAMILIES["qwen3-moe-fused"], MOE_A),
}


@pytest.mark.parametrize("name", CASES)
def test_megatron_core_computes_the_same(name, program, scratch):
    family, layout = replace(CASES[name][0], dtype=torch.float32), CASES[name][1]
    folder = save_family(scratch / "folder", family)
    target_options = {"layout": layout.toml()} | names_of(LOCAL)
    model = {"unmapped": "drop"} if family.keeps_parts else {}
    tree = program.run(folder, scratch / "tree", "megatron", target_options=target_options, model=model)
    found, expected = logits_in_megatron(tree, layout, TOKENS), logits_of(folder, family)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
