"""Trees and torch_dist folders whose args or keys are changed by hand, as other programs leave them."""

import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from dcp_reading import whole_tensors
from numpy_megatron import SHARD_FILE, iteration_folder
from reshard_job import RECORDS


def args_of(root):
    """Of the first mp_rank file, or of a torch_dist folder."""
    folder = iteration_folder(root)
    common = folder / "common.pt"
    file = common if common.exists() else sorted(folder.rglob(SHARD_FILE))[0]
    return torch.load(file, weights_only=False)["args"]


def change_args(root, **values):
    """Sets args in every file of a checkpoint; None takes one away."""
    folder = iteration_folder(root)
    for file in [folder / "common.pt"] if (folder / "common.pt").exists() else sorted(folder.rglob(SHARD_FILE)):
        content = torch.load(file, weights_only=False)
        for key, value in values.items():
            setattr(content["args"], key, value)
        torch.save(content, file)
    for name in RECORDS:
        (Path(root) / name).unlink(missing_ok=True)
    return root


def renamed_dist(root, target, rename, more=None):
    """A torch_dist checkpoint with other keys, and with further tensors, written by torch."""
    source, folder = iteration_folder(root), Path(target) / iteration_folder(root).name
    folder.mkdir(parents=True)
    tensors = {rename(key): tensor for key, tensor in whole_tensors(source).items()} | (more or {})
    dcp.save(tensors, checkpoint_id=folder, no_dist=True)
    for name in ("common.pt", "metadata.json"):
        shutil.copy(source / name, folder / name)
    shutil.copy(Path(root) / "latest_checkpointed_iteration.txt", target)
    return Path(target)
