"""More of the registry of family_models.py: families of 2026, of transformers' own classes and with code of their own.

`WITHOUT_MEGATRON` are those that Megatron's formats have no form for, as in family_models_kinds.py.
"""

import re

import torch

from family_models import DENSE_A, DENSE_B, MOE, MOE_A, MOE_B, TOWER, Family, base, dense, random_like, vision_language
from family_models_hybrid import DELTA, EYES, numbered_mtp
from family_models_kinds import GEMMA_PLANES, LATENT, SPARSE, WINDOWS, around, of
from family_models_remote import QWEN3, published, renamed
from family_models_vision import ODD, ODD_A, ODD_B
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout

ROUTED = MOE | dict(num_experts=6)
TRINITY = ROUTED | dict(num_dense_layers=2, num_shared_experts=2, sliding_window=9, head_dim=10, vocab_size=89)
COHERE = ROUTED | dict(num_shared_experts=2, sliding_window=9, prefix_dense_intermediate_size=56, first_k_dense_replace=1, intermediate_size=24)
MISTRAL = dict(
    n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=3, moe_intermediate_size=24, num_experts_per_tok=2, q_lora_rank=20, kv_lora_rank=12,
    qk_rope_head_dim=8, qk_nope_head_dim=6, v_head_dim=10, num_key_value_heads=6, head_dim=None, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
        llama_4_scaling_beta=0.1, partial_rotary_factor=8 / 14))
GEMMA = base(sliding_window=9, head_dim=8, layer_types=[*WINDOWS[:4], "full_attention"])


def of_llama(tensors):
    """Experts and shared ones beside Llama's attention, in the layers behind the first: DeepSeek-MoE, whose code is remote."""
    result = {name: tensor for name, tensor in tensors.items() if ".mlp." not in name or "layers.0." in name}
    for layer in range(1, 5):
        at = f"model.layers.{layer}.mlp."
        sizes = {f"experts.{expert}": 24 for expert in range(6)} | {"shared_experts": 48}
        shapes = {f"{at}gate.weight": (6, 48)}
        for part, inter in sizes.items():
            shapes |= {f"{at}{part}.gate_proj.weight": (inter, 48), f"{at}{part}.up_proj.weight": (inter, 48), f"{at}{part}.down_proj.weight": (48, inter)}
        result |= {name: random_like(torch.empty(shape, dtype=torch.bfloat16), name) for name, shape in shapes.items()}
    return result


DEEPSEEK = dict(
    model_type="deepseek", architectures=["DeepseekForCausalLM"], n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=24,
    first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", aux_loss_alpha=0.001, seq_aux=True, rope_theta=10000.0)


def within(prefix, head, **parts):
    """A language model inside another, with parts of these shapes beside it."""

    def add(tensors):
        result = {name.replace("lm_head.", head).replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
        return result | {name: random_like(torch.empty(shape, dtype=torch.bfloat16), name) for name, shape in parts.items()}

    return add


def onevision(model, tower):
    return within(model, "lm_head.", **{f"{tower}patch_embed.proj.weight": (24, 3, 14, 14), f"{tower}blocks.0.norm1.bias": (24,)})


MUSE = base(sliding_window=9, qk_scale_factor=2.0)
MUSE_TOWER = dict(patch_size=4, pos_emb_height=4, pos_emb_width=4, num_attention_heads=2, num_hidden_layers=2, hidden_size=24, intermediate_size=40)
LING_25 = published(
    "ling-2.5-1t", hidden_size=48, intermediate_size=60, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=6, head_dim=14, vocab_size=101,
    max_position_embeddings=128, layer_group_size=2, group_norm_size=3, q_lora_rank=28, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
    first_k_dense_replace=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, n_group=2, topk_group=1, n_routed_experts=None,
    n_shared_experts=None, rope_parameters=None)
LING_25_TWIN = {key: LING_25[key] for key in (
    "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace", "num_experts_per_tok",
    "moe_intermediate_size", "n_group", "topk_group", "vocab_size")} | dict(head_dim=None, n_routed_experts=6, n_shared_experts=1, num_nextn_predict_layers=0)


def lightning(depths=0, **members):
    """Ling 2.5, of DeepSeek-V3 with the names of Ling: its code is remote. Two of five layers have lightning attention."""
    shapes = {"query_key_value": (252, 48), "query_layernorm": (14,), "key_layernorm": (14,), "g_proj": (84, 48), "g_norm": (84,), "dense": (48, 84)}

    def add(tensors):
        other = re.compile(r"layers\.([02]\.self_attn|5\.(embed|shared_head\.head))")
        result = renamed(
            {name: tensor for name, tensor in numbered_mtp(depths)(tensors).items() if not other.search(name)},
            (r"model\.embed_tokens\.", "model.word_embeddings."), (r"\.self_attn\.o_proj\.", ".attention.dense."), (r"\.self_attn\.", ".attention."),
            (r"\.e_score_correction_bias$", ".expert_bias"), (r"\.shared_head\.norm\.", ".final_layernorm."))
        for layer in (0, 2):
            names = {f"model.layers.{layer}.attention.{name}.weight": shape for name, shape in shapes.items()}
            result |= {name: random_like(torch.empty(shape, dtype=torch.bfloat16), name) for name, shape in names.items()}
        return result

    return dict(add=add, computes=False, config=LING_25 | dict(num_nextn_predict_layers=depths) | members, map="bailing_hybrid_lightning")


EARS = {"thinker.audio_tower.conv2d1.weight": (12, 1, 3, 3), "thinker.audio_tower.layers.0.fc1.weight": (24, 16), "thinker.audio_tower.proj2.bias": (48,)}
ASR = dict(
    model_type="qwen3_asr", architectures=["Qwen3ASRForConditionalGeneration"], support_languages=["English"],
    thinker_config=dict(audio_config=dict(model_type="qwen3_asr_audio_encoder"), text_config=QWEN3 | dict(tie_word_embeddings=False)))
ONEVISION = dict(model_type="llavaonevision1_5", text_config=QWEN3 | dict(model_type="LLaVAOneVision1_5_text"), vision_config=TOWER)
OVIS = within("llm.model.", "llm.lm_head.", **{"visual_tokenizer.head.0.weight": (32, 96), "vte.weight": (36, 48)})

FAMILIES = {
    "trinity": Family(dense("Afmoe", **TRINITY), MOE_A, MOE_B, TE_GROUPED),
    "trinity-all": Family(dense("Afmoe", **TRINITY | dict(num_dense_layers=0, global_attn_every_n_layers=2)), MOE_B, MOE_A, TE_SEQUENTIAL),
    "mistral4": Family(dense("Mistral4", **MISTRAL), MOE_A, MOE_B, TE_GROUPED),
    "cohere2-moe": Family(dense("Cohere2Moe", **COHERE), MOE_A, MOE_B, TE_GROUPED),
    "cohere2-moe-rms": Family(
        dense("Cohere2Moe", **COHERE | dict(rms_norm_eps=1e-5, num_shared_experts=0, expert_selection_fn="sigmoid", prefix_dense_sliding_window_pattern=2)),
        MOE_B, MOE_A, TE_SEQUENTIAL),
    "minicpm-v": Family(
        vision_language("MiniCPMV4_6", base(**DELTA | dict(num_experts=None, model_type="qwen3_5_text")), TOWER | dict(insert_layer_id=1), insert_layer_id=1,
                        image_size=28), Layout(tp=2, pp=2, first_stage_layers=2), Layout(pp=3, first_stage_layers=1), TE_SEQUENTIAL, keeps_parts=True),
    "deepseek-moe": Family(dense("Llama", rms_norm_eps=1e-6), MOE_A, MOE_B, TE_GROUPED, add=of_llama, computes=False, config=DEEPSEEK),
    "llava-onevision": Family(
        dense("Qwen3", **ODD), ODD_A, ODD_B, add=onevision("model.", "visual."), computes=False, keeps_parts=True, config=ONEVISION,
        map="llava_onevision1_5"),
    "llava-onevision-in-memory": Family(
        dense("Qwen3", **ODD), ODD_B, ODD_A, TE_SEQUENTIAL, add=onevision("model.language_model.", "model.visual."), computes=False, keeps_parts=True,
        config=ONEVISION | dict(model_type="llava_onevision1_5")),
    "muse-glimmer": Family(
        around("MuseGlimmerForConditionalGeneration", "MuseGlimmerConfig", text_config=MUSE, vision_config=MUSE_TOWER, out_hidden_size=96,
               projector_hidden_size=20), Layout(tp=2, pp=2, first_stage_layers=2), Layout(pp=3, first_stage_layers=1), TE_SEQUENTIAL, keeps_parts=True),
    "ling-2.5": Family(dense("DeepseekV3", **LING_25_TWIN), MOE_A, MOE_B, TE_GROUPED, **lightning()),
    "ling-2.5-mtp": Family(dense("DeepseekV3", **LING_25_TWIN), MOE_B, MOE_A, TE_SEQUENTIAL, **lightning(1)),
    "qwen3-asr-published": Family(
        dense("Qwen3", **ODD), ODD_A, ODD_B, TE_SEQUENTIAL, add=within("thinker.model.", "thinker.lm_head.", **EARS), computes=False, keeps_parts=True,
        config=ASR, map="qwen3_asr_thinker"),
    "ovis": Family(
        dense("Qwen3", **ODD), ODD_B, ODD_A, TE_SEQUENTIAL, add=OVIS, computes=False, keeps_parts=True,
        config=dict(model_type="ovis2_5", llm_config=QWEN3, vit_config=TOWER, visual_vocab_size=36)),
}

INDEXED = dict(LATENT, **MOE, n_routed_experts=6, n_shared_experts=1, q_lora_rank=28, index_n_heads=3, index_head_dim=8, index_topk=4, hc_mult=3)
DELTA_TYPES = ["linear_attention", "indexed_attention", "linear_attention", "linear_attention", "indexed_attention"]
LIGHTNING = ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"]
GLM = base(**INDEXED | dict(qk_rope_head_dim=0, linear_head_dim=10, linear_num_heads=3, index_kpool=2, layer_types=DELTA_TYPES, mlp_layer_types=SPARSE))
NGRAMS = dict(ple_layer_ids=[3], ple_embed_dim=24, heads_per_ngram=2, ngram_vocab_size_base=11, make_ngram_vocab_size_divisible_by=4, split_ngram_parts=4)
QSA = dict(indexer_n_heads=3, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=8, indexer_compress_ratio=4)
QWEN4 = base(**DELTA | NGRAMS | QSA | dict(hc_count=3, hc_lowrank=7, layer_types=DELTA_TYPES, rope_parameters=dict(
    rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[1, 1, 0])))
ALTUP = base(
    sliding_window=9, intermediate_size=60, num_kv_shared_layers=2, hidden_size_per_layer_input=6, vocab_size_per_layer_input=90, laurel_rank=5,
    altup_num_inputs=3, activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0],
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"])
INKLING = base(
    **MOE, n_routed_experts=6, n_shared_experts=2, head_dim=10, swa_num_attention_heads=6, swa_num_key_value_heads=3, swa_head_dim=8, sliding_window_size=9,
    d_rel=4, rel_extent=16, mlp_layer_types=SPARSE, layer_types=["hybrid_sliding", "hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"])


def with_idle_keys(tensors):
    """Keys and values of the layers that use those of others, as Gemma's folders are published: layer 3 is as layer 2, layer 4 as layer 1."""
    return tensors | {
        f"model.layers.{layer}.self_attn.{part}.weight": random_like(tensors[f"model.layers.{like}.self_attn.{part}.weight"], f"{part}{layer}")
        for layer, like in ((3, 2), (4, 1)) for part in ("k_proj", "v_proj", "k_norm")}


WITHOUT_MEGATRON = {
    "laguna": Family(dense("Laguna", **ROUTED, num_attention_heads_per_layer=[6, 4, 4, 6, 4], layer_types=WINDOWS, sliding_window=9), None, None),
    "laguna-last-layer": Family(dense("Laguna", **ROUTED, num_hidden_layers=10, num_attention_heads_per_layer=[6] * 9 + [4]), None, None),
    "laguna-by-value": Family(dense("Laguna", **ROUTED, gating="per-element", attention_bias=True, mlp_layer_types=SPARSE), None, None),
    "minimax-lightning": Family(dense("MiniMax", num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, layer_types=LIGHTNING, block_size=16), None, None),
    "trinity-biases": Family(dense("Afmoe", **TRINITY, attention_bias=True), None, None),
    "hunyuan-4": Family(of("HYV4", **base(**INDEXED)), None, None),
    "glm-5-next": Family(vision_language("Glm5Next", GLM, dict(
        depth=2, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4, out_hidden_size=24, image_size=16, projection_intermediate_size=28)), None,
        None, keeps_parts=True),
    "qwen4": Family(of("Qwen4Exp", "Qwen4ExpText", **QWEN4), None, None, keeps_parts=True),
    "qwen4-eyes": Family(vision_language("Qwen4Exp", QWEN4, EYES), None, None, keeps_parts=True),
    "gemma4-unified-text": Family(of("Gemma4Unified", "Gemma4UnifiedText", **GEMMA), None, None),
    "gemma4-unified": Family(
        around("Gemma4UnifiedForConditionalGeneration", "Gemma4UnifiedConfig", text_config=GEMMA, audio_config=dict(audio_embed_dim=20)), None, None,
        keeps_parts=True),
    "gemma3n": Family(of("Gemma3n", "Gemma3nText", **ALTUP), None, None),
    "gemma3n-one-width": Family(of("Gemma3n", "Gemma3nText", **ALTUP), None, None, config=dict(intermediate_size=60)),
    "gemma3n-published": Family(of("Gemma3n", "Gemma3nText", **ALTUP), None, None, add=with_idle_keys),
    "gemma4-planes-published": Family(of("Gemma4", "Gemma4Text", **GEMMA_PLANES), None, None, add=with_idle_keys),
    "inkling": Family(
        vision_language("Inkling", INKLING, dict(patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
                        audio_config=dict(n_mel_bins=4, mel_vocab_size=8)), None, None, keeps_parts=True),
}
