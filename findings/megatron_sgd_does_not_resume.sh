#!/bin/bash
# megatron-core 0.19.2: a run with --optimizer sgd saves torch_dist checkpoints that it cannot load.
#
# Before the optimizer of a run without --use-distributed-optimizer is described for loading, it is brought into the state
# that it has after a step, by a function that get_megatron_optimizer gives it. Adam has one, SGD has none, and what is
# called is None. Saving needs no such state, so a run with momentum writes checkpoints as it should, and the first start
# that shall go on from one ends with a TypeError.
#
# Seen on Linux x86-64, one process on the CPU, one linear layer in BF16 with float32 master weights:
#   adam: saved 2 items, described for loading
#   sgd: saved 2 items, TypeError: 'NoneType' object is not callable
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet)
"${pip[@]}" torch==2.13.0 triton==3.9.0 numpy==2.4.1 packaging==26.0 einops==0.8.2 regex==2026.11.19
"${pip[@]}" --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target "$folder/megatron" megatron-core==0.19.2
cat >"$folder/run.py" <<'PY'
import logging
import sys
import typing
import warnings

if not hasattr(typing, "override"):
    typing.override = lambda method: method
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch

torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda tensor, *_, **__: tensor
torch.nn.Module.cuda = lambda module, *_, **__: module
kind = torch.Tensor.type
torch.Tensor.type = lambda tensor, *to, **options: kind(tensor, *to, **options) if to else f"torch.cuda.{kind(tensor).rpartition('.')[2]}"


class OnTheCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, values=(), options=None):
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*values, **options)


def outcome(name):
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule

    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16)

    class Model(MegatronModule):
        def __init__(self):
            super().__init__(config)
            self.linear = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)

        def sharded_state_dict(self):
            return {"linear.weight": ShardedTensor.from_rank_offsets("linear.weight", self.linear.weight)}

    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), Model())
    settings = OptimizerConfig(optimizer=name, lr=0.1, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0, weight_decay=0.0)
    optimizer = get_megatron_optimizer(settings, [wrapped])
    wrapped.module.linear.weight.main_grad.fill_(1.0)
    optimizer.step()
    saved = optimizer.sharded_state_dict(wrapped.module.sharded_state_dict())
    again = DistributedDataParallel(config, DistributedDataParallelConfig(), Model())
    try:
        get_megatron_optimizer(settings, [again]).sharded_state_dict(again.module.sharded_state_dict(), is_loading=True)
    except TypeError as error:
        return f"saved {len(saved)} items, TypeError: {error}"
    return f"saved {len(saved)} items, described for loading"


if __name__ == "__main__":
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed  # noqa: F401

    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    with OnTheCpu():
        said = {name: outcome(name) for name in ("adam", "sgd")}
    for name, words in said.items():
        print(f"{name}: {words}")
    sys.exit(0 if said["adam"].endswith("described for loading") and "TypeError" in said["sgd"] else 1)
PY
OMP_NUM_THREADS=1 PYTHONPATH="$folder/megatron" "$folder/venv/bin/python" "$folder/run.py" "$folder"
