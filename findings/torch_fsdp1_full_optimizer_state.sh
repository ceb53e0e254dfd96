#!/bin/bash
# torch 2.13.0: the full optimizer state of FSDP1 on CPU has the second moment in the place of the first.
#
# With `use_orig_params=True` and tensors in host memory (gloo), a state dict of FULL_STATE_DICT that is offloaded to the
# CPU (the default of `FSDP.optim_state_dict`; `cpu_offload=True` of `get_optimizer_state_dict`) has, for every parameter
# that is cut between ranks, the bytes of `exp_avg_sq` under `exp_avg`. All states of a flat parameter are gathered into
# one buffer, one after the other; what is returned are views of it, and moving them to the CPU copies nothing there.
# Weights, steps, the pieces that each rank holds and a dict without offloading are right, as is
# `use_orig_params=False`. Nothing is raised, and a run that loads such a dict goes on with wrong momentum.
#
# Seen on Linux x86-64, two ranks, Adam, three steps; the same training in one process is what is compared with:
#   use_orig_params=False, optim_state_dict: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
#   use_orig_params=True, optim_state_dict: exp_avg as trained False, exp_avg_sq as trained True, exp_avg is exp_avg_sq True
#   use_orig_params=True, get_optimizer_state_dict, cpu_offload=False: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
#   use_orig_params=True, get_optimizer_state_dict, cpu_offload=True: exp_avg as trained False, exp_avg_sq as trained True, exp_avg is exp_avg_sq True
#   use_orig_params=True, the pieces that ranks hold: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat >"$folder/run.py" <<'PY'
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

RANKS = 2


def trained(wrapped):
    torch.manual_seed(1)
    model = wrapped(nn.Linear(6, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(100 + step)
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def told(how, states):
    """States by parameter beside those of one process."""
    model, optimizer = trained(lambda module: module)
    right = {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}

    def as_trained(slot):
        return all(torch.allclose(states[name][slot], right[name][slot].reshape(states[name][slot].shape), rtol=1e-4, atol=1e-7) for name in right)

    twice = all(torch.equal(state["exp_avg"], state["exp_avg_sq"]) for state in states.values())
    print(f"{how}: exp_avg as trained {as_trained('exp_avg')}, exp_avg_sq as trained {as_trained('exp_avg_sq')}, exp_avg is exp_avg_sq {twice}", flush=True)


def work(rank, place):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=RANKS)
    for original in (False, True):
        model, optimizer = trained(lambda module: FSDP(module, use_orig_params=original, device_id=torch.device("cpu")))
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            full = FSDP.optim_state_dict(model, optimizer)
        if rank == 0:
            told(f"use_orig_params={original}, optim_state_dict", full["state"])
        if not original:
            continue
        for offload in (False, True):
            full = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=offload))
            if rank == 0:
                told(f"use_orig_params={original}, get_optimizer_state_dict, cpu_offload={offload}", full["state"])
        pieces = {name.removeprefix("_fsdp_wrapped_module."): {slot: value.reshape(-1) for slot, value in optimizer.state.get(parameter, {}).items() if slot != "step"}
                  for name, parameter in model.named_parameters()}
        every = [None] * RANKS
        dist.all_gather_object(every, pieces)
        if rank == 0:
            told(f"use_orig_params={original}, the pieces that ranks hold",
                 {name: {slot: torch.cat([one[name][slot] for one in every if slot in one[name]]) for slot in ("exp_avg", "exp_avg_sq")} for name in pieces})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=RANKS)
PY
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore "$folder/run.py" "$folder/store" 2>/dev/null | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN' || { echo "the behaviour has changed" >&2; exit 1; }
use_orig_params=False, optim_state_dict: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
use_orig_params=True, optim_state_dict: exp_avg as trained False, exp_avg_sq as trained True, exp_avg is exp_avg_sq True
use_orig_params=True, get_optimizer_state_dict, cpu_offload=False: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
use_orig_params=True, get_optimizer_state_dict, cpu_offload=True: exp_avg as trained False, exp_avg_sq as trained True, exp_avg is exp_avg_sq True
use_orig_params=True, the pieces that ranks hold: exp_avg as trained True, exp_avg_sq as trained True, exp_avg is exp_avg_sq False
SEEN
