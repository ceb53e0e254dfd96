"""Checkpoints and pages for the browser: all made here, but for the small checkpoint of the repository."""

import json
import os
import struct
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "moe-tp2-pp2-ep2"
HOSTILE = ["</script><img src=x onerror=\"document.title='owned'\">", "\"><svg onload=alert(1)>", "__proto__", "constructor", "${alert(1)}",
           "a\\u0041 & <b>'", "\u200b"]


def reshard(*arguments, code=0):
    """Runs the program; its standard output."""
    done = subprocess.run([os.environ["RESHARD_BIN"], *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != code:
        raise AssertionError(f"reshard {' '.join(map(str, arguments))}: exit code {done.returncode}, expected {code}: {done.stderr}")
    return done.stdout if code == 0 else done.stderr


def megatron_job(folder, tp, pp, ep):
    """A job file that reshards the sample; its target is folder/out."""
    job = folder / "job.toml"
    job.write_text(f'[source]\npath = "{SAMPLE}"\noptimizer = "drop"\nrng = "drop"\n[target]\npath = "{folder / "out"}"\nformat = "megatron"\n'
                   f"layout.tp = {tp}\nlayout.pp = {pp}\nlayout.ep = {ep}\n")
    return job


def dcp_job(folder, source, ranks):
    """A job file that cuts the tensors of a folder into rows for `ranks` files."""
    job = folder / "dcp.toml"
    job.write_text(f'[source]\npath = "{source}"\n[target]\npath = "{folder / "dcp"}"\nformat = "dcp"\nchunks = "ranks"\nranks = {ranks}\n'
                   '[model]\nmap = "none"\n')
    return job


def write_safetensors(path, tensors):
    """A file of zeros with these (name, shape) tensors in BF16."""
    header, at = {}, 0
    for name, shape in tensors:
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def changed_copy(folder, copy, changes):
    """A copy of a folder with one safetensors file; `changes` gives the new bytes of some tensors, None takes a tensor out."""
    copy.mkdir()
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, body, bytes_of = json.loads(data[8:8 + size]), data[8 + size:], b""
    for name in [name for name, change in changes.items() if change is None]:
        del header[name]
    for name, one in header.items():
        begin, end = one["data_offsets"]
        values = changes.get(name) or body[begin:end]
        one["data_offsets"] = [len(bytes_of), len(bytes_of) + len(values)]
        bytes_of += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes_of)
    return copy


def hostile_folder(folder):
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", [(name, [4, 8]) for name in HOSTILE])
    return folder


def large_folder(folder, count, files):
    """`count` small tensors in `files` files, with an index."""
    folder.mkdir()
    index = {}
    for f in range(files):
        name = f"model-{f + 1:05d}-of-{files:05d}.safetensors"
        tensors = [_tensor(i) for i in range(f * count // files, (f + 1) * count // files)]
        write_safetensors(folder / name, tensors)
        index.update({tensor: name for tensor, _ in tensors})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def _tensor(i):
    layer, rest = divmod(i, 1000)
    kind, shape = [("gate_proj.weight", [16, 8]), ("bias", [8]), ("fused.weight", [4, 4, 8])][rest % 3]
    return f"model.layers.{layer}.mlp.experts.{rest // 3}.{kind}", shape
