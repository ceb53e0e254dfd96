"""megatron-core's own forward on CPU for what the models of megatron_models.py lack: latent attention, the gated delta net.

transformers' config says what to build, so that a wrong argument in a map cannot excuse a wrong weight.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from megatron_models import SHARD_FILE, forward, iteration_folder, load_strictly, my_directory, run_ranks, start_parallel_state
from megatron_release import parts_of
from peer_types import TE_SEQUENTIAL


def common_config(config, layout):
    return dict(
        num_layers=config.num_hidden_layers, hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads,
        ffn_hidden_size=config.intermediate_size, use_cpu_initialization=True, tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp, expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp,
        num_layers_in_first_pipeline_stage=layout.first_stage_layers, num_layers_in_last_pipeline_stage=layout.last_stage_layers,
        pipeline_dtype=torch.float32, params_dtype=torch.float32, add_bias_linear=False, gated_linear_unit=True, activation_func=F.silu,
        normalization="RMSNorm", layernorm_epsilon=config.rms_norm_eps, hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False)


def moe_config(config, moe_layers, shared, **router):
    return dict(
        num_moe_experts=getattr(config, "n_routed_experts", None) or config.num_experts,
        moe_ffn_hidden_size=config.moe_intermediate_size, moe_router_topk=config.num_experts_per_tok, moe_layer_freq=moe_layers,
        moe_shared_expert_intermediate_size=shared, moe_router_dtype="fp32", moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="allgather", moe_grouped_gemm=False, **router)


def latent_config(config, layout):
    """DeepSeek-V2 (softmax over all, then the best) or V3 (sigmoid, a bias that only chooses, the best groups first)."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    biased = config.model_type == "deepseek_v3"
    router = dict(
        moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_num_groups=config.n_group,
        moe_router_group_topk=config.topk_group) if biased else dict(moe_router_score_function="softmax", moe_router_pre_softmax=True)
    moe_layers = [int(layer >= config.first_k_dense_replace) for layer in range(config.num_hidden_layers)]
    shared = config.n_shared_experts * config.moe_intermediate_size
    return MLATransformerConfig(
        multi_latent_attention=True, q_lora_rank=config.q_lora_rank, kv_lora_rank=config.kv_lora_rank, qk_head_dim=config.qk_nope_head_dim,
        qk_pos_emb_head_dim=config.qk_rope_head_dim, v_head_dim=config.v_head_dim, qk_layernorm=True, rope_type="rope",
        rotary_base=config.rope_parameters["rope_theta"], rotary_percent=1.0, apply_rope_fusion=False,
        moe_router_topk_scaling_factor=config.routed_scaling_factor, **common_config(config, layout),
        **moe_config(config, moe_layers, shared, **router))


class CausalAttention(torch.nn.Module):
    """Softmax attention without weights: megatron-core's own for CPUs takes keys and values of one size only."""

    def __init__(self, softmax_scale=None, **_):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **_):
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
        weights = scores.masked_fill(attention_mask, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,kbhd->qbhd", weights, value).flatten(2)


def build_latent(config, layout, parallel_state):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import multi_latent_attention

    multi_latent_attention.TELinear = type("Absent", (), {})  # asked for with isinstance, and None without Transformer Engine
    core = latent_config(config, layout)
    spec = get_gpt_decoder_block_spec(core, use_transformer_engine=False, normalization="RMSNorm")
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = CausalAttention
    return gpt_model(GPTModel, core, spec, config, layout, parallel_state)


# --- gated delta net ----------------------------------------------------------------------------------------------


def plain_norm_column():
    """A norm fused into its linear that loads without Transformer Engine's extra state, which these modules' files do not have."""
    from te_stand_ins import NormColumnLinear

    class PlainNormColumn(NormColumnLinear):
        def demand_extra_state(self):
            pass

    return PlainNormColumn


def centred(norm):
    """Transformer Engine's norm with layernorm_zero_centered_gamma: the weight is its difference from 1."""

    class ZeroCentred(norm):
        def forward(self, hidden, *arguments, **keywords):
            weight = getattr(self, "layer_norm_weight", None)
            if weight is None:
                return F.rms_norm(hidden, (hidden.shape[-1],), self.weight + 1, self.eps)
            normed = F.rms_norm(hidden, (hidden.shape[-1],), weight + 1, self.norm_eps)
            return super(NormColumnLinear, self).forward(normed, *arguments, **keywords)

    from te_stand_ins import NormColumnLinear

    return ZeroCentred


def delta_config(config, layout):
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe = moe_config(config, [1] * config.num_hidden_layers, config.shared_expert_intermediate_size, moe_shared_expert_gate=True)
    return TransformerConfig(
        num_query_groups=config.num_key_value_heads, kv_channels=config.head_dim, qk_layernorm=True, attention_output_gate=True,
        layernorm_zero_centered_gamma=True, deterministic_mode=True, experimental_attention_variant="gated_delta_net",
        linear_attention_freq=[int(kind == "linear_attention") for kind in config.layer_types], linear_conv_kernel_dim=config.linear_conv_kernel_dim,
        linear_key_head_dim=config.linear_key_head_dim, linear_value_head_dim=config.linear_value_head_dim,
        linear_num_key_heads=config.linear_num_key_heads, linear_num_value_heads=config.linear_num_value_heads,
        **common_config(config, layout), **moe)


def delta_layer(core, delta):
    """megatron-core's layer with linears and norms that need no Transformer Engine."""
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel.layers import RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec
    from te_stand_ins import Norm, layer_spec

    norm, column = centred(Norm), centred(plain_norm_column())
    spec = layer_spec(core, True, TE_SEQUENTIAL)
    layer = spec.submodules
    attention = layer.self_attention.submodules
    attention.linear_qkv, attention.q_layernorm, attention.k_layernorm, layer.pre_mlp_layernorm = column, norm, norm, norm
    if delta:
        parts = GatedDeltaNetSubmodules(in_proj=column, out_norm=norm, out_proj=RowParallelLinear)
        layer.self_attention = ModuleSpec(module=GatedDeltaNet, submodules=parts)
    return spec, norm


def build_delta(config, layout, parallel_state):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.ssm import gated_delta_net
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    # The package of its kernels needs a GPU; with deterministic_mode megatron-core computes in torch, but for this norm.
    gated_delta_net.HAVE_FLA = True
    gated_delta_net.l2norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    core = delta_config(config, layout)
    first = get_transformer_layer_offset(core)
    pairs = [delta_layer(core, core.linear_attention_freq[layer]) for layer in range(first, first + get_num_layers_to_build(core))]
    spec = TransformerBlockSubmodules(layer_specs=[layer for layer, _ in pairs], layer_norm=pairs[0][1])
    percent = config.rope_parameters["partial_rotary_factor"]
    return gpt_model(GPTModel, core, spec, config, layout, parallel_state, rotary_percent=percent)


# --- Mamba --------------------------------------------------------------------------------------------------------

TURNS = {  # what megatron-core asks of einops, which is not installed
    "l b d -> b l d": lambda x: x.transpose(0, 1), "b l d -> b d l": lambda x: x.transpose(1, 2), "b d l -> b l d": lambda x: x.transpose(1, 2),
    "b l (h p) -> b l h p": lambda x, p: x.unflatten(-1, (-1, p)), "b l (g n) -> b l g n": lambda x, n: x.unflatten(-1, (-1, n)),
    "b l h p -> l b (h p)": lambda x: x.transpose(0, 1).flatten(2)}


def scan(x, dt, A, B, C, chunk_size, D, z, dt_bias, dt_softplus, **_):
    """The recurrence of Mamba 2, one token after the other: state = exp(dt A) state + dt B x, and C reads it."""
    heads = x.shape[2] // B.shape[2]
    B, C, dt = B.repeat_interleave(heads, 2), C.repeat_interleave(heads, 2), F.softplus(dt + dt_bias)
    state, read = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[-1]), []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None]
        state = torch.exp(step * A[:, None, None]) * state + step * x[:, t, :, :, None] * B[:, t, :, None, :]
        read.append((state * C[:, t, :, None, :]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(read, 1)


class GatedNorm(torch.nn.Module):
    """The norm behind Mamba's gate, over each group."""

    def __init__(self, size, eps, group_size, **_):
        super().__init__()
        self.weight, self.eps, self.group_size = torch.nn.Parameter(torch.ones(size)), eps, group_size

    def forward(self, hidden, gate):
        grouped = (hidden * F.silu(gate)).unflatten(-1, (-1, self.group_size))
        return F.rms_norm(grouped, (self.group_size,), eps=self.eps).flatten(-2) * self.weight


def mamba_config(config, layout):
    from megatron.core.activations import squared_relu
    from megatron.core.transformer.transformer_config import TransformerConfig

    config.rms_norm_eps = config.layer_norm_epsilon
    moe = moe_config(
        config, 1, config.moe_shared_expert_intermediate_size, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=config.routed_scaling_factor) if "moe" in config.layers_block_type else {}
    return TransformerConfig(
        num_query_groups=config.num_key_value_heads, kv_channels=config.head_dim, is_hybrid_model=True, mamba_state_dim=config.ssm_state_size,
        mamba_head_dim=config.mamba_head_dim, mamba_num_groups=config.n_groups, mamba_num_heads=config.mamba_num_heads, use_mamba_mem_eff_path=False,
        **common_config(config, layout) | moe | dict(gated_linear_unit=False, activation_func=squared_relu))


def mamba_spec(core):
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec
    from megatron.core.tensor_parallel.layers import RowParallelLinear
    from te_stand_ins import Attention, Norm, RowLinear

    parts, column = mamba_stack_spec.submodules, plain_norm_column()  # changed in place: this process builds nothing else
    mixer, attention, mlp = (getattr(parts, f"{kind}_layer").submodules for kind in ("mamba", "attention", "mlp"))
    mixer.mixer.submodules.in_proj, mixer.mixer.submodules.out_proj = column, RowParallelLinear
    inner = attention.self_attention.submodules
    inner.linear_qkv, inner.core_attention, inner.linear_proj = column, Attention, RowLinear
    parts_of(mlp.mlp).linear_fc1, parts_of(mlp.mlp).linear_fc2 = column, RowLinear
    parts.moe_layer.submodules.pre_mlp_layernorm = Norm
    parts.moe_layer.submodules.mlp = get_moe_module_spec(use_te=False, num_experts=core.num_moe_experts or 1, moe_grouped_gemm=False)
    return mamba_stack_spec


def build_mamba(config, layout, parallel_state):
    from megatron.core.models.mamba import MambaModel
    from megatron.core.ssm import mamba_block, mamba_context_parallel, mamba_mixer
    from te_stand_ins import Norm

    mamba_mixer.HAVE_MAMBA_SSM = mamba_mixer.HAVE_EINOPS = mamba_context_parallel.HAVE_EINOPS = True
    mamba_mixer.rearrange = lambda tensor, how, **sizes: TURNS[how](tensor, **sizes)
    mamba_mixer.mamba_chunk_scan_combined, mamba_mixer.ExtendedRMSNorm, mamba_mixer.causal_conv1d_fn = scan, GatedNorm, None
    mamba_block.TENorm = Norm
    core = mamba_config(config, layout)
    pp, unit = parallel_state.get_pipeline_model_parallel_rank(), 128 * layout.tp
    return MambaModel(
        core, mamba_spec(core), vocab_size=-(-config.vocab_size // unit) * unit, max_sequence_length=config.max_position_embeddings,
        pre_process=pp == 0, hybrid_override_pattern=config.hybrid_override_pattern, post_process=pp == layout.pp - 1).eval()


# --- running ------------------------------------------------------------------------------------------------------


def gpt_model(model_class, core, spec, config, layout, parallel_state, **options):
    pp = parallel_state.get_pipeline_model_parallel_rank()
    unit = 128 * layout.tp
    return model_class(
        core, spec, vocab_size=-(-config.vocab_size // unit) * unit, max_sequence_length=config.max_position_embeddings, pre_process=pp == 0,
        post_process=pp == layout.pp - 1, position_embedding_type="rope", rotary_base=config.rope_parameters["rope_theta"],
        share_embeddings_and_output_weights=False, **options).eval()


def logits_on_rank(rank, root, config, layout, build, tokens):
    parallel_state = start_parallel_state(layout)
    model = build(config, layout, parallel_state)
    content = torch.load(iteration_folder(root) / my_directory(layout, parallel_state) / SHARD_FILE, weights_only=False)
    load_strictly([model], content, layout)
    sizes = SimpleNamespace(hidden=config.hidden_size, vocab=config.vocab_size, dtype="float32")
    with torch.no_grad():
        return forward([model], tokens, sizes, layout, parallel_state)


def core_logits(root, config, layout, build, tokens):
    """Strictly loads every shard and returns the logits of one rank that has them."""
    results = run_ranks(logits_on_rank, layout.world, str(root), config, layout, build, tokens)
    return next(result for result in results if result is not None)
