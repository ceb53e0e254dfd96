"""Global tensors of a test model under neutral names, filled so that no two elements' places are easily confused."""

import functools
import hashlib
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(1, str(Path(__file__).parents[2] / "docs"))
import digest as specification  # noqa: E402

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def global_shapes(config):
    """Neutral name -> shape. Fused tensors are whole: `qkv` in groups of (queries, key, value), `fc1` as all gate rows, then all up rows."""
    width = 2 if config.gated else 1
    shapes = {"embed": (config.vocab, config.hidden)}
    for layer in range(config.layers):
        at = f"layers.{layer}."
        shapes[at + "attn_norm"] = (config.hidden,)
        shapes[at + "proj"] = (config.hidden, config.heads * config.head_dim)
        shapes[at + "qkv"] = (config.qkv_rows, config.hidden)
        if config.qkv_bias:
            shapes[at + "qkv_bias"] = (config.qkv_rows,)
        if config.qk_norm:
            shapes[at + "q_norm"] = shapes[at + "k_norm"] = (config.head_dim,)
        shapes[at + "mlp_norm"] = (config.hidden,)
        if config.is_moe(layer):
            shapes[at + "router"] = (config.experts, config.hidden)
            for expert in range(config.experts):
                shapes[at + f"experts.{expert}.fc1"] = (width * config.expert_ffn, config.hidden)
                shapes[at + f"experts.{expert}.fc2"] = (config.hidden, config.expert_ffn)
        else:
            shapes[at + "fc1"] = (width * config.ffn, config.hidden)
            shapes[at + "fc2"] = (config.hidden, config.ffn)
    shapes["final_norm"] = (config.hidden,)
    if not config.tied:
        shapes["head"] = (config.vocab, config.hidden)
    return shapes


def make_globals(config, salt=""):
    """Deterministic values per name and salt, of a size that keeps a forward pass well behaved."""
    return {name: pattern(name + salt, shape, DTYPES[config.dtype]) for name, shape in global_shapes(config).items()}


def pattern(seed_text, shape, dtype):
    seed = int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:6], "little")
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    is_norm = len(shape) == 1 and "norm" in seed_text
    return (1 + 0.2 * values if is_norm else 0.2 * values).to(dtype)


def same_bits(left, right):
    """Equality of dtype, shape and bytes: NaN equals itself, 0.0 differs from -0.0."""
    return left.dtype == right.dtype and left.shape == right.shape and raw(left) == raw(right)


def raw(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else bytes(tensor.reshape(1).view(torch.uint8).tolist())


@functools.cache
def crc64(data):
    """As a manifest has it: 16 hexadecimal digits, by docs/digest.py."""
    return f"{specification.digest(np.frombuffer(data, np.uint8)):016x}"


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys(), describe_difference(found.keys(), expected.keys())
    wrong = [name for name in expected if not same_bits(found[name], expected[name])]
    assert not wrong, f"{len(wrong)} of {len(expected)} tensors differ, first {wrong[:5]}"


def describe_difference(found, expected):
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    return f"missing {missing[:8]} ({len(missing)}), unexpected {extra[:8]} ({len(extra)})"


def digest(tensor):
    header = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n"
    return hashlib.sha256(header.encode() + raw(tensor)).hexdigest()
