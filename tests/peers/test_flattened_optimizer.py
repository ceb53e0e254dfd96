"""Optimizer state that Megatron-Core flattened (fully_sharded_model_space, up to 0.15), for a Megatron-Core that refuses such files.

The checkpoints are megatron-core 0.14's own (tests/data/make_flattened_sample.py)."""

import tarfile
from pathlib import Path

import pytest
import torch

import dcp_checkpoints
import dcp_reading
from dcp_cases import to_torch_dist
from dcp_checkpoints import RESHARDABLE, World
from dcp_models import Recipe
from numpy_megatron import iteration_folder
from peer_types import Layout, ModelConfig
from tensor_patterns import assert_same_tensors

SAMPLE = Path(__file__).parents[1] / "data" / "flattened-optimizer.tar.xz"
SMALL = ModelConfig(layers=2, hidden=16, head_dim=4, ffn=24, vocab=40)
MODELS = {"dense": SMALL, "moe": SMALL.with_(family="qwen3_moe", experts=4, expert_ffn=12, qk_norm=True)}


@pytest.mark.long_but("moe-layout3")
@pytest.mark.parametrize("name, layout", [("dense", Layout(pp=2)), ("dense", Layout(tp=2)), ("moe", Layout(ep=4)), ("moe", Layout(pp=2))])
def test_training_continues_in_a_newer_megatron(name, layout, program, scratch):
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(scratch, filter="data")
    there = to_torch_dist(program, scratch / name, scratch / "there", layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    resumed = dcp_checkpoints.resume(World(Recipe(MODELS[name]), layout), there, RESHARDABLE)
    expected = torch.load(scratch / name / "after_step_2.pt")
    assert_same_tensors(without_padding(resumed), without_padding(expected))


def without_padding(tensors):
    """Rows behind the vocabulary pad it to a number that depends on TP."""
    padded = ("embedding.word_embeddings.weight", "output_layer.weight")
    return {key: tensor[: SMALL.vocab] if key in padded else tensor for key, tensor in tensors.items()}
