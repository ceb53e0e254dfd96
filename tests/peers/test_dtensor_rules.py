"""Rules of DTensor checkpoints that programs have got wrong: each test is one of them, judged by torch's own DTensors."""

import pytest
import torch

import cases
import dcp_reading
import dcp_worlds
import hf_models
from dcp_worlds import Mesh, expected_grid, whole_grid
from dcp_worlds import load_flat as load
from dcp_worlds import save_flat as save
from numpy_megatron import iteration_folder
from peer_types import Layout
from tensor_patterns import assert_same_tensors, make_globals

pytestmark = pytest.mark.long

EXPERTS, HIDDEN, INTER = 4, 8, 6
ROWS = (("*.experts.fc1.*", "R R S0 S0"), ("*.experts.fc2.*", "R R S0 S1"), ("*", "R R R R"))


def expert_mesh(edp=1, ep=1, etp=1, pp=1, placements=ROWS):
    """The mesh of expert parameters: pipeline, expert data, expert and expert tensor parallel, the innermost counting fastest."""
    return Mesh((("pp", pp), ("edp", edp), ("ep", ep), ("etp", etp)), placements)


def expert_tensors(ep, prefix="model"):
    """Grouped experts under local numbers: name i holds expert i of every expert parallel rank, one rank's rows below the other's."""
    local = EXPERTS // ep
    return {f"{prefix}.layers.3.mlp.experts.{name}.weight{index}": (shape, "bfloat16") for index in range(local)
            for name, shape in (("fc1", (ep * 2 * INTER, HIDDEN)), ("fc2", (ep * HIDDEN, INTER)))}


DENSE_TENSORS = {
    "model.hc_head.weight": ((4, HIDDEN), "float32"), "model.hc_head.bias": ((4,), "float32"), "model.head.col.linear.weight": ((24, HIDDEN), "bfloat16"),
    "model.layers.3.mlp_norm.weight": ((HIDDEN,), "bfloat16"), "model.layers.3.mlp.router.gate.weight": ((EXPERTS, HIDDEN), "float32")}


def to_mesh(program, source, target, mesh, **options):
    return program.run(source, target, "dcp", target_options=mesh.target_options() | options)


def assert_grids(folder, mesh, tensors):
    grids = dcp_reading.grids(folder)
    assert {name: grid for name, grid in grids.items() if grid != expected_grid(mesh, name, tensors[name][0])} == {}


# --- placements of the checkpoint decide, not those of the wrapper ------------------------------------------------


@pytest.mark.parametrize("ep", [2, 4])
def test_every_expert_parallel_rank_loads_its_own_experts(ep, program, scratch):
    """The rows of rank 0 and rank 1 must not change places: the mistake keeps every shape."""
    mesh, tensors = expert_mesh(ep=ep), expert_tensors(ep)
    source = save(mesh, scratch / "source", tensors)
    ways = (mesh.target_options(), {"chunks": "whole"}, {"chunks": "source"})
    load(mesh, tensors, *[program.run(source, scratch / f"as-{options['chunks']}", "dcp", target_options=options) for options in ways])


def test_experts_cut_on_two_axes_keep_their_global_shape(program, scratch):
    """fc1 is cut twice on its rows, fc2 on rows and columns; the shape is the local one times the size of every mesh axis that cuts."""
    mesh, tensors = expert_mesh(ep=2, etp=2), expert_tensors(2)
    source = save(mesh, scratch / "source", tensors)
    target = to_mesh(program, source, scratch / "target", mesh)
    assert_grids(target, mesh, tensors)
    local = load(mesh, tensors, target)[0]
    entry = dcp_reading.tensor_entries(target)
    factors = {"fc1": (4, 1), "fc2": (2, 2)}
    for (name, _), shape in zip(tensors.items(), local):
        rows, columns = factors["fc1" if "fc1" in name else "fc2"]
        assert tuple(entry[name].size) == (shape[0] * rows, shape[1] * columns)
        assert all(chunk.sizes == torch.Size(shape) for chunk in entry[name].chunks)


def test_experts_sharded_over_data_parallel_ranks_as_well(program, scratch):
    """A wrapper that shards an expert's columns over the data parallel ranks on top of the checkpoint's own cut of rows: both in one box."""
    both = expert_mesh(edp=2, ep=2, placements=(("*.experts.*", "R S1 S0 R"), ("*", "R R R R")))
    source = save(both, scratch / "source", expert_tensors(2))
    plain = expert_mesh(ep=2)
    target = to_mesh(program, source, scratch / "target", plain)
    assert_grids(target, plain, expert_tensors(2))
    load(plain, expert_tensors(2), target)
    back = to_mesh(program, target, scratch / "back", both)
    assert_grids(back, both, expert_tensors(2))
    dcp_reading.assert_same_content(back, source)


def test_what_is_replicated_everywhere_is_stored_once_and_uncut(program, scratch):
    mesh = expert_mesh(ep=2, etp=2)
    source = save(mesh, scratch / "source", DENSE_TENSORS)
    target = to_mesh(program, source, scratch / "target", mesh)
    assert dcp_reading.grids(target) == {name: whole_grid(shape) for name, (shape, _) in DENSE_TENSORS.items()}


def test_a_narrow_rule_before_a_general_one_wins(program, scratch):
    """The manifold head `hc_head` is replicated although its name also has `head` in it, which is cut; the other order cuts it."""
    narrow_first = (("*hc_head.*", "R R"), ("*head*", "R S0"), ("*", "R R"))
    source = save(Mesh((("dp", 2),), (("*", "S0"),)), scratch / "source", DENSE_TENSORS)
    recuts = []
    for name, placements in (("narrow", narrow_first), ("general", (narrow_first[1], narrow_first[0], narrow_first[2]))):
        mesh = Mesh((("dp", 1), ("tp", 2)), placements)
        recut = to_mesh(program, source, scratch / name, mesh)
        assert_grids(recut, mesh, DENSE_TENSORS)
        assert len(dcp_reading.grids(recut)["model.hc_head.weight"]) == (1 if name == "narrow" else 2)
        recuts.append(recut)
    load(mesh, DENSE_TENSORS, *recuts)


def test_ranks_that_hold_nothing_save_nothing_and_load_nothing(program, scratch):
    """Four rows over six ranks: two are empty, and nobody needs the whole tensor for that."""
    mesh = Mesh((("dp", 6),), (("*", "S0"),))
    source = save(mesh, scratch / "source", DENSE_TENSORS)
    target = to_mesh(program, source, scratch / "target", mesh)
    dcp_reading.check_catalogue(target)
    assert len(dcp_reading.grids(target)["model.hc_head.weight"]) == 4
    shapes = load(mesh, DENSE_TENSORS, target)
    assert [shape[0] for shape in shapes] == [(1, HIDDEN)] * 4 + [(0, HIDDEN)] * 2


def test_stages_with_the_same_local_names_stay_apart(program, scratch):
    """Every stage counts its layers from 0; only the prefix tells them apart, and one may not overwrite the other."""
    tensors = expert_tensors(2, "model_pp0") | expert_tensors(2, "model_pp1")
    mesh = expert_mesh(ep=2)
    source = save(mesh, scratch / "source", tensors)
    target = to_mesh(program, source, scratch / "target", mesh)
    assert dcp_reading.grids(target).keys() == tensors.keys() and dcp_reading.objects(target) == {"step": 5}
    load(mesh, tensors, target)


def test_training_on_the_result_holds_what_it_held_before(program, scratch):
    """Save, reshard, load at two and at four ranks: as many tensors as before, all of their shapes, no bit changed."""
    tensors = expert_tensors(2) | DENSE_TENSORS
    mesh = expert_mesh(ep=2)
    source = save(mesh, scratch / "source", tensors)
    target = to_mesh(program, source, scratch / "target", expert_mesh(ep=2, etp=2))
    load(mesh, tensors, source, target)
    load(expert_mesh(edp=2, ep=2), tensors, target)


# --- logical shapes -----------------------------------------------------------------------------------------------

ROUND_TRIPS = [Layout(tp=2, ep=4), Layout(tp=1, ep=8), Layout(tp=2, ep=1), Layout(tp=4, ep=2), Layout(tp=2, ep=2)]
MOE = cases.QWEN3_MOE.with_(layers=2, vocab=96)


@pytest.fixture
def folder(scratch):
    return hf_models.save_hf(scratch / "folder", MOE, make_globals(MOE))


@pytest.mark.parametrize("layout", ROUND_TRIPS, ids=Layout.label)
def test_gate_and_up_are_doubled_once_whatever_the_tensor_parallel_size(layout, program, folder, scratch):
    there = program.run(folder, scratch / "there", "torch_dist", target_options={"layout": layout.toml()})
    sizes = {key: tuple(entry.size) for key, entry in dcp_reading.tensor_entries(iteration_folder(there)).items()}
    gates = [size for key, size in sizes.items() if key.endswith("experts.linear_fc1.weight")]
    assert gates and all(size[-2:] == (2 * MOE.expert_ffn, MOE.hidden) for size in gates)
    assert all(size[-2:] == (MOE.qkv_rows, MOE.hidden) for key, size in sizes.items() if key.endswith("linear_qkv.weight"))
    back = program.to_hf(there, scratch / "back", target_options={"reference": folder})
    assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(folder))


def test_wrapped_models_keep_gate_and_up_apart_and_number_experts_globally(program, folder, scratch):
    there = program.run(folder, scratch / "there", "fsdp_dtensor")
    found = dcp_reading.whole_tensors(iteration_folder(there))
    wanted = make_globals(MOE)
    for layer in range(MOE.layers):
        for expert in range(MOE.experts):
            at = f"model.module.decoder.layers.{layer}.mlp.experts."
            gate, up = wanted[f"layers.{layer}.experts.{expert}.fc1"].chunk(2)
            assert torch.equal(found.pop(f"{at}linear_fc1.weight{expert}_w"), gate)
            assert torch.equal(found.pop(f"{at}linear_fc1.weight{expert}_v"), up)
            assert torch.equal(found.pop(f"{at}linear_fc2.weight{expert}"), wanted[f"layers.{layer}.experts.{expert}.fc2"])
    assert not [key for key in found if "experts.linear" in key or "_extra_state" in key]
    back = program.run(there, scratch / "back", "huggingface", source_options={"config": folder}, target_options={"reference": folder})
    assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(folder))


@pytest.mark.parametrize("tp", [2, 4])
def test_every_tensor_parallel_rank_gets_its_part_of_the_logical_shape(tp, program, folder, scratch):
    """Columns, rows, gated halves and replicas under their Hugging Face names; what a rank receives is the logical shape over tp, never over tp twice."""
    rows, columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"), ("o_proj", "down_proj")
    rules = tuple((f"*{name}.weight", placement) for names, placement in ((rows, "S0"), (columns, "S1")) for name in names) + (("*", "R"),)
    mesh = Mesh((("tp", tp),), rules)
    named = hf_models.read_hf(folder)
    there = program.run(folder, scratch / "there", "dcp", model={"map": "none"}, target_options=mesh.target_options())
    grids = dcp_reading.grids(there)
    assert {name: grid for name, grid in grids.items() if grid != expected_grid(mesh, name, tuple(named[name].shape))} == {}
    for name, tensor in named.items():
        axis = mesh.placement(name)[0]
        if axis is not None:
            assert all(sizes[axis] == tensor.shape[axis] // tp for _, sizes in grids[name]), name
    assert_same_tensors(dcp_reading.whole_tensors(there), named)


def test_the_rules_are_those_of_torch():
    """Without the program: what this file expects of boxes is what torch computes for the same mesh and placements."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    for mesh, tensors in ((expert_mesh(ep=2, etp=2), expert_tensors(2)), (Mesh((("dp", 8),), (("*", "S0"),)), DENSE_TENSORS)):
        for name, (shape, _) in tensors.items():
            placements = [Replicate() if axis is None else Shard(axis) for axis in mesh.placement(name)]
            for place in dcp_worlds.coordinates(mesh):
                local, offset = _compute_local_shape_and_global_offset(shape, tuple(size for _, size in mesh.dims), list(place), placements)
                assert (tuple(offset), tuple(local)) == dcp_worlds.box(mesh, name, shape, place)
