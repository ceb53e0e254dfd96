"""Models for mcore-bridge 1.6.5, ms-swift's library: for each model_type that it registers, folders of the registry of test_families.py, and others."""

from dataclasses import replace

import transformers

import bridge_families
import family_models_recent
from bridge_families import DELTA, ROUTED, SIZES, one_layout, ordinary, with_text
from family_models import LLAMA4, LLAMA4_TOWER, SECTIONS, TOWER, Family, base, dense, vision_language
from family_models_hybrid import EYES, packed_experts
from family_models_kinds import GEMMA_TOWER, around
from family_models_remote import FIRST_LING, MIMO, ROUTED as ROUTED_LING, as_first_ling, published, renamed
from family_models_vision import KIMI_TEXT, ODD
from peer_types import Layout

REGISTRY = bridge_families.FAMILIES | family_models_recent.FAMILIES | family_models_recent.WITHOUT_MEGATRON


def named(name, **members):
    """A folder of the registry with other members of config.json."""
    return replace(REGISTRY[name], config=(REGISTRY[name].config or {}) | members)


def published_kimi(name):
    """And with the published name of a norm, which transformers 5.23 saves as it is called in memory."""
    config = transformers.DeepseekV3Config(**{key: value for key, value in KIMI_TEXT.items() if key != "model_type"}).to_dict()
    family = named(name, text_config=config | SIGMOID | dict(dtype="bfloat16"))
    return replace(family, add=lambda tensors: renamed(REGISTRY[name].add(tensors), (r"^model\.mm_projector\.", "mm_projector.")))


def published_gemma(name, vision):
    """With the members of published folders, which transformers 5.23 writes layer by layer."""
    config = getattr(transformers, f"{name}TextConfig")(**GEMMA).to_dict()
    config.pop("per_layer_config", None)
    make = around(f"{name}ForConditionalGeneration", f"{name}Config", text_config=GEMMA, vision_config=vision)
    return one_layout(make, config=dict(text_config=config | GEMMA | dict(dtype="bfloat16")), keeps_parts=True)


GEMMA = SIZES | dict(
    num_global_key_value_heads=1, global_head_dim=24, attention_k_eq_v=True, sliding_window=8, enable_moe_block=False, hidden_size_per_layer_input=0,
    layer_types=["sliding_attention"] * 3 + ["full_attention"])
UNIFIED_TOWER = dict(patch_size=2, pooling_kernel_size=2, mm_embed_dim=20, mm_posemb_size=6, output_proj_dims=20)
SIGMOID = dict(scoring_func="sigmoid")
LING_TWIN = ROUTED_LING | dict(use_qk_norm=False, attention_bias=False)
QWEN_EYES = EYES | dict(out_hidden_size=64)
INTERVAL = dict(full_attention_interval=2)
OWN = {
    "usual-qwen2-moe": ordinary("qwen2_moe", **ROUTED, num_experts=4, shared_expert_intermediate_size=24, mlp_only_layers=[], decoder_sparse_step=1),
    "usual-llama4": one_layout(vision_language("Llama4", base(**LLAMA4 | dict(num_hidden_layers=4)), LLAMA4_TOWER)),
    "usual-internlm3": one_layout(dense("Llama"), config=dict(model_type="internlm3", qkv_bias=False, bias=False)),
    "usual-ling-1": one_layout(
        dense("Glm4Moe", **LING_TWIN), add=as_first_ling, config=published("ling-lite", **FIRST_LING | dict(use_qkv_bias=False, attention_bias=False))),
    "usual-mimo": one_layout(dense("Qwen2", **ODD), add=dict, config=published("mimo-7b", **MIMO | dict(num_nextn_predict_layers=0))),
    "gemma4-published": published_gemma("Gemma4", GEMMA_TOWER),
    "gemma4-unified-published": published_gemma("Gemma4Unified", UNIFIED_TOWER),
    "usual-qwen3.5-vl": with_text("Qwen3_5", SIZES | DELTA | SECTIONS, QWEN_EYES, INTERVAL, keeps_parts=True),
    "usual-qwen3.5-vl-moe": with_text(
        "Qwen3_5Moe", SIZES | DELTA | SECTIONS | ROUTED | dict(num_experts=4, shared_expert_intermediate_size=24), QWEN_EYES, INTERVAL,
        add=lambda tensors: packed_experts(tensors, "model.language_model.", 4, 4), keeps_parts=True),
    "usual-minicpm-v": one_layout(
        vision_language("MiniCPMV4_6", SIZES | DELTA | dict(model_type="qwen3_5_text"), TOWER | dict(insert_layer_id=1), insert_layer_id=1, image_size=28),
        config=dict(text_config=transformers.Qwen3_5TextConfig(**SIZES | DELTA).to_dict() | INTERVAL | dict(dtype="bfloat16")), keeps_parts=True),
    "kimi-k2.5": published_kimi("kimi-k2.5"),
    # Members of config.json that published folders have, and the classes of transformers do not write.
    **{name: named(name, **SIGMOID) for name in ("deepseek-v3", "deepseek-yarn", "deepseek-v3.2", "moonlight")},
    **{name: named(name, use_qk_norm=True, **SIGMOID) for name in ("minimax-m2", "usual-minimax-m2")},
    **{name: named(name, qk_norm=True, moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True) for name in ("hy-v3", "usual-hy-v3")},
    "usual-qwen3-next": named("usual-qwen3-next", **INTERVAL),
}
FAMILIES = REGISTRY | OWN
# Arguments of ms-swift's command line that a folder needs: mcore-bridge does not take them from config.json.
ARGUMENTS = {
    **dict.fromkeys(("deepseek-v3", "kimi-k2"), dict(mtp_num_layers=2)),
    **dict.fromkeys(("deepseek-v3.2", "glm-5", "glm4-moe-mtp", "mimo", "ling-2.5-mtp"), dict(mtp_num_layers=1)),
    "ernie-4.5-moe": dict(moe_router_enable_expert_bias=True)}

# Why mcore-bridge 1.6.5 does not take a folder with Megatron-Core 0.19.2 and transformers 5.23: it ends with an exception.
LAYERS = "it takes numbers alone that say which layers are of which kind, and not lists"
BIASES = "it knows no such biases"
REFUSED = {
    "llama-biases": BIASES, "internlm3": BIASES,
    **dict.fromkeys(("qwen3-moe", "qwen2-moe", "glm-4.7-flash", "hy-v3", "qwen3-next", "qwen3.5-moe", "minicpm-v"), LAYERS),
    "glm-5-shared-indexers": "it takes every layer for one with an indexer of its own",
    "nemotron-3-latent": "it knows no experts in a smaller space",
    "llama4": "it takes a multiple of 4 layers",
    **dict.fromkeys(("kimi-k2.5-saved", "llava-onevision-in-memory"), "it knows the published names alone"),
    "qwen3-asr": "it takes the folder of the package `qwen_asr`, with other names",
    **dict.fromkeys(("gemma4-published", "gemma4-unified-published"), "Megatron-Core 0.19.2 does not save its layers: one tensor of all, whose sizes differ"),
    "glm-5-next": "it needs the branch dev of Megatron-LM, with a patch that it brings along",
    **dict.fromkeys(("deepseek-v4", "deepseek-v4-published"), "Megatron-Core 0.19.2 does not have its attention (`dsv4_hybrid`)"),
    "gemma4": "it asks for members that the config of transformers 5.23 states layer by layer"}
# Folders that it takes without a word for another model: what it lacks has the values from before the load, or it does not have it.
NO_NORM = "with Megatron-Core 0.19.2 its model has a norm in front of q that no folder has"
FAULTS = {
    **dict.fromkeys(("deepseek-v2-lite", "moonlight", "kimi-vl"), NO_NORM),
    "nemotron-h": "it does not load layers with a dense MLP",
    "internvl": "of two statements in config.json whether the head is tied, it takes the inner one",
    "ling-1": "it does not load `query_key_value.bias`", "mimo": "it does not know the names of the layers for multi-token prediction",
    "qwen3-vl-moe": "it takes experts as transformers 5 saves them for the turned ones that are published",
    "ernie-4.5-moe": "its model has no bias of the router, which the folder has", "ernie-4.5-biases": BIASES,
    "gpt-oss-mxfp4": "it stores BF16 instead of MXFP4"}
NO_FORM = "its tables of n-grams are one tensor there, and shards in folders, of a number of rows that no map can state; published ones, of FP8, are made BF16"
TOWERS = ("internvl_chat", "kimi_k25", "kimi_vl", "llava_onevision1_5", "ovis2_5", "qwen3_asr")
MODELS = {
    "llama": ("llama", "llama-scaled", "llama-tied", "llama-biases"), "qwen2": ("qwen2", "qwen2-tied"), "qwen3": ("qwen3",),
    "qwen2_moe": ("usual-qwen2-moe", "qwen2-moe"), "qwen3_moe": ("usual-qwen3-moe", "qwen3-moe-fused", "qwen3-moe"),
    "internlm3": ("usual-internlm3", "internlm3"), "mimo": ("usual-mimo", "mimo"), "deepseek_v2": ("usual-deepseek-v2", "deepseek-v2-lite"),
    "deepseek_v3": ("deepseek-v3", "deepseek-yarn", "moonlight"), "deepseek_v32": ("deepseek-v3.2",), "kimi_k2": ("kimi-k2",), "dots1": ("dots1",),
    "ernie4_5": ("ernie-4.5", "ernie-4.5-biases"), "ernie4_5_moe": ("ernie-4.5-moe",), "glm4_moe": ("glm4-moe", "glm4-moe-mtp", "usual-glm4-moe"),
    "glm4_moe_lite": ("usual-glm-4.7-flash", "glm-4.7-flash"), "gpt_oss": ("gpt-oss", "gpt-oss-square", "usual-gpt-oss", "gpt-oss-mxfp4"),
    "bailing_moe": ("usual-ling-1", "ling-1"), "deepseek_v4": ("deepseek-v4", "deepseek-v4-published"), "glm4": ("glm4", "glm4-tied"),
    "glm_moe_dsa": ("glm-5", "usual-glm-5", "glm-5-shared-indexers"), "hy_v3": ("usual-hy-v3", "hy-v3"),
    "minimax_m2": ("minimax-m2", "usual-minimax-m2"), "nemotron_h": ("nemotron-3", "usual-nemotron-h", "nemotron-h", "nemotron-3-latent"),
    "olmoe": ("olmoe", "olmoe-normed", "usual-olmoe"),
    "gemma4": ("gemma4-published", "gemma4"), "gemma4_unified": ("gemma4-unified-published",), "glm4v_moe": ("glm4v-moe", "glm4v-moe-fused"),
    "glm4v": ("glm4v",), "internvl_chat": ("internvl-chat",), "internvl": ("internvl-qwen3-in-memory", "internvl-qwen3-moe", "internvl"),
    "kimi_vl": ("kimi-vl",), "kimi_k25": ("kimi-k2.5", "kimi-k2.5-saved"), "llama4": ("usual-llama4", "llama4"),
    "qwen3_next": ("usual-qwen3-next", "qwen3-next"), "qwen2_5_vl": ("qwen2.5-vl-flat", "qwen2.5-vl-in-memory"), "qwen2_vl": ("qwen2-vl",),
    "qwen2_5_omni": ("qwen2.5-omni-whole",), "qwen3_5": ("usual-qwen3.5-vl",), "qwen3_5_moe": ("usual-qwen3.5-vl-moe", "qwen3.5-moe"),
    "qwen3_asr": ("qwen3-asr-published", "qwen3-asr"), "qwen3_vl": ("qwen3-vl",), "qwen3_vl_moe": ("qwen3-vl-moe-published", "qwen3-vl-moe"),
    "qwen3_omni_moe": ("qwen3-omni-whole",),
    "deepseek": ("deepseek-moe",), "minicpmv4_6": ("usual-minicpm-v", "minicpm-v"),
    "muse_glimmer": ("muse-glimmer",), "llava_onevision1_5": ("llava-onevision", "llava-onevision-in-memory"), "ovis2_5": ("ovis",),
    "glm5_next": ("glm-5-next",),
    "bailing_hybrid": ("ling-2.5", "ling-2.5-mtp"), "qwen4_exp": ()}
WITHOUT = {
    "qwen4_exp": NO_FORM}
