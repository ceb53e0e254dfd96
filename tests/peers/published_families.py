"""What published checkpoints store, family by family, beyond the families of header_checkpoints.py: names, dtypes and shapes, in the order of the modules."""

from header_checkpoints import deepseek_attention, dense_or_experts, gated, grouped_attention, outer, stored_tensors


def with_head_dim(c):
    return {"head_dim": c["hidden_size"] // c["num_attention_heads"]} | c


def without_output_bias(tensors):
    return (tensor for tensor in tensors if not tensor[0].endswith("o_proj.bias"))


def dense(c, bias=False, qk_norm=False, frequencies=False, norms=("input_layernorm", "post_attention_layernorm")):
    hidden = c["hidden_size"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield from without_output_bias(grouped_attention(with_head_dim(c), f"{at}self_attn.", bias))
            for norm in ("q_norm", "k_norm") if qk_norm else ():
                yield f"{at}self_attn.{norm}.weight", [c["head_dim"]], "BF16"
            if frequencies:
                yield f"{at}self_attn.rotary_emb.inv_freq", [with_head_dim(c)["head_dim"] // 2], "BF16"
            yield from gated(f"{at}mlp.", c["intermediate_size"], hidden)
            for norm in norms:
                yield f"{at}{norm}.weight", [hidden], "BF16"

    return outer(c, body())


def tied(tensors):
    return (tensor for tensor in tensors if tensor[0] != "lm_head.weight")


def mixtral(c):
    hidden = c["hidden_size"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield from grouped_attention(with_head_dim(c), f"{at}self_attn.")
            yield f"{at}block_sparse_moe.gate.weight", [c["num_local_experts"], hidden], "BF16"
            for expert in range(c["num_local_experts"]):
                yield from gated(f"{at}block_sparse_moe.experts.{expert}.", c["intermediate_size"], hidden, ("w1", "w3", "w2"))
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"

    return outer(c, body())


def phi3(c):
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield f"{at}self_attn.o_proj.weight", [hidden, hidden], "BF16"
            yield f"{at}self_attn.qkv_proj.weight", [(c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * head, hidden], "BF16"
            yield f"{at}mlp.gate_up_proj.weight", [2 * inner, hidden], "BF16"
            yield f"{at}mlp.down_proj.weight", [hidden, inner], "BF16"
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"

    return outer(c, body())


def deepseek_v2(c):
    hidden = c["hidden_size"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            yield from deepseek_attention(c, f"{at}self_attn.")
            if layer < c["first_k_dense_replace"]:
                yield from gated(f"{at}mlp.", c["intermediate_size"], hidden)
            else:
                for expert in range(c["n_routed_experts"]):
                    yield from gated(f"{at}mlp.experts.{expert}.", c["moe_intermediate_size"], hidden)
                yield f"{at}mlp.gate.weight", [c["n_routed_experts"], hidden], "BF16"
                yield from gated(f"{at}mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"], hidden)
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"

    return outer(c, body())


def glm4_moe(c):
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]

    def body():
        for layer in range(layers + c["num_nextn_predict_layers"]):
            at = f"model.layers.{layer}."
            yield f"{at}input_layernorm.weight", [hidden], "BF16"
            yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"
            yield from without_output_bias(grouped_attention(c, f"{at}self_attn.", bias=True))
            if c["use_qk_norm"]:
                yield f"{at}self_attn.q_norm.weight", [c["head_dim"]], "BF16"
                yield f"{at}self_attn.k_norm.weight", [c["head_dim"]], "BF16"
            yield from dense_or_experts(c, layer, at)

    return outer(c, body())


def delta_net(c, at):
    keys, values = (c[f"linear_num_{kind}_heads"] * c[f"linear_{kind}_head_dim"] for kind in ("key", "value"))
    heads, hidden = c["linear_num_value_heads"], c["hidden_size"]
    yield f"{at}dt_bias", [heads], "BF16"
    yield f"{at}A_log", [heads], "BF16"
    yield f"{at}conv1d.weight", [2 * keys + values, 1, c["linear_conv_kernel_dim"]], "BF16"
    yield f"{at}in_proj_qkvz.weight", [2 * keys + 2 * values, hidden], "BF16"
    yield f"{at}in_proj_ba.weight", [2 * heads, hidden], "BF16"
    yield f"{at}norm.weight", [c["linear_value_head_dim"]], "BF16"
    yield f"{at}out_proj.weight", [hidden, values], "BF16"


def qwen3_next_layer(c, at, attention):
    hidden, head = c["hidden_size"], c["head_dim"]
    if attention:
        for name, shape, dtype in grouped_attention(c, f"{at}self_attn."):
            yield name, [2 * shape[0], shape[1]] if name.endswith("q_proj.weight") else shape, dtype  # queries and their gates
        yield f"{at}self_attn.q_norm.weight", [head], "BF16"
        yield f"{at}self_attn.k_norm.weight", [head], "BF16"
    else:
        yield from delta_net(c, f"{at}linear_attn.")
    yield f"{at}mlp.gate.weight", [c["num_experts"], hidden], "BF16"
    for expert in range(c["num_experts"]):
        yield from gated(f"{at}mlp.experts.{expert}.", c["moe_intermediate_size"], hidden)
    yield from gated(f"{at}mlp.shared_expert.", c["shared_expert_intermediate_size"], hidden)
    yield f"{at}mlp.shared_expert_gate.weight", [1, hidden], "BF16"
    yield f"{at}input_layernorm.weight", [hidden], "BF16"
    yield f"{at}post_attention_layernorm.weight", [hidden], "BF16"


def qwen3_next(c):
    """The layer for multi-token prediction is stored behind the head, and config.json does not mention it."""
    hidden, every = c["hidden_size"], c["full_attention_interval"]

    def body():
        for layer in range(c["num_hidden_layers"]):
            yield from qwen3_next_layer(c, f"model.layers.{layer}.", (layer + 1) % every == 0)

    yield from outer(c, body())
    yield "mtp.fc.weight", [hidden, 2 * hidden], "BF16"
    yield from qwen3_next_layer(c, "mtp.layers.0.", True)
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{norm}.weight", [hidden], "BF16"


GEMMA2_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
FAMILIES = {
    "llama": lambda c: dense(c, frequencies=c["max_position_embeddings"] == 4096),  # Llama 2 alone stores them
    "mistral": dense,
    "qwen2": lambda c: dense(c, bias=True),
    "qwen3": lambda c: dense(c, qk_norm=True),
    "gemma2": lambda c: tied(dense(c, norms=GEMMA2_NORMS)),
    "cohere": lambda c: tied(dense(c, norms=("input_layernorm",))),
    "mixtral": mixtral,
    "phi3": phi3,
    "deepseek_v2": deepseek_v2,
    "glm4_moe": glm4_moe,
    "qwen3_next": qwen3_next,
}


def tensors_of(config):
    """(name, shape, dtype) of every tensor of the model."""
    tensors = FAMILIES.get(config["model_type"], stored_tensors)(config)
    return tied(tensors) if config.get("tie_word_embeddings") else tensors
