"""Modules that megatron-core takes from Transformer Engine, completed by what a `torch_dist` checkpoint asks of them.

te_stand_ins.py computes; here the same modules say how they are cut and under which keys they are kept, as megatron-core's wrappers of the
real ones do: an attention core that keeps an extra state, experts of a grouped linear under one key with the expert axis in front.
"""

import math

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

import te_stand_ins
from megatron_release import experts_of, parts_of


class KeptAttention(te_stand_ins.Attention):
    """As TEDotProductAttention: its state is in rank files, and in torch_dist only beside sinks, which no model here has; a load does not ask for it."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.register_load_state_dict_post_hook(without_states)

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        return {}


def without_states(_, incompatible):
    missing = incompatible.missing_keys
    missing[:] = [key for key in missing if not key.endswith("core_attention._extra_state")]


class LatentAttention(MegatronModule):
    """Attention whose queries and keys are wider than its values; megatron-core's own takes equal widths only."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **_):
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(self, query, key, value, attention_mask, **_):
        scores = torch.einsum("sbhd,tbhd->bhst", query.float(), key.float()) * (self.scale or 1 / math.sqrt(query.shape[-1]))
        weights = scores.masked_fill(attention_mask, -10000.0).softmax(-1)
        return torch.einsum("bhst,tbhd->sbhd", weights, value.float()).to(query.dtype).flatten(2)


class KeptGroupedLinear(te_stand_ins.GroupedLinear):
    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """One tensor for all experts: the global expert is one more axis in front of the matrix."""
        state = self.state_dict(prefix="", keep_vars=True)
        ep, edp = parallel_state.get_expert_model_parallel_group(), parallel_state.get_expert_data_parallel_group()
        kept = {}
        for local in range(self.num_gemms):
            place = (len(sharded_offsets), ep.rank() * self.num_gemms + local, ep.size() * self.num_gemms)
            one = make_sharded_tensors_for_checkpoint(
                {f"{local}.weight": state[f"weight{local}"], f"{local}._extra_state": state["_extra_state"]}, "",
                {f"{local}.weight": 0 if self.cuts_rows else 1}, (*sharded_offsets, place), tp_group=self.group, dp_cp_group=metadata["dp_cp_group"])
            replace_prefix_for_sharding(one, f"{local}.", prefix)
            kept[f"{prefix}weight{local}"] = one[f"{local}.weight"]
            kept[f"{prefix}_extra_state{local or ''}"] = one[f"{local}._extra_state"]
        for entry in kept.values():
            entry.replica_id = (*entry.replica_id[:2], edp.rank())
        return kept

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        for local in range(1, self.num_gemms):
            state_dict.pop(f"{prefix}_extra_state{local}", None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class KeptColumn(KeptGroupedLinear):
    pass


class KeptRow(KeptGroupedLinear):
    cuts_rows = False


def layer_spec(config, is_moe, form):
    """The Transformer Engine layer of te_stand_ins with modules that can be kept."""
    spec = te_stand_ins.layer_spec(config, is_moe, form)
    spec.submodules.self_attention.submodules.core_attention = KeptAttention
    if is_moe and form.experts == "grouped":
        parts_of(spec.submodules.mlp).experts = experts_of(TEGroupedMLP, KeptColumn, KeptRow)
    return spec
