"""LoRA adapters: folders that peft writes become Megatron-Bridge's and mcore-bridge's, in any layout, and peft loads what comes back."""

import pytest
import torch

import cases
from adapter_models import (
    ATTENTION, MLP, Adapter, Bridge, McoreBridge, adapted_logits, config_of, random_like, save_adapter, tensors_of, write_folder, write_tree)
from dcp_reading import whole_tensors
from hf_models import save_hf
from numpy_megatron import iteration_folder, load_shards
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import command
from tensor_patterns import assert_same_tensors, make_globals

LLAMA = cases.LLAMA.with_(layers=3, dtype="float32", tied=True, head_dim=12)
QWEN3 = cases.QWEN3.with_(layers=4, dtype="float32")
MOE = cases.QWEN3_MOE.with_(layers=2, experts=6, dtype="float32")
TOKENS = torch.arange(24).reshape(2, 12) * 5 % 60 + 3
A, B = Layout(tp=2, pp=3), Layout(tp=1, pp=1)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Base models, each made once."""
    folders = {}

    def base(config):
        if config not in folders:
            folders[config] = save_hf(tmp_path_factory.mktemp(config.family), config, make_globals(config))
        return folders[config]

    return base


def chain(program, scratch, source, layouts, adapter="canonical", impl=LOCAL, **options):
    """Folder of peft -> Megatron files -> torch_dist -> Megatron files -> folder of peft."""
    a, b = layouts
    form = {"adapter": adapter}
    first = program.to_megatron(source, scratch / "a", a, impl, target_options=form, **options)
    dist = program.run(first, scratch / "dist", "torch_dist", target_options={"layout": a.toml()})
    second = program.to_megatron(dist, scratch / "b", b, impl)
    return first, dist, second, program.to_hf(second, scratch / "back")


def test_a_folder_of_peft_goes_through_megatron_and_back(bases, program, scratch):
    base = bases(LLAMA)
    source = save_adapter(base, scratch / "peft", rank_pattern={"layers.1.self_attn.q_proj": 6}, alpha_pattern={"o_proj": 3}, use_rslora=True)
    first, dist, _, back = chain(program, scratch, source, (A, B))
    assert_same_tensors(tensors_of(back), tensors_of(source))
    assert (back / "adapter_config.json").read_bytes() == (source / "adapter_config.json").read_bytes()
    assert torch.equal(adapted_logits(base, source, TOKENS), adapted_logits(base, back, TOKENS))
    expected = write_tree(scratch / "made", LLAMA, A, LOCAL, Bridge(LLAMA, Adapter(tensors_of(source)), canonical=True))
    same_trees(first, expected, A)
    assert "decoder.layers.1.self_attention.linear_qkv.adapter.adapter_q.linear_in.weight" in whole_tensors(iteration_folder(dist))
    for place in (first, dist):
        assert "low-rank matrices (LoRA): it needs the model" in command("inspect", place).stdout


def same_trees(one, other, layout):
    ones, others = load_shards(one, layout), load_shards(other, layout)
    for name, content in others.items():
        for key in [key for key in content if key.startswith("model")]:
            assert_same_tensors({k: v for k, v in ones[name][key].items() if isinstance(v, torch.Tensor)}, content[key])


CASES = {
    "llama-tp2": (LLAMA, Layout(tp=2), LOCAL), "llama-tp2-pp3": (LLAMA, Layout(tp=2, pp=3), TE_SEQUENTIAL),
    "qwen3-tp4-pp2": (QWEN3, Layout(tp=4, pp=2), TE_SEQUENTIAL), "qwen3-vpp2": (QWEN3, Layout(pp=2, vpp=2), LOCAL)}


def maker_of(form, config, adapter):
    return McoreBridge(config, adapter) if form == "mcore-bridge" else Bridge(config, adapter, form == "canonical")


@pytest.mark.long_but("llama-tp2-fused")
@pytest.mark.parametrize("form", ["canonical", "fused", "mcore-bridge"])
@pytest.mark.parametrize("config, layout, impl", CASES.values(), ids=CASES)
def test_a_tree_made_by_hand_becomes_a_folder_of_peft_and_comes_back(config, layout, impl, form, bases, program, scratch):
    peft = save_adapter(bases(config), scratch / "peft", shared=form != "canonical")
    tree = write_tree(scratch / "tree", config, layout, impl, maker_of(form, config, Adapter(tensors_of(peft))))
    target = program.to_hf(tree, scratch / "hf", model={"lora_alpha": "8", "map": config.family})
    assert_same_tensors(tensors_of(target), tensors_of(peft))
    assert torch.equal(adapted_logits(bases(config), target, TOKENS), adapted_logits(bases(config), peft, TOKENS))
    back = program.to_megatron(target, scratch / "again", layout, impl, target_options={"adapter": form}, source_options={"config": str(bases(config))})
    same_trees(back, tree, layout)


# --- experts ------------------------------------------------------------------------------------------------------


def expert_folder(scratch, base, config):
    """An adapter for every expert and the attention, under the names of modules, as vLLM and transformers 4 have them; gate and up have one A."""
    attention = save_adapter(base, scratch / "attention", shared=True, target_modules=ATTENTION)
    tensors = tensors_of(attention)
    for layer in range(config.layers):
        for expert in range(config.experts):
            for module, rows, columns in (("gate", config.expert_ffn, config.hidden), ("up", config.expert_ffn, config.hidden),
                                          ("down", config.hidden, config.expert_ffn)):
                name = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{module}_proj."
                a = name if module == "down" else name.replace(module, "fc1")
                tensors[name + "lora_A.weight"] = random_like(torch.empty(4, columns), a, "a")
                tensors[name + "lora_B.weight"] = random_like(torch.empty(rows, 4), name, "b")
    described = config_of(attention) | {"target_modules": sorted(ATTENTION + MLP)}
    return write_folder(scratch / "peft", tensors, described)


EXPERTS = {
    "ep2-bridge": (Layout(tp=2, ep=2, etp=1), "fused"), "tp2-pp2-ep3-etp2-bridge": (Layout(tp=2, pp=2, ep=3, etp=2), "fused"),
    "ep6-mcore": (Layout(ep=6), "mcore-bridge"), "tp2-ep2-mcore": (Layout(tp=2, ep=2, etp=1), "mcore-bridge")}


@pytest.mark.long_but("ep2-bridge")
@pytest.mark.parametrize("layout, form", EXPERTS.values(), ids=EXPERTS)
def test_adapters_of_experts_go_to_trees_as_made_by_hand_and_back(layout, form, bases, program, scratch):
    peft = expert_folder(scratch, bases(MOE), MOE)
    source = {"source_options": {"config": str(bases(MOE))}}
    tree = program.to_megatron(peft, scratch / "tree", layout, TE_GROUPED, target_options={"adapter": form}, **source)
    same_trees(tree, write_tree(scratch / "made", MOE, layout, TE_GROUPED, maker_of(form, MOE, Adapter(tensors_of(peft)))), layout)
    dist = program.run(scratch / "made", scratch / "dist", "torch_dist", target_options={"layout": Layout(ep=2).toml()})
    back = program.to_hf(dist, scratch / "back", target_options={"reference": str(peft)}, model={"map": "qwen3_moe"}, **source)
    assert_same_tensors(tensors_of(back), tensors_of(peft))


@pytest.mark.parametrize("etp", [1, 2])
def test_rows_of_experts_in_torch_dist_are_gates_then_ups(etp, bases, program, scratch):
    """For any etp: GroupedExpertLinearAdapter puts the first half of each rank's rows, its gate, before all second halves, as for the weight."""
    peft = expert_folder(scratch, bases(MOE), MOE)
    tensors, source = tensors_of(peft), {"source_options": {"config": str(bases(MOE))}}
    options = {"layout": Layout(tp=2, etp=etp).toml(), "adapter": "fused", "layers": "separate"}
    dist = program.run(peft, scratch / "dist", "torch_dist", target_options=options, **source)
    stored = whole_tensors(iteration_folder(dist))["decoder.layers.1.mlp.experts.experts.linear_fc1.adapter.linear_out.weight"]
    name = "base_model.model.model.layers.1.mlp.experts.{}.{}_proj.lora_B.weight"
    expected = torch.stack([torch.cat([tensors[name.format(expert, word)] for word in ("gate", "up")]) for expert in range(MOE.experts)])
    assert torch.equal(stored, expected)
    back = program.to_hf(dist, scratch / "back", target_options={"reference": str(peft)}, model={"map": "qwen3_moe"}, **source)
    assert_same_tensors(tensors_of(back), tensors)


GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
PACKED = {"both": [GATE_UP, DOWN], "gate-up": [GATE_UP], "down": [DOWN], "twice": [GATE_UP, "experts.gate_up_proj", GATE_UP], "with-router": [DOWN, "mlp.gate.weight"]}


@pytest.mark.long_but("both", "down")
@pytest.mark.parametrize("parameters", PACKED.values(), ids=PACKED)
def test_experts_that_peft_packs_keep_what_they_compute(parameters, bases, program, scratch):
    """target_parameters: B has the expert as its fastest index, A as its slowest."""
    base = bases(MOE)
    peft = save_adapter(base, scratch / "peft", target_modules=[], target_parameters=parameters, r=4 if "mlp.gate.weight" in parameters else 3)
    layout = Layout(tp=2, pp=2, ep=2, etp=1)
    tree = program.to_megatron(peft, scratch / "tree", layout, TE_GROUPED)
    back = program.to_hf(tree, scratch / "back")
    assert_same_tensors(tensors_of(back), tensors_of(peft))
    assert torch.equal(adapted_logits(base, back, TOKENS), adapted_logits(base, peft, TOKENS))
    check_packed(tensors_of(peft), load_shards(tree, layout), layout)


def check_packed(tensors, shards, layout):
    """What the wrappers of peft multiply is what Bridge's grouped adapter multiplies."""
    for name, content in shards.items():
        rank, stage = (int(part) for part in (name.split("_")[-1], name.split("_")[3]))
        local = content["model"]
        for short, rows in (("fc1", 2 * MOE.expert_ffn), ("fc2", MOE.hidden)):
            modules = [f"base_model.model.model.layers.{stage}.mlp.experts.{wrapper}" for wrapper in ("", "base_layer.")]
            module = next((one for one in modules if len(tensors.get(one + "lora_B.weight", ())) == rows), None)
            assert (module is not None) == (f"decoder.layers.0.mlp.experts.linear_{short}.adapter.linear_out.weight" in local)
            if module is None:
                continue
            a, b = tensors[module + "lora_A.weight"], tensors[module + "lora_B.weight"]
            deltas = torch.einsum("ore,eri->eoi", b.reshape(b.shape[0], -1, MOE.experts), a.reshape(MOE.experts, -1, a.shape[1]))
            key = f"decoder.layers.0.mlp.experts.linear_{short}.adapter."
            mine = torch.bmm(local[key + "linear_out.weight"], torch.cat([shards[peer]["model"][key + "linear_in.weight"] for peer in [name]], 1))
            assert torch.equal(mine, deltas.chunk(layout.ep)[rank])


# --- torch_dist ---------------------------------------------------------------------------------------------------


def halves_outside(tensor, tp):
    """How Bridge joins the B of a gate or an up: apply_swiglu_sharded_factory takes each rank's rows for a gate and an up."""
    halves = [part.chunk(2) for part in tensor.chunk(tp)]
    return torch.cat([first for first, _ in halves] + [second for _, second in halves])


@pytest.mark.long_but("canonical")
@pytest.mark.parametrize("form", ["canonical", "fused", "mcore-bridge"])
def test_rows_in_torch_dist_lie_as_the_programs_join_them(form, bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft", shared=form != "canonical")
    tensors, tp = tensors_of(peft), 4
    options = {"layout": Layout(tp=tp).toml(), "adapter": form, "layers": "separate"}
    dist = program.run(peft, scratch / "dist", "torch_dist", target_options=options)
    stored = whole_tensors(iteration_folder(dist))
    gate, up = (tensors[f"base_model.model.model.layers.1.mlp.{word}_proj.lora_B.weight"] for word in ("gate", "up"))
    fc1 = "decoder.layers.1.mlp.linear_fc1."
    expected = {
        "canonical": {f"{fc1}adapter.adapter_gate.linear_out.weight": halves_outside(gate, tp), f"{fc1}adapter.adapter_up.linear_out.weight": halves_outside(up, tp)},
        "fused": {f"{fc1}adapter.linear_out.weight": torch.cat([gate, up])},
        "mcore-bridge": {f"{fc1}lora_B.default.weight": torch.cat([part for pair in zip(gate.chunk(tp), up.chunk(tp)) for part in pair])}}[form]
    assert_same_tensors({key: stored[key] for key in expected}, expected)
    for layout in (Layout(tp=1), Layout(tp=2)):
        other = program.run(dist, scratch / f"dist{layout.tp}", "torch_dist", target_options={"layout": layout.toml()})
        assert_same_tensors(tensors_of(program.to_hf(other, scratch / f"back{layout.tp}")), tensors)
        assert command("verify", dist, other).returncode == 0  # equal names whose rows lie otherwise


# --- refusals -----------------------------------------------------------------------------------------------------


def changed(tensors, **changes):
    return {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}


A_NAME, B_NAME = (f"base_model.model.model.layers.1.self_attn.k_proj.lora_{matrix}.weight" for matrix in "AB")
REFUSALS = {
    "b-without-a": (lambda tensors: changed(tensors, **{A_NAME: None}), {}, "has '" + B_NAME + "', but"),
    "wrong-shape": (lambda tensors: changed(tensors, **{A_NAME: torch.zeros(4, 31)}), {}, "is F32 [4, 31]"),
    "unknown-module": (lambda tensors: changed(tensors, **{A_NAME.replace("k_proj", "x_proj"): torch.zeros(4, 32)}), {}, "x_proj"),
    "whole-module": (lambda tensors: changed(tensors, **{"base_model.model.lm_head.weight": torch.zeros(90, 32)}), {}, "modules_to_save"),
    "dora": (lambda tensors: tensors, {"use_dora": True}, "use_dora = true"),
    "biases": (lambda tensors: tensors, {"bias": "all"}, "bias = "),
    "another-rank": (lambda tensors: tensors, {"r": 5}, "states rank 5 for 'model.layers.0."),
    "alpha-nan": (lambda tensors: tensors, {"lora_alpha": float("nan")}, "lora_alpha of 'model.layers.0."),
    "alpha-too-large": (lambda tensors: tensors, {"alpha_pattern": {"k_proj": 1e308}}, "not a finite 32-bit number"),
    "no-base": (lambda tensors: tensors, {"base_model_name_or_path": "meta/nowhere"}, "source.config"),
}


@pytest.mark.long_but("b-without-a", "another-rank")
@pytest.mark.parametrize("change, config, words", REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_converted_is_refused(change, config, words, bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft")
    folder = write_folder(scratch / "changed", change(tensors_of(peft)), config_of(peft) | config)
    outcome = program.attempt(folder, scratch / "target", "megatron")
    assert outcome.returncode in (2, 3) and words in outcome.stderr, f"{outcome.returncode}: {outcome.stderr}"
    assert not (scratch / "target").exists()


def test_an_initialisation_that_changed_the_base_is_carried_with_a_warning(bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft")
    folder = write_folder(scratch / "changed", tensors_of(peft), config_of(peft) | {"init_lora_weights": "pissa"})
    outcome = program.attempt(folder, scratch / "target", "torch_dist")
    assert outcome.returncode == 0 and 'init_lora_weights = "pissa"' in outcome.stdout + outcome.stderr, outcome.stderr
    assert config_of(program.to_hf(scratch / "target", scratch / "back")) == config_of(folder)


def test_different_a_do_not_become_one(bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft")
    outcome = program.attempt(peft, scratch / "target", "megatron", target_options={"adapter": "fused"})
    assert outcome.returncode == 3 and "target.adapter = \"canonical\"" in outcome.stderr, outcome.stderr
    outcome = program.attempt(peft, scratch / "target", "megatron", target_options={"adapter": "fused"}, source_options={"replicas": "first"})
    assert outcome.returncode == 3, outcome.stderr


def test_q_and_v_alone_go_into_the_form_with_an_adapter_for_each(bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft", shared=True, target_modules=["q_proj", "v_proj"])
    outcome = program.attempt(peft, scratch / "target", "megatron", target_options={"adapter": "mcore-bridge"})
    assert outcome.returncode == 2 and "adapts 'attn.q' in 3 layers and 'attn.k' in 0" in outcome.stderr and '"canonical"' in outcome.stderr, outcome.stderr
    tree = program.to_megatron(peft, scratch / "tree", Layout(tp=2), LOCAL)
    assert_same_tensors(tensors_of(program.to_hf(tree, scratch / "back")), tensors_of(peft))
    carried = next(tree.rglob("adapter_config.json"))
    carried.write_text(carried.read_text().replace('"r": 4', '"r": 9'))
    outcome = program.attempt(tree, scratch / "target", "torch_dist")
    assert outcome.returncode == 3 and "states rank 9 for 'decoder.layers.0." in outcome.stderr, outcome.stderr


@pytest.mark.long
def test_alpha_must_be_known(bases, program, scratch):
    peft = save_adapter(bases(LLAMA), scratch / "peft")
    tree = write_tree(scratch / "tree", LLAMA, Layout(), LOCAL, Bridge(LLAMA, Adapter(tensors_of(peft)), canonical=True))
    outcome = program.attempt(tree, scratch / "target", "huggingface", model={"map": "llama"})
    assert outcome.returncode == 2 and "model.lora_alpha" in outcome.stderr, outcome.stderr
