"""The program between `torch_dist` checkpoints of megatron-core: layouts, forms and releases; megatron-core loads and computes."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron.core.dist_checkpointing import load_common_state_dict
from megatron.core.dist_checkpointing.core import CheckpointingException
from torch.distributed.checkpoint.api import CheckpointException

import dcp_checkpoints
import dcp_reading
from dcp_cases import (
    CHANGES, MOE, TOKENS, assert_close, assert_holds_its_values, common_of, comparable_common, names_of, to_torch_dist, tokens_of, vocabulary_of,
    worlds)
from dcp_checkpoints import World
from dcp_models import Recipe
from megatron_release import BACKENDS, COMMON_FILE, RELEASE, SAVES_A_COMMON_FILE, TWO_BACKENDS, put_common_item
from numpy_megatron import TRACKER, iteration_folder
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import command, tree_hashes

SAMPLE = Path(__file__).parents[1] / "data" / "moe-tp2-pp2-ep2"
CHANGED = pytest.mark.parametrize("name", CHANGES)


# --- the oracle ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@CHANGED
def test_megatron_core_loads_its_own_checkpoint_at_the_other_layout(name, scratch):
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    dcp_reading.check_catalogue(iteration_folder(root), hints=False)
    assert_holds_its_values(dcp_reading.whole_tensors(iteration_folder(root)), source)
    expected, held = dcp_checkpoints.load(source, root, tokens_of(source))
    found, there = dcp_checkpoints.load(target, root, tokens_of(target))
    assert_close(found, expected)
    assert_holds_its_values(held, source)
    assert_holds_its_values(there, target)


# --- torch_dist to torch_dist -------------------------------------------------------------------------------------


@pytest.mark.long_but("moe-grouped", "mtp")
@CHANGED
def test_another_layout(name, program, scratch):
    """Same content, chunks in which each rank of the target finds what it needs in one place, a strict load, the same logits."""
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(root), vocabulary_of(source))
    theirs = dcp_reading.tensor_entries(iteration_folder(dcp_checkpoints.save(target, scratch / "theirs")))
    mine = dcp_reading.tensor_entries(iteration_folder(there))
    assert {key: entry.size for key, entry in mine.items()} == {key: entry.size for key, entry in theirs.items()}
    scattered = [key for key in theirs if not dcp_reading.covers(dcp_reading.grid(mine[key]), dcp_reading.grid(theirs[key]))]
    assert scattered == []
    assert all(len(mine[key].chunks) <= len(theirs[key].chunks) for key in theirs)
    expected, _ = dcp_checkpoints.load(source, root, tokens_of(source))
    found, held = dcp_checkpoints.load(target, there, tokens_of(target))
    assert_close(found, expected)
    assert_holds_its_values(held, target)


def test_run_state_and_common_state_come_along_unchanged(program, scratch):
    source, _ = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source", with_run_state=True)
    there = to_torch_dist(program, root, scratch / "there", source.layout)
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(root))
    assert any(key.startswith("rng_state/shard_") for key in dcp_reading.objects(iteration_folder(there)))
    assert comparable_common(common_of(there)) == comparable_common(common_of(root))
    assert (there / TRACKER).read_text().strip() == "1000"


def test_padding_of_another_layout_is_known_to_be_padding(program, scratch):
    """300 rows, padded to 320 by tp 2 and to 304 by tp 1: args are those of the run, with tp 2, and the next job knows all the same."""
    options = {"source_options": {"optimizer": "drop", "rng": "drop"}, "target_options": {"layout": "{ tp = 2 }"}}
    wide = program.run(SAMPLE, scratch / "wide", "torch_dist", ranks=1, **options)
    narrow = program.run(wide, scratch / "narrow", "torch_dist", ranks=1, target_options={"layout": "{ tp = 1 }"})
    for root, rows in ((wide, 320), (narrow, 304)):
        assert dcp_reading.tensor_entries(iteration_folder(root))["embedding.word_embeddings.weight"].size[0] == rows
        assert (common_of(root)["args"].vocab_size, common_of(root)["args"].tensor_model_parallel_size) == (300, 2)
    told = program.attempt(narrow, scratch / "back", "megatron", ranks=1, target_options={"layout": "{ tp = 4 }"})
    assert told.returncode == 0 and "vocabulary" not in told.stderr
    args = torch.load(next((scratch / "back").rglob("*.pt")), weights_only=False)["args"]
    assert (args.vocab_size, args.padded_vocab_size) == (300, 320)


REFUSES = {  # 0.16 stumbles over its own words for a missing common.pt; 0.19 asks torch for an item instead
    "metadata.json": CheckpointingException,
    "common.pt": AttributeError if RELEASE < (0, 17) else CheckpointingException if SAVES_A_COMMON_FILE else CheckpointException}


@pytest.mark.parametrize("gone", REFUSES)
def test_what_megatron_core_cannot_load_is_called_incomplete(gone, program, scratch):
    """`metadata.json` and `common.pt`: with both it loads the common state, without either it refuses the folder."""
    there = program.run(SAMPLE, scratch / "there", "torch_dist", ranks=1, source_options={"optimizer": "drop", "rng": "drop"})
    folder = iteration_folder(there)
    load_common_state_dict(folder)
    assert command("inspect", there).returncode == 0
    (folder / gone).unlink()
    with pytest.raises(REFUSES[gone]):
        load_common_state_dict(folder)
    told = command("inspect", there)
    assert told.returncode == 3 and f"mismatches        {gone} is missing" in told.stdout
    assert command("verify", there).returncode == 1


def test_random_state_can_be_dropped(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source", with_run_state=True)
    there = to_torch_dist(program, root, scratch / "there", target.layout, source_options={"rng": "drop"})
    assert not any(key.startswith("rng_state") for key in dcp_reading.objects(iteration_folder(there)))
    assert_holds_its_values(dcp_checkpoints.load(target, there, strict="assume_ok_unexpected")[1], target)


def test_a_catalogue_small_enough_to_load(program, scratch):
    """None of the plans that megatron-core caches in its own catalogue, no class that needs megatron-core, no writer's paths."""
    source, target = worlds("moe")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    metadata = dcp_reading.catalogue(iteration_folder(there))
    assert getattr(metadata, "all_local_plans", None) is None and isinstance(metadata.planner_data, dict)
    assert (iteration_folder(there) / ".metadata").stat().st_size < (iteration_folder(root) / ".metadata").stat().st_size
    backends = [json.loads((iteration_folder(folder) / "metadata.json").read_text()) for folder in (there, root)]
    assert backends == [TWO_BACKENDS, BACKENDS]


@pytest.mark.long
def test_an_iteration_folder_is_a_source_too(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, iteration_folder(root), scratch / "there", target.layout)
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


def test_large_chunks_are_cut_to_the_size_asked_for(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", Layout(), target_options={"chunk_bytes": "4 KiB"})
    folder = iteration_folder(there)
    dcp_reading.check_catalogue(folder)
    sizes = {key: max(torch.Size(chunk).numel() for _, chunk in grid) * 4 for key, grid in dcp_reading.grids(folder).items()}
    assert {key: size for key, size in sizes.items() if size > 4096} == {}
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


def test_the_target_has_the_same_bytes_on_any_number_of_ranks(program, scratch):
    source, target = worlds("moe-etp")
    root = dcp_checkpoints.save(source, scratch / "source")
    hashes = [tree_hashes(to_torch_dist(program, root, scratch / f"on{ranks}", target.layout, ranks=ranks, memory=memory))
              for ranks, memory in ((1, "64 MiB"), (2, "1 MiB"), (5, "64 MiB"))]
    assert all(each == hashes[0] for each in hashes[1:])


# --- what newer and older releases write --------------------------------------------------------------------------


def test_common_state_inside_the_catalogue_is_found_and_written_for_every_release(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    expected = comparable_common(common_of(root))
    if SAVES_A_COMMON_FILE:
        put_common_item(iteration_folder(root), common_of(root))
    assert not (iteration_folder(root) / COMMON_FILE).exists()
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    assert (iteration_folder(there) / COMMON_FILE).exists() and comparable_common(common_of(there)) == expected
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


# --- layer axis, experts, implementation --------------------------------------------------------------------------


@pytest.mark.long_but("to-separate")
@pytest.mark.parametrize("stacked_source", [True, False], ids=["to-separate", "to-stacked"])
def test_layers_in_one_tensor_become_tensors_of_their_own_and_back(stacked_source, program, scratch):
    stacked = World(Recipe(MOE), Layout(tp=2, ep=2), LOCAL)
    separate = replace(stacked, recipe=Recipe(MOE, dict(moe_layer_freq=[1] * MOE.layers)))
    source, target = (stacked, separate) if stacked_source else (separate, stacked)
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout, target_options={"layers": "separate" if stacked_source else "stacked"})
    dcp_reading.check_catalogue(iteration_folder(there))
    theirs = dcp_checkpoints.load(source, root, TOKENS)
    mine = dcp_checkpoints.load(target, there, TOKENS)
    assert_close(mine[0], theirs[0])
    assert layer_values(mine[1]) == layer_values(theirs[1])


def layer_values(tensors):
    """Per layer: the bytes of each of its tensors."""
    result = {}
    for key, tensor in tensors.items():
        if key.startswith("decoder.layers.") and not key.split(".")[2].isdigit():
            for layer, part in enumerate(tensor):
                result[key.replace("layers.", f"layers.{layer}.", 1)] = part.numpy().tobytes()
        else:
            result[key] = tensor.numpy().tobytes()
    return result


FORM_CHANGES = [(LOCAL, TE_GROUPED), (TE_GROUPED, LOCAL), (TE_SEQUENTIAL, TE_GROUPED)]


@pytest.mark.long
@pytest.mark.parametrize("source_form, target_form", FORM_CHANGES, ids=lambda form: form.label())
def test_another_implementation(source_form, target_form, program, scratch):
    """Norm names and extra states differ between implementations; a file may hold more extra states than a loader wants, never fewer."""
    source, target = World(Recipe(MOE), Layout(tp=2, ep=2), source_form), World(Recipe(MOE), Layout(ep=4), target_form)
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout, target_options=names_of(target_form))
    dcp_reading.check_catalogue(iteration_folder(there))
    expected, _ = dcp_checkpoints.load(source, root, TOKENS)
    found, _ = dcp_checkpoints.load(target, there, TOKENS, strict="raise_unexpected")
    assert_close(found, expected)


def test_a_missing_expert_is_refused(program, scratch):
    source, target = worlds("moe")
    root = dcp_checkpoints.save(source, scratch / "source")
    folder, key = iteration_folder(root), "decoder.layers.mlp.experts.experts.linear_fc2.weight"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    entry = metadata.state_dict_metadata[key]
    entry.chunks = [chunk for chunk in entry.chunks if chunk.offsets[1] != 3]
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items() if index.fqn != key or index.offset[1] != 3}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    outcome = program.attempt(root, scratch / "there", "torch_dist", target_options={"layout": target.layout.toml()})
    assert outcome.returncode == 3 and "expert 3" in outcome.stderr and not (scratch / "there").exists()


# --- without a model ----------------------------------------------------------------------------------------------


def test_without_a_map_names_stay_as_they_are(program, scratch):
    source, _ = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    target = program.run(root, scratch / "plain", "dcp", model={"map": "none"}, target_options={"chunks": "whole"})
    assert_holds_its_values(dcp_reading.whole_tensors(target), source)
