"""Optimizer state in `torch_dist` checkpoints: megatron-core trains on after the program changed the layout, to the same bits."""

import pytest
import torch

import dcp_checkpoints
import dcp_reading
from dcp_cases import DENSE, common_of, comparable_common, optimizer_worlds, to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE, World
from dcp_models import Recipe
from numpy_megatron import iteration_folder
from peer_types import Layout
from reshard_job import command, manifest_of
from tensor_patterns import assert_same_tensors, same_bits

pytestmark = pytest.mark.long

# --- the oracle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PLAIN, RESHARDABLE])
def test_a_resumed_optimizer_continues_with_the_same_bits(kind, scratch):
    source, target = optimizer_worlds("moe")
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    assert_same_tensors(dcp_checkpoints.resume(target, scratch / "source", kind), uninterrupted)


def test_the_oracle_sees_a_wrong_moment(scratch):
    source, _ = optimizer_worlds("dense")
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    folder = iteration_folder(scratch / "source")
    dcp_reading.overwrite(folder, "optimizer.state.exp_avg.decoder.final_layernorm.weight", torch.full((DENSE.hidden,), 3.0))
    resumed = dcp_checkpoints.resume(source, scratch / "source", RESHARDABLE)
    assert {key for key in resumed if not same_bits(resumed[key], uninterrupted[key])} == {"decoder.final_layernorm.weight"}


# --- the program --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PLAIN, RESHARDABLE])
@pytest.mark.parametrize("name", ["dense", "dense-f32", "moe"])
def test_training_continues_in_another_layout_as_if_nothing_had_happened(name, kind, program, scratch):
    source, target = optimizer_worlds(name)
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(scratch / "source"), vocabulary_of(source))
    assert comparable_common(common_of(there)) == comparable_common(common_of(scratch / "source"))
    assert_same_tensors(dcp_checkpoints.resume(target, there, kind), uninterrupted)


def test_padding_of_the_vocabulary_is_no_damage(program, scratch):
    """Args of a trained checkpoint do not say how many rows are vocabulary. reshard.json does, and `verify` goes by it."""
    config = DENSE.with_(layers=2, vocab=11, vocab_divisor=1)
    dcp_checkpoints.train_and_save(World(Recipe(config), Layout()), scratch / "source", RESHARDABLE)
    there = to_torch_dist(program, scratch / "source", scratch / "there", Layout(tp=2))
    shapes = {tuple(tensor["shape"]) for tensor in manifest_of(there)["tensors"] if "vocab" in tensor.get("axes", [])}
    assert shapes == {(11, config.hidden)}
    assert dcp_reading.whole_tensors(iteration_folder(there))["embedding.word_embeddings.weight"].shape[0] == 12
    outcome = command("verify", there)
    assert outcome.returncode == 0, outcome.stdout


def test_state_bound_to_its_layout_comes_along_when_the_layout_stays(program, scratch):
    """Without a map nothing is interpreted, so nothing is lost; megatron-core accepts it as its own."""
    source, _ = optimizer_worlds("dense")
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", DP_RESHARDABLE)
    there = program.run(scratch / "source", scratch / "there", "torch_dist", model={"map": "none"})
    dcp_reading.check_catalogue(iteration_folder(there))
    assert_same_tensors(dcp_checkpoints.resume(source, there, DP_RESHARDABLE), uninterrupted)


def test_another_layout_is_refused_where_nothing_is_interpreted(program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", DP_RESHARDABLE)
    outcome = program.attempt(scratch / "source", scratch / "there", "torch_dist", target_options={"layout": target.layout.toml()}, model={"map": "none"})
    assert outcome.returncode == 2 and "[target] layout" in outcome.stderr and "layout of the source" in outcome.stderr, outcome.stderr
    assert not (scratch / "there").exists()


@pytest.mark.parametrize("kind", [PLAIN, RESHARDABLE, DP_RESHARDABLE])
def test_state_can_be_dropped(kind, program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout, source_options={"optimizer": "drop"})
    assert not [key for key in dcp_reading.catalogue(iteration_folder(there)).state_dict_metadata if "optimizer" in key]
    assert "optimizer" not in common_of(there)
    dcp_checkpoints.load(target, there)


def test_a_format_that_cannot_carry_the_optimizer_stops_unless_it_is_dropped(program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    outcome = program.attempt(scratch / "source", scratch / "there", "huggingface")
    assert outcome.returncode == 3 and "optimizer" in outcome.stderr and not (scratch / "there").exists()
    options = dict(source_options={"optimizer": "drop"}, target_options={"layout": target.layout.toml()})
    there = program.run(scratch / "source", scratch / "there", "megatron", **options)
    kept = dcp_reading.whole_tensors(iteration_folder(scratch / "source"))
    assert_same_tensors(dcp_checkpoints.load_legacy_tree(target, there), {key: tensor for key, tensor in kept.items() if "optimizer." not in key})
