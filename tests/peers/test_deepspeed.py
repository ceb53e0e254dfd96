"""DeepSpeed checkpoints: real DeepSpeed saves them on CPU ranks; PyTorch, transformers and DeepSpeed itself read what the program makes of them."""

import json
import os
import shutil

import pytest
import torch

import dcp_checkpoints
import dcp_reading  # noqa: E402
import deepspeed_runs as runs  # noqa: E402
import family_models
import hf_models
import legacy_optimizer
from dcp_cases import DENSE
from dcp_models import Recipe
from peer_types import Layout
from reshard_job import command  # noqa: E402
from tensor_patterns import assert_same_tensors, same_bits  # noqa: E402

SLOTS = ("fp32", "exp_avg", "exp_avg_sq")
STAGES = [1, 2, 3]


def case_of(stage, folder, **more):
    return {"stage": stage, "model": "llama", "folder": str(folder), **more}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of two ranks, and the FP32 weights that their runs came to some steps later."""
    root = tmp_path_factory.mktemp("deepspeed")
    cases = {f"zero{stage}": case_of(stage, root / f"zero{stage}") for stage in STAGES}
    cases |= {f"plain{stage}": case_of(stage, root / f"plain{stage}", model="plain") for stage in (2, 3)}
    cases["tied"] = case_of(1, root / "tied", model="tied")
    cases["round-robin"] = case_of(2, root / "round-robin", zero={"round_robin_gradients": True})
    cases["sub-groups"] = case_of(3, root / "sub-groups", zero={"sub_group_size": 700})
    cases["one-group"] = case_of(3, root / "one-group", groups=1)
    cases["one-group-1"] = case_of(1, root / "one-group-1", groups=1)
    cases["fp32"] = case_of(2, root / "fp32", dtype="fp32")
    cases["no-zero"] = case_of(0, root / "no-zero")
    after = runs.save(2, cases)
    for name in cases:
        config = runs.llama_config(tied=name == "tied")
        if cases[name]["model"] != "plain":
            config.save_pretrained(root / name)
    return root, cases, after


@pytest.fixture
def copied(saved, scratch):
    def copy(name):
        shutil.copytree(saved[0] / name, scratch / name)
        return scratch / name

    return copy


def step_folder(root):
    return root / (root / "latest").read_text().strip()


def rank_files(root, kind="optim_states"):
    return sorted(step_folder(root).glob(f"*{kind}.pt"))


def masters_by_deepspeed(root):
    """What DeepSpeed's own zero_to_fp32 puts together."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(root))


def slots_by_deepspeed(root, scratch):
    """What DeepSpeed's own ds_to_universal puts together: (parameter, slot) -> tensor."""
    from types import SimpleNamespace

    from deepspeed.checkpoint import ds_to_universal

    out = scratch / "by-deepspeed"
    arguments = SimpleNamespace(
        input_folder=str(step_folder(root)), output_folder=str(out), num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True)
    ds_to_universal.main(arguments)
    found = {}
    for file in out.glob("zero/*/*.pt"):
        value = torch.load(file, weights_only=False)
        found[file.parent.name, file.stem] = value["param"] if isinstance(value, dict) else value
    return found


def dcp_of(program, source, scratch, **options):
    return dcp_reading.whole_tensors(program.run(source, scratch / "dcp", "dcp", **options))


# --- what the files hold ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "plain2", "plain3", "tied", "sub-groups", "fp32"])
def test_every_slot_is_what_deepspeed_itself_puts_together(name, saved, program, scratch):
    root = saved[0] / name
    found = dcp_of(program, root, scratch)
    masters = masters_by_deepspeed(root)
    expected = slots_by_deepspeed(root, scratch)
    trained = {key[len("optimizer.state."):-len(".fp32")] for key in found if key.endswith(".fp32")}
    assert len(trained) == (4 if "plain" in name else 20 if name == "tied" else 21)
    for parameter in trained:
        assert same_bits(found[f"optimizer.state.{parameter}.fp32"], masters[parameter]), parameter
        assert found[f"optimizer.state.{parameter}.step"] == runs.STEPS_BEFORE
        lower = torch.float32 if name == "fp32" else torch.bfloat16
        assert same_bits(found[parameter], masters[parameter].to(lower)), parameter
    for (parameter, slot), tensor in expected.items():
        if slot in SLOTS and parameter in trained:
            assert same_bits(found[f"optimizer.state.{parameter}.{slot}"].reshape(tensor.shape), tensor), (parameter, slot)
    for weight in set(masters) - trained:
        assert same_bits(found[weight], masters[weight].to(found[weight].dtype)), weight


def test_all_stages_of_one_training_hold_the_same(saved, program, scratch):
    """With round_robin_gradients DeepSpeed 0.19.8 saves places that parameters do not have, and its own ds_to_universal takes them for true."""
    digests = set()
    for name in ("zero1", "zero2", "zero3", "sub-groups", "round-robin"):
        target = program.run(saved[0] / name, scratch / name, "dcp")
        digests.add(json.loads((target / "reshard.json").read_text())["total"])
    assert len(digests) == 1


def test_parameter_groups_are_found_by_name(saved, program, scratch):
    target = program.run(saved[0] / "zero2", scratch / "dcp", "dcp")
    prefix = "optimizer.param_groups."
    values = {key.removeprefix(prefix): value for key, value in dcp_reading.objects(target).items() if key.startswith(prefix)}
    assert values["model.norm.weight.weight_decay"] == 0.0 and values["lm_head.weight.weight_decay"] == runs.DECAY
    assert values["lm_head.weight.betas"] == (0.9, 0.999) and values["lm_head.weight.lr"] == runs.LEARNING_RATE


# --- Hugging Face -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "tied"])
def test_transformers_loads_the_weights(name, saved, program, scratch):
    from transformers import LlamaForCausalLM

    root = saved[0] / name
    target = program.to_hf(root, scratch / "hf", source_options={"optimizer": "drop"})
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    masters = masters_by_deepspeed(root)
    assert_same_tensors({key: value for key, value in model.state_dict().items()}, {key: masters[key].bfloat16() for key in model.state_dict()})


def test_a_folder_without_room_for_state_asks_for_a_decision(saved, program, scratch):
    outcome = program.attempt(saved[0] / "zero2", scratch / "hf", "huggingface")
    assert outcome.returncode == 3 and "source.optimizer" in outcome.stderr and not (scratch / "hf").exists()


@pytest.mark.parametrize("target", ["dcp", "huggingface", "deepspeed", "torch_dist"])
def test_state_under_numbers_is_never_left_out_unasked(target, saved, program, scratch):
    """Without ZeRO DeepSpeed 0.19.8 saves the state of torch's optimizer, whose parameters no file names."""
    root = saved[0] / "no-zero"
    refused = program.attempt(root, scratch / "refused", target)
    assert refused.returncode == 3 and "under numbers" in refused.stderr and "ZeRO stage 1" in refused.stderr, refused.stderr
    if target == "dcp":
        outcome = program.attempt(root, scratch / "target", target, source_options={"optimizer": "drop"})
        assert outcome.returncode == 0 and 'optimizer state is dropped (source.optimizer = "drop")' in outcome.stderr, outcome.stderr
        found = command("inspect", root)
        assert "under numbers without names; can only be dropped" in found.stdout, found.stdout


# --- Megatron's torch_dist ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_state_follows_the_weights_into_torch_dist(name, saved, program, scratch):
    """The way of the weights is known to be right: each slot must take the same way as a Hugging Face folder of its values."""
    from safetensors.torch import save_file

    root = saved[0] / name
    options = {"target_options": {"layout": "{ tp = 2, pp = 2 }"}}
    target = program.run(root, scratch / "dist", "torch_dist", **options)
    folder = next(target.glob("iter_*"))
    found = dcp_reading.whole_tensors(folder)
    common = torch.load(folder / "common.pt", weights_only=False)
    groups = common["optimizer"]["optimizer"]["param_groups"]
    assert [(group["wd_mult"], group["step"], group["betas"]) for group in groups] == [(1.0, 2, (0.9, 0.999)), (0.0, 2, (0.9, 0.999))]
    assert common["iteration"] == runs.STEPS_BEFORE and common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    args = vars(common["args"])
    alone = program.run(root, scratch / "alone", "torch_dist", source_options={"optimizer": "drop"}, **options)
    expected = vars(torch.load(next(alone.glob("*/common.pt")), weights_only=False)["args"])
    expected = {key: value for key, value in expected.items() if key != "no_save_optim"} | {"iteration": 2, "consumed_train_samples": 4}
    assert args == expected
    slots = dcp_of(program, root, scratch)
    for word, slot in (("param", "fp32"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
        folder_of_values = scratch / f"values-{slot}"
        folder_of_values.mkdir()
        shutil.copy(root / "config.json", folder_of_values)
        values = {key: slots[f"optimizer.state.{key}.{slot}"].contiguous() for key in slots if not key.startswith("optimizer.")}
        save_file(values, folder_of_values / "model.safetensors", metadata={"format": "pt"})
        way = next(program.run(folder_of_values, scratch / f"way-{slot}", "torch_dist", **options).glob("*/.metadata")).parent
        expected = dcp_reading.whole_tensors(way)
        prefix = f"optimizer.state.{word}."
        assert_same_tensors({key[len(prefix):]: value for key, value in found.items() if key.startswith(prefix)}, expected)
    again = program.run(target, scratch / "legacy", "megatron", target_options={"layout": "{ tp = 1, pp = 2 }"})
    assert list(again.glob("iter_*/mp_rank_*/*.pt"))


@pytest.mark.parametrize("by_way_of", ["megatron", "fsdp_dtensor", "hdf5"])
def test_other_formats_hold_the_same(by_way_of, saved, program, scratch):
    layout = {"target_options": {"layout": "{ tp = 2, pp = 2 }"}}
    (scratch / "model").mkdir()
    shutil.copy(saved[0] / "zero2/config.json", scratch / "model")
    by_map = {"source_options": {"config": scratch / "model"}}  # an HDF5 target keeps names otherwise
    straight = next(program.run(saved[0] / "zero2", scratch / "dist", "torch_dist", **layout).glob("iter_*"))
    there = program.run(saved[0] / "zero2", scratch / "there", by_way_of, **(by_map if by_way_of == "hdf5" else layout))
    found = next(program.run(there, scratch / "way", "torch_dist", **layout).glob("iter_*"))
    assert_same_tensors(dcp_reading.whole_tensors(found), dcp_reading.whole_tensors(straight))
    groups = [torch.load(folder / "common.pt", weights_only=False)["optimizer"]["optimizer"]["param_groups"] for folder in (found, straight)]
    assert groups[0] == groups[1]


# --- universal checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.long_but("1")
def test_training_continues_from_a_universal_checkpoint(world, saved, program, scratch):
    """Any stage into any stage and number of ranks. DeepSpeed 0.19.8 gives all groups of stage 3 the settings of the first, and one step: one group."""
    _, _, after = saved
    cases, expected = {}, {}
    slots_by_deepspeed(saved[0] / "plain2", scratch)
    frozen = program.run(scratch / "by-deepspeed", scratch / "frozen", "deepspeed")
    cases["frozen"], expected["frozen"] = case_of(1, frozen, model="plain"), after["plain2"]
    for source, stage in (("zero1", 2), ("zero2", 1), ("zero3", 1), ("tied", 2), ("round-robin", 1), ("sub-groups", 2), ("one-group", 3), ("one-group-1", 3), ("one-group", 1)):
        name = f"{source}-into-{stage}"
        target = program.run(saved[0] / source, scratch / name, "deepspeed")
        cases[name] = case_of(stage, target, model="tied" if source == "tied" else "llama", groups=1 if "one-group" in source else 2)
        # What DeepSpeed reads back of FP32 weights is wrong with round_robin_gradients; the training is that of "zero2".
        expected[name] = after["zero2" if source == "round-robin" else source]
    for name, (masters, note) in runs.resume(world, cases).items():
        assert_same_tensors(masters, expected[name])
        assert note == "of the training program"


def test_the_oracle_sees_a_wrong_moment(saved, program, scratch):
    target = program.run(saved[0] / "zero1", scratch / "target", "deepspeed")
    file = next(target.glob("*/zero/model.norm.weight/exp_avg.pt"))
    content = torch.load(file)
    content["param"][0] += 1
    torch.save(content, file)
    masters, _ = runs.resume(1, {"case": case_of(1, target)})["case"]
    assert {name for name in masters if not same_bits(masters[name], saved[2]["zero1"][name])} >= {"model.norm.weight"}


@pytest.mark.parametrize("name", ["zero2", "zero3", "plain3"])
def test_universal_checkpoints_are_read_as_well(name, saved, program, scratch):
    """Those of DeepSpeed's own converter, and ours: flat vectors of stage 3, whose step is in another file, and frozen parameters, which lie in the files of all ranks."""
    expected = dcp_of(program, saved[0] / name, scratch)
    slots_by_deepspeed(saved[0] / name, scratch)
    ours = next(program.run(saved[0] / name, scratch / "ours", "deepspeed").glob("global_step*"))
    for number, folder in enumerate((scratch / "by-deepspeed", ours)):
        found = dcp_reading.whole_tensors(program.run(folder, scratch / f"from{number}", "dcp"))
        assert_same_tensors({key: found[key] for key in expected}, expected)


# --- universal checkpoints of other programs' runs --------------------------------------------------------------------

MEGATRON = dcp_checkpoints.World(Recipe(DENSE.with_(layers=2, vocab=80, dtype="bfloat16")), Layout(tp=2, pp=2))
MEGATRON_NAMES = {
    "embed": "embedding.word_embeddings.weight", "final_norm": "decoder.final_layernorm.weight", "head": "output_layer.weight",
    "attn_norm": "self_attention.linear_qkv.layer_norm_weight", "mlp_norm": "mlp.linear_fc1.layer_norm_weight", "qkv": "self_attention.linear_qkv.weight",
    "proj": "self_attention.linear_proj.weight", "q_norm": "self_attention.q_layernorm.weight", "k_norm": "self_attention.k_layernorm.weight",
    "fc1": "mlp.linear_fc1.weight", "fc2": "mlp.linear_fc2.weight"}  # fmt: skip


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """One run of Megatron-Core in two of its forms."""
    root = tmp_path_factory.mktemp("megatron")
    legacy_optimizer.train_and_save(MEGATRON, root / "megatron", "distributed")
    dcp_checkpoints.train_and_save(MEGATRON, root / "torch_dist", dcp_checkpoints.RESHARDABLE)
    return root


def megatron_slot(root, prefix):
    """What torch's loader finds under a prefix, under the names of Hugging Face."""
    config = MEGATRON.recipe.config
    found = dcp_reading.whole_tensors(next((root / "torch_dist").glob("**/.metadata")).parent)
    logical = {}
    for key, name in MEGATRON_NAMES.items():
        if key in ("embed", "final_norm", "head"):
            logical[key] = found[prefix + name][: config.vocab] if key != "final_norm" else found[prefix + name]
            continue
        for layer in range(config.layers):
            logical[f"layers.{layer}.{key}"] = found[f"{prefix}decoder.layers.{name}"][layer]
    return hf_models.globals_to_hf(config, logical)


def universal_files(target):
    """(parameter, slot) -> content of a universal checkpoint."""
    found = {}
    for file in next(target.glob("global_step*")).glob("zero/*/*.pt"):
        value = torch.load(file, weights_only=False)
        found[file.parent.name, file.stem] = value["param"] if isinstance(value, dict) else value
    return found


def model_states(target):
    return torch.load(next(target.glob("global_step*/mp_rank_00_model_states.pt")), weights_only=True)


@pytest.mark.parametrize("form", ["megatron", "torch_dist"])
def test_state_of_a_megatron_run_has_the_values_that_torch_reads(form, megatron, program, scratch):
    target = program.run(megatron / form, scratch / "target", "deepspeed")
    found = universal_files(target)
    for slot, prefix in (("fp32", "optimizer.state.param."), ("exp_avg", "optimizer.state.exp_avg."), ("exp_avg_sq", "optimizer.state.exp_avg_sq.")):
        expected = megatron_slot(megatron, prefix)
        assert_same_tensors({name: tensor for (name, key), tensor in found.items() if key == slot}, expected)
    assert {float(step) for (_, key), step in found.items() if key == "step"} == {1.0}
    states = model_states(target)
    assert_same_tensors(states["module"], megatron_slot(megatron, ""))
    assert states["global_steps"] == dcp_checkpoints.ITERATION and states["lr_scheduler"]["last_batch_iteration"] == dcp_checkpoints.ITERATION - 1
    again = next(program.run(target, scratch / "again", "torch_dist", target_options={"layout": "{ tp = 1 }"}).glob("iter_*"))
    straight = next(program.run(megatron / form, scratch / "straight", "torch_dist", target_options={"layout": "{ tp = 1 }"}).glob("iter_*"))
    cut = [{key: tensor[:80] if tensor.shape[0] > 80 else tensor for key, tensor in dcp_reading.whole_tensors(folder).items()} for folder in (again, straight)]
    assert_same_tensors(*cut)  # without padding of the vocabulary


def check_training_goes_on(world, target, step, steps=None, state=None):
    """In every stage DeepSpeed has the state of the files, and its losses are those of torch's AdamW from there."""
    expected = state or {key: tensor for key, tensor in universal_files(target).items() if key[1] in SLOTS}
    adam_steps = step if steps is None else steps
    forms = [(stage, groups) for stage in STAGES for groups in (1, 2) if stage < 3 or groups == 1]  # one step for all groups of stage 3
    cases = {f"{stage}-{groups}": case_of(stage, target, groups=groups, adam_steps=adam_steps) for stage, groups in forms}
    for name, (found, settings, done, losses, by_torch) in runs.continued(world, cases).items():
        assert_same_tensors(found, expected)
        assert done == step, name
        assert losses[0] == by_torch[0] and losses == pytest.approx(by_torch, rel=1e-3), name  # flat vectors round otherwise
    return settings


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.long_but("2")
def test_deepspeed_continues_a_megatron_run(world, megatron, program, scratch):
    outcome = program.attempt(megatron / "megatron", scratch / "target", "deepspeed")
    assert outcome.returncode == 0 and "differ in weight_decay" in outcome.stderr, outcome.stderr
    settings = check_training_goes_on(world, scratch / "target", dcp_checkpoints.ITERATION, steps=1)
    assert settings[0]["lr"] == 0.01 and settings[0]["weight_decay"] == runs.DECAY


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.long_but("2")
def test_deepspeed_starts_from_the_weights_of_a_hugging_face_folder(world, program, scratch):
    """Stage 3 loads no parameter without moments: they are those before the first step, in files of one number."""
    runs.llama().bfloat16().save_pretrained(scratch / "hf")
    target = program.run(scratch / "hf", scratch / "target", "deepspeed")
    weights = model_states(target)["module"]
    state = {(name, slot): weight.float() if slot == "fp32" else torch.zeros(weight.shape) for name, weight in weights.items() for slot in SLOTS}
    settings = check_training_goes_on(world, target, 0, state=state)
    assert settings[0]["lr"] == runs.LEARNING_RATE / 2  # of the training program
    assert max(file.stat().st_size for file in target.glob("*/zero/*/exp_avg*.pt")) < 2000
    back = program.run(target, scratch / "back", "huggingface")
    assert command("verify", scratch / "hf", back).returncode == 0
    again = program.run(target, scratch / "again", "deepspeed")
    assert_same_tensors(universal_files(again), universal_files(target))


def test_masters_that_are_the_weights_are_in_both_places(program, scratch):
    """A DCP folder of a run in F32, whose optimizer has no masters of its own."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = runs.llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=runs.LEARNING_RATE, weight_decay=runs.DECAY)
    runs.losses_of(model, {"model": ""}, lambda loss: (loss.backward(), optimizer.step()))
    weights, states = get_state_dict(model, optimizer)
    torch.distributed.checkpoint.save({"model": weights, "optim": states}, checkpoint_id=scratch / "dcp", no_dist=True)
    runs.llama_config().save_pretrained(scratch / "dcp")
    refused(program, scratch / "dcp", "DeepSpeed looks for those of the module", 'Set source.prefix = "model."', target_format="deepspeed")
    outcome = program.attempt(scratch / "dcp", scratch / "target", "deepspeed", source_options={"prefix": "model."})
    assert outcome.returncode == 0 and "a sound model does not have" not in outcome.stderr, outcome.stderr  # equal to their masters
    target = scratch / "target"
    state = {(name, slot): weight if slot == "fp32" else states["state"][name][slot] for name, weight in weights.items() for slot in SLOTS}
    check_training_goes_on(1, target, 3, state=state)


# --- refusals -----------------------------------------------------------------------------------------------------


def refused(program, source, *words, target_format="dcp", code=3, **options):
    outcome = program.attempt(source, program.scratch / "refused", target_format, **options)
    assert outcome.returncode == code and not (program.scratch / "refused").exists(), outcome.stderr
    said = " ".join(outcome.stderr.split())
    for word in words:
        assert word in said, said


def rewrite(file, change):
    content = torch.load(file, weights_only=False)
    change(content)
    torch.save(content, file)


def test_a_master_that_is_shifted_by_one_element_is_refused(copied, program):
    root = copied("zero2")

    def shift(content):
        flat = content["optimizer_state_dict"]["single_partition_of_fp32_groups"][0].detach()
        flat.copy_(flat.roll(1))

    rewrite(rank_files(root)[1], shift)
    refused(program, root, "is not that of its weight", "master weights do not round to it")


def test_a_moment_below_zero_is_refused(copied, program):
    root = copied("zero3")
    rewrite(rank_files(root)[0], lambda content: content["optimizer_state_dict"]["optimizer_state_dict"]["state"][0]["exp_avg_sq"].fill_(-1))
    refused(program, root, "exp_avg_sq")


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_a_lost_file_of_a_rank_is_refused(name, copied, program):
    root = copied(name)
    rank_files(root)[1].unlink()
    refused(program, root, "Restore" if name == "zero3" else "ranks shared the parameters")


def test_files_of_another_world_size_are_refused(copied, program):
    root = copied("zero1")
    first, second = rank_files(root)
    shutil.copy(second, first.parent / first.name.replace("rank_0", "rank_2"))
    refused(program, root, "ranks")


def test_a_root_without_latest_is_refused(copied, program):
    root = copied("zero1")
    (root / "latest").unlink()
    refused(program, root, "has no 'latest'", "global_step2")


def test_files_of_model_parallel_ranks_are_refused(copied, program):
    root = copied("zero1")
    folder = step_folder(root)
    shutil.copy(folder / "mp_rank_00_model_states.pt", folder / "mp_rank_01_model_states.pt")
    refused(program, root, "model-parallel rank 1", "ds_to_universal")


def test_files_of_pipeline_layers_and_experts_are_refused(copied, program):
    root = copied("zero1")
    folder = step_folder(root)
    (folder / "layer_00-model_00-model_states.pt").write_bytes(b"")
    refused(program, root, "layer of a pipeline", "ds_to_universal")
    (folder / "layer_00-model_00-model_states.pt").rename(folder / "layer_0_expert_0_mp_rank_00_model_states.pt")
    refused(program, root, "experts")


def test_two_saves_in_one_folder_are_refused(copied, program):
    root = copied("zero1")
    rewrite(rank_files(root)[1], lambda content: content["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"].add_(1))
    refused(program, root, "two saves")


def test_no_code_of_a_pickle_runs(copied, program):
    root = copied("zero1")

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {root}/ran",)

    rewrite(step_folder(root) / "mp_rank_00_model_states.pt", lambda content: content.update(client=Evil()))
    program.run(root, program.scratch / "target", "deepspeed")
    assert not (root / "ran").exists()
    content = torch.load(next((program.scratch / "target").glob("*/mp_rank_00_model_states.pt")), weights_only=False)
    assert "client" not in content and content["note"] == "of the training program"


def test_weights_that_deepspeed_cannot_train_are_refused(program, scratch):
    folder = family_models.save_family(scratch / "hf", family_models.FAMILIES["qwen3"])
    coded = program.to_hf(folder, scratch / "coded", target_options={"quant": "fp8-channel"})
    refused(program, coded, "is quantised, and DeepSpeed trains F32 master weights", target_format="deepspeed", code=2)
    averaged = {"average": [str(folder)]}
    refused(program, folder, "needs master weights beside the mean", target_format="deepspeed", code=2, source_options=averaged)
    refused(program, coded, "Write the model as huggingface with model.quant", target_format="deepspeed", code=2, model={"map": "none"})


@pytest.mark.parametrize("name", ["mixtral", "minimax-m2", "qwen3-moe"])
def test_names_are_those_of_parameters(name, program, scratch):
    """transformers 5 has one tensor for the experts of a layer, whatever the names in folders are."""
    family = family_models.FAMILIES[name]
    folder = family_models.save_family(scratch / "hf", family)
    target = program.run(folder, scratch / "target", "deepspeed")
    model = type(family.make()).from_pretrained(folder, dtype="auto")
    weights = model_states(target)["module"]
    expected = model.state_dict()
    assert weights.keys() == expected.keys()
    rounded = [key for key in weights if weights[key].dtype != expected[key].dtype]  # by transformers: the bias that chooses experts
    assert all(torch.equal(weights[key].to(expected[key].dtype), expected[key]) for key in weights), rounded
    masters = {path.parent.name for path in target.glob("*/zero/*/fp32.pt")}
    assert masters >= {key for key, _ in model.named_parameters()}
    same = command("verify", folder, target)
    assert same.returncode == 0, same.stdout + same.stderr
