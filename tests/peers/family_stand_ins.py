"""Modules that megatron-core does not have itself, under the names that Megatron's users give them: Gemma's norms and those behind attention and MLP
(as in Megatron-Bridge), wide norms of q and k, xIELU (as in the Megatron that trained Apertus)."""

import math

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.identity_op import IdentityOp

from megatron_release import parts_of


class CentredNorm(torch.nn.Module):
    """RMSNorm whose weight is stored without the 1 that belongs to it."""

    def __init__(self, config, hidden_size, eps=1e-6, **_):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(self, hidden):
        return F.rms_norm(hidden, self.weight.shape, 1 + self.weight, self.eps)


class CentredLayerNorm(torch.nn.Module):
    """LayerNorm whose weight is stored without the 1 that belongs to it; megatron-core has it with Transformer Engine only."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(self, hidden):
        return F.layer_norm(hidden, self.weight.shape, 1 + self.weight, self.bias, self.eps)


class PlainNorm(CentredNorm):
    def forward(self, hidden):
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class RowLinearWithNorm(RowParallelLinear):
    """A norm behind the attention or the MLP, inside the linear that ends it."""

    norm = PlainNorm

    def __init__(self, input_size, output_size, *, config, **keywords):
        super().__init__(input_size, output_size, config=config, **keywords)
        self.post_layernorm = self.norm(config, output_size, config.layernorm_epsilon)

    def forward(self, hidden):
        output, bias = super().forward(hidden)
        return self.post_layernorm(output), bias


class RowLinearWithCentredNorm(RowLinearWithNorm):
    norm = CentredNorm


class XIELU(torch.nn.Module):
    """An activation with two weights in every layer."""

    def __init__(self):
        super().__init__()
        self.alpha_p, self.alpha_n = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))

    def forward(self, values, beta=0.5, eps=-1e-6):
        above, below = F.softplus(self.alpha_p), beta + F.softplus(self.alpha_n)
        negative = (torch.expm1(values.clamp(max=eps)) - values) * below
        return torch.where(values > 0, above * values * values, negative) + beta * values


class WideNorm(torch.nn.Module):
    """RMSNorm over all heads of a token at once; only without tensor parallelism, which would have to sum over ranks."""

    def __init__(self, config, hidden_size, eps=1e-6, **_):
        super().__init__()
        assert config.tensor_model_parallel_size == 1
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(self.heads(config) * hidden_size))

    def forward(self, states):
        return F.rms_norm(states.flatten(2), self.weight.shape, self.weight, self.eps).reshape(states.shape)


class WideQueryNorm(WideNorm):
    @staticmethod
    def heads(config):
        return config.num_attention_heads


class WideKeyNorm(WideNorm):
    @staticmethod
    def heads(config):
        return config.num_query_groups


def change_spec(block, args, norms_after):
    """Puts what the arguments ask for into megatron-core's layers; they do not say whether norms follow attention and MLP."""
    centred = getattr(args, "apply_layernorm_1p", False)
    if centred and args.normalization == "LayerNorm":
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = CentredLayerNorm
        block.layer_norm = CentredLayerNorm
        return block
    for layer in block.layer_specs:
        attention, parts = layer.submodules.self_attention.submodules, layer.submodules
        if getattr(args, "qk_layernorm_wide", False):
            attention.q_layernorm, attention.k_layernorm = WideQueryNorm, WideKeyNorm
        if centred:
            parts.input_layernorm = parts.pre_mlp_layernorm = CentredNorm
        if centred and args.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = CentredNorm
        if getattr(args, "no_input_norm", False):
            parts.input_layernorm = IdentityOp
        if getattr(args, "no_pre_mlp_norm", False):
            parts.pre_mlp_layernorm = IdentityOp
        if norms_after:
            attention.linear_proj = parts_of(parts.mlp).linear_fc2 = RowLinearWithCentredNorm if centred else RowLinearWithNorm
    if centred:
        block.layer_norm = CentredNorm
    return block


def add_norms_behind(model):
    """GLM-4's norms behind attention and MLP, which ms-swift puts into those modules."""
    for layer in model.decoder.layers:
        for module, name in ((layer.self_attention, "post_self_attn_layernorm"), (layer.mlp, "post_mlp_layernorm")):
            norm = torch.nn.RMSNorm(model.config.hidden_size, model.config.layernorm_epsilon)
            module.register_module(name, norm)
            module.register_forward_hook(lambda _, __, output, norm=norm: (norm(output[0]), output[1]))


def change_activation(model):
    for layer in model.decoder.layers:
        layer.mlp.activation_func = XIELU()


def scale_embeddings(model):
    """Gemma multiplies embeddings by the root of their size."""
    if model.pre_process:
        model.embedding.register_forward_hook(lambda _, __, output: output * math.sqrt(output.shape[-1]))
