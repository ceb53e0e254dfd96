"""Makes tests/data/folder-shapes.tar.xz: one checkpoint that megatron-core saved, in the folders of Megatron-Bridge, NeMo 2, verl, ms-swift, slime and
miles, and the config.json of its model.

    RESHARD_BIN=build/dev/pipeline/reshard .cache/peers/bin/python tests/data/make_folder_shapes.py

The folders are made by tests/peers/folder_shapes.py; the program makes config.json alone.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import dcp_checkpoints  # noqa: E402
import folder_shapes  # noqa: E402
from dcp_checkpoints import World  # noqa: E402
from dcp_models import Recipe  # noqa: E402
from peer_types import Layout, ModelConfig  # noqa: E402
from reshard_job import Program  # noqa: E402

MODEL = ModelConfig(layers=2, hidden=16, head_dim=4, ffn=24, vocab=40, family="qwen3_moe", experts=4, expert_ffn=12, qk_norm=True)
WORLD = World(Recipe(MODEL), Layout())


def without_owner(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main():
    with tempfile.TemporaryDirectory() as name, tarfile.open(HERE / "folder-shapes.tar.xz", "w:xz") as archive:
        folder = Path(name)
        source = dcp_checkpoints.save(WORLD, folder / "source")
        model = Program(folder).run(source, folder / "exported", "huggingface", ranks=1)
        folder_shapes.put_config(folder / "model", model)
        folder_shapes.bridge(source, WORLD, folder / "bridge")
        folder_shapes.nemo(source, WORLD, folder / "nemo")
        folder_shapes.verl(source, WORLD, folder / "verl", model)
        folder_shapes.swift(source, WORLD, folder / "swift-run").rename(folder / "swift")
        folder_shapes.slime(source, WORLD, folder / "slime")
        folder_shapes.slime(source, WORLD, folder / "miles", miles=True)
        for shape in ("model", "bridge", "nemo", "verl", "swift", "slime", "miles"):
            archive.add(folder / shape, shape, filter=without_owner)


if __name__ == "__main__":
    main()
