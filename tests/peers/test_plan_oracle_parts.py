"""The slow model of `plan_oracle.py` on what lies beside weights: optimizer state, parts of quantised weights, adapters."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

import cases
import dcp_reading
import hf_models
import plan_oracle
from adapter_models import ATTENTION, FILE, MLP, Adapter, Bridge, write_folder, write_tree
from hdf5_reading import read_container
from logical_tensors import logical_tensors
from megatron_entries import chunk_entries
from numpy_megatron import cut, iteration_folder, load_shards, model_key, read_tree, shard_directories
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from pipeline_stages import chunks
from plan_oracle import Numbered, assert_same_places, numbered
from tensor_patterns import global_shapes
from tree_checks import with_written_divisor, with_written_norms

# --- optimizer state ----------------------------------------------------------------------------------------------

SLOTS = ("param", "exp_avg", "exp_avg_sq")
GROUP = {"is_expert_parallel": False, "default_config": True, "wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 0.01,
         "min_lr": None, "lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-08, "bias_correction": True, "step": 1}
STATES = {
    "norms": (cases.QWEN3.with_(layers=4, dtype="float32"), LOCAL, Layout(tp=2, pp=2), Layout(tp=4)),
    "moe": (cases.QWEN3_MOE.with_(layers=2, experts=4, dtype="float32"), TE_GROUPED, Layout(tp=2), Layout(pp=2)),
    "tied": (cases.LLAMA_TIED.with_(layers=4), LOCAL, Layout(pp=2), Layout(tp=2, pp=4))}


class Training:
    """Weights and three slots of state, every element of each with a number of its own; the masters are the weights."""

    def __init__(self, config):
        self.config, self.slots, self.model = config, {}, numbered(config)
        for number, slot in enumerate(SLOTS):
            self.slots[slot] = self.model if slot == "param" else Numbered(global_shapes(config), "float32", first=self.model.end * number)

    def look(self, found, expected_of, where):
        """`found` and `expected_of(tensors)` by slot; "" is the weights."""
        for slot, model in {"": self.model, **self.slots}.items():
            if slot in found:
                assert_same_places(found[slot], expected_of(model.tensors), model, f"{where}, {slot or 'weights'}")


def write_training(root, training, layout, form, generator):
    config, extra = training.config, {}
    for slot, model in training.slots.items():
        for key, tensor in plan_oracle.dist_tensors(config, model.tensors, form).items():
            rows = config.padded_vocab(layout.tp) - config.vocab if plan_oracle.padded_rows(key) else 0
            extra[f"optimizer.state.{slot}.{key}"] = torch.cat([tensor, tensor.new_zeros(rows, *tensor.shape[1:])]) if rows else tensor
    plan_oracle.write_torch_dist(root, config, training.model.tensors, layout, form, generator, extra)
    path = iteration_folder(root) / "common.pt"
    common = torch.load(path, weights_only=False)
    common["optimizer"] = {"optimizer": {"param_groups": [GROUP, GROUP | {"wd_mult": 0.0}]}, "param_state_sharding_type": "fully_reshardable"}
    common["content_metadata"] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True,
                                  "distrib_optim_sharding_type": "fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient": False}
    torch.save(common, path)
    return root


def by_slot(tensors, slot_of):
    """Slot -> key -> tensor; `slot_of` takes a key apart, and gives None for what belongs to neither."""
    result = {}
    for key, tensor in tensors.items():
        slot, rest = slot_of(key)
        result.setdefault(slot, {})[rest] = tensor
    return result


def of_dist(key):
    if not key.startswith("optimizer.state."):
        return "", key
    slot, rest = key.removeprefix("optimizer.state.").split(".", 1)
    return slot, rest


def of_fsdp(key):
    prefix = "optimizer.state.module.module.module."
    if not key.startswith(prefix):
        return "", key
    rest, slot = key.removeprefix(prefix).rsplit(".", 1)
    return slot, "model.module." + rest


def of_hdf5(key):
    name, _, slot = key.removesuffix(")").partition(" (")
    return slot, name


@pytest.mark.long_but("norms")
@pytest.mark.parametrize("name", STATES)
def test_optimizer_state_lies_where_its_weights_lie(name, program, scratch):
    config, form, source, target = STATES[name]
    training = Training(config)
    root = write_training(scratch / "source", training, source, form, random.Random(5))
    there = program.run(root, scratch / "hdf5", "hdf5", ranks=3)
    found = {key: values for key, (values, _, _) in read_container(there)[0].items()}
    training.look(by_slot(found, of_hdf5), lambda tensors: {key: each.values for key, each in logical_tensors(config, tensors).items()}, "hdf5")
    fsdp = program.run(there, scratch / "fsdp", "fsdp_dtensor", target_options={"layout": target.toml()})
    found = by_slot(plan_oracle.read_whole(iteration_folder(fsdp), config), of_fsdp)
    assert set(found) == {"", "exp_avg", "exp_avg_sq"}
    training.look(found, lambda tensors: plan_oracle.fsdp_tensors(config, tensors, form), "fsdp_dtensor")
    back = program.run(fsdp, scratch / "back", "torch_dist", target_options={"layout": target.toml()})
    found = by_slot(plan_oracle.read_whole(iteration_folder(back), config), of_dist)
    assert set(found) == {"", *SLOTS}
    training.look(found, lambda tensors: plan_oracle.dist_tensors(config, tensors, form), "torch_dist")


# --- quantised weights --------------------------------------------------------------------------------------------

BLOCK = 16
FP8 = torch.float8_e4m3fn
PROJECTIONS = ("qkv", "proj", "fc1", "fc2")


def coded(numbers):
    """FP8 codes that follow from the numbers of their elements, no NaN among them."""
    codes = (numbers.to(torch.int64) * 37 + numbers.to(torch.int64) // 251) % 254
    return (codes + (codes >= 127)).to(torch.uint8).view(FP8)


def is_projection(name):
    return name.rpartition(".")[2] in PROJECTIONS


class Quantised:
    """A model whose projections are FP8 codes with one F32 scale for each block of 16 by 16. A block of the scales is an element of a model
    whose sizes are all smaller by 16, so its shares are cut by the same rules."""

    def __init__(self, config):
        self.config = config
        self.small = config.with_(hidden=config.hidden // BLOCK, head_dim=config.head_dim // BLOCK, ffn=config.ffn // BLOCK,
                                  expert_ffn=config.expert_ffn // BLOCK, dtype="float32")
        plain = numbered(config).tensors
        numbers = numbered(config.with_(dtype="float32")).tensors
        self.codes = {name: coded(numbers[name]) if is_projection(name) else tensor for name, tensor in plain.items()}
        self.scale_model = numbered(self.small)
        self.scales = self.scale_model.tensors

    def folder(self, folder):
        folder.mkdir()
        hf_models.hf_config(self.config).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(self.hf_tensors(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def hf_tensors(self):
        codes = hf_models.globals_to_hf(self.config, self.codes)
        scales = hf_models.globals_to_hf(self.small, self.scales)
        return codes | {name + "_scale_inv": scales[name] for name, tensor in codes.items() if tensor.dtype == FP8}

    def values(self):
        """The weights as BF16: code times the scale of its block, rounded once."""
        result = {}
        stored = self.hf_tensors()
        for name, tensor in stored.items():
            if tensor.dtype == FP8:
                scale = stored[name + "_scale_inv"].double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
                result[name] = (tensor.double() * scale).float().to(torch.bfloat16)
            elif not name.endswith("_scale_inv"):
                result[name] = tensor
        return result


QUANTISED = {
    "dense": (cases.QWEN3.with_(layers=2, hidden=32, heads=4, groups=2, head_dim=16, ffn=64), TE_SEQUENTIAL, Layout(tp=2, pp=2)),
    "biases": (cases.QWEN2.with_(layers=4, hidden=64, heads=8, groups=4, head_dim=16, ffn=64), LOCAL, Layout(tp=4, pp=2, vpp=2)),
    "moe": (cases.QWEN3_MOE.with_(layers=2, experts=4, hidden=32, heads=4, groups=2, head_dim=16, expert_ffn=32), TE_GROUPED, Layout(tp=2, ep=2))}


@pytest.mark.long_but("dense")
@pytest.mark.parametrize("name", QUANTISED)
def test_codes_and_scales_of_quantised_weights_lie_where_their_blocks_lie(name, program, scratch):
    config, form, layout = QUANTISED[name]
    model = Quantised(config)
    source = model.folder(scratch / "source")
    tree = program.to_megatron(source, scratch / "tree", layout, form, ranks=3)
    codes, scales = (split_tree(tree, scratch / f"{kind}", layout, kind) for kind in ("codes", "scales"))
    config_there = with_written_divisor(config, tree)
    found = read_tree(codes, config_there, layout, with_written_norms(form, tree))
    assert_same_places({k: v.view(torch.uint8) if v.dtype == FP8 else v for k, v in found.items()},
                       {k: v.view(torch.uint8) if v.dtype == FP8 else v for k, v in model.codes.items()}, numbered(config), "codes")
    assert_same_scales(scales, model, config_there, layout, form)
    back = program.to_hf(tree, scratch / "back", target_options={"reference": source})
    same_bytes(hf_models.read_hf(back), model.hf_tensors())
    values = program.to_hf(tree if form == LOCAL else source, scratch / "values", model={"quant": "dequantise-bf16", "map": config.family},
                           **({"target_options": {"reference": source}} if form == LOCAL else {}))
    same_bytes(hf_models.read_hf(values), model.values())


def split_tree(tree, folder, layout, kind):
    """The tree with the codes alone, or with scales under the names of their weights."""
    for name, content in load_shards(tree, layout).items():
        for key in [key for key in content if key.startswith("model")]:
            state = content[key]
            scales = scales_of(state)
            kept = {name: tensor for name, tensor in state.items() if "_scale_inv" not in name}
            content[key] = kept if kind == "codes" else scales
        (folder / name).mkdir(parents=True)
        torch.save(content, folder / name / "model_optim_rng.pt")
    return folder


def scales_of(state):
    """Scales by the names of their weights; the number of an expert stands behind the ending: "weight_scale_inv3"."""
    return {name.replace("_scale_inv", ""): tensor for name, tensor in state.items() if "_scale_inv" in name}


def assert_same_scales(folder, model, config, layout, form):
    """Every scale of every shard is the one of its block."""
    seen = 0
    shards = load_shards(folder, layout)
    for name, (tp, pp, ep) in shard_directories(layout).items():
        for chunk in chunks(config, layout):
            if chunk.pp != pp:
                continue
            state = shards[name][model_key(layout, chunk.vpp)]
            for entry in chunk_entries(config, layout, form, chunk, ep):
                if entry.source and is_projection(entry.source):
                    rank, size = (tp % layout.etp, layout.etp) if entry.is_expert else (tp, layout.tp)
                    expected = cut(model.scales[entry.source], entry.rule, rank, size, model.small, layout.tp)
                    assert_same_places({entry.name: state[entry.name]}, {entry.name: expected}, model.scale_model, f"scales in {name}")
                    seen += 1
            assert set(state) == {e.name for e in chunk_entries(config, layout, form, chunk, ep) if e.source and is_projection(e.source)}
    assert seen


def same_bytes(found, expected):
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, tensor in expected.items():
        held = found[name]
        assert (held.dtype, held.shape) == (tensor.dtype, tensor.shape), name
        wrong = (held.view(torch.uint8) != tensor.contiguous().view(torch.uint8)).nonzero()
        assert not len(wrong), f"{name}: byte {wrong[0].tolist()} and {len(wrong)} in all"


# --- adapters -----------------------------------------------------------------------------------------------------

ADAPTED = {"dense": (cases.LLAMA.with_(layers=4, dtype="float32"), LOCAL, Layout(tp=2, pp=2)),
           "groups": (cases.QWEN3.with_(layers=4, dtype="float32"), TE_SEQUENTIAL, Layout(tp=4, pp=2))}
RANK = 4


def adapter_shapes(config):
    rows = {"q_proj": config.heads * config.head_dim, "k_proj": config.groups * config.head_dim, "v_proj": config.groups * config.head_dim,
            "o_proj": config.hidden, "gate_proj": config.ffn, "up_proj": config.ffn, "down_proj": config.hidden}
    columns = {"o_proj": config.heads * config.head_dim, "down_proj": config.ffn}
    shapes = {}
    for layer in range(config.layers):
        for block, modules in (("self_attn", ATTENTION), ("mlp", MLP)):
            for module in modules:
                front = f"base_model.model.model.layers.{layer}.{block}.{module}."
                shapes[front + "lora_A.weight"] = (RANK, columns.get(module, config.hidden))
                shapes[front + "lora_B.weight"] = (rows[module], RANK)
    return shapes


@pytest.mark.long_but("dense")
@pytest.mark.parametrize("name", ADAPTED)
def test_every_element_of_an_adapter_lies_where_bridge_has_it(name, program, scratch):
    config, form, layout = ADAPTED[name]
    model = Numbered(adapter_shapes(config), "float32")
    base = scratch / "base"
    hf_models.hf_config(config).save_pretrained(base)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 8, "lora_dropout": 0.0,
                "bias": "none", "target_modules": ATTENTION + MLP, "fan_in_fan_out": False, "inference_mode": True}
    source = write_folder(scratch / "peft", model.tensors, settings)
    tree = program.to_megatron(source, scratch / "tree", layout, form, target_options={"adapter": "canonical"}, source_options={"config": base})
    made = write_tree(scratch / "made", config, layout, form, Bridge(config, Adapter(model.tensors), canonical=True))
    there, expected = load_shards(tree, layout), load_shards(made, layout)
    for shard, content in expected.items():
        for key in [key for key in content if key.startswith("model")]:
            found = {name: tensor for name, tensor in there[shard][key].items() if isinstance(tensor, torch.Tensor)}
            assert_same_places(found, content[key], model, f"{shard}, {key}")
    dist = program.run(tree, scratch / "dist", "torch_dist", target_options={"layout": Layout(tp=2).toml()})
    assert dcp_reading.tensor_entries(iteration_folder(dist))
    back = program.to_hf(dist, scratch / "back", target_options={"reference": source}, source_options={"config": base})
    assert_same_places(load_file(back / FILE), model.tensors, model, "peft")
