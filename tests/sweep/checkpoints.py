"""Small checkpoints for the sweep, made without any library: Hugging Face folders in safetensors, several rounds long with the least memory."""

import hashlib
import json
import os
import random
import re
import struct
from pathlib import Path

SHAPES = {
    "model-00001-of-00002.safetensors": {"a": (192, 256), "b": (8,)},
    "model-00002-of-00002.safetensors": {"c": (160, 256), "d": (4, 4)},
}
LONG_AGO = (1_600_000_000, 1_600_000_000)


def write_file(path, shapes, seed):
    header, data = {}, b""
    for name, shape in shapes.items():
        size = 4
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += random.Random(f"{seed} {name}").randbytes(size)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_checkpoint(folder, seed):
    """The same names and shapes for every seed, other values; as old as one that nobody is writing any more."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    for name, shapes in SHAPES.items():
        write_file(folder / name, shapes, seed)
    places = {tensor: name for name, shapes in SHAPES.items() for tensor in shapes}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for path in [*folder.iterdir(), folder]:
        os.utime(path, LONG_AGO)
    return folder


def make_neighbours(folder):
    """What other jobs and people have beside the target, some of it under names like the target's own."""
    for name in ("other/model.safetensors", ".other.part/model.safetensors", ".other.resume/job", ".other.lock", "next.part", "next.old/file",
                 ".next-2.part/file", "next-2/file"):
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"of another job: {name}")


def contents(root):
    """Relative path -> hash of every file below a folder, "folder" for folders. The folder of its job and its limit of time, which a manifest names, are
    not compared."""
    found = {}
    own = str(Path(root).parent).encode()
    for place, folders, files in os.walk(root):
        here = os.path.relpath(place, root)
        for name in folders:
            found[os.path.normpath(os.path.join(here, name))] = "folder"
        for name in files:
            bytes_there = Path(place, name).read_bytes()
            if name == "reshard.json":
                bytes_there = re.sub(rb"stall_seconds = \d+", b"stall_seconds = @", bytes_there.replace(own, b"@"))
            if name == "SHA256SUMS":
                bytes_there = re.sub(rb"\w+  reshard.json", b"@  reshard.json", bytes_there)
            found[os.path.normpath(os.path.join(here, name))] = hashlib.sha1(bytes_there).hexdigest()
    return found


def part_of(found, name):
    """What stands at and below one name."""
    return {path: value for path, value in found.items() if path == name or path.startswith(name + "/")}


def top(path):
    return path.split("/")[0]
