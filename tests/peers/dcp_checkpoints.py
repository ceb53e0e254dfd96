"""Jobs for megatron-core ranks: save a `torch_dist` checkpoint, load one strictly, compute with it, train one step with its optimizer.

Weights come either from a legacy tree or from the keys themselves: every element of a global tensor follows from its key and place, so any layout
of the same model holds the same numbers, and `described_values` says what must be in the files.
"""

import argparse
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import dcp_models
import megatron_models
from checkpoint_args import scheduler_state, shard_content, training_args
from dcp_models import Recipe, build_chunks, train_step, wrap_with_optimizer
from megatron_release import args_of_release, with_own_names
from numpy_megatron import SHARD_FILE, TRACKER, iteration_folder, model_key
from peer_types import LOCAL, Form, Layout
from tensor_patterns import pattern

ITERATION = 1000
PLAIN, RESHARDABLE, DP_RESHARDABLE, GATHERED = "plain", "fully_reshardable", "dp_reshardable", "dp_zero_gather_scatter"
CHAINED = "chained"  # the plain state of an optimizer of several, beside a distributed one


@dataclass(frozen=True)
class World:
    """A model on a grid of processes: `replicas` more data parallel copies of it than the layout needs. With `bucket_size` its first pipeline stage
    reduces gradients in several buckets; with `torch_adam` it trains with torch's own AdamW, which counts steps for each parameter."""

    recipe: Recipe
    layout: Layout
    form: Form = LOCAL
    replicas: int = 1
    bucket_size: int = None
    torch_adam: bool = False
    muon: str = None  # "whole" or "layer_wise": matrices have this optimizer
    frozen: tuple = ()  # patterns of names: parameters that are not trained
    scheduled: bool = False  # weight decay of groups as the trainer's scheduler sets it
    min_lr: float = None  # which groups of the optimizer state; since 0.19 a checkpoint's must be the same

    @property
    def ranks(self):
        return self.layout.world * self.replicas


def run(function, world, *arguments):
    return megatron_models.run_ranks(on_rank, world.ranks, function, world, *arguments)


def on_rank(rank, function, world, *arguments):
    dcp_models.prepare_distributed_checkpoints()
    parallel_state = megatron_models.start_parallel_state(world.layout)
    models = build_chunks(world.recipe, world.layout, world.form, parallel_state)
    dcp_models.freeze(models, world.frozen)
    return function(rank, models, world, parallel_state, *arguments)


# --- weights ------------------------------------------------------------------------------------------------------


def sharded_tensors(state):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    apply_factories(state)
    return [value for value in nested_values(state) if isinstance(value, ShardedTensor)]


def metadata(parallel_state, content=None):
    return dict(content or weights_content(), dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True))


def weights_content():
    return {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}


def fill(models, world, parallel_state):
    """Every parameter and saved buffer gets the values its key and place stand for."""
    for model in models:
        for shard in sharded_tensors(model.sharded_state_dict(metadata=metadata(parallel_state))):
            whole = key_values(shard.key, shard.global_shape, shard.data.dtype, world.recipe.config)
            region = tuple(slice(start, start + extent) for start, extent in zip(shard.global_offset, full_extents(shard)))
            with torch.no_grad():
                shard.data.copy_(whole[region].reshape(shard.data.shape))


def full_extents(shard):
    return (1,) * shard.prepend_axis_num + tuple(shard.local_shape)


def key_values(key, shape, dtype, config):
    """Vocabulary rows beyond the vocabulary are zero, however many a layout pads with."""
    padded = key in ("embedding.word_embeddings.weight", "output_layer.weight")
    values = pattern(key, (config.vocab, *shape[1:]) if padded else tuple(shape), torch.float32)
    if "norm" in key:
        values = 1 + values
    if padded:
        values = torch.cat([values, values.new_zeros(shape[0] - config.vocab, *shape[1:])])
    return values.to(dtype)


def load_legacy(models, world, parallel_state, tree):
    name = megatron_models.my_directory(world.layout, parallel_state)
    content = torch.load(iteration_folder(tree) / name / SHARD_FILE, weights_only=False)
    for vpp in range(world.layout.vpp):
        content[model_key(world.layout, vpp)] = with_own_names(content[model_key(world.layout, vpp)])
    megatron_models.load_strictly(models, content, world.layout)


def set_weights(models, world, parallel_state, tree):
    fill(models, world, parallel_state) if tree is None else load_legacy(models, world, parallel_state, tree)


# --- saving -------------------------------------------------------------------------------------------------------


def content_of(kind):
    """What megatron.training records about the naming of optimizer keys."""
    content = weights_content()
    if kind not in (None, PLAIN):
        content["distrib_optim_sharding_type"] = DP_RESHARDABLE if kind == CHAINED else kind
    if kind == RESHARDABLE:
        content["distrib_optim_fully_reshardable_mem_efficient"] = False
    return content


def state_of(models, world, parallel_state, content, optimizer=None, is_loading=False):
    """The state dict in the order of megatron.training."""
    versioned = metadata(parallel_state, content)
    state = {} if is_loading else {"args": training_args_of(world), "checkpoint_version": 3.0, "iteration": ITERATION}
    for vpp, model in enumerate(models):
        state[model_key(world.layout, vpp)] = model.sharded_state_dict(metadata=versioned)
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=is_loading, metadata=versioned)
    if not is_loading:
        state["opt_param_scheduler"] = scheduler_state()
        state["num_floating_point_operations_so_far"] = 123456789.0
    return state


def training_args_of(world):
    """What training's own parser would hold: megatron-core's settings have the same names there."""
    args = args_of_release(training_args(world.recipe.config, world.layout, world.form))
    named = dict(
        iteration=ITERATION, multi_latent_attention=world.recipe.mla, mtp_num_layers=world.recipe.mtp or None, data_parallel_size=world.replicas,
        world_size=world.ranks, add_bias_linear=world.recipe.layer_norm, position_embedding_type=world.recipe.position, ckpt_format="torch_dist",
        normalization="LayerNorm" if world.recipe.layer_norm else "RMSNorm", use_dist_ckpt=True, overlap_grad_reduce=world.bucket_size is not None,
        ddp_bucket_size=world.bucket_size, ddp_num_buckets=None, accumulate_allreduce_grads_in_fp32=True)
    vars(args).update(named | world.recipe.settings)
    return args


def run_state(parallel_state, rank):
    """Random number and rerun state as megatron.training shards them."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    tp, pp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    sizes = parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_world_size()
    random_state = [{"random_rng_state": (3, (1, 2, 3), None), "torch_rng_state": torch.arange(16, dtype=torch.uint8) + pp * 4 + tp}]
    replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    return {
        "rng_state": ShardedObject("rng_state", random_state, sizes, (pp, tp), replica_id=replica),
        "rerun_state_machine": {
            "mode": "disabled",
            "sharded": ShardedObject("rerun_state_machine_state", {"rank": rank}, (dist.get_world_size(),), (rank,), replica_id=0)},
    }


def save_state(rank, state, root, content):
    from megatron.core import dist_checkpointing

    folder = Path(root) / f"iter_{ITERATION:07d}"
    if rank == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(state, str(folder), content_metadata=content)
    if rank == 0:
        (Path(root) / TRACKER).write_text(str(ITERATION))


def save_on_rank(rank, models, world, parallel_state, root, tree, with_run_state):
    set_weights(models, world, parallel_state, tree)
    state = state_of(models, world, parallel_state, weights_content())
    if with_run_state:
        state |= run_state(parallel_state, rank)
    save_state(rank, state, root, weights_content())


def save(world, root, tree=None, with_run_state=False):
    """A checkpoint written by megatron-core; weights of a legacy tree of the same layout, or those the keys stand for."""
    run(save_on_rank, world, str(root), tree and str(tree), with_run_state)
    return Path(root)


def save_legacy_on_rank(rank, models, world, parallel_state, root):
    """One mp_rank file per model parallel rank, as megatron.training's older format has them."""
    fill(models, world, parallel_state)
    states = {model_key(world.layout, vpp): model.state_dict_for_save_checkpoint() for vpp, model in enumerate(models)}
    folder = Path(root) / f"iter_{ITERATION:07d}" / megatron_models.my_directory(world.layout, parallel_state)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(shard_content(training_args_of(world), states), folder / SHARD_FILE)


def save_legacy(world, root):
    run(save_legacy_on_rank, world, str(root))
    (Path(root) / TRACKER).write_text(str(ITERATION))
    return Path(root)


# --- loading ------------------------------------------------------------------------------------------------------


def load_legacy_on_rank(rank, models, world, parallel_state, tree):
    load_legacy(models, world, parallel_state, tree)
    return pieces(models, parallel_state)


def load_legacy_tree(world, tree):
    """What megatron-core's models hold after a strict load of a legacy tree, as whole tensors."""
    return joined(run(load_legacy_on_rank, world, str(tree)))


def load_state(state, root, strict):
    from megatron.core import dist_checkpointing
    from megatron.core.safe_globals import register_safe_globals

    register_safe_globals()
    with tolerant_of_training_args():
        return dist_checkpointing.load(state, str(iteration_folder(root)), strict=strict)


@contextmanager
def tolerant_of_training_args():
    """Loading common state stays restricted to harmless classes; the ones training's own args hold are registered by megatron.training."""
    import signal

    with torch.serialization.safe_globals([argparse.Namespace, signal.Signals]):
        yield


def load_on_rank(rank, models, world, parallel_state, root, tokens, strict):
    for model in models:  # nothing of the source may already be there
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 7.0)
    state = state_of(models, world, parallel_state, weights_content(), is_loading=True)
    loaded = load_state(state, root, strict)
    for vpp, model in enumerate(models):
        model.load_state_dict(loaded[model_key(world.layout, vpp)], strict=True)
    logits = None if tokens is None else logits_of(models, world, parallel_state, tokens)
    return logits, pieces(models, parallel_state)


def logits_of(models, world, parallel_state, tokens):
    for model in models:
        model.eval()
    with torch.no_grad():
        return megatron_models.forward(models, tokens, world.recipe.config, world.layout, parallel_state)


def pieces(models, parallel_state):
    """(key, global shape, offset, values) of everything this rank's models hold."""
    found = []
    for model in models:
        for shard in sharded_tensors(model.sharded_state_dict(metadata=metadata(parallel_state))):
            found.append((shard.key, tuple(shard.global_shape), tuple(shard.global_offset), shard.data.detach().reshape(full_extents(shard)).clone()))
    return found


def joined(results):
    """Key -> whole tensor out of all ranks' pieces; replicas must agree, nothing may be missing."""
    wholes, covered = {}, {}
    for key, shape, offset, data in (piece for found in results for piece in found):
        whole = wholes.setdefault(key, torch.zeros(shape, dtype=data.dtype))
        seen = covered.setdefault(key, torch.zeros(shape, dtype=torch.bool))
        region = tuple(slice(start, start + extent) for start, extent in zip(offset, data.shape))
        assert not seen[region].any() or torch.equal(whole[region], data), f"{key} at {offset}: ranks disagree"
        whole[region], seen[region] = data, True
    assert all(seen.all() for seen in covered.values()), [key for key, seen in covered.items() if not seen.all()][:4]
    return wholes


def load(world, root, tokens=None, strict="raise_all"):
    """A strict load by every rank: the logits where they were asked for, and what the models then hold as whole tensors."""
    results = run(load_on_rank, world, str(root), tokens, strict)
    logits = [result[0] for result in results if result[0] is not None]
    return (logits[0] if logits else None), joined([result[1] for result in results])


# --- training -----------------------------------------------------------------------------------------------------


def train_and_save_on_rank(rank, models, world, parallel_state, root, kind):
    fill(models, world, parallel_state)
    wrapped, optimizer = wrap_with_optimizer(models, kind not in (PLAIN, CHAINED), world.bucket_size, world.torch_adam, world.muon, world.min_lr)
    for group in optimizer.param_groups if world.scheduled else ():
        group["weight_decay"] *= group["wd_mult"]
    train_step(wrapped, optimizer, 1, world.layout)
    save_state(rank, state_of(models, world, parallel_state, content_of(kind), optimizer), root, content_of(kind))
    train_step(wrapped, optimizer, 2, world.layout)
    return pieces(models, parallel_state)


def train_and_save(world, root, kind):
    """Trains one step, saves, trains one more: what the weights are then, without a checkpoint in between."""
    return joined(run(train_and_save_on_rank, world, str(root), kind))


def resume_on_rank(rank, models, world, parallel_state, root, kind, strict, content):
    wrapped, optimizer = wrap_with_optimizer(models, kind not in (PLAIN, CHAINED), world.bucket_size, world.torch_adam, world.muon, world.min_lr)
    state = state_of(models, world, parallel_state, content or content_of(kind), optimizer, is_loading=True)
    loaded = load_state(state, root, strict)
    for vpp, model in enumerate(models):
        model.load_state_dict(loaded[model_key(world.layout, vpp)], strict=True)
    optimizer.load_state_dict(loaded["optimizer"])
    train_step(wrapped, optimizer, 2, world.layout)
    return pieces(models, parallel_state)


def resume(world, root, kind, strict="raise_all", content=None):
    """Loads weights and optimizer strictly and trains the second step. `content`: what the checkpoint says of its keys, if not as its kind."""
    return joined(run(resume_on_rank, world, str(root), kind, strict, content))
