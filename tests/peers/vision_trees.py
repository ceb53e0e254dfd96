"""Checkpoints of vision-language models as trainers save them, put together from a Hugging Face folder's tensors after the trainers' sources.

Nothing here knows the program under test. `bridge_qwen3_vl` follows Megatron-Bridge (models/qwen_vl/qwen3_vl_bridge.py, modelling_qwen3_vl/): the
language model under `language_model.`, a vision tower of Megatron's own modules under `vision_model.`, whose queries, keys and values lie head by
head. `swift` follows ms-swift's mcore-bridge (model/mm_gpt_model.py, mm_gpts/): transformers' tower, whole on every rank, inside a module `visual`.
"""

import json
import re
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

LANGUAGE = "language_model."


def padded(embedding, multiple=128):
    rows = -(-len(embedding) // multiple) * multiple
    return torch.cat([embedding, embedding.new_zeros(rows - len(embedding), embedding.shape[1])])


def by_group(q, k, v, groups):
    """Megatron's order: for each group its queries, its key, its value. Works for weights and biases."""
    parts = [part.reshape(groups, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, dim=1).reshape(-1, *q.shape[1:])


def language_part(hf, config, prefix, tp=1):
    """The names of GPTModel with Transformer Engine's layers, dense or with grouped experts."""
    groups, result = config["num_key_value_heads"], {}
    result["embedding.word_embeddings.weight"] = padded(hf[f"{prefix}embed_tokens.weight"], 128 * tp)
    result["decoder.final_layernorm.weight"] = hf[f"{prefix}norm.weight"]
    result["output_layer.weight"] = padded(hf["lm_head.weight"], 128 * tp)
    for layer in range(config["num_hidden_layers"]):
        here, there = f"{prefix}layers.{layer}.", f"decoder.layers.{layer}."
        attention, mlp = f"{there}self_attention.", f"{there}mlp."
        for kind in ("weight", "bias"):
            if f"{here}self_attn.q_proj.{kind}" in hf:
                result[f"{attention}linear_qkv.{kind}"] = by_group(*(hf[f"{here}self_attn.{x}_proj.{kind}"] for x in "qkv"), groups)
        result[f"{attention}linear_qkv.layer_norm_weight"] = hf[f"{here}input_layernorm.weight"]
        result[f"{attention}linear_proj.weight"] = hf[f"{here}self_attn.o_proj.weight"]
        for norm in "qk":
            if f"{here}self_attn.{norm}_norm.weight" in hf:
                result[f"{attention}{norm}_layernorm.weight"] = hf[f"{here}self_attn.{norm}_norm.weight"]
        if f"{here}mlp.gate.weight" in hf:
            result[f"{there}pre_mlp_layernorm.weight"] = hf[f"{here}post_attention_layernorm.weight"]
            result[f"{mlp}router.weight"] = hf[f"{here}mlp.gate.weight"]
            for expert in range(len(hf[f"{here}mlp.experts.gate_up_proj"])):
                result[f"{mlp}experts.linear_fc1.weight{expert}"] = hf[f"{here}mlp.experts.gate_up_proj"][expert]
                result[f"{mlp}experts.linear_fc2.weight{expert}"] = hf[f"{here}mlp.experts.down_proj"][expert]
        else:
            result[f"{mlp}linear_fc1.layer_norm_weight"] = hf[f"{here}post_attention_layernorm.weight"]
            result[f"{mlp}linear_fc1.weight"] = torch.cat([hf[f"{here}mlp.{x}_proj.weight"] for x in ("gate", "up")])
            result[f"{mlp}linear_fc2.weight"] = hf[f"{here}mlp.down_proj.weight"]
    return {LANGUAGE + name: tensor for name, tensor in result.items()}


def bridge_tower(hf, vision):
    """The tower of Qwen3-VL: ViT layers of Megatron's modules, mergers with column- and row-parallel linears."""
    result = {}
    for kind in ("weight", "bias"):
        result[f"patch_embed.proj.{kind}"] = hf[f"model.visual.patch_embed.proj.{kind}"]
        result[f"merger.patch_norm.{kind}"] = hf[f"model.visual.merger.norm.{kind}"]
    result["pos_embed.weight"] = hf["model.visual.pos_embed.weight"]
    mergers = [("merger.", "merger.")]
    for index in range(len(vision.get("deepstack_visual_indexes", ()))):
        mergers.append((f"deepstack_merger_list.{index}.", f"decoder.deepstack_merger_list.{index}."))
        for kind in ("weight", "bias"):
            result[f"decoder.deepstack_merger_list.{index}.patch_norm.{kind}"] = hf[f"model.visual.deepstack_merger_list.{index}.norm.{kind}"]
    for here, there in mergers:
        for part in ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"):
            result[there + part] = hf[f"model.visual.{here}{part}"]
    for layer in range(vision["depth"]):
        here, there = f"model.visual.blocks.{layer}.", f"decoder.layers.{layer}."
        for kind in ("weight", "bias"):
            result[f"{there}self_attention.linear_qkv.{kind}"] = by_group(*hf[f"{here}attn.qkv.{kind}"].chunk(3), vision["num_heads"])
            result[f"{there}self_attention.linear_qkv.layer_norm_{kind}"] = hf[f"{here}norm1.{kind}"]
            result[f"{there}self_attention.linear_proj.{kind}"] = hf[f"{here}attn.proj.{kind}"]
            result[f"{there}mlp.linear_fc1.layer_norm_{kind}"] = hf[f"{here}norm2.{kind}"]
            for linear in ("linear_fc1", "linear_fc2"):
                result[f"{there}mlp.{linear}.{kind}"] = hf[f"{here}mlp.{linear}.{kind}"]
    return {f"vision_model.{name}": tensor for name, tensor in result.items()}


def bridge_qwen3_vl(hf, config, tp=1):
    return language_part(hf, config["text_config"], "model.language_model.", tp) | bridge_tower(hf, config["vision_config"])


def replicated(hf, patterns):
    """Modules of transformers under a trainer's names: prefix there -> prefix here."""
    return {here + name.removeprefix(there): tensor for there, here in patterns.items() for name, tensor in hf.items() if name.startswith(there)}


# --- one rank's share, and torch_dist's keys ----------------------------------------------------------------------

COLUMNS = re.compile(
    r"(language_model\.(embedding\.word_embeddings|output_layer|decoder\.layers\.\d+\.(self_attention\.linear_qkv|mlp\.linear_fc1))"
    r"|vision_model\.(decoder\.layers\.\d+\.(self_attention\.linear_qkv|mlp\.linear_fc1)|merger\.linear_fc1|decoder\.deepstack_merger_list\.\d+\.linear_fc1)"
    r"|vision_projection\.encoder\.linear_fc1|multi_modal_projector\.proj)\.(weight|bias)$")
ROWS = re.compile(
    r"(language_model\.decoder\.layers\.\d+\.(self_attention\.linear_proj|mlp\.linear_fc2)"
    r"|vision_model\.(decoder\.layers\.\d+\.(self_attention\.linear_proj|mlp\.linear_fc2)|merger\.linear_fc2|decoder\.deepstack_merger_list\.\d+\.linear_fc2)"
    r"|vision_projection\.encoder\.linear_fc2)\.weight$")
GATED = re.compile(r"language_model\.decoder\.layers\.\d+\.mlp\.linear_fc1\.weight$")


def share(tree, tp, rank, layers=None, first=True, last=True):
    """What rank `rank` of `tp` holds of a stage with these decoder layers; the vision part is on the first stage."""
    result = {}
    for name, tensor in tree.items():
        number = re.match(r"language_model\.decoder\.layers\.(\d+)\.", name)
        if number and layers is not None:
            if int(number[1]) not in layers:
                continue
            name = name.replace(f"layers.{number[1]}.", f"layers.{layers.index(int(number[1]))}.", 1)
        elif not number and not (last if re.match(r"language_model\.(output_layer|decoder\.final)", name) else first):
            continue
        if GATED.match(name):
            tensor = torch.cat([part.chunk(tp)[rank] for part in tensor.chunk(2)])
        elif COLUMNS.match(name):
            tensor = tensor.chunk(tp)[rank]
        elif ROWS.match(name):
            tensor = tensor.chunk(tp, dim=1)[rank]
        result[name] = tensor
    return result


def stacked(tree):
    """The keys of torch_dist where layers are alike: their numbers become a leading dimension, and so do those of experts."""
    groups = {}
    for name, tensor in tree.items():
        key = re.sub(r"(decoder\.layers|deepstack_merger_list)\.\d+\.", r"\1.", name)
        key = re.sub(r"mlp\.experts\.linear_fc(\d)\.weight\d+$", r"mlp.experts.experts.linear_fc\1.weight", key)
        numbers = [int(number) for number in re.findall(r"(?:layers|list)\.(\d+)\.|fc\d\.weight(\d+)$", name) for number in number if number]
        groups.setdefault(key, []).append((numbers, tensor))
    result = {}
    for key, members in groups.items():
        numbers = members[0][0]
        whole = torch.stack([tensor for _, tensor in sorted(members, key=lambda one: one[0])]) if numbers else members[0][1]
        extents = [1 + max(member[0][d] for member in members) for d in range(len(numbers))]
        result[key] = whole.reshape(*extents, *members[0][1].shape)
    return result


def save_torch_dist(root, tensors, iteration=100):
    """As Megatron-Bridge leaves it: no args anywhere; its run_config.yaml says nothing that is needed here."""
    folder = Path(root) / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    dcp.save(dict(tensors), checkpoint_id=folder, no_dist=True)
    torch.save({"checkpoint_version": 3.0, "iteration": iteration}, folder / "common.pt")
    kinds = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(kinds))
    (Path(root) / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return Path(root)
