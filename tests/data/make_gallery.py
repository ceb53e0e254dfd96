"""Makes tests/data/gallery.tar.xz, small checkpoints of the recipes that no other sample has:

    titan   outputs/checkpoint of torchtitan: a Llama that FSDP2 trained on two CPU ranks, under torchtitan's names, with AdamW
    sick    the Hugging Face folder of folder-shapes.tar.xz as a faulty converter leaves it: in layer 1 one expert stands in the place of another
    nan     the same folder with one weight that is not a number

    RESHARD_BIN=build/dev/pipeline/reshard .cache/peers/bin/python tests/data/make_gallery.py

The program makes the sound folder alone; what is wrong with the others is done here with safetensors.
"""

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import dcp_trainers as trainers  # noqa: E402
from make_folder_shapes import without_owner  # noqa: E402
from reshard_job import Program  # noqa: E402

EXPERT = "model.layers.1.mlp.experts.{}.{}.weight"
PARTS = ("gate_proj", "up_proj", "down_proj")
SHOWN, HIDDEN = 1, 3  # expert 1 stands in the place of expert 3


def titan(folder, scratch):
    """What a run of torchtitan leaves in its dump folder: one DCP folder per save."""
    trainers.save(2, [("flattened", False, 1, str(scratch / "trained"))])
    save = folder / f"outputs/checkpoint/step-{trainers.STEPS}"
    trainers.save_values(trainers.as_torchtitan(trainers.values_of(scratch / "trained")), save)
    (save / "config.json").unlink()  # torchtitan writes none
    shutil.copytree(scratch / "trained", folder / "model", ignore=lambda _, names: [name for name in names if name != "config.json"])


def sound(scratch):
    with tarfile.open(HERE / "folder-shapes.tar.xz") as archive:
        archive.extractall(scratch)
    return Program(scratch).run(scratch / "slime", scratch / "sound", "huggingface", ranks=1)


def changed(source, target, change):
    target.mkdir()
    shutil.copy(source / "config.json", target)
    weights = load_file(source / "model.safetensors")
    change(weights)
    with safe_open(source / "model.safetensors", "pt") as opened:
        save_file(weights, target / "model.safetensors", metadata=opened.metadata())
    (target / "model.safetensors").chmod(0o644)


def misplaced(weights):
    for part in PARTS:
        weights[EXPERT.format(HIDDEN, part)] = weights[EXPERT.format(SHOWN, part)].clone()


def not_a_number(weights):
    weights[EXPERT.format(HIDDEN, "up_proj")][2, 5] = float("nan")


def main():
    with tempfile.TemporaryDirectory() as name, tarfile.open(HERE / "gallery.tar.xz", "w:xz") as archive:
        scratch, made = Path(name), Path(name) / "made"
        titan(made / "titan", scratch)
        folder = sound(scratch)
        changed(folder, made / "sick", misplaced)
        changed(folder, made / "nan", not_a_number)
        for sample in ("titan", "sick", "nan"):
            archive.add(made / sample, sample, filter=without_owner)


if __name__ == "__main__":
    main()
