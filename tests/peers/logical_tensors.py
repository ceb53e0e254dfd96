"""The logical tensors of a test model, gathered from its Hugging Face tensors, and their digests.

What an HDF5 container holds and what a manifest sums up is compared with these. Nothing here knows the program's model maps.
"""

from dataclasses import dataclass

import torch

from hf_models import MOE_NAMES, globals_to_hf
from tensor_patterns import crc64, raw

WORDS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class Logical:
    """One row-major array: its axes by name, and which indices of the first it holds when not all."""

    values: torch.Tensor
    axes: tuple
    domain: str = ""

    @property
    def word(self):
        return WORDS[str(self.values.dtype).removeprefix("torch.")]


def logical_tensors(config, tensors, vocab=None):
    """Logical name -> Logical, from global tensors; `vocab` counts rows behind the vocabulary as well, which are zero."""
    return logical_from_hf(config, globals_to_hf(config, tensors), vocab)


def logical_from_hf(config, state, vocab=None):
    everywhere = range(config.layers)
    result = {"embed": Logical(with_rows(state["model.embed_tokens.weight"], vocab), ("vocab", "hidden"))}
    result["final_norm"] = Logical(state["model.norm.weight"], ("hidden",))
    if not config.tied:
        result["lm_head"] = Logical(with_rows(state["lm_head.weight"], vocab), ("vocab", "hidden"))
    for name, (stored, shape, axes) in every_layer(config).items():
        result[name] = over_layers(config, everywhere, axes, lambda layer: state[f"model.layers.{layer}.{stored}"].reshape(shape))
    dense = [layer for layer in everywhere if not config.is_moe(layer)]
    for part, axes in (("gate", "inter hidden"), ("up", "inter hidden"), ("down", "hidden inter")) if dense else ():
        result[f"ffn.{part}"] = over_layers(config, dense, axes, lambda layer: state[f"model.layers.{layer}.mlp.{part}_proj.weight"])
    return result | (of_experts(config, state, [layer for layer in everywhere if config.is_moe(layer)]) if config.experts else {})


def with_rows(matrix, count):
    return matrix if count is None else torch.cat([matrix, matrix.new_zeros(count - matrix.shape[0], matrix.shape[1])])


def every_layer(config):
    """Logical name -> (stored name in a layer, its shape over axes, those axes)."""
    group, head, dim, hidden = config.groups, config.heads // config.groups, config.head_dim, config.hidden
    rows = {"q": ((group, head, dim), "group head dim"), "k": ((group, dim), "group dim"), "v": ((group, dim), "group dim")}
    result = {
        "attn.norm": ("input_layernorm.weight", (hidden,), "hidden"),
        "ffn.norm": ("post_attention_layernorm.weight", (hidden,), "hidden"),
        "attn.o": ("self_attn.o_proj.weight", (hidden, group, head, dim), "hidden group head dim"),
    }
    for name, (shape, axes) in rows.items():
        result[f"attn.{name}"] = (f"self_attn.{name}_proj.weight", (*shape, hidden), f"{axes} hidden")
        if config.qkv_bias:
            result[f"attn.{name}_bias"] = (f"self_attn.{name}_proj.bias", shape, axes)
        if config.qk_norm and name != "v":
            result[f"attn.{name}_norm"] = (f"self_attn.{name}_norm.weight", (dim,), "dim")
    return result


def of_experts(config, state, layers):
    block, gate, up, down = MOE_NAMES[config.family]
    at = f"model.layers.{{}}.{block}."
    result = {"router.weight": over_layers(config, layers, "expert hidden", lambda layer: state[at.format(layer) + "gate.weight"])}
    for name, stored, axes in (("gate", gate, "moe_inter hidden"), ("up", up, "moe_inter hidden"), ("down", down, "hidden moe_inter")):
        def stacked(layer, stored=stored):
            return torch.stack([state[f"{at.format(layer)}experts.{expert}.{stored}.weight"] for expert in range(config.experts)])

        result[f"experts.{name}"] = over_layers(config, layers, f"expert {axes}", stacked)
    return result


def over_layers(config, layers, axes, value):
    layers = list(layers)
    domain = "" if len(layers) == config.layers else "layer " + ",".join(f"{begin}:{end}" for begin, end in runs(layers))
    return Logical(torch.stack([value(layer) for layer in layers]), ("layer", *axes.split()), domain)


def runs(indices):
    """[1, 2, 5] -> [(1, 3), (5, 6)]"""
    found = []
    for index in indices:
        if found and found[-1][1] == index:
            found[-1] = (found[-1][0], index + 1)
        else:
            found.append((index, index + 1))
    return found


# --- digests ------------------------------------------------------------------------------------------------------


def digests(logical):
    """What a manifest says of these tensors: name -> (dtype, shape, crc64)."""
    return {name: (tensor.word, list(tensor.values.shape), crc64(raw(tensor.values.contiguous()))) for name, tensor in logical.items()}


def manifest_digests(manifest):
    return {tensor["name"]: (tensor["dtype"], tensor["shape"], tensor["crc64"]) for tensor in manifest["tensors"]}
