"""Hugging Face folders whose weights are quantised: the stored tensors of every scheme, with random bytes, and folders of headers alone."""

import json
import math
import struct
import zlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

BLOCK = 16  # of the block schemes here; published folders have 128


def generator(name):
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def random_bytes(name, shape, dtype):
    """Any bit pattern: what is moved is bytes. F32 and BF16 are scales, so they are numbers."""
    if dtype in (torch.float32, torch.bfloat16):
        return torch.rand(shape, generator=generator(name)).to(dtype) + 0.5
    count = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count,), generator=generator(name), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def tiles(shape, rows, columns):
    return [*shape[:-2], math.ceil(shape[-2] / rows), math.ceil(shape[-1] / columns)]


F8, F32, BF16, U8, I32 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.uint8, torch.int32

WIDE_BLOCKS = "fp8_block_named"  # compressed-tensors' own blocks, larger than most matrices of the tests
# scheme -> shape of the weight -> ending of the stored name (in place of "weight") -> (shape, dtype)
SCHEMES = {
    "fp8_block": lambda s: {"weight": (s, F8), "weight_scale_inv": (tiles(s, BLOCK, BLOCK), F32)},
    "fp8_block_e8m0": lambda s: {"weight": (s, F8), "weight_scale_inv": (tiles(s, BLOCK, BLOCK), torch.float8_e8m0fnu)},
    "fp8_tiles": lambda s: {"weight": (s, F8), "scale": (tiles(s, BLOCK, BLOCK), F32)},
    "fp4_tiles": lambda s: {"weight": (tiles(s, 1, 2), torch.int8), "scale": (tiles(s, 1, 32), torch.float8_e8m0fnu)},
    "fp8_tensor": lambda s: {"weight": (s, F8), "weight_scale": ([], F32), "input_scale": ([], F32)},
    "fp8_tensor_1": lambda s: {"weight": (s, F8), "weight_scale": ([1], F32), "input_scale": ([1], F32)},
    "fp8_channel": lambda s: {"weight": (s, F8), "weight_scale": ([s[0], 1], BF16)},
    "fp8_channel_flat": lambda s: {"weight": (s, F8), "weight_scale": ([s[0]], F32)},
    WIDE_BLOCKS: lambda s: {"weight": (s, F8), "weight_scale": (tiles(s, 128, 128), F32)},
    "nvfp4": lambda s: {"weight": (tiles(s, 1, 2), U8), "weight_scale": (tiles(s, 1, 16), F8), "weight_scale_2": ([], F32), "input_scale": ([], F32)},
    "nvfp4_packed": lambda s: {
        "weight_packed": (tiles(s, 1, 2), U8),
        "weight_scale": (tiles(s, 1, 16), F8),
        "weight_global_scale": ([1], F32),
        "input_global_scale": ([1], F32),
    },
    "mxfp4_packed": lambda s: {"weight_packed": (tiles(s, 1, 2), U8), "weight_scale": (tiles(s, 1, 32), U8)},
    "mxfp8": lambda s: {"weight": (s, F8), "weight_scale": (tiles(s, 1, 32), U8)},
    "int4_packed": lambda s: {"weight_packed": (tiles(s, 1, 8), I32), "weight_scale": (tiles(s, 1, 32), BF16), "weight_shape": ([2], torch.int64)},
    "int4_packed_asymmetric": lambda s: {
        "weight_packed": (tiles(s, 1, 8), I32), "weight_scale": (tiles(s, 1, 32), BF16), "weight_zero_point": (tiles(s, 8, 32), I32),
        "weight_shape": ([2], torch.int64)},
    "int4_packed_channel": lambda s: {"weight_packed": (tiles(s, 1, 8), I32), "weight_scale": ([s[0], 1], BF16), "weight_shape": ([2], torch.int64)},
    "int8_packed": lambda s: {"weight_packed": (tiles(s, 1, 4), I32), "weight_scale": (tiles(s, 1, 32), BF16), "weight_shape": ([2], torch.int64)},
    "int2_packed": lambda s: {"weight_packed": (tiles(s, 1, 16), I32), "weight_scale": (tiles(s, 1, 32), BF16), "weight_shape": ([2], torch.int64)},
    "int5_packed_asymmetric": lambda s: {
        "weight_packed": ([s[0], s[1] * 5 // 32], I32), "weight_scale": (tiles(s, 1, 32), BF16),
        "weight_zero_point": ([s[0] * 5 // 32, math.ceil(s[1] / 32)], I32), "weight_shape": ([2], torch.int64)},
    "int3_packed_channel": lambda s: {
        "weight_packed": ([s[0], s[1] * 3 // 32], I32), "weight_scale": ([s[0], 1], BF16), "weight_shape": ([2], torch.int64)},
    "int8_channel": lambda s: {"weight": (s, torch.int8), "weight_scale": ([s[0], 1], BF16), "weight_zero_point": ([s[0], 1], torch.int8)},
    "int8_group": lambda s: {"weight": (s, torch.int8), "weight_scale": (tiles(s, 1, 32), BF16)},
    "int8_channel_flat": lambda s: {"weight": (s, torch.int8), "weight_scale": ([s[0]], F32), "input_scale": ([], F32)},
    "mxfp4": lambda s: {"weight": (tiles(s, 1, 2), U8), "weight_scale": (tiles(s, 1, 32), U8)},
    "nvfp4_32": lambda s: {"weight": (tiles(s, 1, 2), U8), "weight_scale": (tiles(s, 1, 32), F8), "weight_scale_2": ([], F32), "input_scale": ([], F32)},
    "int4_awq_fp8": lambda s: {
        "weight": (tiles(s, 2, 1), U8), "weight_scale": (tiles(s, 1, 32), F32), "weight_scale_2": ([], F32), "input_scale": ([], F32)},
    "int4_awq": lambda s: {"weight": (tiles(s, 2, 1), U8), "weight_scale": (tiles(s, 1, 32), BF16), "pre_quant_scale": ([s[1]], BF16)},
}

METHODS = {"fp8_block": "fp8", "fp8_block_e8m0": "fp8", "fp8_tiles": "fp8", "fp4_tiles": "fp8"}
MODELOPT = {"fp8_tensor", "fp8_channel_flat", "nvfp4", "nvfp4_32", "mxfp4", "mxfp8", "int4_awq", "int4_awq_fp8", "int8_channel_flat"}


def quantisation_config(scheme):
    if scheme in METHODS:
        return {"quant_method": METHODS[scheme], "weight_block_size": [BLOCK, BLOCK]}
    if scheme == WIDE_BLOCKS:
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [128, 128]}}}}
    method = "modelopt" if scheme in MODELOPT else "compressed-tensors"
    symmetric = scheme not in ("int4_packed_asymmetric", "int5_packed_asymmetric", "int8_channel")
    return {"quant_method": method, "config_groups": {"group_0": {"weights": {"group_size": 32, "symmetric": symmetric}}}}


def is_projection(name):
    last = name.split(".")[-2] if name.endswith(".weight") else ""
    return ".layers." in name and (last.endswith("_proj") or last in ("w1", "w2", "w3", "kv_a_proj_with_mqa"))


def quantised_parts(name, shape, scheme):
    """The stored tensors in place of a weight."""
    result = {}
    for ending, (part_shape, dtype) in SCHEMES[scheme](list(shape)).items():
        part = name.removesuffix("weight") + ending
        result[part] = torch.tensor(shape, dtype=dtype) if ending == "weight_shape" else random_bytes(part, part_shape, dtype)
    return result


def layer_of(name):
    return int(name.split(".layers.")[1].split(".")[0])


def quantise_folder(folder, scheme_of):
    """Replaces the projections of a saved folder; `scheme_of(name)` names their scheme, None leaves a weight as it is."""
    folder = Path(folder)
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    result = {}
    used = set()
    for name, tensor in tensors.items():
        scheme = scheme_of(name) if is_projection(name) else None
        if scheme is None:
            result[name] = tensor
        else:
            used.add(scheme)
            result |= quantised_parts(name, tensor.shape, scheme)
    save_file(result, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantisation_config(sorted(used)[0])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return result


def stored_bits(folder):
    """Name -> dtype, shape and bytes, of every file of a folder."""
    result = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                result[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + length + begin : 8 + length + end])
    return result


BITS = {"F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "I8": 8, "F32": 32, "BF16": 16, "I32": 32, "I64": 64}


def header_folder(folder, config, tensors):
    """A folder of headers: the files have their full size and no data in them. `tensors`: name -> (dtype, shape)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder
