"""Sources of benchmarks: Hugging Face folders of random BF16 values in the shapes of Llama and Qwen3-MoE, made with the standard library."""

import json
import os
import random
import shutil

SHARD_BYTES = 512 << 20
COMMON = {"hidden_size": 2048, "vocab_size": 32000, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
          "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True}
CONFIGS = {
    "dense": COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 16, "head_dim": 128, "intermediate_size": 5632,
                       "mlp_bias": False, "pretraining_tp": 1},
    "moe": COMMON | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_attention_heads": 32, "head_dim": 128,
                     "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
                     "mlp_only_layers": [], "norm_topk_prob": True, "router_aux_loss_coef": 0.001, "output_router_logits": False, "use_sliding_window": False,
                     "sliding_window": None, "max_window_layers": 0, "rms_norm_eps": 1e-6},
}
# Jobs that make other sources of such a folder.
KEYS = {
    "torch_dist": ['target.format="torch_dist"', 'target.program="megatron-bridge"'],
    "dcp": ['target.format="dcp"', 'target.chunks="ranks"', "target.ranks=4"],
    "titan": ['target.format="dcp"', 'target.map="torchtitan_llama"', 'target.chunks="ranks"', "target.ranks=4"],
}


def layer_shapes(config):
    hidden, head = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [q, hidden], "self_attn.k_proj": [kv, hidden],
              "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, q]}
    if config["model_type"] == "llama":
        return shapes | mlp_shapes("mlp", config["intermediate_size"], hidden)
    shapes |= {"self_attn.q_norm": [head], "self_attn.k_norm": [head], "mlp.gate": [config["num_experts"], hidden]}
    for expert in range(config["num_experts"]):
        shapes |= mlp_shapes(f"mlp.experts.{expert}", config["moe_intermediate_size"], hidden)
    return shapes


def mlp_shapes(prefix, inner, hidden):
    return {f"{prefix}.gate_proj": [inner, hidden], f"{prefix}.up_proj": [inner, hidden], f"{prefix}.down_proj": [hidden, inner]}


def bytes_of(shape):
    return 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)


def shapes_of(model, gib, vocabulary):
    """The config and the tensors of as many layers as come nearest to a size."""
    config = CONFIGS[model] | {"vocab_size": vocabulary}
    ends = {name: [config["vocab_size"], config["hidden_size"]] for name in ("model.embed_tokens", "lm_head")} | {"model.norm": [config["hidden_size"]]}
    layer = layer_shapes(config)
    left = gib * (1 << 30) - sum(map(bytes_of, ends.values()))
    config["num_hidden_layers"] = max(1, round(left / sum(map(bytes_of, layer.values()))))
    inner = {f"model.layers.{i}.{name}": shape for i in range(config["num_hidden_layers"]) for name, shape in layer.items()}
    return config, {f"{name}.weight": shape for name, shape in (inner | ends).items()}


def write_values(file, count, generator):
    """Random BF16 values between 2^-7 and 2^-3 of either sign, little-endian."""
    upper = bytes(byte & 0x80 | 0x3C + byte % 2 for byte in range(256))
    for first in range(0, count, 1 << 20):  # whoever measures the memory of what it starts must be small itself
        data = bytearray(generator.randbytes(2 * min(count - first, 1 << 20)))
        data[1::2] = data[1::2].translate(upper)
        file.write(data)


def write_file(path, tensors, generator):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end := end + bytes_of(shape)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            write_values(file, bytes_of(shape) // 2, generator)


def write_tokenizer(folder):
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"word{index}": index for index in range(3, 60)}
    special = [{"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for word, i in list(words.items())[:3]]
    write_json(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}})
    write_json(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"})


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file, indent=2)


def make_folder(folder, model, gib, vocabulary=32000):
    """Nothing where it is there: its size is not looked at."""
    if os.path.exists(folder):
        return
    made = f"{folder}.new"
    shutil.rmtree(made, ignore_errors=True)
    os.makedirs(made)
    config, tensors = shapes_of(model, gib, vocabulary)
    files, room = [], 0
    for name, shape in tensors.items():
        room -= bytes_of(shape)
        if not files or room < 0:
            files.append({})
            room = SHARD_BYTES - bytes_of(shape)
        files[-1][name] = shape
    generator, index = random.Random(1), {}
    for number, part in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        write_file(os.path.join(made, name), part, generator)
        index |= dict.fromkeys(part, name)
    write_json(made, "config.json", config)
    write_json(made, "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_json(made, "model.safetensors.index.json", {"metadata": {"total_size": sum(map(bytes_of, tensors.values()))}, "weight_map": index})
    write_tokenizer(made)
    os.rename(made, folder)


def make_verl(made, place, folder):
    """A torch_dist checkpoint where the actor of verl has it, with the folder's config and tokenizer."""
    os.makedirs(f"{place}.new/model/huggingface")
    [save] = [entry for entry in os.listdir(made) if os.path.exists(os.path.join(made, entry, ".metadata"))]
    os.rename(os.path.join(made, save), f"{place}.new/model/dist_ckpt")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(folder, name), f"{place}.new/model/huggingface")
    shutil.rmtree(made)
    os.rename(f"{place}.new", place)
