"""What published checkpoints store, as names, dtypes and shapes written down here family by family, and folders of their headers without weights."""

import json
import math
import struct
from pathlib import Path

BITS = {"F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "I8": 8, "F32": 32, "BF16": 16, "F16": 16, "I32": 32, "I64": 64}
CONFIGS = Path(__file__).parent.parent / "data" / "configs"


def config_of(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


def outer(c, body, prefix="model.", norm="norm"):
    """A decoder between its embedding and its head."""
    yield f"{prefix}embed_tokens.weight", [c["vocab_size"], c["hidden_size"]], "BF16"
    yield from body
    yield f"{prefix}{norm}.weight", [c["hidden_size"]], "BF16"
    yield "lm_head.weight", [c["vocab_size"], c["hidden_size"]], "BF16"


def gated(prefix, inner, hidden, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = names
    yield f"{prefix}{gate}.weight", [inner, hidden], "BF16"
    yield f"{prefix}{up}.weight", [inner, hidden], "BF16"
    yield f"{prefix}{down}.weight", [hidden, inner], "BF16"


def deepseek_attention(c, at):
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    if c["q_lora_rank"] is None:
        yield f"{at}q_proj.weight", [heads * (nope + rope), hidden], "BF16"
    else:
        yield f"{at}q_a_proj.weight", [c["q_lora_rank"], hidden], "BF16"
        yield f"{at}q_a_layernorm.weight", [c["q_lora_rank"]], "BF16"
        yield f"{at}q_b_proj.weight", [heads * (nope + rope), c["q_lora_rank"]], "BF16"
    yield f"{at}kv_a_proj_with_mqa.weight", [rank + rope, hidden], "BF16"
    yield f"{at}kv_a_layernorm.weight", [rank], "BF16"
    yield f"{at}kv_b_proj.weight", [heads * (nope + value), rank], "BF16"
    yield f"{at}o_proj.weight", [hidden, heads * value], "BF16"


def dense_or_experts(c, layer, at):
    """The MLP or the experts of a layer, and what one of multi-token prediction has besides: it repeats the embedding and the head."""
    hidden = c["hidden_size"]
    if layer < c["first_k_dense_replace"]:
        yield from gated(f"{at}mlp.", c["intermediate_size"], hidden)
        return
    yield f"{at}mlp.gate.weight", [c["n_routed_experts"], hidden], "BF16"
    yield f"{at}mlp.gate.e_score_correction_bias", [c["n_routed_experts"]], "F32"
    for expert in range(c["n_routed_experts"]):
        yield from gated(f"{at}mlp.experts.{expert}.", c["moe_intermediate_size"], hidden)
    yield from gated(f"{at}mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"], hidden)
    if layer < c["num_hidden_layers"]:
        return
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{at}{norm}.weight", [hidden], "BF16"
    yield f"{at}eh_proj.weight", [hidden, 2 * hidden], "BF16"
    for copy in ("embed_tokens", "shared_head.head"):
        yield f"{at}{copy}.weight", [c["vocab_size"], hidden], "BF16"


def deepseek_v3(c):
    """DeepSeek-V3, Kimi-K2. A layer of multi-token prediction repeats the embedding and the head."""
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]

    def body():
        for layer in range(layers + c["num_nextn_predict_layers"]):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"
            yield from deepseek_attention(c, f"{at}self_attn.")
            yield from dense_or_experts(c, layer, at)

    return outer(c, body())


def grouped_attention(c, at, bias=False):
    queries, keys = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    rows = {"q": queries, "k": keys, "v": keys}
    for part, size in rows.items():
        yield f"{at}{part}_proj.weight", [size, c["hidden_size"]], "BF16"
        if bias:
            yield f"{at}{part}_proj.bias", [size], "BF16"
    yield f"{at}o_proj.weight", [c["hidden_size"], rows["q"]], "BF16"
    if bias:
        yield f"{at}o_proj.bias", [c["hidden_size"]], "BF16"


def qwen3_moe(c):
    hidden = c["hidden_size"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"
            yield from grouped_attention(c, f"{at}self_attn.")
            yield f"{at}self_attn.q_norm.weight", [c["head_dim"]], "BF16"
            yield f"{at}self_attn.k_norm.weight", [c["head_dim"]], "BF16"
            yield f"{at}mlp.gate.weight", [c["num_experts"], hidden], "BF16"
            for expert in range(c["num_experts"]):
                yield from gated(f"{at}mlp.experts.{expert}.", c["moe_intermediate_size"], hidden)

    return outer(c, body())


def gpt_oss(c):
    hidden, inner, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"
            yield from grouped_attention(c, f"{at}self_attn.", bias=True)
            yield f"{at}self_attn.sinks", [c["num_attention_heads"]], "BF16"
            yield f"{at}mlp.router.weight", [experts, hidden], "BF16"
            yield f"{at}mlp.router.bias", [experts], "BF16"
            yield f"{at}mlp.experts.gate_up_proj", [experts, hidden, 2 * inner], "BF16"
            yield f"{at}mlp.experts.gate_up_proj_bias", [experts, 2 * inner], "BF16"
            yield f"{at}mlp.experts.down_proj", [experts, inner, hidden], "BF16"
            yield f"{at}mlp.experts.down_proj_bias", [experts, hidden], "BF16"

    return outer(c, body())


def mamba(c, at):
    inner, groups = c["mamba_num_heads"] * c["mamba_head_dim"], 2 * c["n_groups"] * c["ssm_state_size"]
    yield f"{at}in_proj.weight", [2 * inner + groups + c["mamba_num_heads"], c["hidden_size"]], "BF16"
    yield f"{at}conv1d.weight", [inner + groups, 1, c["conv_kernel"]], "BF16"
    yield f"{at}conv1d.bias", [inner + groups], "BF16"
    for vector in ("A_log", "D", "dt_bias"):
        yield f"{at}{vector}", [c["mamba_num_heads"]], "BF16"
    yield f"{at}norm.weight", [inner], "BF16"
    yield f"{at}out_proj.weight", [c["hidden_size"], inner], "BF16"


def latent_experts(c, at):
    hidden, inner, low = c["hidden_size"], c["moe_intermediate_size"], c["moe_latent_size"]
    yield f"{at}gate.weight", [c["n_routed_experts"], hidden], "BF16"
    yield f"{at}gate.e_score_correction_bias", [c["n_routed_experts"]], "F32"
    yield f"{at}fc1_latent_proj.weight", [low, hidden], "BF16"
    yield f"{at}fc2_latent_proj.weight", [hidden, low], "BF16"
    for expert in range(c["n_routed_experts"]):
        yield f"{at}experts.{expert}.up_proj.weight", [inner, low], "BF16"
        yield f"{at}experts.{expert}.down_proj.weight", [low, inner], "BF16"
    yield f"{at}shared_experts.up_proj.weight", [c["moe_shared_expert_intermediate_size"], hidden], "BF16"
    yield f"{at}shared_experts.down_proj.weight", [hidden, c["moe_shared_expert_intermediate_size"]], "BF16"


def nemotron_h(c):
    hidden = c["hidden_size"]
    parts = {"M": mamba, "*": grouped_attention, "E": latent_experts}

    def body():
        for layer, letter in enumerate(c["hybrid_override_pattern"]):
            yield f"backbone.layers.{layer}.norm.weight", [hidden], "BF16"
            yield from parts[letter](c, f"backbone.layers.{layer}.mixer.")
        letters = c["mtp_hybrid_override_pattern"]
        for layer, letter in enumerate(letters * c["num_nextn_predict_layers"]):
            at = f"mtp.layers.{layer}."
            yield f"{at}norm.weight", [hidden], "BF16"
            yield from parts[letter](c, f"{at}mixer.")
            if layer % len(letters) == 0:
                yield f"{at}enorm.weight", [hidden], "BF16"
                yield f"{at}hnorm.weight", [hidden], "BF16"
                yield f"{at}eh_proj.weight", [hidden, 2 * hidden], "BF16"
            if layer % len(letters) == len(letters) - 1:
                yield f"{at}final_layernorm.weight", [hidden], "BF16"

    yield "backbone.embeddings.weight", [c["vocab_size"], hidden], "BF16"
    yield from body()
    yield "backbone.norm_f.weight", [hidden], "BF16"
    yield "lm_head.weight", [c["vocab_size"], hidden], "BF16"


def compressor(at, ratio, dim, hidden):
    wide = 2 * dim if ratio == 4 else dim
    yield f"{at}wkv.weight", [wide, hidden], "BF16"
    yield f"{at}wgate.weight", [wide, hidden], "BF16"
    yield f"{at}ape", [ratio, wide], "F32"
    yield f"{at}norm.weight", [dim], "BF16"


def v4_attention(c, at, ratio):
    hidden, heads, dim, rank = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    low = c["o_groups"] * c["o_lora_rank"]
    yield f"{at}wq_a.weight", [rank, hidden], "BF16"
    yield f"{at}q_norm.weight", [rank], "BF16"
    yield f"{at}wq_b.weight", [heads * dim, rank], "BF16"
    yield f"{at}wkv.weight", [dim, hidden], "BF16"
    yield f"{at}kv_norm.weight", [dim], "BF16"
    yield f"{at}wo_a.weight", [low, heads * dim // c["o_groups"]], "BF16"
    yield f"{at}wo_b.weight", [hidden, low], "BF16"
    yield f"{at}attn_sink", [heads], "F32"
    if ratio:
        yield from compressor(f"{at}compressor.", ratio, dim, hidden)
    if ratio == 4:
        yield f"{at}indexer.wq_b.weight", [c["index_n_heads"] * c["index_head_dim"], rank], "BF16"
        yield f"{at}indexer.weights_proj.weight", [c["index_n_heads"], hidden], "BF16"
        yield from compressor(f"{at}indexer.compressor.", 4, c["index_head_dim"], hidden)


def v4_layer(c, at, layer, ratio):
    hidden, streams = c["hidden_size"], c["hc_mult"]
    yield f"{at}attn_norm.weight", [hidden], "BF16"
    yield f"{at}ffn_norm.weight", [hidden], "BF16"
    yield from v4_attention(c, f"{at}attn.", ratio)
    yield f"{at}ffn.gate.weight", [c["n_routed_experts"], hidden], "BF16"
    if layer < c["num_hash_layers"]:
        yield f"{at}ffn.gate.tid2eid", [c["vocab_size"], c["num_experts_per_tok"]], "I64"
    else:
        yield f"{at}ffn.gate.bias", [c["n_routed_experts"]], "F32"
    for expert in range(c["n_routed_experts"]):
        yield from gated(f"{at}ffn.experts.{expert}.", c["moe_intermediate_size"], hidden, ("w1", "w3", "w2"))
    yield from gated(f"{at}ffn.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"], hidden, ("w1", "w3", "w2"))
    for part in ("attn", "ffn"):
        yield f"{at}hc_{part}_fn", [streams * streams + 2 * streams, streams * hidden], "F32"
        yield f"{at}hc_{part}_base", [streams * streams + 2 * streams], "F32"
        yield f"{at}hc_{part}_scale", [3], "F32"


def v4_head(c, at):
    yield f"{at}fn", [c["hc_mult"], c["hc_mult"] * c["hidden_size"]], "F32"
    yield f"{at}base", [c["hc_mult"]], "F32"
    yield f"{at}scale", [1], "F32"


def deepseek_v4(c):
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    yield "embed.weight", [c["vocab_size"], hidden], "BF16"
    for layer in range(layers):
        yield from v4_layer(c, f"layers.{layer}.", layer, c["compress_ratios"][layer])
    for depth in range(c["num_nextn_predict_layers"]):
        at = f"mtp.{depth}."
        yield from v4_layer(c, at, layers + depth, c["compress_ratios"][layers + depth])
        for norm in ("enorm", "hnorm", "norm"):
            yield f"{at}{norm}.weight", [hidden], "BF16"
        yield f"{at}e_proj.weight", [hidden, hidden], "BF16"
        yield f"{at}h_proj.weight", [hidden, hidden], "BF16"
        yield from v4_head(c, f"{at}hc_head_")
    yield from v4_head(c, "hc_head_")
    yield "norm.weight", [hidden], "BF16"
    yield "head.weight", [c["vocab_size"], hidden], "BF16"


FAMILIES = {
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "nemotron_h": nemotron_h,
    "deepseek_v4": deepseek_v4,
}


def stored_tensors(config):
    """(name, shape, dtype) of every tensor of the model in BF16, in the order of its layers."""
    return FAMILIES[config["model_type"]](config)


def blocks(shape, rows, columns):
    return [*shape[:-2], math.ceil(shape[-2] / rows), math.ceil(shape[-1] / columns)]


# ending in place of "weight" -> (shape, dtype)
SCHEMES = {
    "fp8_block": lambda s: {"weight": (s, "F8_E4M3"), "weight_scale_inv": (blocks(s, 128, 128), "F32")},
    "fp8_tiles": lambda s: {"weight": (s, "F8_E4M3"), "scale": (blocks(s, 128, 128), "F8_E8M0")},
    "fp4_tiles": lambda s: {"weight": (blocks(s, 1, 2), "I8"), "scale": (blocks(s, 1, 32), "F8_E8M0")},
    "fp8_tensor": lambda s: {"weight": (s, "F8_E4M3"), "weight_scale": ([], "F32"), "input_scale": ([], "F32")},
    "nvfp4": lambda s: {
        "weight": (blocks(s, 1, 2), "U8"),
        "weight_scale": (blocks(s, 1, 16), "F8_E4M3"),
        "weight_scale_2": ([], "F32"),
        "input_scale": ([], "F32"),
    },
}


def mxfp4_experts(name, shape):
    """gpt-oss: the packed matrices of all experts, turned round, in blocks of 32 values."""
    experts, inner, outputs = shape
    yield f"{name}_blocks", [experts, outputs, inner // 32, 16], "U8"
    yield f"{name}_scales", [experts, outputs, inner // 32], "U8"


def quantised(tensors, scheme_of, schemes=SCHEMES):
    """`scheme_of(name)` names the scheme of a weight, one of `schemes`; None leaves it as it is."""
    for name, shape, dtype in tensors:
        scheme = scheme_of(name)
        if scheme is None:
            yield name, shape, dtype
        elif scheme == "mxfp4":
            yield from mxfp4_experts(name, shape)
        else:
            for ending, (part_shape, part_dtype) in schemes[scheme](shape).items():
                yield name.removesuffix("weight") + ending, part_shape, part_dtype


def bytes_of(shape, dtype):
    return math.prod(shape) * BITS[dtype] // 8


def shards_of(tensors, shard_bytes):
    shards, size = [[]], 0
    for tensor in tensors:
        needed = bytes_of(tensor[1], tensor[2])
        if shards[-1] and size + needed > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += needed
    return shards


def write_headers(path, tensors):
    """A safetensors file at its full size with nothing in it but the header. Returns the bytes of its tensors."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, dtype in tensors:
        size = bytes_of(shape, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return at


def header_checkpoint(folder, config, tensors, shard_bytes=5_000_000_000):
    """A Hugging Face folder with real headers and index and no weights. Returns the number of tensors and their bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    shards = shards_of(tensors, shard_bytes)
    names, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += write_headers(folder / file, shard)
        names |= {name: file for name, _, _ in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": names}))
    return len(names), total
