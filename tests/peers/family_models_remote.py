"""More of the registry of family_models.py: families whose code is in their own folders, not in transformers.

Their folders are made tensor by tensor, with the names and shapes of the published ones, from a model of a known family that computes the same, its twin:
`make` makes it. So Megatron's files of both must be the same (test_family_twins.py). Sources of the names: the code that Ling 2.0 is published with, as
Megatron-Bridge carries it, and Megatron-Bridge's mappings for MiMo and Sarvam; Kimi-VL's are Kimi-K2.5's.
"""

import json
import re
from pathlib import Path

import torch

from family_models import GLM, MOE_A, MOE_B, Family, base, dense, random_like
from family_models_hybrid import LATENT, numbered_mtp, whole_queries
from family_models_vision import KIMI_TOWER, ODD, ODD_A, ODD_B
from peer_types import TE_GROUPED, TE_SEQUENTIAL

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def published(name, **changes):
    """The published config.json with other sizes; null where the twin's own members do not belong."""
    return json.loads((CONFIGS / f"{name}.json").read_text()) | changes


def renamed(tensors, *changes):
    """Every (pattern, replacement) is applied to every name, in order."""
    result = {}
    for name, tensor in tensors.items():
        for pattern, text in changes:
            name = re.sub(pattern, text, name)
        result[name] = tensor
    return result


# --- Ling, Ring, Sarvam 30B ---------------------------------------------------------------------------------------

ROUTED = GLM | dict(first_k_dense_replace=2, vocab_size=101, num_key_value_heads=1, head_dim=14, use_qk_norm=True)
LING_NAMES = (
    (r"model\.embed_tokens\.", "model.word_embeddings."), (r"\.self_attn\.o_proj\.", ".attention.dense."),
    (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."), (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
    (r"\.gate\.e_score_correction_bias$", ".gate.expert_bias"), (r"\.shared_head\.norm\.", ".final_layernorm."))


def as_ling(tensors):
    """q, k and v in one tensor, one after the other; Ling's names."""
    result = {name: tensor for name, tensor in renamed(tensors, *LING_NAMES).items() if not re.search(r"self_attn\.[qkv]_proj|shared_head|\.embed_tokens", name)}
    for name in [name for name in tensors if ".self_attn.q_proj." in name]:
        parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
        result[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    return result


def with_mtp(tensors):
    """The layers behind the last one, without the embedding and the head, which Ling does not repeat."""
    return {name: tensor for name, tensor in numbered_mtp(1)(tensors).items() if not re.search(r"layers\.5\.(embed_tokens|shared_head\.head)", name)}


def ling_with_mtp(tensors):
    return as_ling(renamed(with_mtp(tensors), (r"layers\.5\.shared_head\.norm\.", "layers.5.final_layernorm.")))


def as_first_ling(tensors):
    """The first generation chooses experts without a bias and has no norms of q and k."""
    return as_ling({name: tensor for name, tensor in tensors.items() if not name.endswith("e_score_correction_bias")})


LING = dict(
    hidden_size=48, intermediate_size=60, moe_intermediate_size=24, moe_shared_expert_intermediate_size=48, num_attention_heads=6, num_hidden_layers=5,
    num_key_value_heads=1, head_dim=14, num_experts=6, num_experts_per_tok=2, num_shared_experts=2, first_k_dense_replace=2, n_group=1, topk_group=1,
    rope_theta=10000.0, vocab_size=101, rms_norm_eps=1e-5, n_routed_experts=None, n_shared_experts=None, rope_parameters=None, max_position_embeddings=128)
FIRST_LING = LING | dict(use_qkv_bias=True, n_group=None, topk_group=None, moe_shared_expert_intermediate_size=None, routed_scaling_factor=None)

# --- MiMo ---------------------------------------------------------------------------------------------------------


def mimo(tensors):
    """One depth, whose input projection has the hidden state before the embedding."""
    like, here, weight = "model.layers.4.", "model.mtp_layers.0.", tensors["model.norm.weight"]
    added = {here + name[len(like):]: random_like(tensor, here + name) for name, tensor in tensors.items() if name.startswith(like)}
    added |= {f"{here}{norm}.weight": random_like(weight, here + norm) for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm")}
    return tensors | added | {f"{here}input_proj.weight": random_like(torch.empty(weight.numel(), 2 * weight.numel(), dtype=weight.dtype), here)}


MIMO = ODD | dict(hidden_size=48, intermediate_size=60, num_hidden_layers=5, rope_theta=10000.0, rms_norm_eps=1e-6, max_position_embeddings=128)

# --- Sarvam 105B, Kimi-VL -----------------------------------------------------------------------------------------

LATENT_TWIN = dict(vocab_size=101, first_k_dense_replace=3, n_group=1)
SARVAM = dict(
    hidden_size=48, intermediate_size=60, moe_intermediate_size=24, num_attention_heads=6, num_hidden_layers=5, num_experts=6, num_experts_per_tok=2,
    num_shared_experts=2, first_k_dense_replace=3, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, vocab_size=101,
    q_lora_rank=None, rope_scaling=None, rope_parameters=None, n_routed_experts=None, n_shared_experts=None, max_position_embeddings=128)


def kimi_vl(tensors):
    """The language model inside another, with a vision tower and a projector beside it."""
    result = {"language_model." + name: tensor for name, tensor in tensors.items()}
    for name, shape in {
        "vision_tower.patch_embed.proj.weight": (24, 3, 14, 14), "vision_tower.encoder.blocks.0.wqkv.weight": (72, 24),
        "vision_tower.encoder.blocks.0.norm0.bias": (24,), "multi_modal_projector.linear_1.weight": (96, 96)}.items():
        result[name] = random_like(torch.empty(shape, dtype=torch.bfloat16), name)
    return result


KIMI_VL = published("kimi-vl-a3b", text_config=published("kimi-vl-a3b")["text_config"] | base(**LATENT | LATENT_TWIN) | dict(
    q_lora_rank=None, 
    rope_theta=10000.0, rms_norm_eps=1e-6, routed_scaling_factor=2.5), vision_config=KIMI_TOWER)

# --- InternVL with its own code -----------------------------------------------------------------------------------


def internvl_chat(tensors):
    """The language model inside another; the vision tower and the projector under names of their own."""
    result = {"language_model." + name: tensor for name, tensor in tensors.items()}
    for name, shape in {
        "vision_model.embeddings.class_embedding": (1, 1, 24), "vision_model.encoder.layers.0.attn.qkv.weight": (72, 24),
        "vision_model.encoder.layers.0.ls1": (24,), "mlp1.1.weight": (48, 96), "mlp1.3.bias": (48,)}.items():
        result[name] = random_like(torch.empty(shape, dtype=torch.bfloat16), name)
    return result


QWEN3 = ODD | dict(
    model_type="qwen3", hidden_size=48, intermediate_size=60, num_hidden_layers=5, rope_theta=10000.0, rope_scaling=None, rms_norm_eps=1e-6,
    max_position_embeddings=128)
INTERN = published("internvl3-8b-chat", llm_config=published("internvl3-8b-chat")["llm_config"] | QWEN3, rope_parameters=None)

FAMILIES = {
    "internvl-chat": Family(
        dense("Qwen3", **ODD), ODD_A, ODD_B, TE_SEQUENTIAL, add=internvl_chat, computes=False, config=INTERN, keeps_parts=True, map="internvl_chat"),
    "ling-2": Family(
        dense("Glm4Moe", **ROUTED | dict(num_nextn_predict_layers=1)), MOE_A, MOE_B, TE_GROUPED, add=ling_with_mtp, computes=False,
        config=published("ling-mini-2.0", num_nextn_predict_layers=1, routed_scaling_factor=1.0, **LING)),
    "ling-1": Family(
        dense("Glm4Moe", **ROUTED | dict(use_qk_norm=False, attention_bias=True)), MOE_B, MOE_A, add=as_first_ling, computes=False,
        config=published("ling-lite", **FIRST_LING)),
    "sarvam-moe": Family(
        dense("Glm4Moe", **ROUTED), MOE_A, MOE_B, TE_SEQUENTIAL, add=as_ling, computes=False,
        config=published("sarvam-30b", **LING | dict(routed_scaling_factor=1.0, n_group=None, topk_group=None))),
    "mimo": Family(
        dense("Qwen2", **ODD), ODD_A, ODD_B, TE_SEQUENTIAL, add=mimo, computes=False, config=published("mimo-7b", **MIMO)),
    "sarvam-mla": Family(
        whole_queries("DeepseekV3", **LATENT_TWIN), MOE_A, MOE_B, TE_GROUPED, add=dict, computes=False, config=published("sarvam-105b", **SARVAM)),
    "kimi-vl": Family(
        whole_queries("DeepseekV3", **LATENT_TWIN), MOE_B, MOE_A, add=kimi_vl, computes=False, config=KIMI_VL, keeps_parts=True, map="kimi_k25"),
}
