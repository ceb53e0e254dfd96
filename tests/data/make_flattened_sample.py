"""Makes tests/data/flattened-optimizer.tar.xz: torch_dist checkpoints whose optimizer state is flattened (fully_sharded_model_space).

Megatron-Core writes such state up to 0.15, so this needs an older release than the tests do, in front of the path:

    pip install --no-deps --target old megatron-core==0.14.0
    PYTHONPATH=old python tests/data/make_flattened_sample.py

Each folder holds one checkpoint after one training step, and what the weights are after a second step without a checkpoint in between.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

np.product = np.prod  # 0.14 uses the name that NumPy 2 removed

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

import torch  # noqa: E402

import dcp_models  # noqa: E402
from dcp_checkpoints import World, train_and_save  # noqa: E402
from dcp_models import Recipe  # noqa: E402
from peer_types import Layout, ModelConfig  # noqa: E402

prepare = dcp_models.prepare_distributed_checkpoints


def prepare_with_shared_queue():
    """0.14 writes in a process of its own, which needs megatron-core's own queue."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    queue_of_megatron = filesystem_async._get_write_results_queue
    prepare()
    filesystem_async._get_write_results_queue = queue_of_megatron


dcp_models.prepare_distributed_checkpoints = prepare_with_shared_queue

SMALL = ModelConfig(layers=2, hidden=16, head_dim=4, ffn=24, vocab=40)
MODELS = {"dense": SMALL, "moe": SMALL.with_(family="qwen3_moe", experts=4, expert_ffn=12, qk_norm=True)}
WORLDS = {
    "dense": World(Recipe(MODELS["dense"]), Layout(tp=2, pp=2), replicas=2),
    "moe": World(Recipe(MODELS["moe"]), Layout(pp=2, ep=2), replicas=2),
}


def main():
    with tempfile.TemporaryDirectory() as folder, tarfile.open(HERE / "flattened-optimizer.tar.xz", "w:xz") as archive:
        for name, world in WORLDS.items():
            trained = train_and_save(world, f"{folder}/{name}", "fully_sharded_model_space")
            torch.save(trained, f"{folder}/{name}/after_step_2.pt")
            archive.add(f"{folder}/{name}", name, filter=without_owner)


def without_owner(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
