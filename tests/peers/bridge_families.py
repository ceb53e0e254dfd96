"""Models for Megatron-Bridge: those of the registry of test_families.py that it takes, and others of more ordinary sizes where it asks for them.

    bridge_families.py NAME FOLDER    saves one of them
"""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import family_models_remote
import family_models_vision
from family_models import Family, dense, save_family, vision_language
from family_models_kinds import GEMMA_TOWER, OMNI_2, OMNI_3, STEP_TOWER, around, of
from family_models_remote import LING, ROUTED as ROUTED_LING, ling_with_mtp, published
from family_models_vision import GLM_TOWER, HALF
from peer_types import Layout

CURRENT_PYTHON = Path(__file__).parents[2] / ".cache/peers/bin/python"  # with the transformers of requirements.txt

SIZES = dict(
    vocab_size=96, hidden_size=64, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
ROUTED = dict(num_experts_per_tok=2, moe_intermediate_size=24)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=20, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=24, head_dim=8)
LATENT_ROUTED = ROUTED | LATENT | dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, full_attention_interval=2)
WINDOWS = dict(sliding_window=8, layer_types=["sliding_attention"] * 3 + ["full_attention"])
HYBRID = dict(
    layers_block_type=["mamba", "moe", "attention", "mamba"], n_routed_experts=4, moe_shared_expert_intermediate_size=24, mamba_num_heads=4,
    mamba_head_dim=16, ssm_state_size=16, n_groups=2)


GEMMA = SIZES | dict(
    vocab_size=128, num_global_key_value_heads=2, global_head_dim=16, sliding_window=8, layer_types=["sliding_attention"] * 3 + ["full_attention"],
    num_kv_shared_layers=0)
GEMMA_EXPERTS = GEMMA | dict(
    enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=24, hidden_size_per_layer_input=0, attention_k_eq_v=True)
FALCON = dict(
    mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=16, mamba_norm_before_gate=False, tie_word_embeddings=False)
WINDOWED = SIZES | ROUTED | dict(
    n_routed_experts=4, sliding_window=8, layer_types=["full_attention"] + ["sliding_attention"] * 3, mlp_layer_types=["dense"] + ["sparse"] * 3)
MIMO = WINDOWED | dict(v_head_dim=8, swa_head_dim=16, swa_v_head_dim=8)
STEP = WINDOWED | dict(share_expert_dim=28, num_sliding_attention_heads=8)
NOT_PUBLISHED = dict(layer_types=None, mlp_layer_types=None, rope_parameters=None)


def one_layout(make, **members):
    return Family(make, Layout(), Layout(), **members)


def omni(name, thinker):
    """A whole model, with a thinker alone: what it speaks with is left out, as its config allows."""
    config = getattr(transformers, f"{name}Config")
    return one_layout(lambda: getattr(transformers, f"{name}ForConditionalGeneration")(config(thinker_config=thinker, enable_audio_output=False)))


def with_text(name, text, vision, written, **members):
    """A model with a tower, and members that published folders have in the config of its text model."""
    config = getattr(transformers, f"{name}TextConfig")(**text).to_dict() | written | dict(dtype="bfloat16")
    return one_layout(vision_language(name, text, vision, tie_word_embeddings=False), config=dict(text_config=config), **members)


def seeing_gemma(text):
    return one_layout(around("Gemma4ForConditionalGeneration", "Gemma4Config", text_config=text, vision_config=GEMMA_TOWER), keeps_parts=True)


def with_published_embedding(tensors):
    """transformers 5.12.1 writes `backbone.embedding`, which Megatron-Bridge leaves out."""
    return {name.replace("backbone.embedding.", "backbone.embeddings."): tensor for name, tensor in tensors.items()}


def language_model_alone(tensors):
    """Step 3.5 is the language model of Step 3.7."""
    return {re.sub(r"^model\.language_model\.", "model.", name): tensor for name, tensor in tensors.items() if not re.search("visi|projector", name)}


def ordinary(model_type, published=None, **members):
    """A model of that type, and members of config.json that published folders have and the class of transformers does not write."""
    def make():
        sizes = {name: value for name, value in (SIZES | members).items() if value is not None}
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **sizes))

    return Family(make, Layout(), Layout(), config=published)


def seeing(name, text, vision, **members):
    """A model with a tower; `text` and `vision` are members of its config."""
    def make():
        config = getattr(transformers, f"{name}Config")(text_config=SIZES | text, vision_config=vision, **members)
        return getattr(transformers, f"{name}ForConditionalGeneration")(config)

    return Family(make, Layout(), Layout(), keeps_parts=True)


REGISTRY = {**family_models.FAMILIES, **family_models_hybrid.FAMILIES, **family_models_more.FAMILIES, **family_models_vision.FAMILIES,
            **family_models_remote.FAMILIES, **family_models_kinds.FAMILIES}
for name in ("nemotron-h", "nemotron-3", "nemotron-3-latent"):
    saved = REGISTRY[name].add or dict
    REGISTRY[name] = replace(REGISTRY[name], add=lambda tensors, saved=saved: with_published_embedding(saved(tensors)))
ORDINARY = {
    "usual-gpt-oss": ordinary("gpt_oss", num_local_experts=4, num_experts_per_tok=2, intermediate_size=40),
    "usual-qwen3-moe": ordinary("qwen3_moe", **ROUTED, num_experts=4, mlp_only_layers=[], decoder_sparse_step=1),
    "usual-glm4-moe": ordinary("glm4_moe", **ROUTED, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, use_qk_norm=True,
                               num_nextn_predict_layers=0),
    "usual-glm-4.7-flash": ordinary("glm4_moe_lite", **LATENT_ROUTED, mlp_layer_types=["dense"] + ["sparse"] * 3),
    "usual-glm-5": ordinary("glm_moe_dsa", dict(indexer_rope_interleave=True), **LATENT_ROUTED, index_n_heads=2, index_head_dim=16, index_topk=6),
    "usual-hy-v3": ordinary("hy_v3", dict(first_k_dense_replace=1), **ROUTED, num_experts=4, num_shared_experts=1, first_k_dense_replace=1),
    "usual-deepseek-v2": ordinary("deepseek_v2", **LATENT_ROUTED),
    "usual-olmoe": ordinary("olmoe", head_dim=None, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, intermediate_size=24),
    "usual-qwen3-next": ordinary("qwen3_next", **ROUTED, **DELTA, num_experts=4, shared_expert_intermediate_size=24),
    "usual-qwen3.5": ordinary("qwen3_5_text", **DELTA),
    "usual-gemma3": ordinary("gemma3_text", **WINDOWS),
    "usual-exaone4": ordinary("exaone4", **WINDOWS, tie_word_embeddings=True),
    "usual-nemotron-h": replace(ordinary("nemotron_h", **ROUTED, **HYBRID), add=with_published_embedding),
    "usual-qwen2.5-vl": seeing(
        "Qwen2_5_VL", dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3])),
        dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=64, fullatt_block_indexes=[1])),
    "usual-qwen3.5-vl": seeing("Qwen3_5", DELTA, dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=64)),
    "usual-minimax-m2": ordinary("minimax_m2", num_local_experts=4, num_experts_per_tok=2, intermediate_size=24),
    "usual-ling-2": one_layout(
        dense("Glm4Moe", **ROUTED_LING | dict(n_shared_experts=1, num_nextn_predict_layers=1)), add=ling_with_mtp,
        config=published("ling-mini-2.0", num_nextn_predict_layers=1, routed_scaling_factor=1.0,
                         **LING | dict(num_shared_experts=1, moe_shared_expert_intermediate_size=24))),
    "kimi-k2": replace(REGISTRY["deepseek-v3"], config=dict(model_type="kimi_k2", scoring_func="sigmoid")),
    "qwen2.5-omni-whole": omni("Qwen2_5Omni", OMNI_2),
    "qwen3-omni-whole": omni("Qwen3OmniMoe", OMNI_3),
    "ernie-4.5-vl": family_models_kinds.WITHOUT_MEGATRON["ernie4-5-vl"],
    "usual-falcon-h1": ordinary("falcon_h1", **FALCON),
    "usual-falcon-h1-norm": ordinary("falcon_h1", **FALCON, mamba_rms_norm=True),
    "usual-glm4v-moe": with_text(
        "Glm4vMoe", SIZES | ROUTED | HALF | dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1),
        GLM_TOWER | dict(out_hidden_size=64), dict(use_qk_norm=False), keeps_parts=True),
    "usual-gemma4": ordinary("gemma4_text", **GEMMA | dict(hidden_size_per_layer_input=0)),
    "usual-gemma4-moe": ordinary("gemma4_text", **GEMMA_EXPERTS),
    "usual-gemma4-vl": seeing_gemma(GEMMA),
    "usual-gemma4-vl-moe": seeing_gemma(GEMMA_EXPERTS),
    "usual-mimo-v2-flash": one_layout(of("MiMoV2Flash", **MIMO), config=published("mimo-v2-flash", **MIMO | NOT_PUBLISHED | dict(
        swa_num_attention_heads=4, swa_num_key_value_heads=4, sliding_window_size=8, hybrid_layer_pattern=[0, 1, 1, 1], moe_layer_freq=[0, 1, 1, 1]))),
    "step-3.5": one_layout(
        around("Step3p7ForConditionalGeneration", "Step3p7Config", text_config=STEP, vision_config=STEP_TOWER), add=language_model_alone,
        config=published("step-3.5-flash", **SIZES, num_attention_groups=2, layer_types=STEP["layer_types"], sliding_window=8, moe_layers_enum="1,2,3",
                         moe_num_experts=4, moe_top_k=2, moe_intermediate_size=24, share_expert_dim=28, num_nextn_predict_layers=0,
                         attention_other_setting=dict(
                             attention_type="sliding_attention", num_attention_heads=8, num_attention_groups=2, head_dim=16),
                         rope_theta=[5e6, 1e4, 1e4, 1e4], partial_rotary_factors=[0.5, 1.0, 1.0, 1.0], text_config=None, vision_config=None)),
}
# Their classes, or the published names that the registry makes of names in memory, are of newer releases than the transformers of Megatron-Bridge.
BY_NEWER = {
    "internlm3", "kimi-k2.5", "kimi-k2.5-saved", "mimo-v2-flash", "mimo-v2-flash-mtp", "nemotron-omni", "qwen2-audio", "qwen3-asr", "step-3.5",
    "step3p7", "step3p7-mtp", "usual-mimo-v2-flash"}


def save_named(folder, name):
    """Saves a family with the transformers of this environment, which is one that Megatron-Bridge allows, or with a newer one where that alone knows its class."""
    if name not in BY_NEWER:
        return save_with_tokenizer(folder, FAMILIES[name])
    subprocess.run([CURRENT_PYTHON, __file__, name, folder], check=True)
    return folder


def save_with_tokenizer(folder, family):
    """Megatron-Bridge saves the tokenizer of the folder that it imports."""
    save_family(folder, family)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"word{index}": index for index in range(3, 60)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>").save_pretrained(folder)
    return folder


FAMILIES = REGISTRY | ORDINARY

# Why Megatron-Bridge 0.6.2 does not take a folder of the registry: it ends with an exception.
UNKNOWN = "it registers no bridge for the class"
REMOTE = "the model's own code would have to be fetched"
ATTRIBUTE = "it asks for a member that the config of transformers 5.12 does not have"
PER_LAYER = "it asks for one value of a member that differs by layer"
SHARED = "it knows one shared expert"
BIAS = "it knows no such bias, or no output layer of its own"
NO_NORM = "its model has a norm of q that the folder does not have"
NOT_TAKEN = {
    **dict.fromkeys((
        "apertus", "arcee", "arcee-biases", "cohere", "cohere-normed", "cohere2", "deepseek-v3.2", "dots1", "ernie-4.5", "ernie-4.5-biases", "flex-olmo",
        "glm4", "glm4-tied", "glm46v", "glm4v", "granite", "granite-moe", "hunyuan-dense", "hunyuan-moe", "internvl", "internvl-qwen3-in-memory",
        "internvl-qwen3-moe", "kimi-k2.5", "kimi-k2.5-saved", "llama4", "llama4-text", "llava", "mamba2", "mamba2-tied", "ministral", "ministral3", "mixtral",
        "nemotron-omni", "olmo2", "olmo2-odd", "olmo3", "phi3", "phi4-mini", "qwen2-5-omni", "qwen2-moe", "qwen2-vl", "qwen3-omni", "seed-oss",
        "seed-oss-out-bias", "smollm3", "smollm3-windows", "solar-open", "starcoder2", "starcoder2-bare"), UNKNOWN),
    **dict.fromkeys(("internvl-chat", "kimi-vl", "ling-1"), REMOTE),
    **dict.fromkeys((
        "deepseek-v4", "deepseek-v4-published", "glm-5", "glm-5-shared-indexers", "glm4v-moe", "glm4v-moe-fused", "hy-v3", "mimo-v2-flash", "mimo-v2-flash-mtp",
        "qwen3-asr"), ATTRIBUTE),
    **dict.fromkeys(("gemma4", "gemma4-moe", "gemma4-moe-values", "step3p7", "step3p7-mtp"), PER_LAYER),
    **dict.fromkeys(("glm4-moe", "glm4-moe-mtp", "ling-2"), SHARED),
    **dict.fromkeys(("internlm3", "llama-biases", "nemotron-biases", "exaone4"), BIAS),
    **dict.fromkeys(("deepseek-v2-lite", "moonlight", "sarvam-mla"), NO_NORM),
    "falcon-h1": "it takes heads of the first mixer that divide its size", "falcon-h1-norm": "it takes heads of the first mixer that divide its size",
    "olmoe": "its model has norms of q and k of another width", "qwen3.5": "it takes the dense model for one of experts",
    "mistral3": "its attention asks for a member of RoPE that the folder does not have"}
# Folders that it imports, and maps here have no form for.
NO_FORM = {
    "ernie-4.5-vl": "its layers have two sets of experts in a layer of Megatron-Bridge's own",
    **dict.fromkeys(("usual-gemma4", "usual-gemma4-vl"), "without experts it has names of Megatron-Bridge's own")}
# Folders that it imports without a word and whose weights it leaves out or changes: its own export is another model.
BRIDGES_FAULT = {
    "gpt-oss": "it takes a turned matrix for one that is not where both sizes are equal",
    "gpt-oss-mxfp4": "it writes infinity where the scale is 255",
    "qwen3-moe": "it knows no dense layers among those of experts", "qwen3-moe-fused": "it does not know experts in one tensor",
    "glm-4.7-flash": "it knows no dense layers behind the first",
    "nemotron-3-latent": "it makes one prediction layer of two",
    "qwen2.5-vl-flat": "it looks for the sections of RoPE in one place of the config alone",
    "qwen2-audio-in-memory": "it knows the published names alone", "qwen2.5-vl-in-memory": "it knows the published names alone"}
IN_FLOAT32 = {
    "exaone4.5", "gemma3", "minimax-m3", "mistral3-ministral3", "qwen2-audio", "qwen2.5-omni-whole", "qwen3-omni-whole", "qwen3-vl", "qwen3-vl-moe",
    "qwen3-vl-moe-published", "qwen3.5-moe", "usual-gemma4-vl-moe", "usual-glm4v-moe", "usual-qwen2.5-vl", "usual-qwen3.5-vl"}
# Families that run_config.yaml does not lead to, and what a job gives besides: source.config, or target.reference where the settings that Megatron-Bridge
# made contradict the folder's own.
NEEDS = {
    **dict.fromkeys((
        "exaone4.5", "gemma3", "mimo", "minimax-m3", "qwen2-audio", "qwen3-vl", "qwen3-vl-moe", "qwen3-vl-moe-published", "qwen3.5-moe",
        "qwen3.5-moe-text", "usual-gemma4-moe", "usual-gemma4-vl-moe", "usual-hy-v3", "usual-ling-2", "usual-qwen3.5", "usual-qwen3.5-vl"), "config"),
    **dict.fromkeys((
        "mistral3-ministral3", "qwen2.5-omni-whole", "qwen3-omni-whole", "step-3.5", "usual-falcon-h1", "usual-falcon-h1-norm", "usual-glm4-moe",
        "usual-glm4v-moe", "usual-mimo-v2-flash", "usual-qwen2.5-vl", "sarvam-moe"), "reference")}
# Why target.program = "megatron-bridge" is refused for a folder, or why Megatron-Bridge cannot start from it.
NOT_STARTED = {
    **dict.fromkeys(("step-3.5", "usual-falcon-h1", "usual-falcon-h1-norm", "usual-mimo-v2-flash"),
                    "Megatron-Bridge has a provider of its own for the family, and its settings are not made"),
    "ernie-4.5-moe": "Megatron-Bridge refuses its own settings of this family: they name a private function",
    "usual-gemma3": "Megatron-Bridge's Gemma 3 has windows in other layers"}
# Copies that a published folder has in its prediction layers, and neither program writes.
COPIES = ("embed_tokens.weight", "shared_head.head.weight")

if __name__ == "__main__":
    save_with_tokenizer(Path(sys.argv[2]), FAMILIES[sys.argv[1]])
