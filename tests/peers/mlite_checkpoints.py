"""Checkpoints as Megatron Lite (experimental/lite of Megatron-LM) saves them: gloo processes, each with the parameters of its rank under the
names of its own module tree, as DTensors on the meshes [PP, DP, CP, TP] and [PP, EDP, EP, ETP]."""

from dataclasses import dataclass
from math import lcm
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from dcp_worlds import run_ranks


@dataclass(frozen=True)
class LiteLayout:
    world: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    stage_layers: tuple = None  # layers of each pipeline stage; evenly by default

    def dense_shape(self):
        return self.pp, self.world // (self.pp * self.tp), 1, self.tp

    def expert_shape(self):
        return self.pp, self.world // (self.pp * self.ep * self.etp), self.ep, self.etp

    def stages(self, layers):
        counts = self.stage_layers or [layers // self.pp] * self.pp
        assert sum(counts) == layers
        return [list(range(sum(counts[:stage]), sum(counts[: stage + 1]))) for stage in range(self.pp)]

    def label(self):
        return "-".join(f"{name}{getattr(self, name)}" for name in ("tp", "pp", "ep", "etp"))


def placements(name):
    """Of the four dims of the name's mesh; the first rule that fits counts."""
    if "experts" in name:
        return "R R S0 S0" if "fc1" in name else "R R S0 S1"
    if ("qkv" in name and "layer_norm" not in name) or "embed" in name or "head" in name:
        return "R R R S0"
    return "R R R S1" if "proj" in name and "attn" in name else "R R R R"


def torch_placements(name):
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if word == "R" else Shard(int(word[1:])) for word in placements(name).split()]


# --- the parameters of one rank -----------------------------------------------------------------------------------


def rank_parameters(config, tensors, layout, rank):
    """Name in the rank's own module tree -> its local tensor."""
    stage, _, _, tp = coordinate(rank, layout.dense_shape())
    layers = layout.stages(config.layers)[stage]
    result = {}
    if stage == 0:
        result["embed.embedding.weight"] = rows(padded(config, layout, tensors["embed"]), layout.tp, tp)
    for local, layer in enumerate(layers):
        result |= {f"layers.{local}.{name}": each for name, each in layer_parameters(config, tensors, layout, rank, layer).items()}
    if stage == layout.pp - 1:
        result["norm.weight"] = tensors["final_norm"]
        result["head.col.linear.weight"] = rows(padded(config, layout, tensors["head"]), layout.tp, tp)
    return {name: tensor.clone().contiguous() for name, tensor in result.items()}


def coordinate(rank, shape):
    """Row-major: the last dim counts fastest."""
    place = []
    for size in reversed(shape):
        place.append(rank % size)
        rank //= size
    return tuple(reversed(place))


def padded(config, layout, tensor):
    """Rows up to a multiple of 128 and of the tensor-parallel size; what is added is noise, as training leaves it."""
    unit = lcm(128, layout.tp)
    missing = -config.vocab % unit
    return torch.cat([tensor, torch.full((missing, tensor.shape[1]), 7.0, dtype=tensor.dtype)])


def rows(tensor, parts, part):
    return tensor.chunk(parts)[part]


def layer_parameters(config, tensors, layout, rank, layer):
    *_, tp = coordinate(rank, layout.dense_shape())
    here = f"layers.{layer}."
    groups = tensors[here + "qkv"].reshape(config.groups, -1, config.hidden)
    return {
        "attn.proj.linear.weight": tensors[here + "proj"].chunk(layout.tp, dim=1)[tp],
        "attn.qkv.linear.layer_norm_weight": tensors[here + "attn_norm"],
        "attn.qkv.linear.weight": rows(groups, layout.tp, tp).reshape(-1, config.hidden),
        "attn.q_norm.weight": tensors[here + "q_norm"],
        "attn.k_norm.weight": tensors[here + "k_norm"],
        "mlp_norm.weight": tensors[here + "mlp_norm"],
        "moe.router.gate.weight": tensors[here + "router"],
    } | {f"moe.experts.{name}": each for name, each in expert_parameters(config, tensors, layout, rank, here).items()}


def expert_parameters(config, tensors, layout, rank, here):
    """Names count the rank's own experts; a rank has the same rows of gate and of up, one behind the other."""
    _, _, ep, etp = coordinate(rank, layout.expert_shape())
    count = config.experts // layout.ep
    result = {}
    for local in range(count):
        expert = f"{here}experts.{ep * count + local}."
        gate, up = tensors[expert + "fc1"].chunk(2)
        result[f"fc1.weight{local}"] = torch.cat([rows(gate, layout.etp, etp), rows(up, layout.etp, etp)])
        result[f"fc2.weight{local}"] = tensors[expert + "fc2"].chunk(layout.etp, dim=1)[etp]
    return result


# --- saving -------------------------------------------------------------------------------------------------------


def save_on_rank(rank, config, tensors, layout, folder, broken, sidecars):
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.arange(layout.world)
    dense = DeviceMesh("cpu", ranks.reshape(layout.dense_shape()), mesh_dim_names=("pp", "dp", "cp", "tp"))
    experts = DeviceMesh("cpu", ranks.reshape(layout.expert_shape()), mesh_dim_names=("pp", "edp", "ep", "etp"))
    stage = coordinate(rank, layout.dense_shape())[0]
    prefix = f"model_pp{stage}" if layout.pp > 1 else "model"
    state = {"step": 12}
    for name, local in rank_parameters(config, tensors, layout, rank).items():
        mesh = experts if "experts" in name else dense
        state[f"{prefix}.{name}"] = as_wrapper_has_it(local, mesh) if broken else as_protocol_says(name, local, mesh)
    dcp.save(state, checkpoint_id=folder)
    if sidecars:
        torch.save({"state": {}}, Path(folder) / f"optimizer_rank_{rank}.pt")
        torch.save({"torch_rng_state": torch.get_rng_state()}, Path(folder) / f"rng_state_rank_{rank:05d}.pt")


def as_protocol_says(name, local, mesh):
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, torch_placements(name), run_check=False)


def as_wrapper_has_it(local, mesh):
    """Sharded data parallelism knows only its own mesh: the size is that of the rank's part, whatever other axes there are."""
    from torch.distributed.tensor import DTensor, Shard

    data = mesh["edp" if "edp" in mesh.mesh_dim_names else "dp"]
    mine = local.chunk(data.size())[data.get_local_rank()].contiguous()
    return DTensor.from_local(mine, data, [Shard(0)], run_check=False, shape=local.shape, stride=local.stride())


def save(config, tensors, layout, folder, broken=False, sidecars=False):
    run_ranks(save_on_rank, layout.world, config, tensors, layout, str(folder), broken, sidecars)
    return Path(folder)
