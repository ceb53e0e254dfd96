"""LoRA adapters of tiny models: folders that peft itself writes, and Megatron trees after Megatron-Bridge's and mcore-bridge's sources.

The Megatron side is independent of the program: it cuts the tensors of a folder of peft by the formulas of ParallelLinearAdapter,
GroupedExpertLinearAdapter and CanonicalLoRA (megatron/bridge/peft) and of LoraParallelLinear (mcore_bridge/tuners/lora.py).
"""

import json
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from checkpoint_args import shard_content, training_args
from hf_models import load_hf
from numpy_megatron import SHARD_FILE, TRACKER, model_key, shard_directories
from pipeline_stages import chunks

PREFIX = "base_model.model."
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
FILE = "adapter_model.safetensors"


def save_adapter(base, folder, seed="", shared=False, **config):
    """An adapter of random matrices, made and saved by peft. `shared`: q, k and v have one A, and so have gate and up."""
    from peft import LoraConfig, get_peft_model

    options = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ATTENTION + MLP, "task_type": "CAUSAL_LM"}
    model = get_peft_model(load_hf(base), LoraConfig(**options | config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(random_like(parameter, shared_name(name) if shared else name, seed))
    model.save_pretrained(folder)
    return Path(folder)


def shared_name(name):
    if "lora_A" in name:
        for word in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
            name = name.replace(word, "qkv" if word[0] in "qkv" else "fc1")
    return name


def random_like(tensor, key, seed):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{key}{seed}".encode()))
    return (0.1 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)


def adapted_logits(base, folder, tokens):
    """What peft computes from the base model and the adapter of a folder, which must have exactly the matrices that it expects."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(load_hf(base), folder).eval()
    expected = {name.replace(".default", "") for name, _ in model.named_parameters() if "lora_" in name}
    assert expected == set(tensors_of(folder)), expected ^ set(tensors_of(folder))
    with torch.no_grad():
        return model(tokens).logits


def tensors_of(folder):
    return load_file(Path(folder) / FILE)


def config_of(folder):
    return json.loads((Path(folder) / "adapter_config.json").read_text())


def write_folder(folder, tensors, config):
    """A folder of peft by hand."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE, metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return folder


# --- Megatron trees -----------------------------------------------------------------------------------------------


class Adapter:
    """The matrices of a folder of peft, by layer."""

    def __init__(self, tensors):
        self.tensors = tensors

    def pair(self, layer, module):
        name = f"{PREFIX}model.layers.{layer}.{module}."
        if name + "lora_A.weight" not in self.tensors:
            return None
        return self.tensors[name + "lora_A.weight"], self.tensors[name + "lora_B.weight"]

    def experts(self, layer, config, module):
        """A [experts, rank, in] and B [experts, out, rank] of a module of every expert."""
        pairs = [self.pair(layer, f"mlp.experts.{expert}.{module}") for expert in range(config.experts)]
        return None if not pairs or pairs[0] is None else tuple(torch.stack(part) for part in zip(*pairs))


def rows(tensor, rank, size, axis=0):
    assert tensor.shape[axis] % size == 0, f"{tuple(tensor.shape)} in {size}"
    return tensor.chunk(size, axis)[rank].clone()


def fused_qkv(config, q, k, v):
    """Rows of linear_qkv: group after group, its queries, its key, its value."""
    parts = [part.reshape(config.groups, -1, part.shape[-1]) for part in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, q.shape[-1])


class Bridge:
    """Megatron-Bridge. Column parallel: A by its ranks, B by its rows. Row parallel: A by its columns, B by its rows."""

    def __init__(self, config, adapter, canonical):
        self.config, self.adapter, self.canonical = config, adapter, canonical

    def column(self, name, pair, tp, size):
        return {f"{name}.linear_in.weight": rows(pair[0], tp, size), f"{name}.linear_out.weight": rows(pair[1], tp, size)}

    def row(self, name, pair, tp, size):
        return {f"{name}.linear_in.weight": rows(pair[0], tp, size, 1), f"{name}.linear_out.weight": rows(pair[1], tp, size)}

    def layer(self, layer, local, layout, tp, ep):
        block, result = f"decoder.layers.{local}.", {}
        get = lambda module: self.adapter.pair(layer, module)
        qkv = [get(f"self_attn.{word}_proj") for word in "qkv"]
        if all(qkv):
            result |= self.fused(block + "self_attention.linear_qkv.adapter", "qkv", qkv, layout, tp)
        if o := get("self_attn.o_proj"):
            result |= self.row(block + "self_attention.linear_proj.adapter", o, tp, layout.tp)
        if gate := get("mlp.gate_proj"):
            result |= self.fused(block + "mlp.linear_fc1.adapter", ["gate", "up"], [gate, get("mlp.up_proj")], layout, tp)
        if down := get("mlp.down_proj"):
            result |= self.row(block + "mlp.linear_fc2.adapter", down, tp, layout.tp)
        return result | self.experts(block, layer, layout, tp, ep)

    def fused(self, name, words, pairs, layout, tp):
        if self.canonical:
            parts = [self.column(f"{name}.adapter_{word}", pair, tp, layout.tp) for word, pair in zip(words, pairs)]
            return {key: value for part in parts for key, value in part.items()}
        assert all(torch.equal(pair[0], pairs[0][0]) for pair in pairs)
        outs = [pair[1] for pair in pairs]
        if len(pairs) == 3:
            b = rows(fused_qkv(self.config, *outs), tp, layout.tp)
        else:
            b = torch.cat([rows(out, tp, layout.tp) for out in outs])
        return {f"{name}.linear_in.weight": rows(pairs[0][0], tp, layout.tp), f"{name}.linear_out.weight": b}

    def experts(self, block, layer, layout, tp, ep):
        """GroupedExpertLinearAdapter: three dimensions, cut by the expert's rank and by expert tensor parallelism."""
        gate, up, down = (self.adapter.experts(layer, self.config, f"{word}_proj") for word in ("gate", "up", "down"))
        if gate is None:
            return {}
        assert torch.equal(gate[0], up[0])
        etp, mine = tp % layout.etp, lambda tensor: rows(tensor, ep, layout.ep)
        fc1, fc2 = f"{block}mlp.experts.linear_fc1.adapter.", f"{block}mlp.experts.linear_fc2.adapter."
        out = torch.cat([rows(part[1], etp, layout.etp, 1) for part in (gate, up)], 1)
        return {
            fc1 + "linear_in.weight": rows(mine(gate[0]), etp, layout.etp, 1), fc1 + "linear_out.weight": mine(out),
            fc2 + "linear_in.weight": rows(mine(down[0]), etp, layout.etp, 2), fc2 + "linear_out.weight": rows(mine(down[1]), etp, layout.etp, 1)}


class McoreBridge(Bridge):
    """mcore-bridge: the matrix that the weight's own cut does not reach is whole; experts have numbers."""

    def __init__(self, config, adapter):
        super().__init__(config, adapter, canonical=False)

    def names(self, name, a, b):
        name = name.removesuffix(".adapter")
        return {f"{name}.lora_A.default.weight": a.clone(), f"{name}.lora_B.default.weight": b.clone()}

    def row(self, name, pair, tp, size):
        return self.names(name, rows(pair[0], tp, size, 1), pair[1])

    def fused(self, name, words, pairs, layout, tp):
        parts = super().fused(name, words, pairs, layout, tp)
        return self.names(name, pairs[0][0], parts[f"{name}.linear_out.weight"])

    def experts(self, block, layer, layout, tp, ep):
        gate, up, down = (self.adapter.experts(layer, self.config, f"{word}_proj") for word in ("gate", "up", "down"))
        if gate is None:
            return {}
        assert layout.etp == 1
        result, count = {}, self.config.experts // layout.ep
        for local in range(count):
            expert = ep * count + local
            for name, a, b in (("linear_fc1", gate[0], torch.cat([gate[1], up[1]], 1)), ("linear_fc2", down[0], down[1])):
                for matrix, tensor in (("A", a), ("B", b)):
                    result[f"{block}mlp.experts.{name}.lora_{matrix}.default.weight{local}"] = tensor[expert].clone()
        return result


def write_tree(root, config, layout, form, maker, iteration=100):
    args = training_args(config, layout, form)
    args.iteration = iteration
    folder = Path(root) / f"iter_{iteration:07d}"
    for name, (tp, pp, ep) in shard_directories(layout).items():
        models = {}
        for chunk in chunks(config, layout):
            if chunk.pp == pp:
                state = models[model_key(layout, chunk.vpp)] = {}
                for local, layer in enumerate(chunk.layers):
                    state |= maker.layer(layer, local, layout, tp, ep)
        (folder / name).mkdir(parents=True)
        torch.save(shard_content(args, {key: models[key] for key in sorted(models)}), folder / name / SHARD_FILE)
    (Path(root) / TRACKER).write_text(str(iteration))
    return Path(root)
