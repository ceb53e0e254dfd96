"""Small sound sources, made once and copied for every case, and what can go wrong with a tree of Megatron shards."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from hf_models import globals_to_hf
from numpy_megatron import SHARD_FILE, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, Layout, ModelConfig
from tensor_patterns import global_shapes, make_globals

DENSE = ModelConfig(layers=4)
MOE = ModelConfig(family="qwen3_moe", layers=2, qk_norm=True, experts=4)
TREES = {
    "dense": (DENSE, Layout(tp=2, pp=2), LOCAL),
    "flat": (DENSE, Layout(tp=2), LOCAL),
    "moe": (MOE, Layout(tp=2, ep=2, etp=2), TE_GROUPED),  # all four pairs of tp and ep are files
    "ep": (MOE, Layout(ep=2), TE_GROUPED),
    "moe-pp": (MOE, Layout(pp=2, ep=2), TE_GROUPED),
}
HF_CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=DENSE.vocab, hidden_size=DENSE.hidden, num_hidden_layers=DENSE.layers,
    num_attention_heads=DENSE.heads, num_key_value_heads=DENSE.groups, head_dim=DENSE.head_dim, intermediate_size=DENSE.ffn, rms_norm_eps=1e-6,
    tie_word_embeddings=False, max_position_embeddings=128, rope_theta=10000.0, torch_dtype="bfloat16", hidden_act="silu")
INDEX = "model.safetensors.index.json"
FILES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@functools.cache
def originals():
    """Kept alive by the cache; removed when Python ends."""
    return tempfile.TemporaryDirectory(prefix="reshard-bad-")


@functools.cache
def original(kind):
    folder = Path(originals().name) / kind
    if kind in TREES:
        config, layout, form = TREES[kind]
        write_tree(folder, config, layout, form, make_globals(config))
    else:
        write_hf(folder, parts=1 if kind == "hf" else 2)
    return folder


def large_tree(folder, config):
    """A tree of four ranks with random values: what jobs of many rounds read."""
    generator = torch.Generator().manual_seed(7)
    tensors = {name: torch.rand(shape, generator=generator) for name, shape in global_shapes(config).items()}
    return write_tree(folder, config, Layout(tp=2, pp=2), LOCAL, tensors)


def write_hf(folder, parts):
    """Without transformers, whose writing takes longer than all jobs of a file."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    state = globals_to_hf(DENSE, make_globals(DENSE))
    if parts == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    halves = [names[::2], names[1::2]]
    for file, half in zip(FILES, halves):
        save_file({name: state[name] for name in half}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, half in zip(FILES, halves) for name in half}
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))


def copy_of(kind, folder):
    return Path(shutil.copytree(original(kind), folder))


# --- damage of Megatron trees -----------------------------------------------------------------------------------------


def shard(tree, name):
    return iteration_folder(tree) / name / SHARD_FILE


def shards(tree):
    return sorted(iteration_folder(tree).rglob(SHARD_FILE))


def edit_shards(tree, edit, names=None):
    """`edit` changes the dict of each shard, or of those with these directory names, in place."""
    for path in shards(tree) if names is None else [shard(tree, name) for name in names]:
        content = torch.load(path, weights_only=False)
        edit(content)
        torch.save(content, path)


def damage_args(names=None, **values):
    def edit(content):
        for name, value in values.items():
            setattr(content["args"], name, value)

    return lambda tree: edit_shards(tree, edit, names)


def damage_model(change, names=None):
    return lambda tree: edit_shards(tree, lambda content: change(content["model"]), names)


def cut(name, length):
    """`length` bytes are left; a negative length is cut off the end, a fraction is that part of the file."""
    def damage(tree):
        path = shard(tree, name)
        raw = path.read_bytes()
        path.write_bytes(raw[: int(len(raw) * length) if isinstance(length, float) else length])

    return damage


def without_directories(*names):
    def damage(tree):
        for name in names:
            shutil.rmtree(iteration_folder(tree) / name)

    return damage


def without_file(name):
    return lambda tree: shard(tree, name).unlink()


def all_experts_in_every_directory(tree):
    """Both EP directories number their experts from 0 to 3 of 4: at least one half would overwrite the other."""
    def edit(content):
        model = content["model"]
        for name in [name for name in model if ".weight1" in name]:
            model[name.replace(".weight1", ".weight2")] = model[name].clone()
            model[name.replace(".weight1", ".weight3")] = model[name].clone()

    edit_shards(tree, edit)


def renumbered(tree):
    """A rank whose experts are numbered from 1: one local number has a gap."""
    def edit(content):
        model = content["model"]
        for name in [name for name in model if name.endswith(".weight1")]:
            model[name[:-1] + "2"] = model.pop(name)

    edit_shards(tree, edit, ["mp_rank_00_001"])


def half_precision(model):
    for name in list(model):
        if isinstance(model[name], torch.Tensor):
            model[name] = model[name].to(torch.float16)


def another_shape(model):
    model["decoder.final_layernorm.weight"] = torch.ones(31, dtype=torch.bfloat16)


def distrib_optim_beside(tree):
    for path in shards(tree):
        torch.save({"dp": torch.ones(4)}, path.parent / "distrib_optim.pt")


def with_optimizer(tree):
    edit_shards(tree, lambda content: content.update(optimizer={"state": {0: {"exp_avg": torch.ones(4)}}, "param_groups": []}))


def with_rng(tree):
    edit_shards(tree, lambda content: content.update(rng_state=[{"torch_rng_state": torch.zeros(16, dtype=torch.uint8)}]))
