#!/bin/bash
# megatron-core 0.19.2: a run cannot go on from its own checkpoint with another --lr or --min-lr.
#
# Parameter groups of a loaded optimizer are found by a tuple of their settings. Up to 0.16 these were multipliers and
# flags of the group; in 0.19 the largest and the smallest learning rate of the run are among them, so a checkpoint that was saved with
# lr 0.01 has no group for a run with lr 0.02. Loading it ends with an error ("Could not find parameter group with key …");
# the distributed optimizer ends with a KeyError of the same tuple. --override-opt-param-scheduler is read later, and does not help.
# Who writes checkpoints for it (converters, or checkpoints of other trainers) has to know the --lr and --min-lr of the run to come.
#
# Seen on Linux x86-64 with one process and gloo:
#   megatron-core 0.16.1: lr 0.01: loads; lr 0.02: loads
#   megatron-core 0.19.2: lr 0.01: loads; lr 0.02: ValueError: Could not find parameter group with key …
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet)
"${pip[@]}" torch==2.13.0 triton==3.9.0 numpy==2.4.1 packaging==26.0
"${pip[@]}" --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target "$folder/0.16.1" megatron-core==0.16.1
"${pip[@]}" --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target "$folder/0.19.2" megatron-core==0.19.2
cat >"$folder/run.py" <<'PY'
import sys
import typing
import warnings

if not hasattr(typing, "override"):
    typing.override = lambda method: method
warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist


def optimizer_of(model, rate):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    return get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=rate, min_lr=0.0, weight_decay=0.1), [model])


def main(folder):
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    made = torch.tensor
    torch.tensor = lambda data, **options: made(data, **options | {"device": "cpu"})
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), torch.nn.Linear(8, 8))
    saved = optimizer_of(model, 0.01).state_dict()
    outcomes = {}
    for rate in (0.01, 0.02):
        try:
            optimizer_of(model, rate).load_state_dict(saved)
            outcomes[rate] = "loads"
        except Exception as error:
            outcomes[rate] = type(error).__name__ + ": " + str(error).splitlines()[0]
    dist.destroy_process_group()
    return outcomes


if __name__ == "__main__":
    release, folder, expected = sys.argv[1:]
    outcomes = main(folder)
    print(f"megatron-core {release}: " + "; ".join(f"lr {rate}: {outcome}" for rate, outcome in outcomes.items()))
    sys.exit(0 if [outcome.split(":")[0] for outcome in outcomes.values()] == expected.split() else 1)
PY
for release in 0.16.1 0.19.2; do
  mkdir "$folder/results-$release"
  expected="loads loads"
  if [[ $release == 0.19.2 ]]; then expected="loads ValueError"; fi
  OMP_NUM_THREADS=1 PYTHONPATH="$folder/$release" "$folder/venv/bin/python" "$folder/run.py" "$release" "$folder/results-$release" "$expected"
done
