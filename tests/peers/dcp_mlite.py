"""Qwen3-MoE checkpoints as Megatron Lite's FSDP2 path saves them: its names, its meshes, its placements, with torch's own DTensors.

Names count layers from 0 in every pipeline stage and experts from 0 on every expert parallel rank. Data parallel wrapping is left out: a wrapper
shards what is described here once more, and the file only has finer chunks."""

from dataclasses import dataclass

import torch
import torch.distributed.checkpoint as dcp

import dcp_worlds
from dcp_worlds import Mesh

REPLICATED = "R R R R"
DENSE = (("*qkv*layer_norm*", REPLICATED), ("*qkv*", "R R R S0"), ("*attn.proj*", "R R R S1"), ("*embed*", "R R R S0"), ("*head*", "R R R S0"), ("*", REPLICATED))
EXPERTS = (("*experts.fc1*", "R R S0 S0"), ("*experts.fc2*", "R R S0 S1"))


@dataclass(frozen=True)
class Sizes:
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def stage(self):
        return max(self.tp, self.ep * self.etp)

    @property
    def world(self):
        return self.pp * self.stage

    def dense_mesh(self):
        return Mesh((("pp", self.pp), ("dp", self.stage // self.tp), ("cp", 1), ("tp", self.tp)), DENSE)

    def expert_mesh(self):
        return Mesh((("pp", self.pp), ("edp", self.stage // (self.ep * self.etp)), ("ep", self.ep), ("etp", self.etp)), EXPERTS)

    def label(self):
        return f"tp{self.tp}pp{self.pp}ep{self.ep}x{self.etp}"


def stored_tensors(config, sizes, tensors, padded_vocab):
    """(key, pipeline stage) -> whole tensor as it is in the file, out of the model's global tensors."""
    per_stage, stored = config.layers // sizes.pp, {}
    for stage in range(sizes.pp):
        prefix = f"model_pp{stage}." if sizes.pp > 1 else "model."
        state = {"embed.embedding.weight": padded(tensors["embed"], padded_vocab)} if stage == 0 else {}
        for local in range(per_stage):
            state |= layer_tensors(config, sizes, tensors, f"layers.{stage * per_stage + local}.", f"layers.{local}.")
        if stage == sizes.pp - 1:
            state |= {"norm.weight": tensors["final_norm"], "head.col.linear.weight": padded(tensors["head"], padded_vocab)}
        stored |= {(prefix + name, stage): tensor for name, tensor in state.items()}
    return stored


def padded(tensor, rows):
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], tensor.shape[1])])


def layer_tensors(config, sizes, tensors, source, here):
    state = {
        here + "attn.qkv.linear.layer_norm_weight": tensors[source + "attn_norm"], here + "attn.qkv.linear.weight": tensors[source + "qkv"],
        here + "attn.q_norm.weight": tensors[source + "q_norm"], here + "attn.k_norm.weight": tensors[source + "k_norm"],
        here + "attn.proj.linear.weight": tensors[source + "proj"], here + "mlp_norm.weight": tensors[source + "mlp_norm"],
        here + "moe.router.gate.weight": tensors[source + "router"]}
    per_rank = config.experts // sizes.ep
    for index in range(per_rank):
        owners = [f"{source}experts.{rank * per_rank + index}." for rank in range(sizes.ep)]
        state[f"{here}moe.experts.fc1.weight{index}"] = torch.cat([interleaved(tensors[owner + "fc1"], sizes.etp) for owner in owners])
        state[f"{here}moe.experts.fc2.weight{index}"] = torch.cat([tensors[owner + "fc2"] for owner in owners])
    return state


def interleaved(gate_and_up, etp):
    """Each expert tensor parallel rank has its part of the gate, then its part of the up projection."""
    gate, up = gate_and_up.chunk(2)
    return torch.cat([part for pair in zip(gate.chunk(etp), up.chunk(etp)) for part in pair])


def save_on_rank(rank, sizes, folder, stored):
    from torch.distributed.tensor import DTensor

    meshes = {False: sizes.dense_mesh(), True: sizes.expert_mesh()}
    torch_meshes = {expert: dcp_worlds.device_mesh(mesh) for expert, mesh in meshes.items()}
    state = {"step": 12}
    for (name, stage), tensor in stored.items():
        mesh, torch_mesh = meshes["experts" in name], torch_meshes["experts" in name]
        if rank // sizes.stage == stage:
            local = dcp_worlds.local_part(mesh, torch_mesh, name, tensor).clone()
            state[name] = DTensor.from_local(local, torch_mesh, dcp_worlds.torch_placements(mesh, name), run_check=False)
    dcp.save(state, checkpoint_id=folder)


def save(config, sizes, folder, tensors, padded_vocab):
    stored = stored_tensors(config, sizes, tensors, padded_vocab)
    dcp_worlds.run_ranks(save_on_rank, sizes.world, sizes, str(folder), stored)
    return folder
