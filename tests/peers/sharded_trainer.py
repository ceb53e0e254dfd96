"""The trainer with Megatron-FSDP or torch's FSDP2, on a mesh of CPUs: its weights are distributed tensors, and so is its optimizer state."""

import torch
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor

import bridge_runs
import dcp_checkpoints
import megatron_release


def prepare():
    torch.cuda.current_device = lambda: 0
    bridge_runs.OnTheCpu().__enter__()
    make = device_mesh.DeviceMesh.__init__
    device_mesh.DeviceMesh.__init__ = lambda mesh, device_type, *rest, **named: make(mesh, "cpu", *rest, **named)


def parameters(trainer):
    """Name in the model -> what the optimizer trains."""
    [chunk] = trainer.chunks
    buffer = getattr(chunk, "param_and_grad_buffer", None)
    named = buffer.optimizer_named_parameters if buffer else chunk.named_parameters()
    return {name.replace("module.", ""): parameter for name, parameter in named}


def whole(parameter, by_megatron):
    if not isinstance(parameter, DTensor):
        return parameter
    if not by_megatron:
        return parameter.full_tensor()
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import gather_and_compute_chunk_metadata

    # A shard may end inside of a row, which full_tensor() does not know.
    chunk, full = gather_and_compute_chunk_metadata(parameter), torch.zeros(parameter.shape)
    full[tuple(slice(start, start + extent) for start, extent in zip(chunk.offsets, chunk.sizes))] = parameter.to_local()
    torch.distributed.all_reduce(full)
    return full


def pieces(trainer):
    model = megatron_release.model_of(trainer.args, None).bfloat16()
    held = parameters(trainer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(whole(held[name], trainer.args.use_megatron_fsdp))
    return dcp_checkpoints.pieces([model], trainer.parallel_state)


def train_step(trainer, number):
    """As dcp_models.train_step: gradients follow from the weights, rounded as the model has them."""
    [chunk] = trainer.chunks
    chunk.zero_grad_buffer()
    trainer.optimizer.zero_grad()
    chunk.finish_grad_sync()
    for parameter in parameters(trainer).values():
        gradient = torch.sin(parameter.detach().bfloat16().float() * 37 + number) * 0.1
        if trainer.args.use_megatron_fsdp:
            parameter.grad = gradient
        else:
            parameter.main_grad = gradient
    assert trainer.optimizer.step()[0]
