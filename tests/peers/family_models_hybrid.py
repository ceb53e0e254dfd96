"""More of the registry of family_models.py: latent attention, indexers, gated delta net, Mamba, hyper-connections, multi-token prediction.

The classes of transformers hold no layers for multi-token prediction. `add` puts them into the folder, under the names of the published files
and with values of their own; transformers ignores them, and the test compares their bits.
"""

import torch
import transformers

from family_models import DENSE_A, ETP_B, MOE_A, MOE_B, Family, base, dense, random_like
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout

# --- latent attention ---------------------------------------------------------------------------------------------

LATENT = dict(
    num_key_value_heads=6, head_dim=None, kv_lora_rank=20, q_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
    n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=24, first_k_dense_replace=2, n_group=2, topk_group=1,
    num_nextn_predict_layers=0)
INDEXER = dict(index_n_heads=3, index_head_dim=16, index_topk=6)


def numbered_mtp(count, layers=5, hidden=48):
    """Depths as DeepSeek numbers them: layers behind the last one, with the embedding and the head repeated."""

    def add(tensors):
        added = dict(tensors)
        for depth in range(count):
            here, like = f"model.layers.{layers + depth}.", f"model.layers.{layers - 1}."
            for name in [name for name in tensors if name.startswith(like)]:
                added[here + name[len(like):]] = other(tensors[name], here + name)
            weight = tensors["model.norm.weight"]
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                added[f"{here}{norm}.weight"] = other(weight, here + norm)
            added[f"{here}eh_proj.weight"] = random_like(torch.empty(hidden, 2 * hidden, dtype=weight.dtype), here)
            added[f"{here}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
            added[f"{here}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        return added

    return add


def whole_queries(name, **changes):
    """Latent attention of keys and values alone: `base` would leave the null out, and the class takes a rank of its own then."""
    return lambda: getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**base(**LATENT | dict(q_lora_rank=None) | changes), q_lora_rank=None))


def other(tensor, key):
    return random_like(tensor, key, centre=1.0 if tensor.dim() == 1 else 0.0)


LATENT_FAMILIES = {
    "deepseek-v2-lite": Family(whole_queries("DeepseekV2", first_k_dense_replace=1), MOE_A, ETP_B),
    "deepseek-v3": Family(
        dense("DeepseekV3", **LATENT | dict(num_nextn_predict_layers=2)), MOE_A, MOE_B, TE_GROUPED, add=numbered_mtp(2), ignored="model.layers."),
    "deepseek-yarn": Family(
        dense("DeepseekV3", **LATENT | dict(num_nextn_predict_layers=0, norm_topk_prob=True, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1, mscale=1.0,
            mscale_all_dim=1.0))), MOE_B, MOE_A),
    "moonlight": Family(whole_queries("DeepseekV3", n_group=1), MOE_B, MOE_A, TE_SEQUENTIAL),
    "deepseek-v3.2": Family(
        dense("DeepseekV32", **LATENT | INDEXER | dict(num_nextn_predict_layers=1)), MOE_A, MOE_B, TE_GROUPED, add=numbered_mtp(1),
        ignored="model.layers.5."),
    "glm-5": Family(
        dense("GlmMoeDsa", **LATENT | INDEXER | dict(num_nextn_predict_layers=1)), MOE_B, MOE_A, TE_SEQUENTIAL, add=numbered_mtp(1),
        ignored="model.layers.5."),
    "glm-5-shared-indexers": Family(dense("GlmMoeDsa", **LATENT | INDEXER | dict(index_topk_freq=2)), MOE_A, MOE_B, TE_GROUPED),
    "glm-4.7-flash": Family(
        dense("Glm4MoeLite", **LATENT | dict(num_nextn_predict_layers=1)), MOE_A, MOE_B, TE_GROUPED, add=numbered_mtp(1), ignored="model.layers.5."),
}

# --- gated delta net ----------------------------------------------------------------------------------------------

DELTA = dict(
    linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=10, linear_value_head_dim=12,
    linear_conv_kernel_dim=3, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=28,
    layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"])
DELTA_A, DELTA_B = Layout(tp=2, pp=2, ep=2, first_stage_layers=3), Layout(pp=2, ep=3, last_stage_layers=1)


def qwen_mtp(tensors, prefix="model.", layer=4, hidden=48):
    """The one depth of Qwen, an attention layer."""
    like, weight = f"{prefix}layers.{layer}.", tensors[f"{prefix}norm.weight"]
    added = {f"mtp.layers.0.{name[len(like):]}": random_like(tensor, "mtp" + name) for name, tensor in tensors.items() if name.startswith(like)}
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        added[f"mtp.{norm}.weight"] = random_like(weight, norm)
    return tensors | added | {"mtp.fc.weight": random_like(torch.empty(hidden, 2 * hidden, dtype=weight.dtype), "fc")}


def packed_experts(tensors, prefix="model.", layers=5, experts=6):
    """Experts in one array per layer, as published folders have them; transformers itself writes them one by one."""
    result = {name: tensor for name, tensor in tensors.items() if not (name.startswith(prefix) and ".mlp.experts." in name)}
    for layer in range(layers):
        at = f"{prefix}layers.{layer}.mlp.experts."
        of = {part: [tensors[f"{at}{expert}.{part}_proj.weight"] for expert in range(experts)] for part in ("gate", "up", "down")}
        result[f"{at}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(of["gate"], of["up"])])
        result[f"{at}down_proj"] = torch.stack(of["down"])
    return result


TEXT = base(**DELTA, mtp_num_hidden_layers=1)
EYES = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48, num_position_embeddings=16)


def qwen_eyes():
    return transformers.Qwen3_5MoeForConditionalGeneration(transformers.Qwen3_5MoeConfig(text_config=TEXT, vision_config=EYES))


def published_qwen_eyes(tensors):
    return packed_experts(qwen_mtp(tensors, "model.language_model."), "model.language_model.")


DELTA_FAMILIES = {
    "qwen3-next": Family(
        dense("Qwen3Next", **DELTA, num_nextn_predict_layers=1), DELTA_B, DELTA_A, TE_SEQUENTIAL, add=qwen_mtp, ignored="mtp."),
    "qwen3.5": Family(
        lambda: transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**base(**DELTA | dict(num_experts=None)))),
        Layout(tp=2, pp=2, first_stage_layers=2), Layout(pp=3, first_stage_layers=1), TE_SEQUENTIAL),
    "qwen3.5-moe-text": Family(
        lambda: transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**base(**DELTA))), DELTA_A, DELTA_B, TE_GROUPED,
        add=packed_experts),
    "qwen3.5-moe": Family(qwen_eyes, DELTA_A, DELTA_B, TE_GROUPED, add=published_qwen_eyes, ignored="mtp.", keeps_parts=True),
}

# --- Mamba --------------------------------------------------------------------------------------------------------

MAMBA = dict(
    mamba_num_heads=6, mamba_head_dim=10, n_groups=2, ssm_state_size=7, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
    moe_intermediate_size=24, moe_shared_expert_intermediate_size=28, num_hidden_layers=None)


def mamba(pattern, **changes):
    return lambda: transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**base(**MAMBA | dict(hybrid_override_pattern=pattern) | changes)))


MAMBA2 = dict(
    vocab_size=90, hidden_size=45, num_hidden_layers=5, expand=2, num_heads=6, head_dim=15, n_groups=2, state_size=7, chunk_size=8, pad_token_id=0,
    bos_token_id=1, eos_token_id=2)


def mamba2(**changes):
    return lambda: transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**MAMBA2 | changes))


def flattened_mtp(like, count, hidden=48):
    """Depths as Nemotron counts them, layer by layer; `like` are the decoder layers of the same kinds."""

    def add(tensors):
        added, weight = dict(tensors), tensors["backbone.norm_f.weight"]
        for index in range(count * len(like)):
            at = f"backbone.layers.{like[index % len(like)]}."
            here = f"mtp.layers.{index}."
            added |= {here + name[len(at):]: random_like(tensor, here + name) for name, tensor in tensors.items() if name.startswith(at)}
            if index % len(like) == 0:
                added |= {f"{here}{norm}.weight": random_like(weight, here + norm) for norm in ("enorm", "hnorm")}
                added[f"{here}eh_proj.weight"] = random_like(torch.empty(hidden, 2 * hidden, dtype=weight.dtype), here)
            if index % len(like) == len(like) - 1:
                added[f"{here}final_layernorm.weight"] = random_like(weight, here)
        return added

    return add


MAMBA_A, MAMBA_B = Layout(tp=2, pp=2, first_stage_layers=3), Layout(pp=3, first_stage_layers=3)
MAMBA_FAMILIES = {
    "nemotron-h": Family(mamba("M-M*-M*"), MAMBA_A, MAMBA_B, TE_SEQUENTIAL),
    "nemotron-3": Family(mamba("MEM*ME"), DELTA_A, Layout(pp=2, ep=3, last_stage_layers=2), TE_GROUPED),
    "nemotron-3-latent": Family(
        mamba("ME*EM", moe_latent_size=16, num_nextn_predict_layers=2, mtp_hybrid_override_pattern="*E"), DELTA_A, DELTA_B, TE_GROUPED,
        add=flattened_mtp([2, 3], 2), ignored="mtp."),
    "mamba2": Family(mamba2(), Layout(tp=2, pp=2, first_stage_layers=3), Layout(pp=3, first_stage_layers=1), TE_SEQUENTIAL),
    "mamba2-tied": Family(
        mamba2(tie_word_embeddings=True, use_conv_bias=False, conv_kernel=3), Layout(pp=2, last_stage_layers=1), Layout(tp=2), dtype=torch.float32),
}

# --- hyper-connections --------------------------------------------------------------------------------------------

COMPRESSED = dict(
    vocab_size=90, hidden_size=48, num_hidden_layers=5, num_attention_heads=6, head_dim=16, q_lora_rank=28, moe_intermediate_size=24,
    n_routed_experts=6, num_experts_per_tok=2, o_groups=2, o_lora_rank=14, index_n_heads=3, index_head_dim=8, index_topk=4, num_hash_layers=1,
    compress_ratios=[0, 128, 4, 0, 4], partial_rotary_factor=0.5, hc_mult=3, sliding_window=9, num_nextn_predict_layers=0,
    max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def compressed(**changes):
    def make():
        model = transformers.DeepseekV4ForCausalLM(transformers.DeepseekV4Config(**COMPRESSED | changes))
        for name, table in model.named_buffers():
            if name.endswith("tid2eid"):
                table.copy_((torch.arange(table.numel()).reshape(table.shape) * 5 + torch.arange(2)) % 6)
        return model

    return make


def published_names(tensors, hidden=48, streams=3):
    """Names of the published folders, and their depth: a layer with a sliding window and no table."""
    changes = {"model.embed_tokens.": "embed.", "model.hc_head.hc_": "hc_head_", "model.": "", ".attn.norm.": ".attn.kv_norm."}
    added = {}
    for name, tensor in tensors.items():
        for old, new in changes.items():
            name = name.replace(old, new, 1) if name.startswith(old) or old[0] == "." else name
        added[name] = tensor
    mtp = {f"mtp.0.{name[len('layers.3.'):]}": other(tensor, "mtp" + name) for name, tensor in added.items() if name.startswith("layers.3.")}
    for norm in ("enorm", "hnorm", "norm"):
        mtp[f"mtp.0.{norm}.weight"] = other(added["norm.weight"], norm)
    shapes = {
        "e_proj.weight": (hidden, hidden), "h_proj.weight": (hidden, hidden), "hc_head_fn": (streams, streams * hidden),
        "hc_head_base": (streams,), "hc_head_scale": (1,)}
    return added | mtp | {f"mtp.0.{name}": random_like(torch.empty(shape), name) for name, shape in shapes.items()}


COMPRESSED_FAMILIES = {
    "deepseek-v4": Family(compressed(), DELTA_A, DELTA_B, TE_GROUPED, dtype=torch.float32, add=dict),
    "deepseek-v4-published": Family(
        compressed(num_nextn_predict_layers=1), DELTA_B, DELTA_A, TE_SEQUENTIAL, dtype=torch.float32, add=published_names, ignored="mtp."),
}

FAMILIES = LATENT_FAMILIES | DELTA_FAMILIES | MAMBA_FAMILIES | COMPRESSED_FAMILIES
