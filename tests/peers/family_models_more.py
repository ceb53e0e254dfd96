"""More of the registry of family_models.py: families that differ from a known one in names, norms, biases, activations or experts.

Sizes are awkward on purpose: a prime vocabulary, head_dim other than hidden size / heads where the class allows it, odd numbers of heads, one group
of queries, expert counts that are no power of two, several dense layers first. `add=dict` adds nothing: it saves the folder in two files.
"""

from family_models import DENSE_A, DENSE_B, ETP_B, MOE_A, MOE_B, Family, dense
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout

PRIME = 89
TP_3 = Layout(tp=3, pp=2, first_stage_layers=2)
ROUTED = dict(num_experts_per_tok=2, intermediate_size=24)
MULTIPLIERS = dict(embedding_multiplier=12.0, logits_scaling=6.0, residual_multiplier=0.22, attention_multiplier=0.0625)
LONGROPE = dict(
    rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75, short_factor=[1.0] * 6, long_factor=[1.5] * 6,
    original_max_position_embeddings=64)


def awkward(name, **changes):
    return dense(name, **dict(vocab_size=PRIME, head_dim=10) | changes)


def plain(name, **changes):
    """Families whose class takes head_dim as hidden size / heads."""
    return dense(name, **dict(vocab_size=PRIME, head_dim=None) | changes)


NORM_FAMILIES = {
    "olmo2": Family(plain("Olmo2", num_key_value_heads=3), TP_3, DENSE_B),
    "olmo2-odd": Family(plain("Olmo2", num_attention_heads=3, num_key_value_heads=3), DENSE_B, Layout(tp=3), TE_SEQUENTIAL),
    "olmo3": Family(plain("Olmo3", sliding_window=9), DENSE_A, DENSE_B, TE_SEQUENTIAL),
    "exaone4": Family(awkward("Exaone4", num_attention_heads=5, num_key_value_heads=1, sliding_window=9), DENSE_B, Layout(tp=5), add=dict),
    "exaone4-full": Family(
        dense("Exaone4", layer_types=["full_attention"] * 5, tie_word_embeddings=True), DENSE_A, DENSE_B, TE_SEQUENTIAL,
        config=dict(sliding_window=None, sliding_window_pattern=None)),
    "gemma": Family(awkward("Gemma", head_dim=12, num_attention_heads=3, num_key_value_heads=1), Layout(tp=3), DENSE_B),
    "gemma2": Family(awkward("Gemma2", sliding_window=9), DENSE_A, DENSE_B, TE_SEQUENTIAL),
    "cohere": Family(plain("Cohere", num_key_value_heads=3), Layout(tp=3), DENSE_B),
    "cohere-normed": Family(plain("Cohere", use_qk_norm=True, tie_word_embeddings=False), DENSE_B, DENSE_A),
    "cohere2": Family(plain("Cohere2", sliding_window=9), DENSE_A, DENSE_B, TE_SEQUENTIAL),
}
ROUTED_FAMILIES = {
    "olmoe": Family(plain("Olmoe", **ROUTED, num_experts=6), MOE_A, MOE_B, TE_GROUPED),
    "olmoe-normed": Family(
        plain("Olmoe", **ROUTED | dict(num_experts_per_tok=3), num_experts=10, num_key_value_heads=6, norm_topk_prob=True), Layout(tp=2, ep=2),
        Layout(tp=3, ep=5, etp=1)),
    "dots1": Family(
        awkward("Dots1", num_experts_per_tok=2, moe_intermediate_size=24, n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=2,
                routed_scaling_factor=2.5, norm_topk_prob=True), MOE_A, MOE_B, TE_GROUPED),
    "ernie-4.5-moe": Family(plain("Ernie4_5_Moe", moe_intermediate_size=24, moe_k=2, moe_num_experts=6, moe_layer_start_index=2), MOE_A, ETP_B),
    "flex-olmo": Family(plain("FlexOlmo", **ROUTED | dict(num_experts_per_tok=3), num_experts=6, num_key_value_heads=6), MOE_A, MOE_B, TE_GROUPED),
    "granite-moe": Family(plain("GraniteMoe", **ROUTED, **MULTIPLIERS, num_local_experts=6), MOE_A, MOE_B, TE_GROUPED, add=dict),
}
DENSE_FAMILIES = {
    "ernie-4.5": Family(awkward("Ernie4_5", num_attention_heads=5, num_key_value_heads=1), DENSE_B, Layout(tp=5)),
    "ernie-4.5-biases": Family(dense("Ernie4_5", use_bias=True, tie_word_embeddings=False), DENSE_A, DENSE_B, TE_SEQUENTIAL),
    "seed-oss": Family(awkward("SeedOss"), DENSE_A, DENSE_B),
    "seed-oss-out-bias": Family(dense("SeedOss", attention_bias=False, attention_out_bias=True, mlp_bias=True), DENSE_B, DENSE_A, TE_SEQUENTIAL),
    "smollm3": Family(plain("SmolLM3", num_key_value_heads=3), Layout(tp=3), DENSE_B),
    "smollm3-windows": Family(
        plain("SmolLM3", tie_word_embeddings=False, no_rope_layers=[1, 0, 0, 1, 1], use_sliding_window=True, sliding_window=9), DENSE_B, DENSE_A),
    "ministral": Family(
        dense("Ministral", num_key_value_heads=3, sliding_window=9, layer_types=["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"]),
        TP_3, DENSE_B),
    "phi3": Family(plain("Phi3", num_key_value_heads=3), TP_3, DENSE_B),
    "phi4-mini": Family(
        plain("Phi3", hidden_size=96, tie_word_embeddings=True, sliding_window=9, rope_parameters=LONGROPE), DENSE_B, DENSE_A, TE_SEQUENTIAL,
        add=dict),
    "granite": Family(plain("Granite", **MULTIPLIERS, attention_bias=True), DENSE_A, DENSE_B),
    "arcee": Family(awkward("Arcee"), DENSE_A, DENSE_B),
    "arcee-biases": Family(dense("Arcee", attention_bias=True, mlp_bias=True, tie_word_embeddings=True), DENSE_B, DENSE_A, TE_SEQUENTIAL),
    "starcoder2": Family(plain("Starcoder2", sliding_window=9), DENSE_A, DENSE_B),
    "starcoder2-bare": Family(
        plain("Starcoder2", num_key_value_heads=3, use_bias=False, tie_word_embeddings=False), Layout(tp=3), DENSE_B, TE_SEQUENTIAL),
    "apertus": Family(plain("Apertus"), DENSE_A, DENSE_B, keeps_parts=True),
}

FAMILIES = NORM_FAMILIES | ROUTED_FAMILIES | DENSE_FAMILIES
