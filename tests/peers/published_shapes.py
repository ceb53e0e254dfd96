"""Folders with every name of a published model, and its files: how many, how they are called, and which tensors lie together. Only the matrices are small.

Which tensors lie together is computed from the sizes of the published model; the small tensors then go where theirs go. Names and numbers of files are
those that model cards list. What a row of MODELS assumes beyond them, its comment says. Folders of headers at full size: header_checkpoints.py.
"""

import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from safetensors import TensorSpec, serialize_file

from header_checkpoints import SCHEMES, blocks, bytes_of, config_of, quantised, shards_of
from published_families import tensors_of

LIBRARY_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "U8": "uint8",
                  "I8": "int8", "I64": "int64"}
USUAL = {  # dtype -> its words, random bits that are kept, bits that are set
    "BF16": ("<u2", 0x81FF, 0x3C00), "F16": ("<u2", 0x8FFF, 0x2000), "F32": ("<u4", 0x81FFFFFF, 0x3C000000)}
SMALL_BLOCK = 16  # in place of 128: a small matrix still has several blocks
SMALL_SCHEMES = SCHEMES | {
    "fp8_block": lambda s: {"weight": (s, "F8_E4M3"), "weight_scale_inv": (blocks(s, SMALL_BLOCK, SMALL_BLOCK), "F32")},
    "fp8_tiles": lambda s: {"weight": (s, "F8_E4M3"), "scale": (blocks(s, SMALL_BLOCK, SMALL_BLOCK), "F8_E8M0")}}


# --- which tensors lie together -----------------------------------------------------------------------------------------


def by_bytes(limit):
    """The rule of save_pretrained(max_shard_size=limit)."""
    return lambda tensors, count: shards_of(tensors, limit)


def evenly(tensors, count):
    """`count` files of about the same size, in the order of the model."""
    total, at, shards = sum(bytes_of(shape, dtype) for _, shape, dtype in tensors), 0, [[] for _ in range(count)]
    for tensor in tensors:
        shards[min(at * count // total, count - 1)].append(tensor)
        at += bytes_of(tensor[1], tensor[2])
    return shards


def by_layer(tensors, count):
    """A file for each layer; the embedding is with the first, the last norm and the head are with the last."""
    shards = [[] for _ in range(count)]
    for tensor in tensors:
        parts = tensor[0].split(".")
        layer = int(parts[2]) if parts[1] == "layers" else 0 if parts[1] == "embed_tokens" else count - 1
        shards[layer].append(tensor)
    return shards


def deepseek_fp8(name):
    projection = name.endswith("_proj.weight") and "eh_proj" not in name or "kv_a_proj_with_mqa" in name
    return "fp8_block" if projection and ".layers." in name else None


def gpt_oss_mxfp4(name):
    return "mxfp4" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else None


def v4_mixed(name):
    if ".ffn.experts." in name:
        return "fp4_tiles"
    endings = ("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_a.weight", "wo_b.weight", "w1.weight", "w2.weight", "w3.weight")
    return "fp8_tiles" if name.endswith(endings) else None


# --- the models ---------------------------------------------------------------------------------------------------------


@dataclass
class Published:
    config: str  # of tests/data/configs
    small: dict  # its members that make the matrices small; layers and experts stay
    count: int  # of files
    cut: object  # (tensors at their full size, count) -> shards
    layout: str  # of the Megatron side
    name: str = "model-{:05}-of-{:05}.safetensors"
    first: int = 1  # number of the first file
    scheme: object = None
    metadata: dict = field(default_factory=lambda: {"format": "pt"})
    order: str = "library"  # of the tensors in a file: the safetensors library's own, or "model"
    index: dict = field(default_factory=dict)  # further members of its metadata
    sorted_index: bool = True  # as transformers writes it
    quantization: dict = None  # members of config.json
    map: str = "auto"
    total_size: int = None  # bytes, as the index of the published model says
    copies: dict = field(default_factory=dict)  # ending of a name -> the tensor that it repeats


ATTENTION = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=96)
DENSE_SIZES = ATTENTION | {"intermediate_size": 48}
MXFP4_SIZES = ATTENTION | {"hidden_size": 64, "intermediate_size": 64}
LATENT = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=4, vocab_size=96, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
              v_head_dim=8, intermediate_size=64, moe_intermediate_size=32)
PREDICTION = {".embed_tokens.weight": "model.embed_tokens.weight", ".shared_head.head.weight": "lm_head.weight"}
FOUR_GB, FIVE_GB, TEN_GB = 4_000_000_000, 5_000_000_000, 10_000_000_000
DENSE, EXPERTS = "{ tp = 2, pp = 2 }", "{ tp = 2, pp = 2, ep = 2 }"
APART_OF_61 = "{ tp = 2, pp = 2, ep = 2, etp = 1, first_stage_layers = 31 }"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [SMALL_BLOCK, SMALL_BLOCK]}

MODELS = {
    # Names with six digits behind "of" and 163 files: the card. That files are even, and an index that is not sorted: assumed.
    "deepseek-v3": Published(
        "deepseek-v3", LATENT | {"q_lora_rank": 16}, 163, evenly, APART_OF_61, "model-{:05}-of-{:06}.safetensors",
        scheme=deepseek_fp8, quantization=FP8, sorted_index=False, copies=PREDICTION),
    # One file for each of 61 layers, without leading zeros, the head in the last: the card. No metadata, the order of the model: assumed.
    "kimi-k2": Published(
        "kimi-k2", LATENT | {"q_lora_rank": 16}, 61, by_layer, APART_OF_61, "model-{}-of-{}.safetensors",
        scheme=deepseek_fp8, quantization=FP8, order="model", metadata=None),
    # One file for each of 27 layers: the card. Where the head lies: assumed.
    "moonlight": Published(
        "moonlight", LATENT, 27, by_layer, "{ tp = 2, pp = 2, ep = 2, first_stage_layers = 14 }", "model-{}-of-{}.safetensors"),
    # Six digits behind "of", 4 files: the card. Even files: assumed.
    "deepseek-v2-lite": Published(
        "deepseek-v2-lite", LATENT, 4, evenly, "{ tp = 2, pp = 2, ep = 2, first_stage_layers = 14 }", "model-{:05}-of-{:06}.safetensors", sorted_index=False),
    # Numbers of files: the cards. Files of 4 GB in the order of the model give the same numbers.
    "qwen3-235b-a22b": Published("qwen3-235b-a22b", ATTENTION | {"moe_intermediate_size": 16}, 118, by_bytes(FOUR_GB), EXPERTS),
    "qwen3-32b": Published("qwen3-32b", DENSE_SIZES, 17, by_bytes(FOUR_GB), DENSE),
    "qwen2.5-72b": Published("qwen2.5-72b", DENSE_SIZES, 37, by_bytes(FOUR_GB), DENSE),
    "qwen3-next-80b": Published(
        "qwen3-next-80b", ATTENTION | dict(
            moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4,
            linear_value_head_dim=4), 41, by_bytes(FOUR_GB), EXPERTS),
    # Numbers from 0, that of the last behind "of": the card. Even files in the order of the model: assumed.
    "gpt-oss-20b": Published(
        "gpt-oss-20b", MXFP4_SIZES, 3, evenly, EXPERTS, first=0, scheme=gpt_oss_mxfp4, order="model", map="gpt_oss",
        total_size=13_761_264_768),
    "gpt-oss-120b": Published(
        "gpt-oss-120b", MXFP4_SIZES, 15, evenly, EXPERTS, first=0, scheme=gpt_oss_mxfp4, map="gpt_oss"),
    # One file for each layer, that of multi-token prediction among them: the card. Where the head lies, `total_parameters`: assumed.
    "glm-4.5-air": Published(
        "glm-4.5-air", ATTENTION | {"intermediate_size": 48, "moe_intermediate_size": 16}, 47, by_layer, EXPERTS,
        index={"total_parameters": 1}, copies=PREDICTION),
    # Files of 5 GB, the default of save_pretrained for years, and their numbers: the cards. An index with `total_parameters`: assumed.
    "llama3-70b": Published("llama3-70b", DENSE_SIZES, 30, by_bytes(FIVE_GB), DENSE),
    "mixtral-8x22b": Published("mixtral-8x22b", DENSE_SIZES, 59, by_bytes(FIVE_GB), EXPERTS, index={"total_parameters": 1}),
    "phi-4": Published("phi-4", DENSE_SIZES, 6, by_bytes(FIVE_GB), DENSE),
    "mistral-7b": Published("mistral-7b", DENSE_SIZES, 3, by_bytes(FIVE_GB), DENSE),
    "gemma-2-27b": Published("gemma-2-27b", DENSE_SIZES, 12, by_bytes(FIVE_GB), DENSE),
    "command-r": Published("command-r", DENSE_SIZES | {"num_key_value_heads": 4}, 15, by_bytes(FIVE_GB), DENSE),
    # One file and no index: the card.
    "llama3-1b": Published("llama3-1b", DENSE_SIZES, 1, by_bytes(FIVE_GB), DENSE),
    # Files of 10 GB, and the frequencies of rotary embeddings among the weights: the card.
    "llama2-7b": Published("llama2-7b", DENSE_SIZES, 2, by_bytes(TEN_GB), DENSE, total_size=13_476_835_328),
    # No number of files is known here: 5 GB is assumed for both, and the order of the model for the second.
    "nemotron-3-ultra-class": Published(
        "nemotron-3-ultra-class", dict(
            hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=96, mamba_num_heads=8, mamba_head_dim=4, n_groups=2,
            ssm_state_size=4, moe_intermediate_size=8, moe_latent_size=8, moe_shared_expert_intermediate_size=16, intermediate_size=8),
        None, by_bytes(FIVE_GB), EXPERTS),
    "deepseek-v4-flash": Published(
        "deepseek-v4-flash", dict(
            hidden_size=64, num_attention_heads=4, head_dim=16, qk_rope_head_dim=8, q_lora_rank=32, o_groups=2, o_lora_rank=16, index_n_heads=2,
            index_head_dim=16, moe_intermediate_size=32, vocab_size=96),
        None, by_bytes(FIVE_GB), "{ tp = 2, pp = 2, ep = 2, etp = 1, first_stage_layers = 22 }", scheme=v4_mixed, quantization=FP8,
        order="model"),
}


def small_config(model):
    return config_of(model.config) | model.small | ({"quantization_config": model.quantization} if model.quantization else {})


def stored(model, config, schemes):
    tensors = list(quantised(tensors_of(config), model.scheme, schemes) if model.scheme else tensors_of(config))
    half = config.get("torch_dtype") == "float16"
    return [(name, shape, "F16" if half and dtype == "BF16" else dtype) for name, shape, dtype in tensors]


def shards(model):
    """[[(name, small shape, dtype)]], as the published model cuts its own tensors."""
    full = stored(model, config_of(model.config), SCHEMES)
    small = {tensor[0]: tensor for tensor in stored(model, small_config(model), SMALL_SCHEMES)}
    assert list(small) == [name for name, _, _ in full], "the small model has other tensors"
    size = sum(bytes_of(shape, dtype) for _, shape, dtype in full)
    assert model.total_size in (None, size), f"{size} bytes at full size, the published index has {model.total_size}"
    cut = model.cut(full, model.count)
    assert model.count in (None, len(cut)), f"the rule gives {len(cut)} files, the card has {model.count}"
    return [[small[name] for name, _, _ in shard] for shard in cut]


def values(key, shape, dtype):
    """Random bytes, others for each key; BF16, F16 and F32 have the exponents of usual weights. Megatron holds the delta net's norm less 1: 1 to 2 here."""
    data = hashlib.shake_128(key.encode()).digest(bytes_of(shape, dtype))
    if key.endswith("linear_attn.norm.weight"):
        return ((numpy.frombuffer(data, "<u2") & 0x7F) | 0x3F80).astype("<u2").tobytes()
    if dtype not in USUAL:
        return data
    words, kept, exponent = USUAL[dtype]
    return ((numpy.frombuffer(data, words) & kept) | exponent).astype(words).tobytes()


def write_in_order(path, tensors, metadata):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (shape, dtype, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write_by_library(path, tensors, metadata):
    entries = {}
    for name, (shape, dtype, data) in tensors.items():
        place = numpy.frombuffer(data, numpy.uint8).ctypes.data  # of `data`, which `tensors` keeps
        entries[name] = TensorSpec(dtype=LIBRARY_DTYPES[dtype], shape=shape, data_ptr=place, data_len=len(data))
    serialize_file(entries, str(path), metadata)


def original(model, name):
    return next((copied for ending, copied in model.copies.items() if name.endswith(ending)), name)


def published_folder(folder, model):
    """Writes the folder. Returns the number of its files of weights, of its tensors, and their bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(small_config(model), indent=2) + "\n")
    (folder / "generation_config.json").write_text('{"do_sample": true}')
    write = write_by_library if model.order == "library" else write_in_order
    cut, places, total = shards(model), {}, 0
    for number, shard in enumerate(cut):
        file = model.name.format(number + model.first, len(cut) - 1 + model.first) if len(cut) > 1 else "model.safetensors"
        tensors = {name: (shape, dtype, values(original(model, name), shape, dtype)) for name, shape, dtype in shard}
        write(folder / file, tensors, model.metadata)
        places |= dict.fromkeys(tensors, file)
        total += sum(len(data) for _, _, data in tensors.values())
    if len(cut) > 1:
        index = {"metadata": {"total_size": total} | model.index, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=model.sorted_index) + "\n" * model.sorted_index)
    return len(cut), len(places), total
