"""Tiny random transformers models, strict loading of a folder, and the conversion between Hugging Face names and our global tensors."""

import json
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.utils import logging as transformers_logging

from tensor_patterns import DTYPES, describe_difference, global_shapes

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()

MOE_NAMES = {  # family -> (block, gate, up, down)
    "qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}


# --- names and the fused tensors ----------------------------------------------------------------------------------


def globals_to_hf(config, tensors):
    """Hugging Face name -> tensor, as the family's checkpoint files spell it."""
    result = {"model.embed_tokens.weight": tensors["embed"], "model.norm.weight": tensors["final_norm"]}
    if not config.tied:
        result["lm_head.weight"] = tensors["head"]
    for layer in range(config.layers):
        result.update(layer_to_hf(config, tensors, layer))
    return {name: tensor.contiguous() for name, tensor in result.items()}


def layer_to_hf(config, tensors, layer):
    here, source = f"model.layers.{layer}.", f"layers.{layer}."
    result = {
        here + "input_layernorm.weight": tensors[source + "attn_norm"],
        here + "post_attention_layernorm.weight": tensors[source + "mlp_norm"],
        here + "self_attn.o_proj.weight": tensors[source + "proj"],
    }
    for kind, suffix in (("qkv", "weight"), ("qkv_bias", "bias")):
        if source + kind in tensors:
            for name, tensor in zip("qkv", split_qkv(config, tensors[source + kind])):
                result[f"{here}self_attn.{name}_proj.{suffix}"] = tensor
    for norm in ("q", "k") if config.qk_norm else ():
        result[f"{here}self_attn.{norm}_norm.weight"] = tensors[f"{source}{norm}_norm"]
    return result | (moe_to_hf if config.is_moe(layer) else dense_to_hf)(config, tensors, here, source)


def dense_to_hf(config, tensors, here, source):
    gate, up = tensors[source + "fc1"].chunk(2)
    return {here + "mlp.gate_proj.weight": gate, here + "mlp.up_proj.weight": up, here + "mlp.down_proj.weight": tensors[source + "fc2"]}


def moe_to_hf(config, tensors, here, source):
    block, gate_name, up_name, down_name = MOE_NAMES[config.family]
    result = {f"{here}{block}.gate.weight": tensors[source + "router"]}
    for expert in range(config.experts):
        at = f"{here}{block}.experts.{expert}."
        gate, up = tensors[f"{source}experts.{expert}.fc1"].chunk(2)
        result |= {f"{at}{gate_name}.weight": gate, f"{at}{up_name}.weight": up, f"{at}{down_name}.weight": tensors[f"{source}experts.{expert}.fc2"]}
    return result


def split_qkv(config, fused):
    """Rows of a group: its query heads, one key head, one value head."""
    per_group = config.heads // config.groups
    blocks = fused.reshape(config.groups, per_group + 2, config.head_dim, *fused.shape[1:])
    parts = blocks[:, :per_group], blocks[:, per_group], blocks[:, per_group + 1]
    return [part.reshape(-1, *fused.shape[1:]) for part in parts]


def hf_to_globals(config, state):
    """The inverse, found by asking which Hugging Face tensors each global one is made of; every tensor must be used."""
    result, used = {}, set()

    def take(name):
        used.add(name)
        return state[name]

    for name in global_shapes(config):
        result[name] = global_from_hf(config, name, take)
    assert used == set(state), describe_difference(state, used)
    return result


def global_from_hf(config, name, take):
    top = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
    if name in top:
        return take(top[name])
    _, layer, kind = name.split(".", 2)
    here = f"model.layers.{layer}."
    if kind in ("qkv", "qkv_bias"):
        return fuse_qkv(config, [take(f"{here}self_attn.{part}_proj.{'bias' if kind == 'qkv_bias' else 'weight'}") for part in "qkv"])
    plain = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "proj": "self_attn.o_proj", "q_norm": "self_attn.q_norm",
             "k_norm": "self_attn.k_norm", "fc2": "mlp.down_proj"}
    if kind in plain:
        return take(f"{here}{plain[kind]}.weight")
    if kind == "fc1":
        return torch.cat([take(f"{here}mlp.gate_proj.weight"), take(f"{here}mlp.up_proj.weight")])
    block, gate, up, down = MOE_NAMES[config.family]
    if kind == "router":
        return take(f"{here}{block}.gate.weight")
    _, expert, which = kind.split(".")
    at = f"{here}{block}.experts.{expert}."
    return take(f"{at}{down}.weight") if which == "fc2" else torch.cat([take(f"{at}{gate}.weight"), take(f"{at}{up}.weight")])


def fuse_qkv(config, parts):
    query, key, value = (part.reshape(config.groups, -1, config.head_dim, *part.shape[1:]) for part in parts)
    fused = torch.cat([query, key, value], dim=1)
    return fused.reshape(config.qkv_rows, *parts[0].shape[1:])


# --- models and folders -------------------------------------------------------------------------------------------


def hf_config(config):
    """The transformers configuration of a test model."""
    import transformers

    common = dict(
        vocab_size=config.vocab, hidden_size=config.hidden, num_hidden_layers=config.layers, num_attention_heads=config.heads,
        num_key_value_heads=config.groups, head_dim=config.head_dim, intermediate_size=config.ffn, rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, dtype=DTYPES[config.dtype],
        rope_parameters={"rope_theta": float(config.rope_base), "rope_type": "default"})
    if config.family == "llama":
        return transformers.LlamaConfig(**common)
    if config.family == "qwen2":
        assert config.qkv_bias
        return transformers.Qwen2Config(**common)
    if config.family == "qwen3":
        assert config.qk_norm
        return transformers.Qwen3Config(**common)
    if config.family == "mixtral":
        return transformers.MixtralConfig(**common | dict(
            num_local_experts=config.experts, num_experts_per_tok=config.top_k, intermediate_size=config.expert_ffn, sliding_window=None))
    assert config.family == "qwen3_moe" and config.qk_norm
    dense = [layer for layer in range(config.layers) if not config.is_moe(layer)]
    return transformers.Qwen3MoeConfig(**common | dict(
        num_experts=config.experts, num_experts_per_tok=config.top_k, moe_intermediate_size=config.expert_ffn, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=dense, router_aux_loss_coef=0.001))


def save_hf(folder, config, tensors, max_shard_size="50GB"):
    """Writes a folder with transformers itself, holding exactly the given global tensors."""
    with tempfile.TemporaryDirectory() as scratch:
        # Filled through its own loader, because transformers keeps experts fused in memory.
        save_file(globals_to_hf(config, tensors), f"{scratch}/model.safetensors", metadata={"format": "pt"})
        hf_config(config).save_pretrained(scratch)
        model = load_hf(scratch)
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    return Path(folder)


def load_hf(folder):
    """Loads a folder and insists that every key fits."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto", attn_implementation="eager")
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), f"{problem}: {sorted(info[problem])[:6]}"
    return model.eval()


def hf_logits(folder, tokens):
    model = load_hf(folder)
    with torch.no_grad():
        return model(tokens).logits


def read_hf(folder):
    """Every tensor on disk, found through the index when there is one; files and index must agree."""
    folder = Path(folder)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    state, places = {}, {}
    for name in files:
        with safe_open(folder / name, framework="pt") as file:
            assert (file.metadata() or {}).get("format") == "pt", f"{name} has no format in its metadata"
            for key in file.keys():
                assert key not in state, f"{key} is in {places[key]} and in {name}"
                state[key], places[key] = file.get_tensor(key), name
    index = folder / "model.safetensors.index.json"
    if index.exists():
        check_index(json.loads(index.read_text()), places, state)
    else:
        assert files == ["model.safetensors"], files
    return state


def describe_files(found, expected):
    """Why files of a folder are not those of another, by name; nothing for those that are. What a job adds is not looked at."""
    return {path.name: difference_of(found / path.name, path) for path in sorted(expected.iterdir()) if path.is_file()
            and (not (found / path.name).exists() or (found / path.name).read_bytes() != path.read_bytes())}


def difference_of(found, expected):
    if not found.exists():
        return "is missing"
    if expected.suffix != ".safetensors":
        return "differs"
    return " ".join(header_text(path) for path in (found, expected))[:2000]


def header_text(path):
    with open(path, "rb") as file:
        return repr(file.read(int.from_bytes(file.read(8), "little")))


def assert_same_files(found, expected):
    differences = describe_files(Path(found), Path(expected))
    assert not differences, differences


def check_index(index, places, state):
    assert index["weight_map"] == places, describe_difference(places, index["weight_map"])
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert index["metadata"]["total_size"] == total, f"total_size {index['metadata']['total_size']}, bytes {total}"
