"""The program between distributed checkpoints that torch itself writes, loads, exports and takes apart."""

import dataclasses
import io
import json
import pickle
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import dcp_fsdp
import dcp_reading
import dcp_worlds
from dcp_worlds import SHAPES, Mesh, expected_grid, tensor_names, whole_grid
from reshard_job import BINARY, Program, tree_hashes
from tensor_patterns import assert_same_tensors

FLAT = (("*.scalar", "R"), ("*", "S0"))
CROSS = (("*.scalar", "R R"), ("*.vector", "S0 R"), ("*", "S0 S1"))
SAME_AXIS = (("*.scalar", "R R"), ("*.vector", "R S0"), ("*.uneven", "R S0"), ("*.one", "R R"), ("*", "S0 S0"))

PAIR = Mesh((("dp", 2),), FLAT)
THREE = Mesh((("dp", 3),), FLAT)
FOUR = Mesh((("dp", 4),), FLAT)
EIGHT = Mesh((("dp", 8),), FLAT)  # most tensors are too short for it: empty local shards
GRID = Mesh((("dp", 2), ("tp", 2)), CROSS)
COLUMNS = Mesh((("dp", 2), ("tp", 4)), (("*.scalar", "R R"), ("*.vector", "R S0"), ("*", "S1 S0")))
HYBRID = Mesh((("replica", 2), ("dp", 2)), (("*.scalar", "R R"), ("*", "R S0")))
FSDP_TP = Mesh((("tp", 2), ("dp", 2)), SAME_AXIS, strided=("dp", "tp"))

PAIRS = [(PAIR, THREE), (GRID, PAIR), (FOUR, GRID), (HYBRID, COLUMNS), (FSDP_TP, THREE), (EIGHT, FSDP_TP)]
SOURCES = [source for source, _ in PAIRS]
TENSORS = tensor_names()


def pair_id(pair):
    return f"{pair[0].label()}-to-{pair[1].label()}"


def by_world(rows, mesh_of):
    groups = {}
    for row in rows:
        groups.setdefault(mesh_of(row).world, []).append(row)
    return groups.values()


@pytest.fixture(scope="module")
def folders():
    folder = Path(tempfile.mkdtemp(prefix="reshard-dcp-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class OnDemand(dict):
    """Makes what is asked for first, and keeps it."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, key):
        self.update(self.make(key))
        return self[key]


@pytest.fixture(scope="module")
def sources(folders):
    """A checkpoint of every source mesh, all with the same content; the processes of a size start once."""

    def make(label):
        meshes = next(group for group in by_world(SOURCES, lambda mesh: mesh) if label in map(Mesh.label, group))
        dcp_worlds.save([(mesh, folders / mesh.label(), TENSORS, True) for mesh in meshes])
        return {mesh.label(): folders / mesh.label() for mesh in meshes}

    return OnDemand(make)


@pytest.fixture(scope="module")
def program(folders):
    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    return Program(folders)


@pytest.fixture(scope="module")
def targets(program, sources, folders):
    """Every pair converted."""

    def make(name):
        pair = next(pair for pair in PAIRS if pair_id(pair) == name)
        return {name: to_mesh(program, sources[pair[0].label()], folders / name, pair[1])}

    return OnDemand(make)


def to_mesh(program, source, target, mesh, **options):
    return program.run(source, target, "dcp", target_options=mesh.target_options(), **options)


def grid_differences(folder, mesh, tensors=TENSORS):
    """Tensors whose chunks are others; of an empty tensor only the number counts."""
    grids = dcp_reading.grids(folder)
    return [(name, grids[name]) for name, (shape, _) in tensors.items() if grids[name] != expected_grid(mesh, name, shape) and (0 not in shape or len(grids[name]) != 1)]


# --- the oracle ---------------------------------------------------------------------------------------------------


@pytest.mark.long_but("dp2xtp2", "tp2xdp2s")
@pytest.mark.parametrize("mesh", SOURCES, ids=Mesh.label)
def test_torch_writes_what_the_mesh_says(mesh, sources):
    folder = sources[mesh.label()]
    dcp_reading.check_catalogue(folder, empty_chunks=True)
    found = dcp_reading.whole_tensors(folder)
    assert [name for name, (shape, dtype) in TENSORS.items() if dcp_worlds.bits(found[name]) != dcp_worlds.bits(dcp_worlds.values(name, shape, dtype))] == []
    grids = dcp_reading.grids(folder)
    for name, (shape, _) in TENSORS.items():
        filled = [chunk for chunk in grids[name] if all(chunk[1])] or whole_grid(shape)
        assert filled == expected_grid(mesh, name, shape), name


# --- meshes -------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("dp2xtp2-to-dp2", "tp2xdp2s-to-dp3")
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_chunks_are_those_of_the_mesh_asked_for(pair, targets):
    target = targets[pair_id(pair)]
    dcp_reading.check_catalogue(target)
    assert grid_differences(target, pair[1]) == []


@pytest.mark.long_but("dp2xtp2-to-dp2", "tp2xdp2s-to-dp3")
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_every_bit_every_object_and_the_nesting_survive(pair, targets, sources):
    source, target = sources[pair[0].label()], targets[pair_id(pair)]
    dcp_reading.assert_same_content(target, source)
    assert dcp_reading.catalogue(target).planner_data == dcp_reading.catalogue(source).planner_data


@pytest.mark.long
def test_torch_loads_every_result_into_its_mesh(targets):
    for pairs in by_world(PAIRS, lambda pair: pair[1]):
        dcp_worlds.load([(pair[1], targets[pair_id(pair)], TENSORS) for pair in pairs])


def test_torch_loads_a_result_into_its_mesh_and_one_into_another(targets):
    """The two pairs that the default tier converts."""
    dcp_worlds.load([(THREE, targets[pair_id((FSDP_TP, THREE))], TENSORS), (THREE, targets[pair_id((GRID, PAIR))], TENSORS)])


@pytest.mark.long
def test_torch_loads_a_result_into_a_mesh_it_was_not_cut_for(targets):
    dcp_worlds.load([(THREE, targets[pair_id((EIGHT, FSDP_TP))], TENSORS), (THREE, targets[pair_id((HYBRID, COLUMNS))], TENSORS)])


@pytest.mark.long_but("tp2xdp2s-to-dp3")
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_there_and_back_is_the_same_as_never_having_left(pair, program, sources, targets, folders):
    stayed = to_mesh(program, sources[pair[0].label()], folders / f"stayed-{pair_id(pair)}", pair[0])
    back = to_mesh(program, targets[pair_id(pair)], folders / f"back-{pair_id(pair)}", pair[0])
    assert tree_hashes(back) == tree_hashes(stayed)


# --- other grids --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_whole_chunks(program, sources, scratch):
    target = program.run(sources[GRID.label()], scratch / "whole", "dcp", target_options={"chunks": "whole"})
    dcp_reading.check_catalogue(target)
    assert {name: grid for name, grid in dcp_reading.grids(target).items() if grid != whole_grid(dcp_reading.tensor_entries(target)[name].size)} == {}
    dcp_reading.assert_same_content(target, sources[GRID.label()])


@pytest.mark.long_but("tp2xdp2s")
@pytest.mark.parametrize("mesh", [GRID, EIGHT, FSDP_TP], ids=Mesh.label)
def test_the_chunks_of_the_source_without_its_empty_ones(mesh, program, sources, scratch):
    target = program.run(sources[mesh.label()], scratch / "same", "dcp", target_options={"chunks": "source"})
    dcp_reading.check_catalogue(target)
    assert grid_differences(target, mesh) == []
    dcp_reading.assert_same_content(target, sources[mesh.label()])


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_the_first_axis_over_a_number_of_ranks(ranks, program, sources, scratch):
    target = program.run(sources[PAIR.label()], scratch / "ranks", "dcp", target_options={"chunks": "ranks", "ranks": ranks})
    dcp_reading.check_catalogue(target)
    flat = Mesh((("rank", ranks),), FLAT)
    assert grid_differences(target, flat) == []
    dcp_reading.assert_same_content(target, sources[PAIR.label()])


@pytest.mark.long
def test_the_first_matching_placement_counts(program, sources, scratch):
    mesh = Mesh((("a", 2), ("b", 2)), (("*.scalar", "R R"), ("model.int8.*", "R R"), ("model.int*.matrix", "R S1"), ("*.vector", "R S0"), ("*", "S0 R")))
    target = to_mesh(program, sources[FOUR.label()], scratch / "target", mesh)
    assert grid_differences(target, mesh) == []
    dcp_reading.assert_same_content(target, sources[FOUR.label()])


# --- ways to load -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_torch_exports_the_result_to_one_file_with_its_nesting(targets, scratch):
    dcp_to_torch_save(targets[pair_id((FSDP_TP, THREE))], scratch / "all.pt")
    state = torch.load(scratch / "all.pt", weights_only=False)
    expected = dcp_worlds.plain_part()
    del expected["deep"]["empty"]  # torch keeps no empty dicts
    for name, (shape, dtype) in TENSORS.items():
        expected.setdefault("model", {}).setdefault(dtype, {})[name.split(".")[-1]] = dcp_worlds.values(name, shape, dtype)
    assert comparable(state) == comparable(expected)


def comparable(value):
    """Tensors as their bytes, numbers as they are written (-0.0 is not 0.0), nesting as it is."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), dcp_worlds.bits(value)
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    return [comparable(each) for each in value] if isinstance(value, list) else repr(value)


def test_torch_loads_a_part_of_the_result(targets):
    target = targets[pair_id((GRID, PAIR))]
    wanted = {"model": {"bfloat16": {"cube": torch.zeros(SHAPES["cube"], dtype=torch.bfloat16)}}, "step": 0, "optim": {"param_groups": [{"lr": None}]}}
    dcp.load(wanted, checkpoint_id=target, no_dist=True)
    assert dcp_worlds.bits(wanted["model"]["bfloat16"]["cube"]) == dcp_worlds.bits(dcp_worlds.values("model.bfloat16.cube", SHAPES["cube"], "bfloat16"))
    assert wanted["step"] == 41 and wanted["optim"]["param_groups"][0]["lr"] == 0.25


def test_a_module_under_fsdp2_and_tensor_parallelism_resumes_elsewhere(program, scratch):
    saved = dcp_fsdp.save(2, 2, scratch / "source")
    mesh = Mesh((("dp", 3),), (("*.step", "R"), ("*", "S0")))
    for name, options in (("mesh", mesh.target_options()), ("whole", {"chunks": "whole"})):
        target = program.run(scratch / "source", scratch / name, "dcp", target_options=options)
        dcp_reading.check_catalogue(target)
        resumed = dcp_fsdp.resume(3, 1, target)
        assert_same_tensors(resumed, saved)


# --- names --------------------------------------------------------------------------------------------------------


def test_a_prefix_picks_keys_and_is_cut_off(program, sources, scratch):
    target = program.run(sources[PAIR.label()], scratch / "cut", "dcp", source_options={"prefix": "model."}, target_options={"chunks": "whole"})
    found = dcp_reading.whole_tensors(target)
    expected = {name.removeprefix("model."): dcp_worlds.values(name, shape, dtype) for name, (shape, dtype) in TENSORS.items()}
    assert_same_tensors(found, expected)
    assert dcp_reading.objects(target) == {}


@pytest.mark.long
def test_a_prefix_is_put_in_front(program, sources, scratch):
    cut = program.run(sources[PAIR.label()], scratch / "cut", "dcp", source_options={"prefix": "model."}, target_options={"chunks": "whole"})
    target = program.run(cut, scratch / "put", "dcp", target_options={"chunks": "whole", "prefix": "app.model."})
    found = dcp_reading.whole_tensors(target)
    assert_same_tensors(found, {f"app.{name}": dcp_worlds.values(name, shape, dtype) for name, (shape, dtype) in TENSORS.items()})


# --- safetensors on either side -----------------------------------------------------------------------------------

SAFE = [dtype for dtype in dcp_worlds.DTYPES if dtype not in ("complex64", "complex128", "float8_e8m0fnu", "uint16", "uint32", "uint64")]
SAFE_TENSORS = {name: each for name, each in tensor_names(SAFE).items() if not name.endswith(".empty")}


@pytest.fixture(scope="module")
def safetensors_shards(folders):
    """Every rank's own part as a safetensors file that knows where it belongs, without any catalogue."""
    dcp_worlds.save_safetensors(FSDP_TP, folders / "safe", SAFE_TENSORS)
    return folders / "safe"


def test_torch_writes_safetensors_shards_with_their_places(safetensors_shards):
    names = sorted(path.name for path in safetensors_shards.iterdir())
    assert names == [f"shard-{rank:05d}-model-00001-of-00001.safetensors" for rank in range(1, 5)]
    with safe_open(safetensors_shards / names[-1], "pt") as file:
        places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        assert places["model.float32.matrix"]["saved_offsets"] == [9, 0] and file.get_slice("model.float32.matrix").get_shape() == [3, 10]


@pytest.mark.long_but("dcp-options1")
@pytest.mark.parametrize("target_format, options", [("dcp", {"chunks": "whole"}), ("dcp", GRID.target_options()), ("huggingface", {})])
def test_safetensors_shards_become_anything_else(target_format, options, program, safetensors_shards, scratch):
    target = program.run(safetensors_shards, scratch / "target", target_format, target_options=options)
    found = dcp_reading.whole_tensors(target) if target_format == "dcp" else read_safetensors(target)
    assert_same_tensors(found, {name: dcp_worlds.values(name, shape, dtype) for name, (shape, dtype) in SAFE_TENSORS.items()})


def test_logical_tensors_of_safetensors_shards_are_listed(safetensors_shards):
    """… also those without elements, of which no file has a box."""
    outcome = subprocess.run([BINARY, "ls", safetensors_shards, "--logical", "--json"], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    listed = {tensor["name"]: tensor["shape"] for tensor in json.loads(outcome.stdout)["tensors"]}
    assert listed == {name: list(shape) for name, (shape, _) in SAFE_TENSORS.items()}


@pytest.mark.long
def test_a_checkpoint_becomes_safetensors_with_its_names(program, scratch):
    tensors = {name.removeprefix("model."): dcp_worlds.values(name, shape, dtype) for name, (shape, dtype) in SAFE_TENSORS.items()}
    dcp.save({"model": tensors, "step": 3}, checkpoint_id=scratch / "source", no_dist=True)
    target = program.run(scratch / "source", scratch / "target", "huggingface", source_options={"prefix": "model."})
    assert_same_tensors(read_safetensors(target), tensors)


def read_safetensors(folder):
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    return found


# --- independence of how it runs ----------------------------------------------------------------------------------


def test_the_target_has_the_same_bytes_on_any_number_of_ranks_and_in_little_memory(program, sources, scratch):
    hashes = []
    for ranks, memory in ((1, "64 MiB"), (2, "1 MiB"), (3, "64 MiB"), (5, "64 MiB")):
        target = to_mesh(program, sources[FSDP_TP.label()], scratch / f"on{ranks}", COLUMNS, ranks=ranks, memory=memory)
        hashes.append(tree_hashes(target))
    assert all(each == hashes[0] for each in hashes[1:])


# --- what is not taken --------------------------------------------------------------------------------------------


def edited(source, scratch, edit):
    """A copy of a checkpoint whose catalogue was changed by torch's own classes."""
    folder = scratch / "edited"
    shutil.copytree(source, folder)
    with open(folder / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    edit(metadata, folder)
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(metadata, file)
    return folder


def entry_of(metadata, name="model.float32.matrix"):
    return metadata.state_dict_metadata[name]


def leave_a_hole(metadata, _):
    entry_of(metadata).chunks.pop()


def let_chunks_overlap(metadata, _):
    chunk = entry_of(metadata).chunks[1]
    chunk.offsets = torch.Size([chunk.offsets[0] - 1, chunk.offsets[1]])
    metadata.storage_data = {
        dataclasses.replace(index, offset=chunk.offsets) if index.fqn == "model.float32.matrix" and index.offset == torch.Size([6, 0]) else index: place
        for index, place in metadata.storage_data.items()}


def point_behind_the_file(metadata, folder):
    next(place for index, place in metadata.storage_data.items() if index.fqn == "model.float32.matrix").offset += 10**9


def claim_another_type(metadata, _):
    entry_of(metadata).properties.dtype = torch.float64


def forget_an_item(metadata, _):
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items() if index.fqn != "model.float32.matrix"}


def transform_the_items(metadata, _):
    for place in metadata.storage_data.values():
        place.transform_descriptors = ("zstd",)


def remove_a_file(_, folder):
    (folder / "__1_0.distcp").unlink()


@pytest.mark.long_but("leave_a_hole-", "point_behind_the_file-")
@pytest.mark.parametrize("edit, says", [
    (leave_a_hole, "model.float32.matrix"), (let_chunks_overlap, "model.float32.matrix"), (point_behind_the_file, "distcp"),
    (claim_another_type, "model.float32.matrix"), (forget_an_item, "model.float32.matrix"), (transform_the_items, "zstd"), (remove_a_file, "__1_0.distcp")],
    ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_catalogue_is_refused(edit, says, program, sources, scratch):
    source = edited(sources[PAIR.label()], scratch, edit)
    outcome = program.attempt(source, scratch / "target", "dcp", target_options={"chunks": "whole"})
    assert outcome.returncode == 3, f"exit {outcome.returncode}: {outcome.stderr}"
    assert says in outcome.stderr and not (scratch / "target").exists()


def test_an_aborted_save_is_refused(program, sources, scratch):
    folder = scratch / "aborted"
    shutil.copytree(sources[PAIR.label()], folder)
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    outcome = program.attempt(folder, scratch / "target", "dcp", target_options={"chunks": "whole"})
    assert outcome.returncode == 3 and ".metadata" in outcome.stderr and not (scratch / "target").exists()


def test_an_item_that_was_changed_inside_is_an_error_or_shows_up_in_the_bytes(program, sources, scratch):
    """The header of an item lies; its bytes are another tensor's."""
    folder = scratch / "swapped"
    shutil.copytree(sources[PAIR.label()], folder)
    place = next(place for index, place in dcp_reading.catalogue(folder).storage_data.items() if index.fqn == "model.float32.matrix")
    buffer = io.BytesIO()
    torch.save(torch.zeros(10, 6), buffer)
    with open(folder / place.relative_path, "r+b") as file:
        file.seek(place.offset)
        file.write(buffer.getvalue()[: place.length])
    outcome = program.attempt(folder, scratch / "target", "dcp", target_options={"chunks": "whole"})
    assert outcome.returncode == 3 and "model.float32.matrix" in outcome.stderr
