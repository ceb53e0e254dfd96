"""The program between `torch_dist` checkpoints, legacy trees and Hugging Face folders: every way around gives the same numbers."""

from dataclasses import replace

import pytest
import torch

import cases
import dcp_checkpoints
import dcp_reading
import hf_models
from dcp_cases import (
    CHANGES, DENSE, MOE, TOKENS, assert_close, assert_holds_its_values, common_of, names_of, to_torch_dist, tokens_of, worlds)
from dcp_checkpoints import World
from dcp_models import Recipe
from numpy_megatron import TRACKER, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import tree_hashes
from tensor_patterns import assert_same_tensors, make_globals
from tree_checks import check_tree, with_written_divisor, with_written_norms

pytestmark = pytest.mark.long

CHANGED = pytest.mark.parametrize("name", CHANGES)

# --- legacy trees -------------------------------------------------------------------------------------------------


@CHANGED
def test_from_a_legacy_tree(name, program, scratch):
    source, target = worlds(name)
    tree = dcp_checkpoints.save_legacy(source, scratch / "tree")
    there = to_torch_dist(program, tree, scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    found, held = dcp_checkpoints.load(target, there, tokens_of(target))
    assert_holds_its_values(held, target)
    expected, _ = dcp_checkpoints.load(source, dcp_checkpoints.save(source, scratch / "own"), tokens_of(source))
    assert_close(found, expected)


@CHANGED
def test_to_a_legacy_tree(name, program, scratch):
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    options = {"layout": target.layout.toml()}
    tree = program.run(root, scratch / "tree", "megatron", target_options=options)
    target = replace(target, form=with_written_norms(target.form, tree))
    assert_holds_its_values(dcp_checkpoints.load_legacy_tree(target, tree), target)


# --- Hugging Face folders -----------------------------------------------------------------------------------------

HF = {"llama": cases.LLAMA.with_(layers=4, dtype="float32"), "qwen3": DENSE, "qwen3-moe": MOE, "mixtral": cases.MIXTRAL.with_(layers=2)}
HF_LAYOUT = {"llama": Layout(tp=2, pp=2), "qwen3": Layout(tp=4), "qwen3-moe": Layout(tp=2, ep=4), "mixtral": Layout(pp=2, ep=2)}


def forms_of(config):
    return [LOCAL, TE_GROUPED, TE_SEQUENTIAL] if config.experts else [LOCAL, TE_SEQUENTIAL]


def form_id(value):
    return value if isinstance(value, str) else value.label()


@pytest.mark.parametrize("name, form", [(name, form) for name in HF for form in forms_of(HF[name])], ids=form_id)
def test_the_triangle_closes(name, form, program, scratch):
    """legacy tree -> torch_dist -> Hugging Face -> torch_dist -> legacy tree: every station holds exactly the model's numbers."""
    config, layout = HF[name], HF_LAYOUT[name]
    wanted = make_globals(config)
    tree = write_tree(scratch / "tree", config, layout, form, wanted)
    first = to_torch_dist(program, tree, scratch / "first", layout)
    folder = program.to_hf(first, scratch / "folder", model={"map": config.family})
    assert_same_tensors(hf_models.read_hf(folder), hf_models.globals_to_hf(config, wanted))
    second = to_torch_dist(program, folder, scratch / "second", layout, target_options=names_of(form))
    dcp_reading.check_catalogue(iteration_folder(second))
    again = program.run(second, scratch / "again", "megatron", target_options={"layout": layout.toml()} | names_of(form))
    config = with_written_divisor(config, again)
    check_tree(again, config, layout, with_written_norms(form, again), wanted)


@pytest.mark.parametrize("name", HF)
def test_a_hugging_face_folder_computes_the_same_in_megatron_core(name, program, scratch):
    config, layout = HF[name], HF_LAYOUT[name]
    folder = hf_models.save_hf(scratch / "folder", config, make_globals(config))
    for form in forms_of(config):
        there = to_torch_dist(program, folder, scratch / form.label(), layout, target_options=names_of(form))
        assert (there / TRACKER).read_text().strip() == "release"
        divisor = common_of(there)["args"].make_vocab_size_divisible_by if "args" in common_of(there) else 128
        world = World(Recipe(config.with_(vocab_divisor=divisor), recipe_of_layers(there, config)), layout, form)
        found, _ = dcp_checkpoints.load(world, there, TOKENS, strict="raise_unexpected")
        torch.testing.assert_close(found, hf_models.hf_logits(folder, TOKENS), rtol=1e-4, atol=1e-4)


def recipe_of_layers(root, config):
    """Whether the writer chose one tensor for all layers, which a job with experts says by the form of moe_layer_freq."""
    separate = any(key.startswith("decoder.layers.0.") for key in dcp_reading.tensor_entries(iteration_folder(root)))
    return dict(moe_layer_freq=[1] * config.layers) if separate and config.experts else {}


@pytest.mark.parametrize("name", HF)
def test_both_ways_from_a_legacy_tree_to_hugging_face_give_the_same_files(name, program, scratch):
    config, layout = HF[name], HF_LAYOUT[name]
    tree = write_tree(scratch / "tree", config, layout, LOCAL, make_globals(config))
    direct = program.to_hf(tree, scratch / "direct", model={"map": config.family})
    through = to_torch_dist(program, tree, scratch / "through", Layout(pp=2))
    folder = program.to_hf(through, scratch / "folder", model={"map": config.family})
    assert tree_hashes(folder) == tree_hashes(direct)
