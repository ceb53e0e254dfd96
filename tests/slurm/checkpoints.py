"""Source checkpoints of random bytes, written without any library: a Hugging Face folder of BF16 tensors in one or several safetensors files."""

import json
import random
import struct
from pathlib import Path


def write_source(folder, mebibytes, seed, files=2):
    """About so many MiB in tensors of 1 MiB and a few small ones; the same bytes for the same seed."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    weight_map = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        shapes = {f"blocks.{number}.{i}.weight": (512, 1024) for i in range(max(1, mebibytes // files))}
        shapes[f"blocks.{number}.norm"] = (1024,)
        write_safetensors(folder / name, shapes, chance)
        weight_map |= dict.fromkeys(shapes, name)
    (folder / "config.json").write_text(json.dumps({"model_type": "pretend", "torch_dtype": "bfloat16"}))
    total = sum((folder / name).stat().st_size for name in set(weight_map.values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return folder


def write_safetensors(path, shapes, chance):
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            file.write(chance.randbytes(entry["data_offsets"][1] - entry["data_offsets"][0]))


def job_text(source, target, **run):
    """A job that cuts every tensor into rows for five ranks, so that bytes have to be rearranged."""
    settings = {"memory": "1 MiB", "device": "host"} | run
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(["[source]", f'path = "{source}"', "[target]", f'path = "{target}"', 'format = "dcp"', 'chunks = "ranks"', "ranks = 5",
                      "[run]", *lines]) + "\n"


def same_trees(made, expected):
    """Asserts that two checkpoints have the same files and bytes but for reshard.json, which names the job's paths, and its hash in SHA256SUMS."""
    def files(root):
        return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()} - {"reshard.json", "SHA256SUMS"}

    assert files(made) == files(expected), f"{made}: {files(made) ^ files(expected)}"
    different = [name for name in files(made) if (Path(made) / name).read_bytes() != (Path(expected) / name).read_bytes()]
    assert not different, f"{made}: other bytes than in {expected}: {different}"
