"""Megatron-FSDP's checkpoints (`fsdp_dtensor`) with optimizer state: to and from megatron-core's other formats, and training goes on to the same bits.

Megatron-FSDP itself needs GPUs. Its files are judged by what megatron-core and torch do with them: torch's loader fills the nested state dict that
Megatron-FSDP asks for, megatron-core's own code turns the settings of parameters into groups, and its other optimizers train on.
"""

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

import dcp_checkpoints
import dcp_reading
import legacy_optimizer
from dcp_cases import DENSE, MOE, common_of, to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, ITERATION, PLAIN, RESHARDABLE, World
from dcp_models import Recipe
from numpy_megatron import TRACKER, iteration_folder
from peer_types import Layout
from reshard_job import command
from tensor_patterns import assert_same_tensors, same_bits
from test_dp_reshardable import ODD, bf16
from test_legacy_optimizer import DISTRIBUTED
from test_legacy_optimizer_targets import INLINE, to_rank_folders

MODULE = "module.module.module."
SMALL = bf16(DENSE, layers=2)
MOE_4 = bf16(MOE, experts=4)


def world(config, layout, **more):
    return World(Recipe(config), layout, **more)


def to_fsdp(program, source, there, layout, **options):
    return program.run(source, there, "fsdp_dtensor", target_options={"layout": layout.toml()}, **options)


def meant(source, tensors):
    cut = vocabulary_of(source)
    return {key: cut(key, tensor) for key, tensor in tensors.items()}


SAVES = {  # form of the source -> (how it is saved, kind)
    "distributed": (legacy_optimizer.train_and_save, DISTRIBUTED), "inline": (legacy_optimizer.train_and_save, INLINE),
    "dp_reshardable": (dcp_checkpoints.train_and_save, DP_RESHARDABLE), "fully_reshardable": (dcp_checkpoints.train_and_save, RESHARDABLE),
    "plain": (dcp_checkpoints.train_and_save, PLAIN),
}  # fmt: skip
WORLDS = {
    "dense": (world(SMALL, Layout(tp=2)), world(SMALL, Layout(pp=2), replicas=2)),
    "odd": (world(ODD, Layout(tp=1), replicas=3, bucket_size=1500), world(ODD, Layout(tp=2))),
    "moe": (world(MOE_4, Layout(tp=2, ep=2)), world(MOE_4, Layout(ep=4))),
    "moe-together": (world(MOE_4, Layout(tp=2, ep=2)), world(MOE_4, Layout(tp=2))),
    "moe-apart": (world(MOE_4, Layout(tp=2)), world(MOE_4, Layout(ep=2, pp=2))),
    "fp32": (world(DENSE.with_(layers=2), Layout(tp=2)), world(DENSE.with_(layers=2), Layout(tp=4))),
}


@pytest.mark.long_but("dp_reshardable-moe", "distributed-odd")
@pytest.mark.parametrize("name", [f"{form}-{case}" for form in SAVES for case in WORLDS
                                  if not (case == "odd" and form in ("inline", "fully_reshardable"))])
def test_training_goes_on_behind_megatron_fsdp(name, program, scratch):
    form, _, case = name.partition("-")
    source, target = WORLDS[case]
    save, kind = SAVES[form]
    uninterrupted = save(source, scratch / "source", kind)
    there = to_fsdp(program, scratch / "source", scratch / "fsdp", source.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    back = to_torch_dist(program, there, scratch / "back", target.layout)
    assert_same_tensors(meant(source, dcp_checkpoints.resume(target, back, RESHARDABLE)), meant(source, uninterrupted))


@pytest.mark.long_but("dense")
@pytest.mark.parametrize("case", ["dense", "moe"])
def test_training_goes_on_in_rank_folders(case, program, scratch):
    source, target = WORLDS[case]
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    there = to_fsdp(program, scratch / "source", scratch / "fsdp", source.layout)
    back = to_rank_folders(program, there, scratch / "back", target, DISTRIBUTED)
    assert_same_tensors(meant(source, legacy_optimizer.resume(target, back, DISTRIBUTED)), meant(source, uninterrupted))


# --- what Megatron-FSDP would load --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """(world, root): a model with experts that trained one step."""
    root = Path(tempfile.mkdtemp(prefix="reshard-trained-"))
    source, _ = WORLDS["moe"]
    dcp_checkpoints.train_and_save(source, root / "source", RESHARDABLE)
    yield source, root / "source"
    shutil.rmtree(root)


def test_weights_without_their_state_are_the_masters_or_these_rounded(trained, program, scratch):
    source, root = trained
    drop = {"source_options": {"optimizer": "drop"}}
    there = to_fsdp(program, root, scratch / "fsdp", source.layout)
    for name, origin in (("masters", there), ("rounded", root)):
        weights = program.run(origin, scratch / name, "megatron", **drop)
        for sides in ((there, weights), (weights, there)):
            outcome = command("verify", *sides, "--weights-only")
            assert outcome.returncode == 0, f"{name}: {outcome.stdout}{outcome.stderr}"


def nested_state(folder):
    """The state dict that Megatron-FSDP asks torch for: its steps are those that the planner wrote down."""
    state, tensors = {}, dcp_reading.tensor_entries(folder)
    for key, path in dcp_reading.catalogue(folder).planner_data.items():
        entry = tensors.get(key)
        at = state
        for step in path[:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = None if entry is None else dcp_reading.poisoned(entry.size, entry.properties.dtype)
    dcp.load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    return state


def test_torch_fills_the_nested_state_dict(program, trained, scratch):
    source, root = trained
    state = nested_state(iteration_folder(to_fsdp(program, root, scratch / "fsdp", source.layout)))
    assert set(state) >= {"args", "iteration", "checkpoint_version", "opt_param_scheduler", "model", "optimizer"}
    assert state["iteration"] == ITERATION and state["opt_param_scheduler"] == dcp_checkpoints.scheduler_state()
    whole = dcp_reading.whole_tensors(iteration_folder(root))
    name = "decoder.final_layernorm.weight"
    states = state["optimizer"]["state"][MODULE + name]
    assert same_bits(state["model"]["module." + name], whole["optimizer.state.param." + name])
    assert {slot: same_bits(tensor, whole[f"optimizer.state.{slot}.{name}"]) for slot, tensor in states.items()} == {"exp_avg": True, "exp_avg_sq": True}
    assert all(tensor.dtype == torch.float32 for tensor in state["model"].values())


def test_megatron_makes_its_groups_from_the_settings(program, trained, scratch):
    """megatron-core's own code, on parameters of two groups and of experts."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    source, root = trained
    settings = nested_state(iteration_folder(to_fsdp(program, root, scratch / "fsdp", source.layout)))["optimizer"]["param_to_group_meta"]
    layer = MODULE + "decoder.layers.0."
    members = [[layer + "self_attention.linear_qkv.weight", MODULE + "embedding.word_embeddings.weight"],
               [layer + "input_layernorm.weight", MODULE + "decoder.final_layernorm.weight"],
               [layer + f"mlp.experts.local_experts.{expert}.linear_fc{number}.weight" for expert in range(4) for number in (1, 2)]]
    names = SimpleNamespace(_param_name=lambda name: name)
    groups = DistributedOptimizer._param2group_meta_to_param_groups(names, settings, [{"params": list(of_group)} for of_group in members])
    assert [group["params"] for group in groups] == members
    saved = common_of(root)["optimizer"]
    dense, experts = (saved[chain]["optimizer"]["param_groups"] for chain in (0, 1))
    expected = [next(one for one in dense if one["wd_mult"] == 1), next(one for one in dense if one["wd_mult"] == 0), experts[0]]
    assert [{key: value for key, value in group.items() if key != "params"} for group in groups] == expected
    assert groups[0]["step"] == 1 and groups[2]["is_expert_parallel"]


def test_there_and_back_is_what_megatron_saved(program, trained, scratch):
    source, root = trained
    there = to_fsdp(program, root, scratch / "fsdp", source.layout)
    back = to_torch_dist(program, there, scratch / "back", source.layout)
    found, expected = (dcp_reading.whole_tensors(iteration_folder(one)) for one in (back, root))
    assert_same_tensors(meant(source, found), meant(source, expected))
    common, saved = common_of(back), common_of(root)
    for key in ("optimizer", "opt_param_scheduler", "iteration", "num_floating_point_operations_so_far"):
        assert common[key] == saved[key], key


def test_shifted_masters_are_refused(program, scratch):
    """Megatron-Core 0.16 saves several odd buckets wrongly (PR #5077); the weights that would show it are no part of the target."""
    source, _ = WORLDS["odd"]
    dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    outcome = program.attempt(scratch / "source", scratch / "there", "fsdp_dtensor", target_options={"layout": source.layout.toml()})
    said = outcome.stderr.partition("error: ")[2]
    assert outcome.returncode == 3 and not (scratch / "there").exists(), outcome.stderr
    assert "do not round to it" in said and "PR #5077" in said and 'source.optimizer = "drop"' in said, said


# --- files as Megatron-FSDP saves them ----------------------------------------------------------------------------


def names_of_layers(key, tensor):
    """Megatron-FSDP's names of a stacked torch_dist tensor: a layer each, norms where the modules have them, gate and up apart."""
    for module, norm in (("self_attention.linear_qkv", "input_layernorm"), ("mlp.linear_fc1", "pre_mlp_layernorm")):
        key = key.replace(f"{module}.layer_norm_", f"{norm}.")
    stack, layers = "decoder.layers.", key.startswith("decoder.layers.")
    named = {f"{stack}{number}.{key.removeprefix(stack)}": part for number, part in enumerate(tensor)} if layers else {key: tensor}
    for name, part in named.items():
        if ".mlp.linear_fc1." not in name:
            yield name, part
        else:
            yield from zip((name + "_w", name + "_v"), part.chunk(2))


def save_as_fsdp(root, there, torch_steps):
    """A dense checkpoint of megatron-core as Megatron-FSDP has it in memory, saved by torch. Steps are counted in the settings, or in scalars."""
    folder, state, settings = iteration_folder(root), {}, {}
    common = common_of(root)
    groups = {group["wd_mult"]: dict(group) for group in common["optimizer"]["optimizer"]["param_groups"]}
    whole = dcp_reading.whole_tensors(folder)
    for slot in ("exp_avg", "exp_avg_sq"):
        for key in (key for key in whole if not key.startswith("optimizer.")):
            for name, part in names_of_layers(key, whole[f"optimizer.state.{slot}.{key}"]):
                of_parameter = state.setdefault(MODULE + name, {})
                of_parameter[slot] = part.contiguous()
                group = dict(groups[float(part.dim() > 1)])
                if torch_steps:
                    of_parameter["step"] = torch.tensor(float(group.pop("step")))
                settings[MODULE + name.removesuffix("_w").removesuffix("_v")] = group
    weights = {"module." + name: part.contiguous() for key in whole if not key.startswith("optimizer.")
               for name, part in names_of_layers(key, whole[f"optimizer.state.param.{key}"])}
    content = {key: common[key] for key in ("args", "checkpoint_version", "iteration", "opt_param_scheduler", "num_floating_point_operations_so_far")}
    content |= {"model": weights, "optimizer": {"state": state, "param_to_group_meta": settings}}
    target = Path(there) / folder.name
    dcp.save(content, storage_writer=FileSystemWriter(target), no_dist=True)
    (Path(there) / TRACKER).write_text(str(ITERATION))
    return Path(there)


@pytest.mark.parametrize("steps", ["in-settings", "of-torch"])
def test_training_goes_on_from_megatron_fsdp(steps, program, scratch):
    source, target = WORLDS["dense"]
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    made = save_as_fsdp(scratch / "source", scratch / "made", steps == "of-torch")
    there = to_torch_dist(program, made, scratch / "there", target.layout)
    weights = dcp_reading.whole_tensors(iteration_folder(there))
    assert weights["decoder.final_layernorm.weight"].dtype == torch.bfloat16
    assert_same_tensors(meant(source, dcp_checkpoints.resume(target, there, RESHARDABLE)), meant(source, uninterrupted))
