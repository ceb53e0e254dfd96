#!/bin/bash
# torch 2.13.0: FileSystemWriter(serialization_format=SAFETENSORS) writes a checkpoint that FileSystemReader cannot read,
# and keeps one box of a tensor of which a rank holds two.
#
# The `.distcp` file of a rank is then a safetensors file of all its tensors, while `.metadata` gives every tensor the
# place [0, bytes of its elements) in it, as if an item of torch.save began there: loading fails. The safetensors file has
# one entry for each name, so of two boxes of one tensor the second one replaces the first, without an error; the
# catalogue still lists both. HuggingFaceStorageWriter, which is built on the same code, has a reader of its own.
#
# Seen on Linux x86-64 with one process:
#   loading: fails
#   boxes of "two": 2 in .metadata, [[2, 0]] in the file
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 safetensors==0.8.0 numpy==2.4.1
cat >"$folder/save.py" <<'PY'
import json
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import SerializationFormat

folder = Path(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
one, two = torch.arange(12.0).reshape(3, 4), torch.arange(16.0).reshape(4, 4)
boxes = [Shard.from_tensor_and_offsets(two[begin:begin + 2].clone(), [begin, 0], 0) for begin in (0, 2)]
state = {"one": one, "two": init_from_local_shards(boxes, 4, 4)}
save = folder / "save"
dcp.save(state, storage_writer=FileSystemWriter(save, serialization_format=SerializationFormat.SAFETENSORS), checkpoint_id=save)
try:
    loaded = {"one": torch.zeros(3, 4)}
    dcp.load(loaded, storage_reader=FileSystemReader(save), checkpoint_id=save)
    loads = True
except dcp.api.CheckpointException:
    loads = False
dist.destroy_process_group()

listed = len(pickle.loads((save / ".metadata").read_bytes()).state_dict_metadata["two"].chunks)
(file,) = save.glob("*.distcp")
with safe_open(file, framework="pt") as content:
    kept = json.loads(content.metadata()["DCP_SHARDING_INFO"])["two"]["saved_offsets"]
    shape = list(content.get_slice("two").get_shape())
print(f"torch {torch.__version__}: loading {'works' if loads else 'fails'}; boxes of 'two': {listed} in .metadata, one of {shape} at {kept} in the file")
sys.exit(0 if (loads, listed, kept, shape) == (False, 2, [2, 0], [2, 4]) else 1)
PY
"$folder/venv/bin/python" "$folder/save.py" "$folder"
