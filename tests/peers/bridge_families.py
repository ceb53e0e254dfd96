"""Models for Megatron-Bridge: those of the registry of test_families.py that it takes, and others of more ordinary sizes where it asks for them."""

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import family_models_remote
import family_models_vision
from family_models import Family, save_family
from peer_types import Layout

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
    "usual-nemotron-h": ordinary("nemotron_h", **ROUTED, **HYBRID),
    "usual-qwen2.5-vl": seeing(
        "Qwen2_5_VL", dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3])),
        dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=64, fullatt_block_indexes=[1])),
    "usual-qwen3.5-vl": seeing("Qwen3_5", DELTA, dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, out_hidden_size=64)),
    "usual-minimax-m2": ordinary("minimax_m2", num_local_experts=4, num_experts_per_tok=2, intermediate_size=24),
}


def save_with_tokenizer(folder, family):
    """Megatron-Bridge saves the tokenizer of the folder that it imports."""
    save_family(folder, family)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"word{index}": index for index in range(3, 60)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>").save_pretrained(folder)
    return folder


FAMILIES = {**family_models.FAMILIES, **family_models_hybrid.FAMILIES, **family_models_more.FAMILIES, **family_models_vision.FAMILIES,
            **family_models_remote.FAMILIES, **family_models_kinds.FAMILIES, **ORDINARY}

# Why Megatron-Bridge 0.6.2 does not take a folder of the registry: it ends with an exception.
UNKNOWN = "it registers no bridge for the class"
REMOTE = "the model's own code would have to be fetched"
ATTRIBUTE = "it asks for a member that the config of transformers 5.23 does not have"
PER_LAYER = "it asks for one value of a member that differs by layer"
SHARED = "it knows one shared expert"
BIAS = "it knows no such bias, or no output layer of its own"
NO_NORM = "its model has a norm of q that the folder does not have"
NOT_TAKEN = {
    **dict.fromkeys((
        "apertus", "arcee", "arcee-biases", "cohere", "cohere-normed", "cohere2", "deepseek-v3.2", "dots1", "ernie-4.5", "ernie-4.5-biases", "flex-olmo",
        "glm4", "glm4-tied", "glm46v", "glm4v", "granite", "granite-moe", "hunyuan-dense", "hunyuan-moe", "internvl", "internvl-qwen3-in-memory",
        "internvl-qwen3-moe", "kimi-k2.5", "kimi-k2.5-saved", "llama4", "llama4-text", "llava", "mamba2", "mamba2-tied", "ministral3", "mixtral", "nemotron-omni",
        "olmo2", "olmo2-odd", "olmo3", "phi3", "phi4-mini", "qwen2-5-omni", "qwen2-moe", "qwen2-vl", "qwen3-omni", "seed-oss", "seed-oss-out-bias", "smollm3",
        "smollm3-windows", "solar-open", "starcoder2", "starcoder2-bare"), UNKNOWN),
    **dict.fromkeys(("internvl-chat", "kimi-vl", "ling-1", "mimo", "sarvam-mla", "sarvam-moe"), REMOTE),
    **dict.fromkeys((
        "deepseek-v4", "deepseek-v4-published", "glm-5", "glm-5-shared-indexers", "glm4v-moe", "glm4v-moe-fused", "hy-v3", "mimo-v2-flash", "mimo-v2-flash-mtp",
        "qwen3-asr"), ATTRIBUTE),
    **dict.fromkeys(("gemma4", "gemma4-moe", "gemma4-moe-values", "step3p7", "step3p7-mtp"), PER_LAYER),
    **dict.fromkeys(("glm4-moe", "glm4-moe-mtp", "ling-2"), SHARED),
    **dict.fromkeys(("internlm3", "llama-biases", "nemotron-biases", "exaone4"), BIAS),
    **dict.fromkeys(("deepseek-v2-lite", "moonlight"), NO_NORM),
    "falcon-h1": "it takes heads of the first mixer that divide its size", "falcon-h1-norm": "it takes heads of the first mixer that divide its size",
    "olmoe": "its model has norms of q and k of another width", "qwen3.5": "it takes the dense model for one of experts",
    "mistral3": "its attention asks for a member of RoPE that the folder does not have"}
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
    "exaone4.5", "gemma3", "minimax-m3", "mistral3-ministral3", "qwen2-audio", "qwen3-vl", "qwen3-vl-moe", "qwen3-vl-moe-published",
    "qwen3.5-moe", "usual-qwen2.5-vl", "usual-qwen3.5-vl"}
# Families that run_config.yaml does not lead to, and what a job gives besides: source.config, or target.reference where the settings that Megatron-Bridge
# made contradict the folder's own.
NEEDS = {
    **dict.fromkeys((
        "exaone4.5", "gemma3", "minimax-m3", "qwen2-audio", "qwen3-vl", "qwen3-vl-moe", "qwen3-vl-moe-published", "qwen3.5-moe", "qwen3.5-moe-text", "usual-hy-v3",
        "usual-qwen3.5", "usual-qwen3.5-vl"), "config"),
    **dict.fromkeys(("mistral3-ministral3", "usual-glm4-moe", "usual-qwen2.5-vl"), "reference")}
# Why target.program = "megatron-bridge" is refused for a folder, or why Megatron-Bridge cannot start from it.
NOT_STARTED = {
    "ernie-4.5-moe": "Megatron-Bridge refuses its own settings of this family: they name a private function",
    "usual-gemma3": "Megatron-Bridge's Gemma 3 has windows in other layers"}
# Copies that a published folder has in its prediction layers, and neither program writes.
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
