"""Writes a Hugging Face folder of a dense model whose projections are FP8 with scales of 128 x 128 blocks, random bytes, for benchmarks:
make_fp8_folder.py FOLDER [--layers 8 --hidden 4096 --inter 14336 --vocab 32000]. Needs numpy only; sizes default to about 2 GiB.
"""

import argparse
import json
import os
import struct

import numpy

BLOCK = 128


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name, default in dict(layers=8, hidden=4096, heads=32, groups=8, inter=14336, vocab=32000).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def plain(name, *shape):
    return [(name, "BF16", shape, 2)]


def quantised(name, rows, columns):
    return [(name, "F8_E4M3", (rows, columns), 1), (name + "_scale_inv", "F32", (-(-rows // BLOCK), -(-columns // BLOCK)), 4)]


def tensors(o):
    head = o.hidden // o.heads
    result = plain("model.embed_tokens.weight", o.vocab, o.hidden)
    for layer in range(o.layers):
        here = f"model.layers.{layer}."
        result += plain(here + "input_layernorm.weight", o.hidden) + plain(here + "post_attention_layernorm.weight", o.hidden)
        result += quantised(here + "self_attn.q_proj.weight", o.hidden, o.hidden) + quantised(here + "self_attn.o_proj.weight", o.hidden, o.hidden)
        for part in "kv":
            result += quantised(here + f"self_attn.{part}_proj.weight", o.groups * head, o.hidden)
        for part in ("gate", "up"):
            result += quantised(here + f"mlp.{part}_proj.weight", o.inter, o.hidden)
        result += quantised(here + "mlp.down_proj.weight", o.hidden, o.inter)
    return result + plain("model.norm.weight", o.hidden) + plain("lm_head.weight", o.vocab, o.hidden)


def content(random, dtype, count):
    """Any bits, but scales are numbers."""
    if dtype == "F32":
        return (random.random(count, dtype=numpy.float32) + 0.5).tobytes()
    return random.bytes(count * (2 if dtype == "BF16" else 1))


def main():
    o = parse()
    os.makedirs(o.folder)
    header, at = {}, 0
    for name, dtype, shape, size in tensors(o):
        end = at + int(numpy.prod(shape)) * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    random = numpy.random.default_rng(1)
    with open(os.path.join(o.folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            file.write(content(random, entry["dtype"], int(numpy.prod(entry["shape"]))))
    config = dict(
        model_type="llama", architectures=["LlamaForCausalLM"], num_hidden_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads,
        num_key_value_heads=o.groups, head_dim=o.hidden // o.heads, intermediate_size=o.inter, vocab_size=o.vocab, rms_norm_eps=1e-5, hidden_act="silu",
        rope_theta=10000.0, max_position_embeddings=4096, tie_word_embeddings=False, attention_bias=False, mlp_bias=False, torch_dtype="bfloat16",
        quantization_config={"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    with open(os.path.join(o.folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)


main()
