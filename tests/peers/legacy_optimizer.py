"""Legacy `mp_rank` checkpoints with the optimizer state that megatron-core saves: `distrib_optim.pt` of the distributed optimizer, or state inside
`model_optim_rng.pt`."""

from pathlib import Path

import torch
import torch.distributed as dist

import dcp_checkpoints
import megatron_models
from checkpoint_args import shard_content
from dcp_checkpoints import ITERATION, PLAIN
from dcp_models import train_step, wrap_with_optimizer
from megatron_release import with_own_names
from numpy_megatron import SHARD_FILE, TRACKER, iteration_folder, model_key

DISTRIBUTED_FILE = "distrib_optim.pt"


def args_of(world, kind):
    args = dcp_checkpoints.training_args_of(world)
    args.tokenizer_type = "NullTokenizer"  # with vocab_size + 1 tokens, which do not give these rows: all of them are kept
    args.ckpt_format, args.use_dist_ckpt = "torch", False
    args.use_distributed_optimizer = kind != PLAIN
    return args


def save_on_rank(rank, models, world, parallel_state, optimizer, root, kind):
    """The order of megatron.training's own save_checkpoint: parameter state by every rank, the rest by the first of each group of replicas. (Its
    releases 0.10 to 0.17 ask for the first of the experts' groups alone, and lose the files of ranks that hold no first expert.)"""
    folder = Path(root) / f"iter_{ITERATION:07d}" / megatron_models.my_directory(world.layout, parallel_state)
    folder.mkdir(parents=True, exist_ok=True)
    if kind != PLAIN:
        optimizer.save_parameter_state(str(folder / DISTRIBUTED_FILE))
    if 0 in (parallel_state.get_expert_data_parallel_rank(), parallel_state.get_data_parallel_rank(with_context_parallel=True)):
        states = {model_key(world.layout, vpp): model.state_dict_for_save_checkpoint() for vpp, model in enumerate(models)}
        content = shard_content(args_of(world, kind), states)
        content["optimizer"] = optimizer.state_dict()
        torch.save(content, folder / SHARD_FILE)
    dist.barrier()


def train_and_save_on_rank(rank, models, world, parallel_state, root, kind):
    dcp_checkpoints.fill(models, world, parallel_state)
    wrapped, optimizer = wrap_with_optimizer(models, kind != PLAIN, world.bucket_size, world.torch_adam)
    train_step(wrapped, optimizer, 1, world.layout)
    save_on_rank(rank, models, world, parallel_state, optimizer, root, kind)
    train_step(wrapped, optimizer, 2, world.layout)
    return dcp_checkpoints.pieces(models, parallel_state)


def train_and_save(world, root, kind):
    """Trains one step, saves, trains one more: what the weights are then, without a checkpoint in between."""
    result = dcp_checkpoints.joined(dcp_checkpoints.run(train_and_save_on_rank, world, str(root), kind))
    (Path(root) / TRACKER).write_text(str(ITERATION))
    return result


def resume_on_rank(rank, models, world, parallel_state, root, kind):
    """As megatron.training's load_checkpoint does."""
    wrapped, optimizer = wrap_with_optimizer(models, kind != PLAIN, world.bucket_size, world.torch_adam)
    folder = iteration_folder(root) / megatron_models.my_directory(world.layout, parallel_state)
    content = torch.load(folder / SHARD_FILE, weights_only=False)
    for vpp in range(world.layout.vpp):
        content[model_key(world.layout, vpp)] = with_own_names(content[model_key(world.layout, vpp)])
    megatron_models.load_strictly(models, content, world.layout)
    optimizer.load_state_dict(content["optimizer"])
    if kind != PLAIN:
        with torch.no_grad():  # F32 weights are their own masters, which torch lets nobody write to
            optimizer.load_parameter_state(str(folder / DISTRIBUTED_FILE))
    train_step(wrapped, optimizer, 2, world.layout)
    return dcp_checkpoints.pieces(models, parallel_state)


def resume(world, root, kind):
    """Loads weights and optimizer as training would and trains the second step."""
    return dcp_checkpoints.joined(dcp_checkpoints.run(resume_on_rank, world, str(root), kind))
