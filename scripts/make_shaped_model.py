#!/usr/bin/env python3
"""Writes a Hugging Face folder with the shapes of a published model and random BF16 weights, for scripts/make_card.sh.

    scripts/make_shaped_model.py CONFIG.json FOLDER [--layers N] [--shard-bytes 5000000000] [--seed 1]

CONFIG.json is the model's own, such as those in docs/cards/configs. Names and shapes are those of transformers' class for it, on the meta device.
--layers cuts the model to its first layers, where the disk has no place for all of them. Needs torch, transformers and numpy.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy
import torch
import transformers

CHUNK = 32 << 20  # elements that are made at a time


def named_shapes(config):
    """Names and shapes that save_pretrained would write, in its order: tied weights once, what modules fuse as it is on the hub."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16)
    state = model.state_dict()
    try:
        from transformers.core_model_loading import revert_weight_conversion

        state = revert_weight_conversion(model, state)
    except ImportError:
        pass  # an older transformers keeps the names of the hub
    tied = set(getattr(model, "all_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    return {name: list(tensor.shape) for name, tensor in state.items() if name not in tied}


def values(generator, count, is_vector):
    """Random bits with the exponents of usual weights: 2^-7 to 2^-4 of either sign; around one for norms."""
    bits = generator.integers(0, 1 << 16, count, dtype=numpy.uint16)
    return (bits & 0x7F) | 0x3F80 if is_vector else (bits & 0x81FF) | 0x3C00


def shards_of(shapes, limit):
    shards, size = [[]], 0
    for name, shape in shapes.items():
        count = 2 * int(numpy.prod(shape, dtype=numpy.int64))
        if shards[-1] and size + count > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
    return shards


def write_shard(path, names, shapes, generator):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(names):
        count = int(numpy.prod(shapes[name], dtype=numpy.int64))
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(names):
            left = int(numpy.prod(shapes[name], dtype=numpy.int64))
            while left > 0:
                now = min(left, CHUNK)
                file.write(values(generator, now, len(shapes[name]) < 2).astype("<u2").tobytes())
                left -= now
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    if options.layers:
        config["num_hidden_layers"] = options.layers
    shapes = named_shapes(config)
    options.folder.mkdir(parents=True)
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generator = numpy.random.Generator(numpy.random.PCG64(options.seed))
    shards = shards_of(shapes, options.shard_bytes)
    total, places = 0, {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(options.folder / file, names, shapes, generator)
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (options.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    print(f"{options.folder}: {len(shapes)} tensors, {total} bytes in {len(shards)} files")


if __name__ == "__main__":
    main()
