"""Writes a Hugging Face checkpoint with FP8 weights for benchmarks: make_fp8.py FROM TO.

FROM is a folder of BF16 safetensors. Each linear weight of it becomes F8_E4M3 with an F32 scale for each block of 128 x 128, as DeepSeek publishes them.
"""

import json
import os
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

BLOCK = 128
KEPT = ("norm", "embed_tokens", "lm_head", "mlp.gate.weight")


def quantised(name, tensor):
    """The stored tensors of one weight: its bits as FP8 of a small range, not its values; the benchmark moves bytes."""
    if tensor.dim() != 2 or any(word in name for word in KEPT):
        return {name: tensor}
    rows, columns = tensor.shape
    bits = tensor.contiguous().view(torch.uint8)[:, ::2].contiguous() & 0xBF
    scales = torch.full((-(-rows // BLOCK), -(-columns // BLOCK)), 0.5)
    return {name: bits.view(torch.float8_e4m3fn), name + "_scale_inv": scales}


def main():
    source, target = sys.argv[1:]
    os.makedirs(target)
    places, total = {}, 0
    for shard in sorted(name for name in os.listdir(source) if name.endswith(".safetensors")):
        tensors = {}
        with safe_open(os.path.join(source, shard), "pt") as file:
            for name in file.keys():
                tensors.update(quantised(name, file.get_tensor(name)))
        save_file(tensors, os.path.join(target, shard), {"format": "pt"})
        places.update({name: shard for name in tensors})
        total += sum(t.nbytes for t in tensors.values())
    with open(os.path.join(target, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, file)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    with open(os.path.join(target, "config.json"), "w") as file:
        json.dump(config, file)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(os.path.join(source, name)):
            shutil.copy(os.path.join(source, name), target)


main()
