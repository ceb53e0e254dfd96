"""More of the registry of family_models.py: families whose layers are of a kind of their own, or differ in their sizes.

`WITHOUT_MEGATRON` are models whose maps refuse Megatron's formats with a reason: they go through HDF5 and through DCP instead
(test_families_kinds.py). Kimi K3, whose code is remote, is built here tensor by tensor, after the names in Megatron-Bridge's mapping.
"""

import json

import torch
import transformers

from family_models import DENSE_A, DENSE_B, ETP_B, MOE, MOE_A, MOE_B, QWEN_TOWER, SECTIONS, Family, base, random_like, save_shards
from family_models_hybrid import MAMBA, MAMBA_A, MAMBA_B, mamba2
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout

SPARSE = ["dense", "sparse", "sparse", "sparse", "sparse"]
WINDOWS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


def of(name, config=None, **members):
    """A text model from members of its config."""
    return lambda: getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{config or name}Config")(**members))


def around(model, config, **members):
    """A model with a text model inside."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**members))


# --- layers for multi-token prediction, which transformers' classes do not hold --------------------------------------


def dense_layer(tensors, like, here, hidden=48, inter=60):
    """A further layer: the attention and norms of layer `like` with a dense MLP, all with values of their own."""
    at = f"model.layers.{like}."
    kept = {name for name in tensors if name.startswith(at) and (".self_attn." in name or "layernorm" in name)}
    added = {here + name[len(at):]: random_like(tensors[name], here + name) for name in kept}
    shapes = {"gate_proj": (inter, hidden), "up_proj": (inter, hidden), "down_proj": (hidden, inter)}
    weight = tensors["model.norm.weight"]
    return added | {f"{here}mlp.{part}.weight": random_like(weight.new_empty(shape), here + part) for part, shape in shapes.items()}


def joined_with(tensors, here, norms, projection, hidden=48):
    weight = tensors["model.norm.weight"]
    added = {f"{here}{name}.weight": random_like(weight, here + name) for name in norms}
    return added | {f"{here}{projection}.weight": random_like(weight.new_empty(hidden, 2 * hidden), here + projection)}


def exaone_mtp(tensors):
    """K-EXAONE as published: one dense depth below `mtp.`."""
    names = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
    return tensors | dense_layer(tensors, 1, "mtp.layers.0.") | joined_with(tensors, "mtp.", names, "fc")


def mimo_mtp(tensors):
    """MiMo-V2-Flash as published: dense depths with a window below `model.mtp.`, with another name for the norm of the MLP."""
    added = dict(tensors)
    for depth in range(3):
        here = f"model.mtp.layers.{depth}."
        layer = dense_layer(tensors, 1, here)
        layer[f"{here}pre_mlp_layernorm.weight"] = layer.pop(f"{here}post_attention_layernorm.weight")
        added |= layer | joined_with(tensors, here, ("enorm", "hnorm", "final_layernorm"), "eh_proj")
    return added


def step_mtp(tensors):
    """Step 3.5 as published: dense depths behind the last layer, which repeat the head."""
    added = dict(tensors)
    for depth in range(2):
        here = f"model.layers.{5 + depth}."
        added |= dense_layer(tensors, 1, here) | joined_with(tensors, here, ("enorm", "hnorm", "transformer.shared_head.norm"), "eh_proj")
        added[f"{here}transformer.shared_head.output.weight"] = tensors["lm_head.weight"].clone()
    return added


# --- models ----------------------------------------------------------------------------------------------------------

LATENT = dict(num_key_value_heads=6, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)
EXAONE = base(**MOE, num_experts=6, num_shared_experts=2, layer_types=WINDOWS, mlp_layer_types=SPARSE, sliding_window=9)
MIMO = base(
    **MOE, n_routed_experts=6, num_attention_heads=12, head_dim=12, v_head_dim=8, layer_types=WINDOWS, mlp_layer_types=SPARSE, sliding_window=9)
STEP = base(
    **MOE, n_routed_experts=6, share_expert_dim=28, layer_types=WINDOWS, mlp_layer_types=SPARSE, sliding_window=9, num_sliding_attention_heads=8)
STEP_TOWER = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14, mlp_ratio=2.0)
SPARSE_ATTENTION = ["full_attention", "full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"]
MINIMAX = base(
    num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, dense_intermediate_size=60, shared_intermediate_size=28, rotary_dim=4,
    index_n_heads=2, index_head_dim=10, index_block_size=4, index_topk_blocks=2, layer_types=SPARSE_ATTENTION, mlp_layer_types=SPARSE)
MINIMAX_TOWER = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14)
FALCON = base(
    mamba_d_ssm=60, mamba_n_heads=6, mamba_d_head=10, mamba_n_groups=2, mamba_d_state=7, key_multiplier=0.5, tie_word_embeddings=True)
GEMMA = base(sliding_window=9, global_head_dim=12, head_dim=8, layer_types=WINDOWS[:4] + ["full_attention"], final_logit_softcapping=30.0)
GEMMA_MOE = GEMMA | dict(
    enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=24, hidden_size_per_layer_input=0, attention_k_eq_v=True,
    num_key_value_heads=2, num_global_key_value_heads=6)
GEMMA_TOWER = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=12, intermediate_size=40, position_embedding_size=64)
GEMMA_PLANES = GEMMA | dict(
    hidden_size_per_layer_input=6, vocab_size_per_layer_input=90, num_kv_shared_layers=2, use_double_wide_mlp=True,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"])
EARS = dict(d_model=24, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=40, output_dim=48, num_mel_bins=16)
OMNI_2 = dict(
    text_config=base(tie_word_embeddings=False, **SECTIONS), audio_config=EARS,
    vision_config=dict(hidden_size=24, depth=2, num_heads=2, intermediate_size=40, out_hidden_size=48))
OMNI_3 = dict(
    text_config=base(**MOE, num_experts=6, rope_parameters=SECTIONS["rope_parameters"] | dict(mrope_interleaved=True)), vision_config=QWEN_TOWER,
    audio_config=EARS | dict(downsample_hidden_size=8))
NEMOTRON_TOWER = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16, max_img_size=64, video_temporal_patch_size=2)
NEMOTRON = dict(
    text_config=base(**MAMBA | dict(hybrid_override_pattern="MEM*ME"), model_type="nemotron_h"), vision_config=NEMOTRON_TOWER,
    projector_hidden_size=20, vision_hidden_size=24)

FAMILIES = {
    "exaone-moe": Family(of("ExaoneMoe", **EXAONE), MOE_A, MOE_B, TE_GROUPED),
    "exaone-moe-mtp": Family(
        of("ExaoneMoe", **EXAONE), MOE_B, ETP_B, TE_SEQUENTIAL, add=exaone_mtp, ignored="mtp.", config=dict(num_nextn_predict_layers=1)),
    "minimax-m3": Family(
        around("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLConfig", text_config=MINIMAX, vision_config=MINIMAX_TOWER,
               projector_hidden_size=20), MOE_A, MOE_B, TE_GROUPED, keeps_parts=True),
    "mimo-v2-flash": Family(of("MiMoV2Flash", **MIMO), MOE_A, MOE_B, TE_GROUPED),
    "mimo-v2-flash-mtp": Family(
        of("MiMoV2Flash", **MIMO), Layout(tp=4, pp=2, ep=2, first_stage_layers=3), ETP_B, TE_GROUPED, add=mimo_mtp, ignored="model.mtp.",
        config=dict(num_nextn_predict_layers=3)),
    "step3p7": Family(
        around("Step3p7ForConditionalGeneration", "Step3p7Config", text_config=STEP, vision_config=STEP_TOWER), MOE_A, MOE_B, TE_GROUPED,
        keeps_parts=True),
    "step3p7-mtp": Family(
        around("Step3p7ForConditionalGeneration", "Step3p7Config", vision_config=STEP_TOWER, text_config=STEP | dict(
            num_nextn_predict_layers=2, mtp_layer_types=["sliding_attention"] * 2, mtp_mlp_layer_types=["dense"] * 2)),
        Layout(tp=2, pp=2, ep=2, first_stage_layers=3), ETP_B, TE_SEQUENTIAL, add=step_mtp, ignored="model.layers.", keeps_parts=True),
    "falcon-h1": Family(of("FalconH1", **FALCON), Layout(tp=2, pp=2, first_stage_layers=2), DENSE_B, TE_GROUPED),
    "falcon-h1-norm": Family(
        of("FalconH1", **FALCON | dict(mamba_rms_norm=True, mamba_conv_bias=False, tie_word_embeddings=False)), DENSE_B, DENSE_A),
    "gemma4-moe": Family(of("Gemma4", "Gemma4Text", **GEMMA_MOE), MOE_A, MOE_B, TE_GROUPED),
    "gemma4-moe-values": Family(of("Gemma4", "Gemma4Text", **GEMMA_MOE | dict(attention_k_eq_v=False)), MOE_B, ETP_B, TE_SEQUENTIAL),
    "gemma4": Family(
        around("Gemma4ForConditionalGeneration", "Gemma4Config", text_config=GEMMA_MOE, vision_config=GEMMA_TOWER), MOE_B, MOE_A, TE_GROUPED,
        keeps_parts=True),
    "qwen3-omni": Family(
        around("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerConfig", **OMNI_3), MOE_A, MOE_B, TE_GROUPED, keeps_parts=True),
    "qwen2-5-omni": Family(
        around("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5OmniThinkerConfig", **OMNI_2), DENSE_A, DENSE_B, TE_SEQUENTIAL,
        keeps_parts=True),
    "nemotron-omni": Family(
        around("NemotronH_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3_Config", **NEMOTRON), Layout(tp=2, pp=2, ep=2, first_stage_layers=4),
        Layout(pp=2, ep=3, last_stage_layers=2), TE_GROUPED, keeps_parts=True),
}

# --- without a form in Megatron --------------------------------------------------------------------------------------

SHORT = dict(layer_types=["conv", "full_attention", "conv", "conv", "full_attention"], head_dim=None)
GRANITE = dict(
    shared_intermediate_size=28, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=7, layer_types=[
        "linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"])
ERNIE = base(
    moe_num_experts=6, moe_k=2, moe_intermediate_size=[24, 12], moe_num_shared_experts=2, mlp_layer_types=SPARSE,
    rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2]))

WITHOUT_MEGATRON = {
    "kimi-linear": Family(of("KimiLinear", **base(**LATENT | dict(head_dim=None), **MOE, num_experts=6, num_shared_experts=1, linear_attn_config=dict(
        full_attn_layers=[3], kda_layers=[1, 2, 4, 5], num_heads=3, head_dim=10, short_conv_kernel_size=4))), None, None),
    "bailing-hybrid": Family(of("BailingHybrid", **base(
        **LATENT, **MOE, num_experts=6, num_shared_experts=1, first_k_dense_replace=1, layer_group_size=3, n_group=2, topk_group=1,
        num_mtp_layers=0)), None, None),
    "longcat-flash": Family(of(
        "LongcatFlash", vocab_size=90, hidden_size=48, num_layers=3, num_attention_heads=6, kv_lora_rank=20, q_lora_rank=28, qk_nope_head_dim=12,
        qk_rope_head_dim=8, head_dim=8, v_head_dim=10, moe_topk=2, n_routed_experts=6, zero_expert_num=2, expert_ffn_hidden_size=24,
        ffn_hidden_size=60, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0), None, None),
    "granitemoehybrid": Family(of(
        "GraniteMoeHybrid", **base(**GRANITE, num_local_experts=6, num_experts_per_tok=2, intermediate_size=24)), None, None),
    "granitemoehybrid-dense": Family(of("GraniteMoeHybrid", **base(
        **GRANITE, num_local_experts=0, num_experts_per_tok=0, tie_word_embeddings=True)), None, None),
    "jamba": Family(of("Jamba", **base(
        intermediate_size=64, num_experts=6, num_experts_per_tok=2, attn_layer_period=3, attn_layer_offset=1, mamba_d_state=7, mamba_dt_rank=5,
        use_mamba_kernels=False)), None, None),
    "mamba2-biases": Family(mamba2(use_bias=True), None, None),
    "lfm2": Family(of("Lfm2", **base(**SHORT, block_multiple_of=12, conv_bias=True)), None, None),
    "lfm2-moe": Family(of("Lfm2Moe", **base(**SHORT, **MOE, num_experts=6, num_dense_layers=2)), None, None, dtype=torch.float32),
    "gemma4-planes": Family(of("Gemma4", "Gemma4Text", **GEMMA_PLANES), None, None),
    "ernie4-5-vl": Family(around(
        "Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VLMoeConfig", text_config=ERNIE,
        vision_config=dict(hidden_size=24, intermediate_size=40, depth=2, num_heads=2)), None, None, keeps_parts=True),
}

# --- Kimi K3 ---------------------------------------------------------------------------------------------------------

KIMI_K3 = dict(
    model_type="kimi_k3_text", hidden_size=48, intermediate_size=60, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=6, vocab_size=90,
    q_lora_rank=28, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, first_k_dense_replace=1, moe_layer_freq=1,
    num_experts=6, num_experts_per_token=2, num_shared_experts=2, moe_intermediate_size=24, routed_expert_hidden_size=14, routed_scaling_factor=2.5,
    moe_router_activation_func="sigmoid", use_grouped_topk=False, attn_res_block_size=2, rms_norm_eps=1e-5, hidden_act="situ",
    max_position_embeddings=128, tie_word_embeddings=False,
    linear_attn_config=dict(kda_layers=[1, 2, 4], full_attn_layers=[3, 5], num_heads=6, head_dim=10, short_conv_kernel_size=4))


def kimi_k3_shapes(c=KIMI_K3):
    """Stored name -> shape, as Megatron-Bridge's mapping and layers of Kimi K3 have them."""
    hidden, model, linear = c["hidden_size"], "language_model.model.", c["linear_attn_config"]
    heads, width, queries = linear["num_heads"], linear["num_heads"] * linear["head_dim"], c["num_attention_heads"]
    shapes = {f"{model}embed_tokens.weight": (c["vocab_size"], hidden), "language_model.lm_head.weight": (c["vocab_size"], hidden)}
    shapes |= {f"{model}{name}.weight": (hidden,) for name in ("norm", "output_attn_res_norm")} | {f"{model}output_attn_res_proj.weight": (1, hidden)}

    def mlp(at, inter, inside=hidden, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        return {f"{at}{gate}.weight": (inter, inside), f"{at}{up}.weight": (inter, inside), f"{at}{down}.weight": (inside, inter)}

    for layer in range(c["num_hidden_layers"]):
        at, attention, routed = (f"{model}layers.{layer}.{part}" for part in ("", "self_attn.", "block_sparse_moe."))
        norms = "input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"
        shapes |= {f"{at}{name}.weight": (hidden,) for name in norms}
        shapes |= {f"{at}{name}.weight": (1, hidden) for name in ("self_attention_res_proj", "mlp_res_proj")}
        if layer + 1 in linear["kda_layers"]:
            shapes |= {f"{attention}{name}_proj.weight": (width, hidden) for name in "qkvg"}
            shapes |= {f"{attention}{name}_conv1d.weight": (width, 1, 4) for name in "qkv"}
            shapes |= {f"{attention}A_log": (128,), f"{attention}dt_bias": (width,), f"{attention}f_a_proj.weight": (linear["head_dim"], hidden)}
            shapes |= {f"{attention}f_b_proj.weight": (width, linear["head_dim"]), f"{attention}b_proj.weight": (heads, hidden)}
            shapes |= {f"{attention}o_norm.weight": (linear["head_dim"],), f"{attention}o_proj.weight": (hidden, width)}
        else:
            turned, values = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], queries * c["v_head_dim"]
            shapes |= {f"{attention}q_a_proj.weight": (c["q_lora_rank"], hidden), f"{attention}q_a_layernorm.weight": (c["q_lora_rank"],)}
            shapes |= {f"{attention}q_b_proj.weight": (queries * turned, c["q_lora_rank"]), f"{attention}g_proj.weight": (values, hidden)}
            shapes |= {f"{attention}kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)}
            shapes |= {f"{attention}kv_a_layernorm.weight": (c["kv_lora_rank"],), f"{attention}o_proj.weight": (hidden, values)}
            shapes[f"{attention}kv_b_proj.weight"] = queries * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]
        if layer < c["first_k_dense_replace"]:
            shapes |= mlp(f"{at}mlp.", c["intermediate_size"])
            continue
        latent, inter = c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        shapes |= {f"{routed}gate.weight": (c["num_experts"], hidden), f"{routed}gate.e_score_correction_bias": (c["num_experts"],)}
        shapes |= {f"{routed}routed_expert_down_proj.weight": (latent, hidden), f"{routed}routed_expert_up_proj.weight": (hidden, latent)}
        shapes |= {f"{routed}routed_expert_norm.weight": (latent,)} | mlp(f"{routed}shared_experts.", inter * c["num_shared_experts"])
        for expert in range(c["num_experts"]):
            shapes |= mlp(f"{routed}experts.{expert}.", inter, latent, ("w1", "w3", "w2"))
    return shapes | {"vision_tower.patch.weight": (7, 5), "mm_projector.linear.weight": (hidden, 7)}


def kimi_k3_folder(folder):
    """A folder of Kimi K3 in two files: A_log is padded with zeros to 128, and float32, as are the biases of the router and of the decay."""
    folder.mkdir()
    exact = ("A_log", "dt_bias", "e_score_correction_bias")
    tensors = {
        name: random_like(torch.empty(shape, dtype=torch.float32 if name.endswith(exact) else torch.bfloat16), name)
        for name, shape in kimi_k3_shapes().items()}
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor[KIMI_K3["linear_attn_config"]["num_heads"]:] = 0
    save_shards(folder, tensors)
    config = dict(architectures=["KimiK3ForConditionalGeneration"], model_type="kimi_k3", text_config=KIMI_K3, vision_config=dict(hidden_size=7))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder
