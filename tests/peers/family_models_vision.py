"""More of the registry of family_models.py: language models with a vision or an audio tower, and the text models of their families.

Sizes are awkward: three heads over one group, heads that are no share of `hidden_size`, a prime vocabulary. The towers are small and whole.
`in_memory` gives tensors the names that transformers has in memory, which it writes with `save_original_format=False` and some trainers write always.
"""

import torch
import transformers

from family_models import GLM, MOE, MOE_A, MOE_B, TOWER, Family, base, dense, vision_language, with_fused_experts
from family_models_hybrid import LATENT, qwen_mtp
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout

ODD = dict(vocab_size=101, num_attention_heads=3, num_key_value_heads=1, head_dim=12)
ODD_A, ODD_B = Layout(tp=3, pp=2, first_stage_layers=2), Layout(pp=3, first_stage_layers=1)
PLAIN = ODD | dict(head_dim=None, hidden_size=36)  # families whose heads are a share of hidden_size


def odd(**changes):
    return base(**ODD | changes)


def plain(**changes):
    return base(**PLAIN | changes)


def in_memory(old, new, head):
    """The tensors under other prefixes: `old` -> `new` for the language model, and "model." before all others but its head."""

    def rename(tensors):
        result = {}
        for name, tensor in tensors.items():
            if name == head:
                result["lm_head.weight"] = tensor
            elif name.startswith(old):
                result[new + name[len(old):]] = tensor
            else:
                result["model." + name] = tensor
        return result

    return rename


# --- Qwen2-VL, InternVL, audio ------------------------------------------------------------------------------------

WIDE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 2, 2]))
QWEN2_TOWER = dict(depth=2, embed_dim=24, hidden_size=36, num_heads=2, mlp_ratio=2)
QWEN25_TOWER = dict(depth=2, hidden_size=24, num_heads=2, intermediate_size=40, out_hidden_size=36, fullatt_block_indexes=[1])
INTERN_TOWER = TOWER | dict(image_size=[28, 28], patch_size=[14, 14])
EARS = dict(d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=8, max_source_positions=20)
ASR_EARS = dict(d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=16, output_dim=48, downsample_hidden_size=12)
FLAT = plain() | dict(
    text_config=None, rms_norm_eps=1e-5, rope_theta=1e4, rope_scaling=dict(type="mrope", mrope_section=[2, 2, 2]), use_sliding_window=False)


def hearing(name, text, ears, **changes):
    """A model with an audio tower."""
    return lambda: getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(text_config=text, audio_config=ears, **changes))


EXAONE = dict(
    sliding_window=9, num_nextn_predict_layers=1,
    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"])

QWEN_FAMILIES = {
    "qwen2-vl": Family(vision_language("Qwen2VL", plain(**WIDE), QWEN2_TOWER), ODD_A, ODD_B, keeps_parts=True, map="qwen2_vl"),
    "qwen2.5-vl-flat": Family(
        vision_language("Qwen2_5_VL", plain(**WIDE), QWEN25_TOWER, tie_word_embeddings=True), ODD_B, ODD_A, TE_SEQUENTIAL, config=FLAT,
        keeps_parts=True, map="qwen2_vl"),
    "qwen2.5-vl-in-memory": Family(
        vision_language("Qwen2_5_VL", plain(**WIDE), QWEN25_TOWER), ODD_A, ODD_B, keeps_parts=True, map="qwen2_vl",
        add=in_memory("model.", "model.language_model.", "lm_head.weight")),
    "internvl": Family(
        vision_language("InternVL", plain(model_type="qwen2"), INTERN_TOWER, tie_word_embeddings=True), ODD_A, ODD_B, keeps_parts=True),
    "internvl-qwen3-in-memory": Family(
        vision_language("InternVL", odd(model_type="qwen3"), INTERN_TOWER, tie_word_embeddings=False), ODD_B, ODD_A, TE_SEQUENTIAL, keeps_parts=True,
        add=in_memory("language_model.model.", "model.language_model.", "language_model.lm_head.weight")),
    "internvl-qwen3-moe": Family(
        vision_language("InternVL", base(model_type="qwen3_moe", num_experts=6, **MOE), INTERN_TOWER, tie_word_embeddings=False), MOE_A, MOE_B,
        TE_GROUPED, keeps_parts=True),
    "qwen2-audio": Family(hearing("Qwen2Audio", plain(model_type="qwen2"), EARS), ODD_A, ODD_B, keeps_parts=True),
    "qwen2-audio-in-memory": Family(
        hearing("Qwen2Audio", plain(model_type="qwen2"), EARS), ODD_B, ODD_A, TE_SEQUENTIAL, keeps_parts=True,
        add=in_memory("language_model.model.", "model.language_model.", "language_model.lm_head.weight")),
    "qwen3-asr": Family(hearing("Qwen3ASR", odd(model_type="qwen3"), ASR_EARS), ODD_A, ODD_B, keeps_parts=True),
    "exaone4.5": Family(
        vision_language("Exaone4_5_", odd(model_type="exaone4", **EXAONE), QWEN25_TOWER | dict(out_hidden_size=48, num_key_value_heads=1)), ODD_A, ODD_B,
        TE_SEQUENTIAL, keeps_parts=True, add=lambda tensors: qwen_mtp(tensors, "model.language_model."), ignored="mtp."),
    "ministral3": Family(dense("Ministral3", **ODD), ODD_A, ODD_B),
    "mistral3-ministral3": Family(
        vision_language("Mistral3", odd(model_type="ministral3"), TOWER | dict(model_type="pixtral"), tie_word_embeddings=False),
        ODD_B, ODD_A, TE_SEQUENTIAL, keeps_parts=True),
}

# --- GLM ----------------------------------------------------------------------------------------------------------

GLM_TOWER = dict(depth=2, hidden_size=24, num_heads=2, intermediate_size=40, out_hidden_size=36, image_size=28)
HALF = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 1], partial_rotary_factor=0.5))
ROUTED_GLM = GLM | dict(first_k_dense_replace=3, vocab_size=101, num_key_value_heads=1, head_dim=12)

GLM_FAMILIES = {
    "glm4": Family(dense("Glm4", **ODD), ODD_A, ODD_B),
    "glm4-tied": Family(dense("Glm4", **ODD, tie_word_embeddings=True, attention_bias=False), ODD_B, ODD_A, TE_SEQUENTIAL, add=dict),
    "glm4v": Family(vision_language("Glm4v", plain(**HALF), GLM_TOWER, tie_word_embeddings=True), ODD_A, ODD_B, keeps_parts=True),
    "glm46v": Family(
        vision_language("Glm46V", plain(model_type="glm4v_text", **HALF), GLM_TOWER | dict(model_type="glm4v_vision")), ODD_B, ODD_A, TE_SEQUENTIAL,
        keeps_parts=True, map="glm4v"),
    "glm4v-moe": Family(
        vision_language("Glm4vMoe", base(**ROUTED_GLM, **HALF), GLM_TOWER | dict(out_hidden_size=48)), MOE_A, MOE_B, TE_GROUPED, keeps_parts=True),
    "glm4v-moe-fused": Family(
        vision_language("Glm4vMoe", base(**ROUTED_GLM, **HALF), GLM_TOWER | dict(out_hidden_size=48)), MOE_B, MOE_A, TE_SEQUENTIAL, keeps_parts=True,
        add=with_fused_experts),
}

# --- Kimi ---------------------------------------------------------------------------------------------------------

KIMI_TOWER = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, pos_emb_height=4, pos_emb_width=4)
KIMI_TEXT = base(model_type="deepseek_v3", **LATENT | dict(vocab_size=101, first_k_dense_replace=3))


def kimi(text=KIMI_TEXT, **changes):
    return lambda: transformers.Kimi_K25ForConditionalGeneration(transformers.Kimi_K25Config(
        text_config=text, vision_config=KIMI_TOWER, projection_hidden_size=24, **changes))


def published_kimi(tensors):
    """As published: transformers 5.23 calls the layers of the language model blocks, as it should those of the vision tower alone."""
    language = "language_model.model."
    return {name.replace(".blocks.", ".layers.") if name.startswith(language) else name: tensor for name, tensor in tensors.items()}


KIMI_FAMILIES = {
    "kimi-k2.5": Family(kimi(tie_word_embeddings=False), MOE_A, MOE_B, TE_GROUPED, keeps_parts=True, add=published_kimi),
    "kimi-k2.5-saved": Family(kimi(tie_word_embeddings=True), MOE_B, MOE_A, keeps_parts=True),
}

# --- text models --------------------------------------------------------------------------------------------------

HUNYUAN = MOE | dict(num_experts=6, num_shared_experts=2, vocab_size=101, num_key_value_heads=1, head_dim=14)
SOLAR = MOE | dict(n_routed_experts=6, n_shared_experts=2, intermediate_size=None, vocab_size=101, num_key_value_heads=1, head_dim=14)


def internlm3(**changes):
    """transformers has InternLM3's config, and computes with Llama's class."""
    return lambda: transformers.LlamaForCausalLM(transformers.InternLM3Config(**base(**ODD | changes)))


TEXT_FAMILIES = {
    "hy-v3": Family(dense("HYV3", **HUNYUAN, mlp_layer_types=["dense"] * 3 + ["sparse"] * 2), MOE_A, MOE_B, TE_GROUPED),
    "hunyuan-dense": Family(dense("HunYuanDenseV1", **ODD, tie_word_embeddings=True), ODD_A, ODD_B),
    "hunyuan-moe": Family(
        dense("HunYuanMoEV1", num_experts=6, moe_topk=2, intermediate_size=24, vocab_size=101, num_key_value_heads=1), MOE_A, MOE_B, TE_GROUPED,
        dtype=torch.float32, add=dict),
    "solar-open": Family(dense("SolarOpen", **SOLAR), MOE_A, MOE_B, TE_GROUPED),
    "nemotron": Family(dense("Nemotron", **ODD), ODD_A, ODD_B),
    "nemotron-biases": Family(
        dense("Nemotron", **ODD, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), ODD_B, ODD_A, TE_SEQUENTIAL, add=dict),
    "internlm3": Family(internlm3(attention_bias=True, mlp_bias=True), ODD_A, ODD_B),
}

FAMILIES = QWEN_FAMILIES | GLM_FAMILIES | KIMI_FAMILIES | TEXT_FAMILIES
