"""Writes a large Megatron checkpoint of random weights for benchmarks: make_megatron.py FOLDER [--layers 4 --experts 32 --tp 1 --pp 4 --ep 8 …].

Real torch.save files of a mixture-of-experts model with grouped experts; sizes default to about 4 GiB.
"""

import argparse
import os

import torch


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name, default in dict(layers=4, hidden=4096, heads=32, groups=8, experts=32, inter=1280, vocab=32000, tp=1, pp=4, ep=8).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def weights(name, *shape):
    """Random bits, the same for every replica of a name; no zero runs that a file system could skip."""
    generator = torch.Generator().manual_seed(hash_of(name))
    return torch.randint(-32768, 32767, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)


def hash_of(name):
    value = 1469598103934665603
    for letter in name.encode():
        value = (value ^ letter) * 1099511628211 % (1 << 63)
    return value


def layer_state(o, local, layer, tp, ep):
    here, dim = f"decoder.layers.{local}.", o.hidden // o.heads
    rows = (o.heads + 2 * o.groups) * dim // o.tp
    state = {
        here + "self_attention.linear_proj.weight": weights(f"{layer}.proj.{tp}", o.hidden, o.hidden // o.tp),
        here + "self_attention.linear_qkv.layer_norm_weight": weights(f"{layer}.norm1", o.hidden),
        here + "self_attention.linear_qkv.weight": weights(f"{layer}.qkv.{tp}", rows, o.hidden),
        here + "pre_mlp_layernorm.weight": weights(f"{layer}.norm2", o.hidden),
        here + "mlp.router.weight": weights(f"{layer}.router", o.experts, o.hidden),
    }
    per_rank = o.experts // o.ep
    for matrix, shape in (("fc1", (2 * o.inter // o.tp, o.hidden)), ("fc2", (o.hidden, o.inter // o.tp))):
        for j in range(per_rank):
            state[f"{here}mlp.experts.linear_{matrix}.weight{j}"] = weights(f"{layer}.{matrix}.{ep * per_rank + j}.{tp}", *shape)
    return state


def rank_state(o, tp, pp, ep):
    state = {}
    if pp == 0:
        state["embedding.word_embeddings.weight"] = weights(f"embed.{tp}", o.vocab // o.tp, o.hidden)
    per_stage = o.layers // o.pp
    for local in range(per_stage):
        state.update(layer_state(o, local, pp * per_stage + local, tp, ep))
    if pp == o.pp - 1:
        state["decoder.final_layernorm.weight"] = weights("final", o.hidden)
        state["output_layer.weight"] = weights(f"head.{tp}", o.vocab // o.tp, o.hidden)
    return state


def namespace(o):
    return argparse.Namespace(
        num_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads, group_query_attention=True, num_query_groups=o.groups,
        kv_channels=o.hidden // o.heads, ffn_hidden_size=4 * o.hidden, num_experts=o.experts, moe_ffn_hidden_size=o.inter, moe_layer_freq=1,
        vocab_size=o.vocab, padded_vocab_size=o.vocab, make_vocab_size_divisible_by=128, swiglu=True, normalization="RMSNorm",
        untie_embeddings_and_output_weights=True, add_bias_linear=False, add_qkv_bias=False, qk_layernorm=False, max_position_embeddings=4096,
        tensor_model_parallel_size=o.tp, pipeline_model_parallel_size=o.pp, expert_model_parallel_size=o.ep, expert_tensor_parallel_size=o.tp,
        virtual_pipeline_model_parallel_size=None, bf16=True, params_dtype=torch.bfloat16, iteration=1)


def main():
    o = parse()
    for pp in range(o.pp):
        for ep in range(o.ep):
            for tp in range(o.tp):
                parts = [f"{tp:02}"] + ([f"{pp:03}"] if o.pp > 1 else []) + ([f"{ep:03}"] if o.ep > 1 else [])
                folder = os.path.join(o.folder, "iter_0000001", "mp_rank_" + "_".join(parts))
                os.makedirs(folder)
                content = {"args": namespace(o), "checkpoint_version": 3.0, "iteration": 1, "model": rank_state(o, tp, pp, ep)}
                torch.save(content, os.path.join(folder, "model_optim_rng.pt"))
    with open(os.path.join(o.folder, "latest_checkpointed_iteration.txt"), "w") as tracker:
        tracker.write("1")


main()
