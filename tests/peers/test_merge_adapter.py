"""An adapter merged into its base while that is converted: against the definition bit for bit, against peft, and against a merge before a conversion."""

import json
import os
import shutil
import signal
import subprocess

import pytest
import torch
from safetensors.torch import load_file

import adapter_models
import cases
import hf_models
import lora_models
import test_resume
from lora_models import ATTENTION, LINEAR, adapter_of, llama, qwen3_moe, save_base, tensors_of
from peer_types import LOCAL, TE_SEQUENTIAL, Layout
from reshard_job import BINARY, TIMEOUT_SECONDS, manifest_of, tree_hashes
from tensor_patterns import make_globals

pytest.importorskip("peft", reason="peft is not installed")

MERGE = {"adapter": "merge"}
TOKENS = (torch.arange(24).reshape(2, 12) * 7) % 100


def merge(program, base, adapter, target, target_format="huggingface", **options):
    source_options = {"adapter": adapter} | options.pop("source_options", {})
    return program.run(base, target, target_format, source_options=source_options, model=MERGE | options.pop("model", {}), **options)


def refuse(program, base, adapter, target, *words, target_format="huggingface", code=None, model=None, **options):
    outcome = program.attempt(base, target, target_format, source_options={"adapter": adapter} | options.pop("source_options", {}),
                              model=MERGE if model is None else model, **options)
    assert outcome.returncode == (3 if code is None else code), outcome.stderr
    for word in words:
        assert word in outcome.stderr
    assert not target.exists()


def verify(*arguments):
    line = [BINARY, "verify", *[str(argument) for argument in arguments], "--json"]
    outcome = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=os.environ)
    assert outcome.returncode in (0, 1), outcome.stderr
    return outcome.returncode, json.loads(outcome.stdout)


def differing(document):
    return {row["name"] for row in document["tensors"] if row["differing"] > 0}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def ulps(found, wanted):
    """How many values of their dtype lie between two tensors."""
    kind = {2: torch.int16, 4: torch.int32}[found.element_size()]
    codes = [tensor.contiguous().view(kind).to(torch.int64) for tensor in (found, wanted)]
    lowest = -(1 << (8 * found.element_size() - 1))
    ordered = [torch.where(code < 0, lowest - code, code) for code in codes]
    return (ordered[0] - ordered[1]).abs().max().item()


def logits(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def assert_logits_of_peft(base, adapter, target):
    from transformers import AutoModelForCausalLM

    """Of weights in 16 bits the merged ones are rounded, and those of base and adapter are not."""
    wanted = logits(lora_models.adapted_model(base, adapter))
    found, before = (logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)) for folder in (target, base))
    assert (found - wanted).norm() < 0.05 * wanted.norm() < 0.1 * (before - wanted).norm()


def every_linear_layer(scratch, dtype=torch.bfloat16):
    base = save_base(scratch / "base", llama(dtype))
    adapter = adapter_of(scratch / "adapter", base, r=8, lora_alpha=24, target_modules=[*LINEAR, "lm_head"], rank_pattern={"layers.2.mlp.up_proj": 5, "k_proj": 3},
                         alpha_pattern={"v_proj": 7, "layers.1.self_attn.q_proj": 1.5})

    def scale(module, rank):
        alpha = 7 if module.endswith("v_proj") else 1.5 if module == "model.layers.1.self_attn.q_proj" else 24
        return alpha / rank

    return base, adapter, lora_models.merged_tensors(base, adapter, scale)


# --- dense models -------------------------------------------------------------------------------------------------


@pytest.mark.long_but("dtype0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_linear_layer_has_the_bits_of_the_definition(dtype, program, scratch):
    base, adapter, wanted = every_linear_layer(scratch, dtype)
    target = merge(program, base, adapter, scratch / "merged")
    found = tensors_of(target)
    assert_same(found, wanted)
    of_peft = lora_models.adapted_model(base, adapter).merge_and_unload().state_dict()
    if dtype != torch.float32:
        assert max(ulps(found[name], of_peft[name].to(dtype)) for name in found) <= 1
    assert_logits_of_peft(base, adapter, target)
    record = manifest_of(target)["source"]["adapter"]
    assert record["path"] == str(adapter) and record["modules"] == 29 and len(record["files"][0]["xxh3"]) == 16
    assert record["scale"] == pytest.approx(sorted({1.5 / 8, 7 / 8, 24 / 8, 24 / 5, 24 / 3}))
    code, document = verify(base, target)
    before = tensors_of(base)
    assert code == 1 and differing(document) == {name for name, tensor in wanted.items() if not torch.equal(tensor, before[name])}
    assert len(differing(document)) == 29
    assert verify(base, target, "--adapter", adapter)[0] == 0
    assert verify(target)[0] == 0


def test_ranks_memory_and_way_of_bytes_change_no_byte(program, scratch):
    base, adapter, wanted = every_linear_layer(scratch)
    layout = {"layout": "{ tp = 2, pp = 2 }"}
    before = merge(program, base, adapter, scratch / "hf")
    trees = [tree_hashes(program.run(before, scratch / "later", "megatron", target_options=layout))]
    for number, (ranks, memory, run) in enumerate([(1, "64 MiB", {}), (3, "1 MiB", {}), (2, "8 MiB", {"transport": "mpi"}), (2, "64 MiB", {"device": "emulated"})]):
        made = merge(program, base, adapter, scratch / f"made{number}", "megatron", target_options=layout, ranks=ranks, memory=memory, run=run)
        trees.append(tree_hashes(made))
        assert verify(base, made, "--adapter", adapter)[0] == 0
        assert verify(before, made)[0] == 0
    assert all(tree == trees[0] for tree in trees[1:])


@pytest.mark.long_but("megatron-layout0")
@pytest.mark.parametrize("source_format, layout", [("megatron", "{ tp = 2, pp = 2 }"), ("torch_dist", "{ tp = 2 }"), ("torch_dist", "{ pp = 2, tp = 2 }"), ("hdf5", None)],
                         ids=["megatron-layout0", "torch_dist-layout1", "torch_dist-layout2", "hdf5"])
def test_bases_of_any_format(source_format, layout, program, scratch):
    base, adapter, wanted = every_linear_layer(scratch)
    options = {"layout": layout} if layout else {}
    source = program.run(base, scratch / "source", source_format, target_options=options)
    assert_same(tensors_of(merge(program, source, adapter, scratch / "merged")), wanted)
    other = merge(program, source, adapter, scratch / "other", "megatron", target_options={"layout": "{ tp = 2 }"})
    assert_same(tensors_of(program.to_hf(other, scratch / "back")), wanted)


@pytest.mark.long
def test_rank_stabilised_adapters(program, scratch):
    base = save_base(scratch / "base", llama(torch.bfloat16))
    adapter = adapter_of(scratch / "adapter", base, r=6, lora_alpha=5, use_rslora=True, target_modules=["q_proj"], layers_to_transform=[1, 3])
    wanted = lora_models.merged_tensors(base, adapter, lambda module, rank: 5 / rank ** 0.5)
    assert_same(tensors_of(merge(program, base, adapter, scratch / "merged")), wanted)
    code, document = verify(base, scratch / "merged")
    assert code == 1 and differing(document) == {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (1, 3)}


def test_shared_experts_are_merged_and_converted(program, scratch):
    base = save_base(scratch / "base", lora_models.qwen2_moe(torch.bfloat16))
    adapter = adapter_of(scratch / "adapter", base, r=4, lora_alpha=8, target_modules=r".*shared_expert\.(gate|up|down)_proj")
    target = merge(program, base, adapter, scratch / "target")
    assert_same(tensors_of(target), lora_models.merged_tensors(base, adapter, lambda module, rank: 8 / rank))
    layout = {"layout": "{ tp = 2, pp = 2 }"}
    tree = program.run(adapter, scratch / "tree", "megatron", source_options={"config": base}, target_options=layout)
    back = program.to_hf(tree, scratch / "back")
    assert_same(tensors_of(back), tensors_of(adapter))


def test_the_gate_of_a_shared_expert_is_merged(program, scratch):
    """A Linear(hidden, 1), which target_modules = "all-linear" adapts; Megatron has it as a parameter of no layer."""
    base = save_base(scratch / "base", lora_models.qwen2_moe(torch.bfloat16))
    adapter = adapter_of(scratch / "adapter", base, r=4, lora_alpha=8, target_modules="all-linear")
    assert any("shared_expert_gate" in name for name in tensors_of(adapter))
    target = tensors_of(merge(program, base, adapter, scratch / "target"))
    assert_same(target, lora_models.merged_tensors(base, adapter, lambda module, rank: 8 / rank))
    tree = merge(program, base, adapter, scratch / "tree", "megatron", target_options={"layout": "{ tp = 2, pp = 2 }"})
    assert_same(tensors_of(program.to_hf(tree, scratch / "back")), target)
    by_peft = lora_models.adapted_model(base, adapter).merge_and_unload().state_dict()
    for name in target:
        if "shared_expert_gate" in name:
            assert torch.allclose(by_peft[name].bfloat16(), target[name], rtol=2**-7, atol=0), name
    carried = program.run(adapter, scratch / "carried", "huggingface", source_options={"config": base})
    assert_same(tensors_of(carried), tensors_of(adapter))
    outcome = program.attempt(adapter, scratch / "refused", "megatron", source_options={"config": base})
    assert outcome.returncode == 2 and "'gate_weight', a parameter of no linear layer" in outcome.stderr, outcome.stderr


def test_a_changed_value_is_found(program, scratch):
    base, adapter, _ = every_linear_layer(scratch)
    target = merge(program, base, adapter, scratch / "merged")
    file = next(target.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert verify(base, target, "--adapter", adapter)[0] == 1


# --- experts ------------------------------------------------------------------------------------------------------


def expert_adapter(scratch, base):
    """A 3-D adapter of peft on all experts of a layer at once."""
    return adapter_of(scratch / "adapter", base, r=4, lora_alpha=6, target_modules=ATTENTION,
                      target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])


def merged_experts(base, adapter, experts=6, inner=40):
    tensors = tensors_of(base)
    for name, a in load_file(adapter / "adapter_model.safetensors").items():
        if ".lora_A." not in name:
            continue
        module, b = name.removeprefix("base_model.model.").split(".lora_A.")[0], load_file(adapter / "adapter_model.safetensors")[name.replace("lora_A", "lora_B")]
        if not module.removesuffix(".base_layer").endswith(".experts"):
            tensors[module + ".weight"] = lora_models.merged(tensors[module + ".weight"], b, a, 6 / 4)
            continue
        a, b = a.reshape(experts, 4, -1), b.reshape(b.shape[0], 4, experts)
        for expert in range(experts):
            parts = {"gate_proj": slice(0, inner), "up_proj": slice(inner, 2 * inner)} if b.shape[0] == 2 * inner else {"down_proj": slice(None)}
            for part, rows in parts.items():
                key = f"{module.removesuffix('.base_layer')}.{expert}.{part}.weight"
                tensors[key] = lora_models.merged(tensors[key], b[rows, :, expert], a[expert], 6 / 4)
    return tensors


def test_experts_adapted_as_one_parameter(program, scratch):
    base = save_base(scratch / "base", qwen3_moe(torch.bfloat16))
    adapter = expert_adapter(scratch, base)
    wanted = merged_experts(base, adapter)
    assert any(name.endswith("experts.base_layer.lora_A.weight") for name in load_file(adapter / "adapter_model.safetensors"))
    assert_same(tensors_of(merge(program, base, adapter, scratch / "merged")), wanted)
    assert_logits_of_peft(base, adapter, scratch / "merged")
    tree = merge(program, base, adapter, scratch / "tree", "megatron", target_options={"layout": "{ tp = 2, ep = 3, etp = 1 }"}, ranks=3)
    assert_same(tensors_of(program.to_hf(tree, scratch / "back")), wanted)
    assert verify(base, tree, "--adapter", adapter)[0] == 0


def experts_one_by_one(scratch, base, experts=6):
    """Adapters of single experts, as peft saved them for models whose experts are modules: the same numbers under their names."""
    adapter = expert_adapter(scratch, base)

    def apart(tensors):
        result = {}
        for name, tensor in tensors.items():
            if ".experts." not in name:
                result[name] = tensor
                continue
            module, word = name.replace(".base_layer", "").split(".lora_")
            is_a = word.startswith("A")
            a = tensor.reshape(experts, 4, -1) if is_a else tensor.reshape(tensor.shape[0], 4, experts).permute(2, 0, 1)
            partner = tensors[name.replace("lora_A", "lora_B")] if is_a else tensor
            parts = ["gate_proj", "up_proj"] if partner.shape[0] == 80 else ["down_proj"]
            for expert in range(experts):
                for part, values in zip(parts, [a[expert]] * len(parts) if is_a else a[expert].chunk(len(parts))):
                    result[f"{module}.{expert}.{part}.lora_{word}"] = values
        return result

    lora_models.change_tensors(adapter, apart)
    lora_models.change_config(adapter, target_parameters=None, target_modules=[*ATTENTION, "gate_proj", "up_proj", "down_proj"])
    return adapter


@pytest.mark.long
def test_experts_adapted_one_by_one(program, scratch):
    base = save_base(scratch / "base", qwen3_moe(torch.bfloat16))
    wanted = merged_experts(base, expert_adapter(scratch, base))
    shutil.rmtree(scratch / "adapter")
    adapter = experts_one_by_one(scratch, base)
    assert_same(tensors_of(merge(program, base, adapter, scratch / "merged")), wanted)
    stacked = program.run(base, scratch / "stacked", "torch_dist", target_options={"layout": "{ tp = 2, ep = 2 }"})
    assert_same(tensors_of(merge(program, stacked, adapter, scratch / "again")), wanted)
    lora_models.change_tensors(adapter, lambda tensors: {name: tensor for name, tensor in tensors.items() if ".experts.1." not in name})
    wanted |= {name: tensor for name, tensor in tensors_of(base).items() if ".experts.1." in name}
    assert_same(tensors_of(merge(program, stacked, adapter, scratch / "partial")), wanted)


# --- adapters of Megatron -----------------------------------------------------------------------------------------


@pytest.mark.long_but("tp2-canonical")
@pytest.mark.parametrize("form", ["canonical", "fused", "mcore-bridge"])
@pytest.mark.parametrize("layout, impl", [(Layout(tp=2), LOCAL), (Layout(tp=2, pp=2), TE_SEQUENTIAL)], ids=["tp2", "tp2-pp2"])
def test_adapters_in_megatrons_names(layout, impl, form, program, scratch):
    """Trees after the sources of Megatron-Bridge and mcore-bridge give what the folder of peft with the same matrices gives."""
    config = cases.QWEN3.with_(layers=4)
    base = hf_models.save_hf(scratch / "base", config, make_globals(config))
    peft = adapter_models.save_adapter(base, scratch / "peft", shared=form != "canonical")
    wanted = lora_models.merged_tensors(base, peft, lambda module, rank: 8 / rank)
    maker = adapter_models.Adapter(adapter_models.tensors_of(peft))
    maker = adapter_models.McoreBridge(config, maker) if form == "mcore-bridge" else adapter_models.Bridge(config, maker, form == "canonical")
    tree = adapter_models.write_tree(scratch / "tree", config, layout, impl, maker)
    model = {"lora_alpha": "8", "map": config.family}
    assert_same(tensors_of(merge(program, base, tree, scratch / "merged", model=model)), wanted)
    source = program.run(base, scratch / "source", "megatron", target_options={"layout": "{ tp = 4 }"})
    assert_same(tensors_of(merge(program, source, tree, scratch / "again", model=model)), wanted)
    refuse(program, base, tree, scratch / "target", "lora_alpha", code=2, model=MERGE | {"map": config.family})
    lora_models.change_config(peft, alpha_pattern={"layers.1.self_attn.v_proj": 3, "down_proj": 0.5})
    wanted = lora_models.merged_tensors(base, peft, lambda module, rank: alpha_of(module) / rank)
    dist = program.run(peft, scratch / "dist", "torch_dist", source_options={"config": base}, target_options={"layout": layout.toml(), "adapter": form})
    assert_same(tensors_of(merge(program, base, dist, scratch / "third", model={"map": config.family})), wanted)


def alpha_of(module):
    return 3 if module == "model.layers.1.self_attn.v_proj" else 0.5 if module.endswith("down_proj") else 8


# --- interruptions ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not test_resume.SHIM, reason="RESHARD_DELAY_SHIM is not set: a job may be done before it is killed")
def test_a_killed_merge_resumes_unless_the_adapter_changes(bad_jobs, program, scratch):
    base = save_base(scratch / "base", llama(torch.bfloat16, hidden_size=288, intermediate_size=512))
    adapter = adapter_of(scratch / "adapter", base, r=8, lora_alpha=8, target_modules=LINEAR)
    layout = {"layout": "{ tp = 2 }"}
    whole = merge(program, base, adapter, scratch / "whole", "megatron", target_options=layout)
    job = bad_jobs.text(base, source_options={"adapter": adapter}, target_options=layout, model=MERGE)
    for change in (False, True):
        test_resume.attempt(bad_jobs, job, signal.SIGKILL, writes=12)
        assert not bad_jobs.target.exists()
        if change:
            lora_models.change_tensors(adapter, lambda tensors: {name: -tensor if ".lora_A." in name else tensor for name, tensor in tensors.items()})
            whole = merge(program, base, adapter, scratch / "other", "megatron", target_options=layout)
        outcome, log = test_resume.attempt(bad_jobs, job)
        assert outcome.code == 0, outcome.error
        assert test_resume.gone_on(log) != change
        assert tree_hashes(bad_jobs.target) == tree_hashes(whole)
        shutil.rmtree(bad_jobs.target)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_merged_is_refused(program, scratch):
    base = save_base(scratch / "base", llama(torch.bfloat16))
    good = adapter_of(scratch / "good", base, r=4, lora_alpha=8, target_modules=["q_proj"])
    count = 0

    def changed(tensors=None, **members):
        nonlocal count
        count += 1
        adapter = shutil.copytree(good, scratch / f"adapter{count}")
        lora_models.change_config(adapter, **members)
        if tensors:
            lora_models.change_tensors(adapter, tensors)
        return adapter

    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    target = scratch / "target"
    refuse(program, base, changed(use_dora=True), target, "use_dora", "no magnitudes")
    refuse(program, base, changed(modules_to_save=["lm_head"]), target, "modules_to_save")
    refuse(program, base, changed(bias="lora_only"), target, "bias", "lora_only")
    refuse(program, base, changed(peft_type="IA3"), target, "IA3", "LORA")
    refuse(program, base, changed(init_lora_weights="pissa_niter_4"), target, "pissa_niter_4")
    refuse(program, base, changed(r=5), target, "rank 4", "states rank 5")
    refuse(program, base, changed(lambda t: {name: tensor[:, 1:] if name == first else tensor for name, tensor in t.items()}), target, "[4, 47]", "[4, 48]")
    refuse(program, base, changed(lambda t: {name.replace("q_proj", "query"): tensor for name, tensor in t.items()}), target,
           "model.layers.0.self_attn.query", "does not have")
    refuse(program, base, changed(lambda t: {name: tensor for name, tensor in t.items() if name != first}), target, "lora_B.weight', but '" + first)
    refuse(program, base, changed(lambda t: t | {"base_model.model.lm_head.weight": t[first].clone()}), target, "lm_head.weight")
    refuse(program, base, changed(lora_alpha=1e308), target, "lora_alpha", "not a finite 32-bit number")
    refuse(program, base, changed(lambda t: t | {first: t[first].index_fill(1, torch.tensor([5]), float("inf"))}), target,
           "'model.layers.0.self_attn.q_proj.weight': with the adapter", "becomes")
    refuse(program, base, good, target, "model.adapter", code=2, model={})
    refuse(program, base, good, target, "names are kept", target_format="dcp", code=2)
    assert list(scratch.glob(".target*")) == []
