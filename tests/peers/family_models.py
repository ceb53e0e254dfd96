"""Tiny random transformers models, one for each model family: the registry of test_families.py.

`FAMILIES` is name -> Family. Weights are random in every element (norms, biases, buffers too), so that no two tensors can be exchanged unseen.
Sizes are odd on purpose: several heads per query group, three experts per expert parallel rank, layers that no pipeline divides evenly.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.utils import logging as transformers_logging

from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Form, Layout

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

TOKENS = (torch.arange(2 * 22).reshape(2, 22) * 7) % 60 + 3  # longer than every sliding window, below every vocabulary


@dataclass(frozen=True)
class Family:
    """One case. Ways: Hugging Face -> Megatron files of layout `a` -> torch_dist -> Megatron files of layout `b` -> Hugging Face."""

    make: Callable[[], torch.nn.Module]
    a: Layout
    b: Layout
    form: Form = LOCAL  # how Megatron spells its names, both times
    dtype: torch.dtype = torch.bfloat16
    add: Callable[[dict], dict] = None  # tensors of a folder -> further ones, which published folders have and the class of transformers ignores
    ignored: str = None  # prefix of the names that transformers therefore reports as unexpected
    keeps_parts: bool = False  # has parts without a map (a vision tower), which jobs must carry as they are
    config: dict = None  # members of config.json that published folders have otherwise
    computes: bool = True  # whether transformers can load the folder here
    map: str = None  # the map's name, where it is not the model_type


# --- making folders -----------------------------------------------------------------------------------------------


def randomise(model, seed):
    """Every parameter and saved buffer gets values of its own; those around 1 stay around 1, as a norm wants it."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(random_like(tensor, f"{name}{seed}", centre=1.0 if bool((tensor == 1).all()) else 0.0))


def random_like(tensor, key, centre=0.0):
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return (centre + 0.2 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)


def save_family(folder, family, seed=""):
    """A folder as save_pretrained writes it, with what `add` knows besides."""
    torch.manual_seed(1)
    model = family.make()
    routing = {name: buffer.float() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    model = model.to(family.dtype)
    for name, buffer in routing.items():  # decides ties between experts: kept in float32 whatever the weights are
        model.get_submodule(name.rpartition(".")[0]).register_buffer(name.rpartition(".")[2], buffer)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(("e_score_correction_bias", "expert_bias")):
            parameter.data = parameter.data.float()
    randomise(model, seed)
    model.save_pretrained(folder)
    if family.add:
        path = Path(folder) / "model.safetensors"
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        path.unlink()
        save_shards(Path(folder), family.add(tensors))
    if family.config:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | family.config))
    return Path(folder)


def save_shards(folder, tensors):
    """Two files and their index, as published folders have them."""
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name].contiguous() for name in held}, folder / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load_family(folder, family):
    """Loads a folder with the class of its config and insists that every key fits."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, config.architectures[0])
    model, info = model_class.from_pretrained(folder, output_loading_info=True, dtype="auto", attn_implementation="eager")
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        found = [key for key in info.get(problem) or () if not (family.ignored and str(key).startswith(family.ignored))]
        assert not found, f"{problem}: {sorted(map(str, found))[:6]}"
    return model.eval()


def logits_of(folder, family):
    model = load_family(folder, family)
    with torch.no_grad():
        logits = model(input_ids=TOKENS).logits
    assert torch.isfinite(logits).all() and logits.float().std() > 0.01, "logits say nothing"
    return logits


# --- families -----------------------------------------------------------------------------------------------------

BASE = dict(
    vocab_size=90, hidden_size=48, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2, head_dim=8, intermediate_size=60,
    max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
MOE = dict(moe_intermediate_size=24, num_experts_per_tok=2)
DENSE_A, DENSE_B = Layout(tp=2, pp=2, first_stage_layers=2), Layout(pp=3, first_stage_layers=1)
MOE_A, MOE_B = Layout(tp=2, pp=2, ep=2, first_stage_layers=3), Layout(tp=1, pp=2, ep=3, last_stage_layers=1)
ETP_B = Layout(tp=2, ep=2, etp=2)


def base(**changes):
    return {key: value for key, value in (BASE | changes).items() if value is not None}


def dense(name, config=None, **changes):
    """A text model, with or without experts; `config` names its configuration where that is called otherwise."""
    return lambda: getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{config or name}Config")(**base(**changes)))


def vision_language(name, text, vision, **changes):
    """A model with a vision tower; `text` and `vision` are the members of its config."""
    return lambda: getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision, **changes))


TOWER = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, image_size=28, patch_size=14)
ROUTED = dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=24)
GLM = MOE | dict(n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=2, num_nextn_predict_layers=0)
LLAMA4 = ROUTED | dict(num_experts_per_tok=1, intermediate_size_mlp=60, interleave_moe_layer_step=2, attention_chunk_size=9)
LLAMA4_TOWER = TOWER | dict(intermediate_size=96, vision_output_dim=24, projector_input_dim=24, projector_output_dim=24)
QWEN_TOWER = dict(
    hidden_size=24, depth=3, num_heads=2, intermediate_size=40, out_hidden_size=48, num_position_embeddings=16, deepstack_visual_indexes=[0, 1])
SECTIONS = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 1, 1]))


def glm_with_mtp(tensors):
    """The layer behind the last one, with the embedding and the head once more, as GLM-4.5 is published."""
    added, here, like = {}, "model.layers.5.", "model.layers.4."
    for name in [name for name in tensors if name.startswith(like)]:
        added[here + name[len(like):]] = random_like(tensors[name], here + name)
    norm = tensors["model.norm.weight"]
    added |= {f"{here}{name}.weight": random_like(norm, here + name) for name in ("enorm", "hnorm", "shared_head.norm")}
    added[f"{here}eh_proj.weight"] = random_like(norm.new_empty(48, 96), here)
    added[f"{here}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    added[f"{here}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return tensors | added


def with_fused_experts(tensors):
    """All experts of a layer in one tensor, as some programs save what transformers 5 holds in memory."""
    fused = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    for at in sorted({name.split("experts.")[0] + "experts." for name in tensors if ".mlp.experts." in name}):
        gate, up, down = (torch.stack([tensors[f"{at}{expert}.{part}_proj.weight"] for expert in range(6)]) for part in ("gate", "up", "down"))
        fused |= {f"{at}gate_up_proj": torch.cat([gate, up], dim=1), f"{at}down_proj": down}
    return fused


def with_turned_experts(tensors):
    """Experts of Qwen3-VL-MoE as published: transposed, which transformers no longer writes."""
    turned = (".experts.gate_up_proj", ".experts.down_proj")
    return {name: tensor.transpose(1, 2).contiguous() if name.endswith(turned) else tensor for name, tensor in tensors.items()}


def with_mxfp4_experts(tensors):
    """Experts of GPT-OSS as published: 16 bytes for each block of 32 values, and its scale."""
    result = {}
    for name, tensor in tensors.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            result[name] = tensor
            continue
        experts, columns, rows = tensor.shape
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        for ending, shape in ("_blocks", (experts, rows, columns // 32, 16)), ("_scales", (experts, rows, columns // 32)):
            result[name + ending] = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return result


FAMILIES = {
    "llama": Family(dense("Llama"), DENSE_A, DENSE_B),
    "llama-biases": Family(dense("Llama", attention_bias=True, mlp_bias=True), DENSE_A, DENSE_B, TE_SEQUENTIAL, dtype=torch.float32),
    "llama-scaled": Family(dense("Llama", rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
        DENSE_B, DENSE_A),
    "llama-tied": Family(
        dense("Llama", num_key_value_heads=3, tie_word_embeddings=True), Layout(pp=2, first_stage_layers=1), Layout(tp=3), dtype=torch.float16),
    "mistral": Family(dense("Mistral", sliding_window=9, num_key_value_heads=3), Layout(tp=3), Layout(tp=6)),
    "qwen2": Family(dense("Qwen2", num_attention_heads=8), Layout(tp=4), DENSE_B),
    "qwen2-tied": Family(dense("Qwen2", tie_word_embeddings=True), DENSE_B, DENSE_A, TE_SEQUENTIAL),
    "qwen3": Family(dense("Qwen3", head_dim=16), DENSE_A, DENSE_B),
    "mixtral": Family(dense("Mixtral", **ROUTED), MOE_A, MOE_B, TE_GROUPED),
    "qwen3-moe": Family(dense("Qwen3Moe", **MOE, num_experts=6, mlp_only_layers=[1]), MOE_A, ETP_B),
    "qwen3-moe-fused": Family(dense("Qwen3Moe", **MOE, num_experts=6), MOE_B, MOE_A, TE_GROUPED, add=with_fused_experts),
    "qwen2-moe": Family(
        dense("Qwen2Moe", **MOE, num_experts=6, shared_expert_intermediate_size=40, mlp_only_layers=[0]), MOE_A, MOE_B, TE_GROUPED),
    "glm4-moe": Family(dense("Glm4Moe", **GLM, use_qk_norm=True, attention_bias=True), MOE_A, MOE_B, TE_GROUPED),
    "glm4-moe-mtp": Family(
        dense("Glm4Moe", **GLM | dict(num_nextn_predict_layers=1)), MOE_B, ETP_B, add=glm_with_mtp, ignored="model.layers.5."),
    "minimax-m2": Family(dense("MiniMaxM2", **ROUTED), MOE_A, MOE_B, TE_GROUPED),
    "gpt-oss": Family(dense("GptOss", **ROUTED, sliding_window=9), MOE_A, MOE_B, TE_GROUPED),
    "gpt-oss-square": Family(dense("GptOss", **ROUTED | dict(intermediate_size=48), sliding_window=9), MOE_B, ETP_B),
    "gpt-oss-mxfp4": Family(
        dense("GptOss", **ROUTED | dict(intermediate_size=64, hidden_size=96)), MOE_A, MOE_B, TE_GROUPED, add=with_mxfp4_experts,
        config=dict(quantization_config=dict(quant_method="mxfp4")), computes=False),
    "gemma3-text": Family(dense("Gemma3", config="Gemma3Text", sliding_window=9), DENSE_A, DENSE_B),
    "gemma3": Family(
        vision_language("Gemma3", base(sliding_window=9), TOWER, mm_tokens_per_image=4), DENSE_A, DENSE_B, TE_SEQUENTIAL, keeps_parts=True),
    "llama4-text": Family(dense("Llama4", config="Llama4Text", **LLAMA4), MOE_A, MOE_B, TE_GROUPED),
    "llama4": Family(vision_language("Llama4", base(**LLAMA4), LLAMA4_TOWER), MOE_A, ETP_B, keeps_parts=True),
    "qwen3-vl": Family(vision_language("Qwen3VL", base(**SECTIONS), QWEN_TOWER), DENSE_A, DENSE_B, keeps_parts=True),
    "qwen3-vl-moe": Family(
        vision_language("Qwen3VLMoe", base(**SECTIONS, **MOE, num_experts=6), QWEN_TOWER), MOE_A, MOE_B, TE_GROUPED, keeps_parts=True),
    "qwen3-vl-moe-published": Family(
        vision_language(
            "Qwen3VLMoe", base(tie_word_embeddings=False, **SECTIONS, **MOE | dict(moe_intermediate_size=40), num_experts=6), QWEN_TOWER),
        MOE_B, ETP_B, add=with_turned_experts, config=dict(transformers_version="4.57.0.dev0"), keeps_parts=True),
    "llava": Family(
        vision_language("Llava", base(model_type="llama"), TOWER | dict(model_type="clip_vision_model", projection_dim=16)),
        DENSE_A, DENSE_B, keeps_parts=True),
    "mistral3": Family(
        vision_language("Mistral3", base(model_type="mistral"), TOWER | dict(model_type="pixtral"), tie_word_embeddings=False),
        DENSE_A, DENSE_B, TE_SEQUENTIAL, keeps_parts=True),
}
