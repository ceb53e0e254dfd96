"""Modules with Transformer Engine's parameter names, computed in plain torch on top of megatron-core's own layers.

Transformer Engine needs CUDA even to be installed. megatron-core only asks it for linears, so the layers, the attention, the
grouped expert module and the collectives below stay megatron-core's own; only the names inside a linear are ours: `layer_norm_weight`,
`weight<j>`, and a uint8 `_extra_state` that strict loading demands.
"""

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe.experts import SequentialMLP, TEGroupedMLP
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from megatron_release import are_experts_apart, experts_of, parts_of


class DemandsExtraState:
    """Transformer Engine's modules store a tensor and refuse a strict load without the key; megatron-core's would supply None."""

    def demand_extra_state(self):
        self._load_state_dict_pre_hooks.clear()

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        assert state is None or isinstance(state, torch.Tensor) or hasattr(state, "read"), f"extra state is a {type(state)}"


class ColumnLinear(DemandsExtraState, ColumnParallelLinear):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.demand_extra_state()


class RowLinear(DemandsExtraState, RowParallelLinear):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.demand_extra_state()


class NormColumnLinear(ColumnLinear):
    """A norm fused into the linear that follows it."""

    def __init__(self, input_size, output_size, *, config, **keywords):
        super().__init__(input_size, output_size, config=config, **keywords)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.norm_eps = config.layernorm_epsilon
        for name in ("weight", "bias"):  # Transformer Engine registers its norm first
            if name in self._parameters:
                self._parameters[name] = self._parameters.pop(name)

    def forward(self, hidden, **keywords):
        shape = (hidden.shape[-1],)
        return super().forward(torch.nn.functional.rms_norm(hidden, shape, self.layer_norm_weight, self.norm_eps), **keywords)


class Attention(DemandsExtraState, DotProductAttention):
    pass


class Norm(DemandsExtraState, torch.nn.RMSNorm):
    """The norm of recent Transformer Engine versions, which also demands its extra state; older ones have none."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps=eps)


class GroupedLinear(DemandsExtraState, torch.nn.Module):
    """Linears of all local experts as `weight0`, `weight1`..; sharded over the expert tensor group."""

    cuts_rows = True

    def __init__(self, num_gemms, input_size, output_size, *, config, bias, pg_collection, **_):
        super().__init__()
        assert not bias
        self.group = pg_collection.expt_tp
        size = self.group.size()
        rows, columns = (output_size // size, input_size) if self.cuts_rows else (output_size, input_size // size)
        self.num_gemms = num_gemms
        for index in range(num_gemms):
            weight = torch.nn.Parameter(torch.zeros(rows, columns, dtype=config.params_dtype))
            weight.allreduce = not are_experts_apart(config)  # else the optimizer has it among the experts
            self.register_parameter(f"weight{index}", weight)

    def forward(self, hidden, tokens_per_expert):
        parts = torch.split(hidden, tokens_per_expert)
        out = torch.cat([piece @ getattr(self, f"weight{index}").t() for index, piece in enumerate(parts)])
        return out, None


class GroupedColumnLinear(GroupedLinear):
    pass


class GroupedRowLinear(GroupedLinear):
    """Partial sums over the expert tensor group, left to the token dispatcher's reduce as Transformer Engine's explicit mode does."""

    cuts_rows = False


def norm_module(form):
    return Norm if form.norm_extra_state else WrappedTorchNorm


def layer_spec(config, is_moe, form):
    """The Transformer Engine layer: norms fused into linears except before a mixture of experts."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if is_moe else None, qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    layer = spec.submodules
    layer.sharded_state_dict_keys_map = {}
    layer.input_layernorm = IdentityOp
    attention = layer.self_attention.submodules
    attention.linear_qkv, attention.linear_proj, attention.core_attention = NormColumnLinear, RowLinear, Attention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = norm_module(form)
    if is_moe:
        layer.pre_mlp_layernorm = norm_module(form)
        parts_of(layer.mlp).experts = expert_spec(form.experts == "grouped")
    else:
        layer.pre_mlp_layernorm = IdentityOp
        mlp = parts_of(layer.mlp)
        mlp.linear_fc1, mlp.linear_fc2 = NormColumnLinear, RowLinear
    return spec


def expert_spec(grouped):
    if grouped:
        return experts_of(TEGroupedMLP, GroupedColumnLinear, GroupedRowLinear)
    return experts_of(SequentialMLP, ColumnLinear, RowLinear)
