"""State dicts of torchtitan's models, made from Hugging Face tensors after its state_dict_adapter.py of each model (releases 0.2.2 and 0.3.0),
and saved by torch from gloo processes as FSDP2 and expert parallelism cut them."""

import re
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from gloo_ranks import run_ranks

COMMON = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
    "mlp.gate.weight": "moe.router.gate.weight", "mlp.shared_experts.gate_proj": "moe.shared_experts.w1",
    "mlp.shared_experts.down_proj": "moe.shared_experts.w2", "mlp.shared_experts.up_proj": "moe.shared_experts.w3"}
GROUPED_QUERY = {"self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm"}
LATENT = {
    "self_attn.q_proj": "attention.wq", "self_attn.q_a_proj": "attention.wq_a", "self_attn.q_a_layernorm": "attention.q_norm",
    "self_attn.q_b_proj": "attention.wq_b", "self_attn.kv_a_proj_with_mqa": "attention.wkv_a", "self_attn.kv_a_layernorm": "attention.kv_norm",
    "self_attn.kv_b_proj": "attention.wkv_b", "shared_head.norm": "mtp_norm"}
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)\.weight")


def state_dict(hf, config, release="0.3"):
    """Name -> tensor. Tied weights are under both names, as two parameters of a module that are one are."""
    layers = config["num_hidden_layers"]
    old = release == "0.2"
    latent = config["model_type"] in ("deepseek_v2", "deepseek_v3")
    qkv = "attention." if old else "attention.qkv_linear."
    names = COMMON | (LATENT if latent else GROUPED_QUERY | {f"self_attn.{x}_proj": f"{qkv}w{x}" for x in "qkv"})
    names |= {"lm_head": "output" if old else "lm_head", "mlp.gate.e_score_correction_bias": "moe.expert_bias" + ("" if old else "_E")}
    result, experts = {}, {}
    for name, tensor in hf.items():
        expert = EXPERT.fullmatch(name)
        if expert:
            part = PARTS[expert[3]]
            place = f"moe.experts.{part}" if old else f"moe.routed_experts.inner_experts.{part}_{'EDF' if part == 'w2' else 'EFD'}"
            experts.setdefault(f"model.layers.{expert[1]}.{place}", {})[int(expert[2])] = tensor
            continue
        if name.endswith(("embed_tokens.weight", "shared_head.head.weight")) and name.startswith("model.layers."):
            continue  # the embedding and the head once more
        new = name
        for word in sorted(names, key=len, reverse=True):
            if word in new:
                new = new.replace(word, names[word])
                break
        result[new] = interleaved(config, new, tensor) if config["model_type"] == "llama" else tensor
    result |= {name: torch.stack([of[i] for i in range(len(of))]) for name, of in experts.items()}
    if config.get("tie_word_embeddings"):
        result["output.weight" if old else "lm_head.weight"] = result["tok_embeddings.weight"]
    return {renumbered(name, layers): tensor for name, tensor in result.items()}


def interleaved(config, name, tensor):
    """Rows of queries and keys as complex numbers: real and imaginary parts alternate."""
    if not re.search(r"\.w[qk]\.", name):
        return tensor
    heads = config["num_attention_heads" if ".wq." in name else "num_key_value_heads"]
    return tensor.view(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


def renumbered(name, layers):
    """Layers of multi-token prediction have numbers of their own."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    if not match:
        return name
    layer, rest = int(match[1]), name[match.end():]
    return f"layers.{layer}.{rest}" if layer < layers else f"mtp_layers.{layer - layers}.{rest}"


def save_on_rank(rank, world, state, folder):
    """Rows of every tensor over all ranks; experts over half as many, and inside of each over the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    flat = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("ep", "fsdp"))
    placed = {}
    for name, tensor in state.items():
        if not getattr(tensor, "ndim", 0):
            placed[name] = tensor  # a step or a setting of the optimizer
        elif tensor.ndim == 3:
            placed[name] = distribute_tensor(tensor, grid, [Shard(0), Shard(1)])
        else:
            placed[name] = distribute_tensor(tensor, flat, [Shard(0)])
    dcp.save(placed, checkpoint_id=folder)


def save(state, folder, world=4):
    run_ranks(save_on_rank, world, (world, state, str(folder)), "titan_checkpoints")
    return Path(folder)
