"""Modules that megatron-core does not have itself, under the names that Megatron's users give them: Gemma 3's norms, MiniMax-M2's wide norms."""

import math

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import RowParallelLinear


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


class RowLinearWithNorm(RowParallelLinear):
    """A norm behind the attention or the MLP, inside the linear that ends it."""

    def __init__(self, input_size, output_size, *, config, **keywords):
        super().__init__(input_size, output_size, config=config, **keywords)
        self.post_layernorm = CentredNorm(config, output_size, config.layernorm_epsilon)

    def forward(self, hidden):
        output, bias = super().forward(hidden)
        return self.post_layernorm(output), bias


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


def change_spec(block, args):
    """Puts what the arguments ask for into megatron-core's layers."""
    if getattr(args, "apply_layernorm_1p", False) and args.normalization == "LayerNorm":
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = CentredLayerNorm
        block.layer_norm = CentredLayerNorm
        return block
    for layer in block.layer_specs:
        attention, parts = layer.submodules.self_attention.submodules, layer.submodules
        if getattr(args, "qk_layernorm_wide", False):
            attention.q_layernorm, attention.k_layernorm = WideQueryNorm, WideKeyNorm
        if getattr(args, "apply_layernorm_1p", False):
            attention.q_layernorm = attention.k_layernorm = parts.input_layernorm = parts.pre_mlp_layernorm = CentredNorm
            attention.linear_proj = parts.mlp.submodules.linear_fc2 = RowLinearWithNorm
    if getattr(args, "apply_layernorm_1p", False):
        block.layer_norm = CentredNorm
    return block


def add_norms_behind(model):
    """GLM-4's norms behind attention and MLP, which ms-swift puts into those modules."""
    for layer in model.decoder.layers:
        for module, name in ((layer.self_attention, "post_self_attn_layernorm"), (layer.mlp, "post_mlp_layernorm")):
            norm = torch.nn.RMSNorm(model.config.hidden_size, model.config.layernorm_epsilon)
            module.register_module(name, norm)
            module.register_forward_hook(lambda _, __, output, norm=norm: (norm(output[0]), output[1]))


def scale_embeddings(model):
    """Gemma multiplies embeddings by the root of their size."""
    if model.pre_process:
        model.embedding.register_forward_hook(lambda _, __, output: output * math.sqrt(output.shape[-1]))
