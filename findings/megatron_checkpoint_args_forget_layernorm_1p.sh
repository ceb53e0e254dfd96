#!/bin/bash
# megatron-core 0.19.2: --use-checkpoint-args does not take zero-centred norms from the trainer's own checkpoint.
#
# --apply-layernorm-1p makes norms compute with their weight plus one. Since 0.17 the parser stores the flag as
# args.layernorm_zero_centered_gamma, and a checkpoint has it under that name. load_args_from_checkpoint, which
# --use-checkpoint-args calls, still looks for the older name apply_layernorm_1p: it reports that the checkpoint did not
# provide it, and the run builds norms without the one. Weights load strictly, because names and shapes are the same; the
# model computes something else. The run has to repeat the flag. The same goes for the epsilon of norms, which is not
# taken from the checkpoint under either name.
#
# Seen on Linux x86-64, with the trainer's own parser and reader of args, in one process:
#   saved: layernorm_zero_centered_gamma True, layernorm_epsilon 0.001, hidden_size 64
#   taken: layernorm_zero_centered_gamma False, layernorm_epsilon 1e-05, hidden_size 64
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet)
"${pip[@]}" torch==2.13.0 triton==3.9.0 numpy==2.4.1 packaging==26.0 einops==0.8.2 regex==2026.11.19
"${pip[@]}" --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target "$folder/megatron" megatron-core==0.19.2
cat >"$folder/run.py" <<'PY'
import sys
import typing
import warnings

if not hasattr(typing, "override"):
    typing.override = lambda method: method
warnings.filterwarnings("ignore")
from pathlib import Path

import torch

SETTINGS = ("layernorm_zero_centered_gamma", "layernorm_epsilon", "hidden_size")
MODEL = "--num-layers 1 --hidden-size 64 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8".split()


def parsed(*words):
    from megatron.training.arguments import parse_args

    sys.argv = ["train", "--micro-batch-size", "1", "--ckpt-format", "torch", *words]
    return parse_args()


def shown(args):
    return ", ".join(f"{name} {getattr(args, name)}" for name in SETTINGS)


def main(folder):
    from megatron.training.checkpointing import load_args_from_checkpoint

    saved = parsed(*MODEL, "--apply-layernorm-1p", "--norm-epsilon", "0.001")
    checkpoint = Path(folder) / "checkpoint"
    (checkpoint / "iter_0000001/mp_rank_00").mkdir(parents=True)
    (checkpoint / "latest_checkpointed_iteration.txt").write_text("1")
    torch.save({"args": saved, "iteration": 1, "checkpoint_version": 3.0, "model": {}}, checkpoint / "iter_0000001/mp_rank_00/model_optim_rng.pt")
    taken = parsed("--use-checkpoint-args", "--load", str(checkpoint))
    taken = load_args_from_checkpoint(taken) or taken
    taken = taken[0] if isinstance(taken, tuple) else taken
    print("saved:", shown(saved))
    print("taken:", shown(taken))
    return [getattr(taken, name) == getattr(saved, name) for name in SETTINGS]


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) == [False, False, True] else 1)
PY
OMP_NUM_THREADS=1 PYTHONPATH="$folder/megatron" "$folder/venv/bin/python" "$folder/run.py" "$folder"
