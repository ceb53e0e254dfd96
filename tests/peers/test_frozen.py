"""Optimizer state of runs that train a part of their parameters: the others are in no buffer and in no list."""

import pytest

import cases
import dcp_checkpoints
import legacy_optimizer
from dcp_cases import MOE, to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE, World
from dcp_models import Recipe
from peer_types import Layout
from tensor_patterns import assert_same_tensors

IN_ALL_LAYERS = ("embedding.*", "decoder.layers.*.self_attention.linear_proj.*")
IN_SOME = ("embedding.*", "decoder.layers.1.*")  # Megatron itself cannot save this with stacked layers
ODD = cases.LLAMA.with_(dtype="bfloat16", layers=4, ffn=44, vocab=83, vocab_divisor=1, hidden=24, head_dim=6)
EXPERTS = MOE.with_(dtype="bfloat16", experts=4)
DISTRIBUTED = "distributed"


def partly(config, layout, replicas=1, frozen=IN_ALL_LAYERS):
    return World(Recipe(config), layout, replicas=replicas, frozen=frozen)


WORLDS = {
    "dense": (partly(ODD, Layout(pp=2), 2), partly(ODD, Layout(tp=2), 2)), "moe": (partly(EXPERTS, Layout(tp=2, ep=2)), partly(EXPERTS, Layout(pp=2))),
}  # fmt: skip
SAVES = {
    "dp_reshardable": (dcp_checkpoints.train_and_save, DP_RESHARDABLE), "fully_reshardable": (dcp_checkpoints.train_and_save, RESHARDABLE),
    "distributed": (legacy_optimizer.train_and_save, DISTRIBUTED), "inline": (legacy_optimizer.train_and_save, PLAIN),
}  # fmt: skip


def names_of(form, world):
    """State that is stored by name says itself what has none."""
    return {} if form == "fully_reshardable" else {"frozen": "; ".join(world.frozen)}


def check(resumed, uninterrupted, source):
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})


@pytest.mark.long_but("dp_reshardable-dense", "inline-moe")
@pytest.mark.parametrize("case", [f"{form}-{name}" for form in SAVES for name in WORLDS])
def test_training_goes_on_in_torch_dist(case, program, scratch):
    form, name = case.split("-")
    (save, kind), (source, target) = SAVES[form], WORLDS[name]
    uninterrupted = save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout, model=names_of(form, source))
    check(dcp_checkpoints.resume(target, there, PLAIN if kind == PLAIN else RESHARDABLE), uninterrupted, source)


@pytest.mark.long_but("fully_reshardable-dense", "distributed-moe")
@pytest.mark.parametrize("case", [f"{form}-{name}" for form in SAVES for name in WORLDS])
def test_training_goes_on_in_rank_folders(case, program, scratch):
    form, name = case.split("-")
    (save, kind), (source, target) = SAVES[form], WORLDS[name]
    uninterrupted = save(source, scratch / "source", kind)
    options = {"layout": target.layout.toml(), "overlap_grad_reduce": "off"}
    model = names_of(form, source) | {"true_vocab_size": source.recipe.config.vocab}
    there = program.run(scratch / "source", scratch / "there", "megatron", target_options=options, model=model)
    check(legacy_optimizer.resume(target, there, PLAIN if kind == PLAIN else DISTRIBUTED), uninterrupted, source)


@pytest.mark.parametrize("form", ["dp_reshardable", "distributed", "inline"])
def test_a_source_that_does_not_say_it_is_refused_with_the_key_that_does(form, program, scratch):
    save, kind = SAVES[form]
    save(partly(ODD, Layout(tp=1), frozen=IN_SOME), scratch / "source", kind)
    for model in ({}, {"frozen": "embedding.*"}):
        outcome = program.attempt(scratch / "source", scratch / "there", "torch_dist", model=model)
        assert outcome.returncode == 3 and "model.frozen" in outcome.stderr and not (scratch / "there").exists(), outcome.stderr


@pytest.mark.parametrize("format", ["torch_dist", "megatron"])
def test_layers_of_which_some_are_frozen_are_refused(format, program, scratch):
    legacy_optimizer.train_and_save(partly(ODD, Layout(tp=1), frozen=IN_SOME), scratch / "source", DISTRIBUTED)
    outcome = program.attempt(scratch / "source", scratch / "there", format, model={"frozen": "; ".join(IN_SOME)})
    assert outcome.returncode == 3 and "layer 1:2" in outcome.stderr and not (scratch / "there").exists(), outcome.stderr
