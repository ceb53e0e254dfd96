"""Folders of FSDP runs with one file a rank, saved as verl's FSDPCheckpointManager does it (0.9, verl/utils/checkpoint/fsdp_checkpoint_manager.py)."""

import json
import random
import warnings
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import gloo_ranks

WORLD = 4
STEPS = 2
VOCAB = 53  # not divisible by the world, as 37
SIZES = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def config_of(kind):
    import transformers

    if "moe" in kind:
        return transformers.Qwen3MoeConfig(**SIZES, intermediate_size=36, moe_intermediate_size=16, head_dim=6, num_experts=4, num_experts_per_tok=2)
    return transformers.LlamaConfig(**SIZES, intermediate_size=36 if kind == "tp" else 37, tie_word_embeddings="tied" in kind)


def model_of(kind):
    import transformers

    torch.manual_seed(0)
    config = config_of(kind)
    model = (transformers.Qwen3MoeForCausalLM if "moe" in kind else transformers.LlamaForCausalLM)(config)
    return model.to(torch.bfloat16 if "bf16" in kind else torch.float32)


def parallel(model, kind, world):
    """FSDP2, and tensor parallelism inside where the kind says so."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if "buffer" in kind:
        for number, layer in enumerate(model.model.layers):
            layer.register_buffer("layer_scalar", torch.full((1,), 1.5 + number))
    if "tp" in kind:
        names, sizes = ("ddp", "fsdp", "tp"), ((2 if "hsdp" in kind else 1), world // 4 if "hsdp" in kind else world // 2, 2)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], plan)
        mesh = mesh["ddp", "fsdp"] if "hsdp" in kind else mesh["fsdp"]
    elif "hsdp" in kind:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("ddp", "fsdp"))
    else:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    more = {"ignored_params": {model.model.norm.weight}} if "ignored" in kind else {}
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, **more)
    if "names" in kind:
        decaying = [(name, one) for name, one in model.named_parameters() if one.ndim > 1]
        rest = [(name, one) for name, one in model.named_parameters() if one.ndim == 1]
        return model, torch.optim.AdamW([{"params": rest, "weight_decay": 0.0}, {"params": decaying, "weight_decay": 0.1}], lr=1e-3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def parallel1(model, kind, world):
    """FSDP1 with sharded state dicts: of DTensors where it was given a mesh, else of ShardedTensors."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedOptimStateDictConfig, ShardedStateDictConfig, ShardingStrategy, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    mesh = None
    if "hsdp" in kind:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("ddp", "fsdp"))
    elif "sharded-tensor" not in kind:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    layer = model.model.layers[0]
    policy = ModuleWrapPolicy({type(layer.mlp if "mlp" in kind else layer)})
    strategy = ShardingStrategy.HYBRID_SHARD if "hsdp" in kind else ShardingStrategy.FULL_SHARD
    model = FullyShardedDataParallel(
        model, device_mesh=mesh, auto_wrap_policy=policy, sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params="orig" in kind)
    FullyShardedDataParallel.set_state_dict_type(
        model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False), ShardedOptimStateDictConfig(offload_to_cpu=False))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer):
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        words = torch.randint(0, VOCAB, (2, 9))
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save_files(folder, rank, world, model, optimizer, kind):
    folder.mkdir(parents=True, exist_ok=True)
    ending = f"world_size_{world}_rank_{rank}.pt"
    torch.save(model.state_dict(), folder / f"model_{ending}")
    torch.save(optimizer.state_dict(), folder / f"optim_{ending}")
    generators = {"cpu": torch.get_rng_state(), "numpy": numpy.random.get_state(), "random": random.getstate()}
    torch.save({"lr_scheduler": {"last_epoch": STEPS}, "rng": generators}, folder / f"extra_state_{ending}")
    if rank == 0:
        config_of(kind).save_pretrained(folder / "huggingface")
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 1 if "fsdp1" in kind else 2, "world_size": world}, indent=4))


def whole(value, rank):
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if hasattr(value, "local_shards"):
        out = torch.empty(value.size(), dtype=value.dtype) if rank == 0 else None
        value.gather(0, out)
        return out
    return value.clone()


def truth_of(model, optimizer, rank, kind):
    """Flat name -> whole tensor, gathered by torch."""
    found = {name: whole(value, rank) for name, value in model.state_dict().items()}
    if "fsdp1-orig" in kind:
        return found
    if "fsdp1" in kind:
        from torch.distributed.fsdp import FullyShardedDataParallel

        state = FullyShardedDataParallel.full_optim_state_dict(model, optimizer, rank0_only=True).get("state", {})
        return found | {f"optimizer.state.{name}.{slot}": value for name, slots in state.items() for slot, value in slots.items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    in_order = [names[id(one)] for group in optimizer.param_groups for one in group["params"]]
    for number, slots in optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            found[f"optimizer.state.{in_order[number]}.{slot}"] = whole(value, rank)
    return found


def save_on_rank(rank, kinds, root):
    warnings.simplefilter("ignore")
    found = {}
    for kind in kinds:
        model = model_of(kind)
        model, optimizer = (parallel1 if "fsdp1" in kind else parallel)(model, kind, WORLD)
        if "uneven" not in kind:  # torch's own layers do not train with parts of unequal size
            train(model, optimizer)
        run = Path(root) / kind
        save_files(run / f"global_step_{STEPS}" / "actor", rank, WORLD, model, optimizer, kind)
        found[kind] = truth_of(model, optimizer, rank, kind)
        if rank == 0:
            (run / "latest_checkpointed_iteration.txt").write_text(str(STEPS))
        dist.barrier()
    return found if rank == 0 else None


def save(kinds, root):
    """Saves a run of every kind in a folder of its own; kind -> flat name -> whole tensor."""
    return gloo_ranks.run_ranks(save_on_rank, WORLD, (kinds, str(root)), "fsdp_rank_preload")[0]


def resume_on_rank(rank, kind, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    warnings.simplefilter("ignore")
    model, optimizer = parallel(model_of(kind), kind, dist.get_world_size())
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    for tensor in weights.values():
        tensor.zero_()
    wanted = {**weights, "optimizer": state}
    dcp.load(wanted, checkpoint_id=folder)
    state = wanted.pop("optimizer")
    set_state_dict(model, optimizer, model_state_dict=wanted, optim_state_dict=state, options=options)
    return truth_of(model, optimizer, rank, kind), [group["lr"] for group in optimizer.param_groups]


def resume(kind, folder, world):
    """What real torch has after it loaded a distributed checkpoint into FSDP2 on another number of ranks."""
    return gloo_ranks.run_ranks(resume_on_rank, world, (kind, str(folder)), "fsdp_rank_preload")[0]
