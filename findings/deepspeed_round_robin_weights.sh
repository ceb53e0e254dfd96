#!/bin/bash
# DeepSpeed 0.19.8: of a run with round_robin_gradients, zero_to_fp32 gives weights under the names of others.
#
# ZeRO 2 with `round_robin_gradients` flattens the parameters of a group in another order than that of the model. The
# checkpoint has the places of each parameter in that order (`param_slice_mappings`), and ds_to_universal uses them.
# zero_to_fp32, the script that DeepSpeed puts beside every checkpoint, cuts the flat vectors by `param_shapes`, which is in
# the model's order: it ends without an error, and where shapes are equal the weights are exchanged.
#
# Seen on Linux x86-64 with two processes on CPU, six weights of one shape:
#   round_robin_gradients False: zero_to_fp32 right 6, ds_to_universal right 6 of 6
#   round_robin_gradients True: zero_to_fp32 right 2, ds_to_universal right 6 of 6
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

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.multiprocessing as mp


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.float().mean()


def train(rank, folder, round_robin):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": 2, "round_robin_gradients": round_robin}}
    model = Model()
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config=config)[0]
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 8, dtype=torch.bfloat16)))
        engine.step()
    weights = {name: safe_get_full_fp32_param(parameter).clone() for name, parameter in engine.module.named_parameters()}
    if rank == 0:
        torch.save(weights, folder / "weights.pt")
    engine.save_checkpoint(str(folder / "save"), tag="step")


def right(found, weights):
    return sum(name in found and torch.equal(found[name].reshape(weights[name].shape), weights[name]) for name in weights)


def main(folder):
    from types import SimpleNamespace

    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    seen = []
    for round_robin in (False, True):
        place = folder / str(round_robin)
        place.mkdir()
        mp.spawn(train, (place, round_robin), nprocs=2)
        weights = torch.load(place / "weights.pt")
        by_fp32 = get_fp32_state_dict_from_zero_checkpoint(str(place / "save"), "step")
        ds_to_universal.main(SimpleNamespace(input_folder=str(place / "save/step"), output_folder=str(place / "universal"), num_extract_workers=1,
                                             num_merge_workers=1, keep_temp_folder=False, strict=True, inject_missing_state=True))
        by_universal = {file.parent.name: torch.load(file, weights_only=False)["param"] for file in (place / "universal/zero").glob("*/fp32.pt")}
        seen.append((right(by_fp32, weights), right(by_universal, weights)))
        print(f"round_robin_gradients {round_robin}: zero_to_fp32 right {seen[-1][0]}, ds_to_universal right {seen[-1][1]} of {len(weights)}")
    return seen


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1])) == [(6, 6), (2, 6)] else 1)
PY
mkdir "$folder/results"
"$folder/venv/bin/python" "$folder/run.py" "$folder/results" 2>&1 | grep 'right\|Error'
