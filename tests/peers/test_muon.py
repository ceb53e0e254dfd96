"""Checkpoints of runs whose matrices have Muon and whose other weights have Adam: megatron-core's own chain of optimizers saves and loads them."""

import pytest

import cases
import dcp_checkpoints
from dcp_cases import MOE, common_of, to_torch_dist, vocabulary_of
from dcp_checkpoints import CHAINED, PLAIN, World
from dcp_models import Recipe
from dcp_reading import tensor_entries
from numpy_megatron import iteration_folder
from peer_types import Layout
from tensor_patterns import assert_same_tensors


def bf16(config, **changes):
    return config.with_(dtype="bfloat16", **changes)


def muon(config, layout, replicas=1, kind="whole"):
    return World(Recipe(bf16(config)), layout, replicas=replicas, muon=kind)


DENSE, EXPERTS = cases.LLAMA.with_(layers=2), MOE.with_(experts=4)
CHANGES = {
    "dense": (muon(DENSE, Layout(tp=2)), muon(DENSE, Layout(pp=2), 2)),
    "layer-wise": (muon(DENSE, Layout(tp=1), 3, "layer_wise"), muon(DENSE, Layout(tp=2), 2, "layer_wise")),
    "moe": (muon(EXPERTS, Layout(tp=2, ep=2)), muon(EXPERTS, Layout(ep=4))),
    "moe-together": (muon(EXPERTS, Layout(tp=2)), muon(EXPERTS, Layout(pp=2))),
    "moe-layer-wise": (muon(EXPERTS, Layout(ep=2), 2, "layer_wise"), muon(EXPERTS, Layout(tp=2, ep=4), 1, "layer_wise")),
}


@pytest.mark.long_but("layer-wise", "moe")
@pytest.mark.parametrize("name", CHANGES)
def test_training_goes_on_in_another_layout(name, program, scratch):
    source, target = CHANGES[name]
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", PLAIN)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    resumed = dcp_checkpoints.resume(target, there, PLAIN)
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})


def test_a_target_has_the_keys_that_its_common_state_announces(program, scratch):
    """Beside the distributed optimizer, keys of a layer-wise one name an optimizer of several."""
    source, target = CHANGES["layer-wise"]
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", CHAINED)
    assert any(key.startswith("chained_0.") for key in tensor_entries(iteration_folder(scratch / "source")))
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    resumed = dcp_checkpoints.resume(target, there, CHAINED, content=common_of(there)["content_metadata"])
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})


@pytest.mark.parametrize("format, layout, way", [("torch_dist", Layout(tp=2, etp=2), "target.layout.ep above 1"), ("megatron", Layout(ep=2), 'target.format = "torch_dist"')])
def test_what_cannot_hold_the_chain_is_refused_with_a_way(format, layout, way, program, scratch):
    dcp_checkpoints.train_and_save(muon(EXPERTS, Layout(ep=2)), scratch / "source", PLAIN)
    outcome = program.attempt(scratch / "source", scratch / "there", format, target_options={"layout": layout.toml()})
    assert outcome.returncode == 3 and not (scratch / "there").exists(), outcome.stderr
    assert "Muon" in outcome.stderr and way in outcome.stderr and 'source.optimizer = "drop"' in outcome.stderr, outcome.stderr
