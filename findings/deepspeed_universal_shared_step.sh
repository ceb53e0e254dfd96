#!/bin/bash
# DeepSpeed 0.19.8: a ZeRO 3 run that resumes from a universal checkpoint counts steps of Adam several times, and trains all parameter groups
# with the settings of the first.
#
# The loader of ZeRO 3 puts one tensor, the step of the first state, into the states of all sub-groups, of which each parameter group has one or
# more. AdamW of torch adds one to that tensor for each of them: with two groups a step counts as two, and the correction of the moments is
# that of a later step. The loader also copies the settings of the first parameter group over those of all others: a group without weight decay,
# as biases and norms often are, then decays. Nothing is reported. ZeRO 1, and ZeRO 3 with its own checkpoint, resume right. Whoever resumes this
# way must, after load_checkpoint, give each state a copy of its step, and set the settings of the groups again.
#
# In ZeRO 3 `load_checkpoint(folder, load_optimizer_states=False)` of a universal checkpoint also wants the checkpoint that it was made of, with
# the file `latest` beside it, though it takes nothing of it: without that file it ends with an error. A `tag` does not help. ZeRO 1 loads.
#
# Seen on Linux x86-64 with one process on CPU, two groups, the checkpoint at step 2:
#   ZeRO 1 not interrupted: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 1 resumed from its own checkpoint: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 1 resumed from the universal checkpoint: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 1 weights alone, with `latest`: loads
#   ZeRO 1 weights alone, without `latest`: loads
#   ZeRO 3 not interrupted: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 3 resumed from its own checkpoint: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 3 resumed from the universal checkpoint: steps [6.0, 6.0], weight decay [0.01, 0.01]
#   ZeRO 3 resumed from the universal checkpoint, then mended: steps [4.0, 4.0], weight decay [0.01, 0.0]
#   ZeRO 3 weights alone, with `latest`: loads
#   ZeRO 3 weights alone, without `latest`: ValueError: Unable to find 'latest' file
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.1 setuptools==80.9.0 wheel==0.45.1
"$folder/venv/bin/pip" install --quiet --no-build-isolation deepspeed==0.19.8
cat >"$folder/run.py" <<'PY'
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
stage, folder = int(sys.argv[1]), Path(sys.argv[2])
fails = []


def engine(universal):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], lr=0.01)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": universal}}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(run, steps=2):
    for _ in range(steps):
        run.backward(run(torch.ones(1, 4, dtype=torch.bfloat16)).float().sum())
        run.step()


def resumed(universal):
    run = engine(universal)
    run.load_checkpoint(str(folder))
    return run


def mended():
    run = resumed(True)
    for state in run.optimizer.optimizer.state.values():
        state["step"] = state["step"].clone()
    run.optimizer.optimizer.param_groups[1]["weight_decay"] = 0.0
    return run


def check(what, found, expected):
    print("SEEN", f"ZeRO {stage} {what}: {found}")
    if found != expected:
        fails.append(what)


def check_run(what, run, steps, decay):
    train(run)
    inner = run.optimizer.optimizer
    found = [float(state["step"]) for state in inner.state.values()], [group["weight_decay"] for group in inner.param_groups]
    check(what, f"steps {found[0]}, weight decay {found[1]}", f"steps {[steps] * 2}, weight decay {[0.01, decay]}")


def weights_alone():
    try:
        engine(True).load_checkpoint(str(folder), load_optimizer_states=False)
    except ValueError as error:
        return f"{type(error).__name__}: {error}".partition(" at ")[0]
    return "loads"


run = engine(False)
train(run)
run.save_checkpoint(str(folder), tag="own")
check_run("not interrupted", run, 4.0, 0.0)
ds_to_universal.main(SimpleNamespace(input_folder=str(folder / "own"), output_folder=str(folder / "universal"), num_extract_workers=1,
                                     num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
(folder / "latest_universal").write_text("universal")
check_run("resumed from its own checkpoint", resumed(False), 4.0, 0.0)
check_run("resumed from the universal checkpoint", resumed(True), *((6.0, 0.01) if stage == 3 else (4.0, 0.0)))
if stage == 3:
    check_run("resumed from the universal checkpoint, then mended", mended(), 4.0, 0.0)
check("weights alone, with `latest`", weights_alone(), "loads")
(folder / "latest").unlink()
check("weights alone, without `latest`", weights_alone(), "ValueError: Unable to find 'latest' file" if stage == 3 else "loads")
sys.exit(1 if fails else 0)
PY
for stage in 1 3; do
  mkdir "$folder/$stage"
  "$folder/venv/bin/python" "$folder/run.py" "$stage" "$folder/$stage" 2>&1 | sed -n 's/^SEEN //p; t; /Error/p'
done
