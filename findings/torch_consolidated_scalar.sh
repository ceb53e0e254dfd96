#!/bin/bash
# torch 2.13.0: HuggingFaceStorageWriter with enable_consolidation loses the value of a tensor without dimensions.
#
# The shards hold the value; the consolidated file, which loaders open, has 0 in its place, without an error. A tensor of
# one dimension in the same save is right. Models have such tensors: scales of quantisers, counters, logit scales.
# Who reads such a folder should take tensors of shape [] from the `shard-*` files beside it.
#
# Seen on Linux x86-64 with one process and gloo:
#   shard 1.5, consolidated 0.0
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 safetensors==0.8.0 numpy==2.4.1
cat >"$folder/save.py" <<'PY'
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

folder = Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
state = {
    "scale": distribute_tensor(torch.tensor(1.5), mesh, [Replicate()]),
    "vector": distribute_tensor(torch.tensor([1.5]), mesh, [Replicate()]),
}
writer = HuggingFaceStorageWriter(path=str(folder / "save"), save_distributed=True, enable_consolidation=True)
dcp.save(state, checkpoint_id=str(folder / "save"), storage_writer=writer)
dist.destroy_process_group()

files = sorted((folder / "save").rglob("*.safetensors"))
(shard,) = [file for file in files if file.name.startswith("shard-")]
(whole,) = [file for file in files if not file.name.startswith("shard-")]
shard, whole = load_file(shard), load_file(whole)
print(f"torch {torch.__version__}: shard {shard['scale'].item()}, consolidated {whole['scale'].item()}")
assert shard["vector"].item() == whole["vector"].item() == 1.5
sys.exit(0 if (shard["scale"].item(), whole["scale"].item()) == (1.5, 0.0) else 1)
PY
"$folder/venv/bin/python" "$folder/save.py" "$folder"
