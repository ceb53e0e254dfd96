"""Megatron Lite's checkpoints into other formats: names that count per rank and per stage become the model's own."""

import pytest
import torch.distributed.checkpoint as dcp

import cases
import dcp_mlite
import dcp_reading
import hf_models
from dcp_mlite import Sizes
from numpy_megatron import iteration_folder, read_tree
from peer_types import LOCAL, Layout
from tensor_patterns import assert_same_tensors, make_globals, same_bits

MODEL = cases.QWEN3_MOE.with_(layers=4)
PADDED = 96
RUNS = [Sizes(), Sizes(ep=4), Sizes(tp=2, pp=2, ep=2), Sizes(tp=2, ep=2, etp=2), Sizes(tp=4, ep=2), Sizes(pp=4, ep=2)]


@pytest.fixture
def reference(scratch):
    """A folder that says what the model is; its weights are others."""
    return hf_models.save_hf(scratch / "reference", MODEL, make_globals(MODEL, salt="other weights"))


def source_options(sizes, reference):
    return {"config": reference} | ({"etp": sizes.etp} if sizes.etp > 1 else {})


def from_mlite(program, source, target, target_format, sizes, reference, target_options=None):
    options = dict(source_options=source_options(sizes, reference), target_options=target_options or {}, model={"map": "mlite_qwen3_moe"})
    return program.run(source, target, target_format, **options)


@pytest.mark.parametrize("sizes", RUNS, ids=Sizes.label)
def test_torch_writes_the_tensors_that_the_placements_describe(sizes, scratch):
    folder = dcp_mlite.save(MODEL, sizes, scratch / "source", make_globals(MODEL), PADDED)
    dcp_reading.check_catalogue(folder)
    stored = {name: tensor for (name, _), tensor in dcp_mlite.stored_tensors(MODEL, sizes, make_globals(MODEL), PADDED).items()}
    assert_same_tensors(dcp_reading.whole_tensors(folder), stored)


@pytest.mark.parametrize("sizes", RUNS, ids=Sizes.label)
def test_every_run_becomes_the_same_hugging_face_folder(sizes, program, reference, scratch):
    source = dcp_mlite.save(MODEL, sizes, scratch / "source", make_globals(MODEL), PADDED)
    there = from_mlite(program, source, scratch / "there", "huggingface", sizes, reference, {"reference": reference})
    assert_same_tensors(hf_models.read_hf(there), hf_models.globals_to_hf(MODEL, make_globals(MODEL)))


def test_a_run_becomes_megatron_trees_and_checkpoints(program, reference, scratch):
    sizes, layout = Sizes(tp=2, pp=2, ep=2), Layout(tp=2, ep=4)
    source = dcp_mlite.save(MODEL, sizes, scratch / "source", make_globals(MODEL), PADDED)
    impl = {"layout": layout.toml(), "transformer_impl": "local"}
    tree = from_mlite(program, source, scratch / "tree", "megatron", sizes, reference, impl)
    written = cases.QWEN3_MOE.with_(layers=4, vocab_divisor=divisor_of(tree))
    assert_same_tensors(read_tree(tree, written, layout, LOCAL), make_globals(MODEL))
    there = from_mlite(program, source, scratch / "there", "torch_dist", sizes, reference, impl)
    experts = [tensor for key, tensor in dcp_reading.whole_tensors(iteration_folder(there)).items() if key.endswith("experts.linear_fc2.weight")]
    layers = experts[0] if len(experts) == 1 else experts
    wanted = make_globals(MODEL)
    assert all(same_bits(layers[layer][expert], wanted[f"layers.{layer}.experts.{expert}.fc2"]) for layer in range(4) for expert in range(MODEL.experts))


def divisor_of(tree):
    from tree_checks import with_written_divisor

    return with_written_divisor(MODEL, tree).vocab_divisor


def test_shards_that_only_one_rank_saved_are_refused(program, reference, scratch):
    """Wrapped parameters under their own mesh: every rank saved its part under the same key and shape, and one of them remained."""
    sizes = Sizes(ep=2)
    whole = {name: tensor for (name, _), tensor in dcp_mlite.stored_tensors(MODEL, sizes, make_globals(MODEL), PADDED).items()}
    kept = {name: tensor.chunk(2)[0].clone() if "experts" in name else tensor for name, tensor in whole.items()}
    dcp.save(kept | {"step": 1}, checkpoint_id=scratch / "source", no_dist=True)
    options = dict(source_options={"config": reference}, target_options={"reference": reference}, model={"map": "mlite_qwen3_moe"})
    outcome = program.attempt(scratch / "source", scratch / "there", "huggingface", **options)
    assert outcome.returncode == 3 and "experts" in outcome.stderr and not (scratch / "there").exists()
