"""A real module under FSDP2 and tensor parallelism with its optimizer, saved and loaded the way torch's tutorials do it."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

import dcp_worlds
from tensor_patterns import pattern


class Net(torch.nn.Module):
    """Odd sizes: ranks hold unequal parts, and of the norm some hold nothing."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(10, 24), torch.nn.Linear(24, 10), torch.nn.LayerNorm(10)

    def forward(self, hidden):
        return hidden + self.down(torch.nn.functional.gelu(self.up(self.norm(hidden))))


def built(dp, tp):
    """Sharded over dp only, or over both; values follow from the names."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Net()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(pattern(name, parameter.shape, torch.float32))
    if tp > 1:
        mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (dp,), mesh_dim_names=("dp",)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def step(model, optimizer, seed):
    optimizer.zero_grad()
    model(pattern(f"input {seed}", (6, 10), torch.float32)).square().mean().backward()
    optimizer.step()


def whole_state(model, optimizer):
    """Flat name -> whole tensor, of weights and optimizer."""
    weights, moments = get_state_dict(model, optimizer)
    flat = {f"model.{name}": tensor for name, tensor in weights.items()}
    for name, entries in moments["state"].items():
        flat |= {f"optim.{name}.{kind}": tensor for kind, tensor in entries.items()}
    return {name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone() for name, tensor in flat.items()}


def save_on_rank(rank, dp, tp, folder):
    model, optimizer = built(dp, tp)
    step(model, optimizer, 1)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder)
    return whole_state(model, optimizer)


def resume_on_rank(rank, dp, tp, folder):
    model, optimizer = built(dp, tp)
    step(model, optimizer, 5)  # other values than those to be loaded
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return whole_state(model, optimizer)


def save(dp, tp, folder):
    return dcp_worlds.run_ranks(save_on_rank, dp * tp, dp, tp, str(folder))[0]


def resume(dp, tp, folder):
    return dcp_worlds.run_ranks(resume_on_rank, dp * tp, dp, tp, str(folder))[0]
