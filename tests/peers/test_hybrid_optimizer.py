"""Optimizer state of latent attention, gated delta nets and Mamba: megatron-core trains on in another layout to the bits of a run that never stopped."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers

import dcp_models
import dcp_reading
import megatron_models
from dcp_cases import names_of
from family_models import Family, dense, save_family
from family_models_hybrid import DELTA, LATENT, mamba
from legacy_optimizer import DISTRIBUTED_FILE
from megatron_hybrid import build_delta, build_latent, build_mamba
from numpy_megatron import SHARD_FILE, TRACKER, iteration_folder
from peer_types import LOCAL, TE_SEQUENTIAL, Layout
from tensor_patterns import assert_same_tensors

pytestmark = pytest.mark.long

HYBRIDS = {  # name -> (model, how megatron-core builds it, its form, source layout, target layout)
    "latent": (dense("DeepseekV3", **LATENT), build_latent, LOCAL, Layout(tp=2, ep=2), Layout(tp=2)),
    "gated-delta-net": (dense("Qwen3Next", **DELTA), build_delta, TE_SEQUENTIAL, Layout(tp=2, ep=2), Layout(tp=1)),
    "mamba": (mamba("M-M*-M"), build_mamba, TE_SEQUENTIAL, Layout(pp=2), Layout(tp=2)),
    "mamba-experts": (mamba("ME*EMM"), build_mamba, TE_SEQUENTIAL, Layout(tp=2, ep=2), Layout(pp=2)),
}


def save(root, layout, parallel_state, content, model, optimizer=None):
    folder = Path(root) / "iter_0000001" / megatron_models.my_directory(layout, parallel_state)
    folder.mkdir(parents=True, exist_ok=True)
    changed = {"model": model.state_dict_for_save_checkpoint(), "iteration": 1}
    if optimizer is not None:
        changed["optimizer"] = optimizer.state_dict()
        optimizer.save_parameter_state(str(folder / DISTRIBUTED_FILE))
    vars(content["args"]).update(use_distributed_optimizer=True, overlap_grad_reduce=False, accumulate_allreduce_grads_in_fp32=True)
    torch.save(content | changed, folder / SHARD_FILE)
    (Path(root) / TRACKER).write_text("1")
    dist.barrier()


def train_on_rank(rank, source, saved, trained, config, layout, build):
    """Two steps from the weights in `source`, with a checkpoint in `saved` between them; or the second step from a checkpoint there."""
    dcp_models.prepare_distributed_checkpoints()
    parallel_state = megatron_models.start_parallel_state(layout)
    model = build(config, layout, parallel_state)
    folder = iteration_folder(source) / megatron_models.my_directory(layout, parallel_state)
    content = torch.load(folder / SHARD_FILE, weights_only=False)
    megatron_models.load_strictly([model], content, layout)
    wrapped, optimizer = dcp_models.wrap_with_optimizer([model], True)
    if saved is None:
        optimizer.load_state_dict(content["optimizer"])
        with torch.no_grad():  # F32 weights are their own masters
            optimizer.load_parameter_state(str(folder / DISTRIBUTED_FILE))
    else:
        optimizer.reload_model_params()
        dcp_models.train_step(wrapped, optimizer, 1, layout)
        save(saved, layout, parallel_state, content, model, optimizer)
    dcp_models.train_step(wrapped, optimizer, 2, layout)
    save(trained, layout, parallel_state, {name: value for name, value in content.items() if name != "optimizer"}, model)


def weights(program, root, folder):
    return dcp_reading.whole_tensors(iteration_folder(program.run(root, folder, "torch_dist", target_options={"layout": Layout(tp=1).toml()})))


@pytest.mark.parametrize("name", HYBRIDS)
def test_training_goes_on_in_another_layout(name, program, scratch):
    make, build, form, before, after = HYBRIDS[name]
    folder = save_family(scratch / "folder", Family(make, before, before, form, dtype=torch.float32))
    config = transformers.AutoConfig.from_pretrained(folder)
    start = program.run(folder, scratch / "start", "megatron", target_options={"layout": before.toml()} | names_of(form))
    megatron_models.run_ranks(train_on_rank, before.world, str(start), str(scratch / "saved"), str(scratch / "trained"), config, before, build)
    there = program.run(scratch / "saved", scratch / "there", "megatron", target_options={"layout": after.toml()} | names_of(form))
    megatron_models.run_ranks(train_on_rank, after.world, str(there), None, str(scratch / "resumed"), config, after, build)
    found, expected = weights(program, scratch / "resumed", scratch / "found"), weights(program, scratch / "trained", scratch / "expected")
    assert_same_tensors(found, expected)
    started = weights(program, start, scratch / "started")
    assert any(not torch.equal(started[key], found[key]) for key in found)
