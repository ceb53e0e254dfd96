"""Optimizer state of plain torch checkpoints (FSDP2, torchtitan) through a family's map into Megatron's formats."""

import dataclasses
import json
import shutil

import pytest
import torch

import dcp_checkpoints
import dcp_reading
import dcp_trainers as trainers
from dcp_checkpoints import RESHARDABLE, World
from dcp_models import FusedAdam, Recipe
from numpy_megatron import iteration_folder
from peer_types import Layout
from reshard_job import command
from tensor_patterns import assert_same_tensors

SLOTS = (("param", None), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq"))
LAYOUT = {"layout": "{ tp = 2, pp = 2 }", "transformer_impl": "local"}
PREFIX = {"nested": "model.", "flattened": "model.", "bare": ""}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("trainers")
    saves = [(form, False, 2, str(root / form)) for form in trainers.FORMS]
    saves += [("nested", True, 2, str(root / "tied")), ("flattened", False, 1, str(root / "one-group"))]
    trainers.save(2, saves)
    values = trainers.values_of(root / "flattened")
    trainers.save_values(trainers.as_torchtitan(values), root / "titan")
    return root, values


def options_for(form, **source):
    return {"source_options": {"prefix": PREFIX.get(form, "model.")} | source, "target_options": LAYOUT}


def into_dist(program, saved, form, target, **more):
    return next(program.run(saved[0] / form, target, "torch_dist", **(options_for(form) | more)).glob("iter_*"))


@pytest.fixture(scope="module")
def of_slots(saved, tmp_path_factory):
    """What each slot must become. The way of the weights is known to be right: each slot takes the same way as a Hugging Face folder of its values."""
    from reshard_job import Program
    from safetensors.torch import save_file

    root, values = saved
    expected = {}
    folder = tmp_path_factory.mktemp("slots")
    for word, slot in (("weight", None), *SLOTS):
        one = folder / word
        one.mkdir()
        shutil.copy(root / "flattened/config.json", one)
        names = [key.removeprefix("model.") for key in values if key.startswith("model.")]
        of_slot = {name: values[f"optimizer.state.{name}.{slot}" if slot else f"model.{name}"] for name in names}
        of_slot = {name: (value.bfloat16() if word == "weight" else value).contiguous() for name, value in of_slot.items()}
        save_file(of_slot, one / "model.safetensors", metadata={"format": "pt"})
        way = Program(folder).run(one, folder / f"way-{word}", "torch_dist", target_options=LAYOUT)
        prefix = "" if word == "weight" else f"optimizer.state.{word}."
        expected |= {prefix + key: value for key, value in dcp_reading.whole_tensors(next(way.glob("*/.metadata")).parent).items()}
    return expected


def check_groups(folder):
    common = torch.load(folder / "common.pt", weights_only=False)
    groups = common["optimizer"]["optimizer"]["param_groups"]
    shown = [(group["wd_mult"], group["weight_decay"], group["step"], group["lr"], group["betas"]) for group in groups]
    rate = trainers.LEARNING_RATE, (0.9, 0.999)
    assert shown == [(1.0, trainers.DECAY, trainers.STEPS, *rate), (0.0, 0.0, trainers.STEPS, *rate)]
    assert common["iteration"] == trainers.STEPS and common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    args = common["args"]
    assert args.bf16 and args.num_layers == trainers.CONFIG.layers and args.tensor_model_parallel_size == 2 and not hasattr(args, "no_save_optim")


# --- what goes along ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", trainers.FORMS)
def test_state_follows_the_weights(form, saved, of_slots, program, scratch):
    folder = into_dist(program, saved, form, scratch / "dist")
    assert_same_tensors(dcp_reading.whole_tensors(folder), of_slots)
    check_groups(folder)


def test_settings_may_be_one_object(saved, of_slots, program, scratch):
    """As releases of torch saved a nested state dict that did not look into lists of dicts."""
    values = trainers.values_of(saved[0] / "nested")
    groups = [{}, {}]
    for key in [key for key in values if key.startswith("optimizer.param_groups.")]:
        number, field = key.removeprefix("optimizer.param_groups.").split(".")
        groups[int(number)][field] = values.pop(key)
    source = trainers.save_values(values | {"optimizer.param_groups": groups}, scratch / "source")
    folder = next(program.run(source, scratch / "dist", "torch_dist", **options_for("nested")).glob("iter_*"))
    assert_same_tensors(dcp_reading.whole_tensors(folder), of_slots)
    check_groups(folder)


def test_tied_embeddings(saved, program, scratch):
    found = dcp_reading.whole_tensors(into_dist(program, saved, "tied", scratch / "dist"))
    assert "optimizer.state.exp_avg.embedding.word_embeddings.weight" in found and not any("output_layer" in key for key in found)


def test_megatron_takes_the_next_step(saved, program, scratch):
    """Adam's step on the masters and moments of the FSDP2 run, with the gradients of Megatron's test, gives the bits that Megatron comes to."""
    into_dist(program, saved, "nested", scratch / "dist")
    world = World(Recipe(trainers.CONFIG), Layout(tp=2, pp=2), min_lr=0.0)  # the default of Megatron's trainer
    resumed = dcp_checkpoints.resume(world, scratch / "dist", RESHARDABLE)
    weights = scratch / "weights"
    shutil.copytree(saved[0] / "flattened", weights)
    values = {f"model.{name}": after_a_step(saved[1], name) for name in names_of(saved[1])}
    shutil.rmtree(weights)
    trainers.save_values(values, weights)
    expected = dcp_reading.whole_tensors(next(program.run(weights, scratch / "next", "torch_dist", **options_for("nested")).glob("*/.metadata")).parent)
    vocabulary = ("embedding.word_embeddings.weight", "output_layer.weight")
    meant = {key: value[: trainers.CONFIG.vocab] if key in vocabulary else value for key, value in resumed.items()}
    assert_same_tensors(meant, {key: value[: trainers.CONFIG.vocab] if key in vocabulary else value for key, value in expected.items()})


CHANGES = {
    "layers": ({"keep_layers": "1", "layout": "{ tp = 2 }"}, {"layers": 1}),
    "fewer rows": ({"vocab_size": trainers.CONFIG.vocab - 10}, {"vocab": trainers.CONFIG.vocab - 10}),
    "more rows": ({"vocab_size": trainers.CONFIG.vocab + 6, "new_rows": "zero"}, {"vocab": trainers.CONFIG.vocab + 6}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_state_follows_a_changed_model(change, saved, program, scratch):
    """What stays keeps its moments, and rows that are added have none. Megatron trains on."""
    from safetensors.torch import save_file

    options, sizes = CHANGES[change]
    folder = into_dist(program, saved, "nested", scratch / "dist", target_options=LAYOUT | options)
    found = dcp_reading.whole_tensors(folder)
    for word, slot in SLOTS:
        one = scratch / word
        one.mkdir()
        shutil.copy(saved[0] / "flattened/config.json", one)
        of_slot = {name: saved[1][f"optimizer.state.{name}.{slot}" if slot else f"model.{name}"].contiguous() for name in names_of(saved[1])}
        save_file(of_slot, one / "model.safetensors", metadata={"format": "pt"})
        rows = {"new_rows": "zero"} if slot and "new_rows" in options else {}
        way = program.run(one, scratch / f"way-{word}", "torch_dist", target_options=LAYOUT | options | rows)
        expected = dcp_reading.whole_tensors(next(way.glob("*/.metadata")).parent)
        prefix = f"optimizer.state.{word}."
        assert_same_tensors({key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}, expected)
    into_dist(program, saved, "nested", scratch / "complete")
    again = program.run(scratch / "complete", scratch / "again", "torch_dist", target_options=LAYOUT | options, source_options={"rng": "drop"})
    assert_same_tensors(dcp_reading.whole_tensors(next(again.glob("*/.metadata")).parent), found)
    world = World(Recipe(dataclasses.replace(trainers.CONFIG, **sizes)), Layout(tp=2, pp=1 if change == "layers" else 2), min_lr=0.0)
    assert dcp_checkpoints.resume(world, scratch / "dist", RESHARDABLE)


def names_of(values):
    return [key.removeprefix("model.") for key in values if key.startswith("model.")]


def after_a_step(values, name):
    parameter = torch.nn.Parameter(values[f"model.{name}"].clone())
    optimizer = FusedAdam([parameter], trainers.LEARNING_RATE, trainers.DECAY if parameter.ndim > 1 else 0.0, (0.9, 0.999), 1e-8)
    optimizer.param_groups[0]["step"] = trainers.STEPS
    optimizer.state[parameter] = {slot: values[f"optimizer.state.{name}.{slot}"].clone() for slot in ("exp_avg", "exp_avg_sq")}
    parameter.grad = torch.sin(parameter.detach().bfloat16().float() * 37 + 2) * 0.1
    optimizer.step()
    return parameter.detach().bfloat16()


@pytest.mark.parametrize("by_way_of", ["megatron", "fsdp_dtensor", "hdf5"])
def test_other_formats_hold_the_same(by_way_of, saved, of_slots, program, scratch):
    options = options_for("nested", config=saved[0] / "nested")
    if by_way_of == "hdf5":
        options["target_options"] = {}  # it has no layout
    there = program.run(saved[0] / "nested", scratch / "there", by_way_of, **options)
    folder = next(program.run(there, scratch / "dist", "torch_dist", target_options=LAYOUT).glob("iter_*"))
    assert_same_tensors(dcp_reading.whole_tensors(folder), of_slots)
    check_groups(folder)


@pytest.mark.parametrize("form", ["nested", "flattened"])
def test_a_container_that_keeps_the_names_is_read_as_what_it_was_made_of(form, saved, program, scratch):
    container = program.run(saved[0] / form, scratch / "container", "hdf5")
    direct, through = (program.run(source, scratch / name, "torch_dist", **options_for(form))
                       for name, source in (("direct", saved[0] / form), ("through", container)))
    assert command("verify", direct, through).returncode == 0
    options = ["--prefix-a", PREFIX[form]] if PREFIX[form] else []
    assert command("verify", container, through, *options).returncode == 0
    settings = [torch.load(next(root.glob("iter_*")) / "common.pt", weights_only=False)["optimizer"] for root in (direct, through)]
    assert settings[0] == settings[1]


def test_a_run_that_decays_all_parameters_is_told_what_changes(saved, program, scratch):
    outcome = program.attempt(saved[0] / "one-group", scratch / "dist", "torch_dist", **options_for("one-group"))
    assert outcome.returncode == 0, outcome.stderr
    assert "5 parameters decayed, and Megatron's norms and biases do not" in " ".join((outcome.stdout + outcome.stderr).split())


def test_verify_compares_it_with_what_it_became(saved, program, scratch):
    import subprocess

    from reshard_job import BINARY

    into_dist(program, saved, "bare", scratch / "dist")
    for one, other in ((saved[0] / "bare", scratch / "dist"), (scratch / "dist", saved[0] / "bare")):
        outcome = subprocess.run([BINARY, "verify", str(one), str(other)], capture_output=True, text=True)
        assert outcome.returncode == 0 and "same: 84 tensors" in outcome.stdout, outcome.stdout + outcome.stderr


def test_a_target_without_the_optimizer_is_the_same(saved, program, scratch):
    """`diff` shows how much rounding changes: the F32 weights themselves."""
    target = program.to_hf(saved[0] / "nested", scratch / "hf", source_options={"optimizer": "drop"}, target_options={"dtype": "bf16"})
    for one, other in ((saved[0] / "nested", target), (target, saved[0] / "nested")):
        outcome = command("verify", one, other)
        assert outcome.returncode == 0 and "source.optimizer" in outcome.stdout, outcome.stdout + outcome.stderr
        assert "rounded" in outcome.stdout, outcome.stdout
    shown = json.loads(command("diff", saved[0] / "nested", target, "--json").stdout)
    assert {(row["dtype_a"], row["dtype_b"]) for row in shown["tensors"]} == {("F32", "BF16")} and shown["tensors_differing"] > 0


# --- torchtitan ---------------------------------------------------------------------------------------------------


def test_names_of_torchtitan(saved, of_slots, program, scratch):
    folder = into_dist(program, saved, "titan", scratch / "dist", source_options={}, model={"map": "torchtitan_llama"})
    assert_same_tensors(dcp_reading.whole_tensors(folder), of_slots)
    check_groups(folder)


def test_weights_of_torchtitan_become_those_of_transformers(saved, program, scratch):
    from transformers import LlamaForCausalLM

    target = program.to_hf(saved[0] / "titan", scratch / "hf", source_options={"optimizer": "drop"}, model={"map": "torchtitan_llama"})
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert_same_tensors(dict(model.state_dict()), {name: saved[1][f"model.{name}"] for name in names_of(saved[1])})


# --- refusals -----------------------------------------------------------------------------------------------------


def refused(program, source, *words, target_format="torch_dist", **options):
    outcome = program.attempt(source, program.scratch / "refused", target_format, **(options_for("nested") | options))
    assert outcome.returncode == 3 and not (program.scratch / "refused").exists(), outcome.stdout[-2000:] + outcome.stderr
    said = " ".join(outcome.stderr.split())
    for word in (*words, "source.optimizer"):
        assert word in said, said


@pytest.fixture
def changed(saved, scratch):
    def change(how, form="flattened"):
        values = trainers.values_of(saved[0] / form)
        how(values)
        return trainers.save_values(values, scratch / "changed")

    return change


NORM = "model.layers.1.input_layernorm.weight"


def test_a_parameter_without_its_state_is_refused(changed, program):
    def remove(values):
        for key in [key for key in values if ".state." in key and ".input_layernorm." in key]:
            del values[key]

    source = changed(remove)
    refused(program, source, "input_layernorm.weight' is in a parameter group", "has no exp_avg", "model.frozen")
    target = program.run(source, program.scratch / "frozen", "torch_dist", model={"frozen": "model.layers.*.input_layernorm.weight"}, **options_for("flattened"))
    state = {key for key in dcp_reading.tensor_entries(next(target.glob("iter_*"))) if key.startswith("optimizer.state.exp_avg.")}
    assert state and not any("layer_norm" in key and "qkv" in key for key in state)


def test_a_parameter_without_one_moment_is_refused(changed, program):
    refused(program, changed(lambda values: values.pop(f"optimizer.state.{NORM}.exp_avg_sq")), "has no exp_avg_sq")


def test_state_of_a_parameter_that_is_not_there_is_refused(changed, program):
    refused(program, changed(lambda values: values.pop(f"model.{NORM}")), f"optimizer.state.{NORM}", "no weight has the name of its parameter")


def test_steps_that_differ_are_refused(changed, program):
    refused(program, changed(lambda values: values[f"optimizer.state.{NORM}.step"].add_(1)), "is 4", "is 3", "one step for all")


def test_learning_rates_that_differ_are_refused(changed, program):
    source = changed(lambda values: values.update({f"optimizer.param_groups.{NORM}.lr": 0.5}))
    refused(program, source, "'lr' is", "0.5", "0.01", "Megatron has one for all")


def test_settings_that_are_lost_are_refused(changed, program):
    def remove(values):
        for key in [key for key in values if ".param_groups." in key]:
            del values[key]

    refused(program, changed(remove), "no param_groups")


def test_a_moment_below_zero_is_refused(changed, program):
    refused(program, changed(lambda values: values[f"optimizer.state.{NORM}.exp_avg_sq"][3].sub_(1)), "exp_avg_sq")


def test_weights_without_masters_are_refused(changed, program):
    def lower(values):
        for key, value in values.items():
            if torch.is_tensor(value) and value.ndim:
                values[key] = value.bfloat16()

    refused(program, changed(lower), "is BF16 and has optimizer state, but no F32 master weight")


def test_other_kinds_of_adam_are_refused(changed, program):
    def amsgrad(values):
        values.update({key: True for key in values if key.endswith(".amsgrad")})

    refused(program, changed(amsgrad), "'amsgrad' is true")


def test_new_rows_beside_optimizer_state(saved, program):
    """A mean of BF16 weights is not that of their masters, rounded."""
    rows = {"vocab_size": trainers.CONFIG.vocab + 6}
    for target_format, how, words in (("torch_dist", "mean", "the mean of the weights is not that of their master weights"),
                                      ("fsdp_dtensor", "zero", "holds master weights alone, and rows are not added")):  # fmt: skip
        outcome = program.attempt(saved[0] / "nested", program.scratch / "rows", target_format, source_options={"prefix": "model."},
                                  target_options=rows | {"new_rows": how})
        assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("form", ["nested", "bare"])
def test_a_deepspeed_target_holds_the_same(form, saved, program, scratch):
    """F32 weights that are their own masters are masters and weights there, neither of them rounded."""
    target = program.run(saved[0] / form, scratch / "target", "deepspeed", source_options={"prefix": PREFIX[form]})
    same = command("verify", saved[0] / form, target)
    assert same.returncode == 0, same.stdout + same.stderr
    file = next(target.glob("*/zero/*norm.weight/fp32.pt"))
    content = torch.load(file)
    content["param"][0] += 1
    torch.save(content, file)
    assert command("verify", saved[0] / form, target).returncode == 1


def test_deepspeed_needs_steps_and_masters(changed, program):
    def to_deepspeed(how, *words):
        refused(program, changed(how), *words, target_format="deepspeed", target_options={})

    def lower(values):
        values.update({key: value.bfloat16() for key, value in values.items() if torch.is_tensor(value) and value.ndim})

    to_deepspeed(lower, "is BF16 and has optimizer state, but no F32 master weight, which DeepSpeed's")
    to_deepspeed(lambda values: values.pop(f"optimizer.state.{NORM}.step"), "no F32 number 'step' belongs to")
    source = changed(lambda values: values.update({"optimizer.state.layers.9.ghost.exp_avg": torch.ones(3)}), "bare")
    refused(program, source, "is optimizer state that follows no weight", target_format="deepspeed", source_options={}, target_options={})


def test_two_optimizers_of_one_parameter_are_refused(changed, program):
    def double(values):
        values[f"ema.state.{NORM}.exp_avg"] = values[f"optimizer.state.{NORM}.exp_avg"].clone()

    refused(program, changed(double), f"'ema.state.{NORM}.exp_avg'", f"'optimizer.state.{NORM}.exp_avg'", "the same state")


def test_two_models_of_one_state_are_refused(changed, program):
    def double(values):
        values.update({"ema." + key: value.clone() for key, value in list(values.items()) if key.startswith("model.")})

    source = changed(double)
    outcome = program.attempt(source, program.scratch / "refused", "torch_dist", target_options=LAYOUT)
    assert outcome.returncode == 3 and "are stored several times, behind 'ema.model.', 'model.'. Set source.prefix" in outcome.stderr, outcome.stderr
    assert program.run(source, program.scratch / "one", "torch_dist", **options_for("nested")).exists()


def test_a_format_without_room_asks_for_a_decision(saved, program):
    refused(program, saved[0] / "titan", "cannot hold", target_format="huggingface", source_options={}, target_options={}, model={"map": "torchtitan_llama"})


# --- what is said of it -------------------------------------------------------------------------------------------


def inspected(program, path):
    import subprocess

    from reshard_job import BINARY

    outcome = subprocess.run([BINARY, "inspect", str(path), "--json"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_inspect_says_what_can_become_of_it(saved, program):
    said = inspected(program, saved[0] / "nested")
    assert "exp_avg, exp_avg_sq" in said["optimizer"] and "torch_dist" in said["can_become"]
