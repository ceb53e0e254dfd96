"""Megatron-core models with the buffers that ModelOpt's quantisers add, saved by megatron-core in `torch_dist`.

ModelOpt itself needs a GPU and Transformer Engine. Its rules are written here after nvidia-modelopt 0.47 (quantization/plugins/megatron.py and
opt/plugins/megatron.py), and megatron-core makes and saves the sharded tensors:
- the layers of the model and `linear_fc1`'s halves are saved apart (singleton_local_shards);
- a number for the whole weight is a tensor of one element, the same on all ranks; one for each row or block has two dimensions, and is cut like the rows of a
  column parallel layer, and like the columns of a row parallel one where it is in blocks;
- the scale of the inputs is cut for a row parallel layer alone;
- quantisers of the cache are scalars; what else is known of a quantiser is in the module's `_extra_state`, a pickle in a uint8 tensor;
- the state of all modules is a checkpoint of its own beside the weights, in `modelopt_state`.
"""

import io
import types
from pathlib import Path

import torch
import torch.distributed as dist

import dcp_checkpoints
from numpy_megatron import TRACKER
from tensor_patterns import pattern

BLOCK = 16
FORMS = {  # -> of the weight's amax: rows, columns that share a number (0: all)
    "fp8": (0, 0),
    "rows": (1, 0),
    "blocks": (1, BLOCK),
    "grouped": (0, 0),  # all experts of a layer have one quantiser of their inputs, as in Transformer Engine's grouped layers
}


def shape_of(form, rows, columns):
    row, column = FORMS[form]
    if not row:
        return (1,)
    return (rows, columns // column if column else 1)


def quantiser_state(form, module, expert):
    rows, columns = module.weight.shape
    state = {"weight_quantizer._amax": torch.zeros(shape_of(form, rows, columns))}
    if form != "grouped" or not expert:
        state["input_quantizer._amax"] = torch.zeros(1)
    if FORMS[form][0]:
        state["input_quantizer._pre_quant_scale"] = torch.zeros(columns, dtype=module.weight.dtype)
    return state


def cut_axes(form, row_parallel):
    if not row_parallel:
        return {"weight_quantizer._amax": 0} if FORMS[form][0] else {}
    axes = {"input_quantizer._pre_quant_scale": 0} if FORMS[form][0] else {}
    return axes | ({"weight_quantizer._amax": 1} if form == "blocks" else {})


def settings(form):
    file = io.BytesIO()
    torch.save({"modelopt_quantizer_state": {"weight_quantizer": {"_num_bits": (4, 3), "_axis": 0 if FORMS[form][0] else None}}}, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def with_buffers(module, state, axes, extra):
    """Saves what the module has, and these buffers beside it."""
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

    original = module.sharded_state_dict

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None, **others):
        result = original(prefix, sharded_offsets, metadata, **others)
        made = make_sharded_tensors_for_checkpoint(state | ({"_extra_state": extra} if extra is not None else {}), prefix, axes, sharded_offsets)
        return result | made

    module.sharded_state_dict = types.MethodType(sharded_state_dict, module)


def quantise(models, form):
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.moe.experts import SequentialMLP

    for model in models:
        for name, module in model.named_modules():
            if isinstance(module, (ColumnParallelLinear, RowParallelLinear)) and name != "output_layer":
                row_parallel = isinstance(module, RowParallelLinear)
                with_buffers(module, quantiser_state(form, module, ".experts." in name), cut_axes(form, row_parallel), settings(form))
            elif isinstance(module, SequentialMLP) and form == "grouped":
                with_buffers(module, {f"experts.{linear}.input_quantizer._amax": torch.zeros(1) for linear in ("linear_fc1", "linear_fc2")}, {}, None)
            elif isinstance(module, DotProductAttention):
                with_buffers(module, {f"{kind}_bmm_quantizer._amax": torch.zeros(()) for kind in "kv"}, {}, None)


def rank_by_rank(values, ranks):
    """All gate rows, then all up rows, as the ranks have them: each its own of both."""
    gate, up = (half.chunk(ranks) for half in values.chunk(2))
    return torch.cat([part for both in zip(gate, up) for part in both])


def whole_values(key, shape, dtype, world):
    if "_quantizer." not in key:
        return dcp_checkpoints.key_values(key, shape, dtype, world.recipe.config)
    values = 2 + pattern(key, tuple(shape) or (1,), torch.float32).reshape(tuple(shape))
    if ".linear_fc1.weight_quantizer" in key and len(shape) == 2:
        values = rank_by_rank(values, world.layout.etp if ".experts." in key else world.layout.tp)
    return values.to(dtype)


def fill(shards, world):
    for shard in shards:
        whole = whole_values(shard.key, shard.global_shape, shard.data.dtype, world)
        region = tuple(slice(start, start + extent) for start, extent in zip(shard.global_offset, dcp_checkpoints.full_extents(shard)))
        with torch.no_grad():
            shard.data.copy_(whole[region].reshape(shard.data.shape))


def model_state(models, world, parallel_state, is_loading=False):
    content = dcp_checkpoints.weights_content() | {"singleton_local_shards": True}
    return dcp_checkpoints.state_of(models, world, parallel_state, content, is_loading=is_loading), content


def save_on_rank(rank, models, world, parallel_state, root, form):
    from megatron.core import dist_checkpointing

    quantise(models, form)
    fill(dcp_checkpoints.sharded_tensors(model_state(models, world, parallel_state)[0]), world)
    state, content = model_state(models, world, parallel_state)
    dcp_checkpoints.save_state(rank, state, root, content)
    dist.barrier()  # rank 0 writes the tracker
    beside = dcp_checkpoints.iteration_folder(Path(root)) / "modelopt_state"
    if rank == 0:
        beside.mkdir()
    dist.barrier()
    dist_checkpointing.save({"modelopt_state_dict": [["quantize", {"config": {"algorithm": "max"}, "metadata": {}}]], "modelopt_version": "0.47.0"}, str(beside))


def save(world, root, form):
    """A checkpoint of a model whose linear layers are quantised, and its values depend on the keys alone."""
    dcp_checkpoints.run(save_on_rank, world, str(root), form)
    assert (Path(root) / TRACKER).exists()
    return Path(root)


def load_on_rank(rank, models, world, parallel_state, root, form):
    quantise(models, form)
    state, _ = model_state(models, world, parallel_state, is_loading=True)
    shards = dcp_checkpoints.sharded_tensors(model_state(models, world, parallel_state, is_loading=True)[0])
    dcp_checkpoints.load_state(state, root, "raise_all")
    found = []
    for shard in shards:
        found.append((shard.key, tuple(shard.global_shape), tuple(shard.global_offset), shard.data.detach().reshape(dcp_checkpoints.full_extents(shard)).clone()))
    return found


def load(world, root, form):
    """What the ranks of a run in this layout have after a strict load, as whole tensors by key."""
    return dcp_checkpoints.joined(dcp_checkpoints.run(load_on_rank, world, str(root), form))
