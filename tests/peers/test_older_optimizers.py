"""Optimizer state in `mp_rank` folders that older releases of Megatron-Core saved themselves (tests/data/make_older_optimizers.py), for a newer one.

Release 0.7 packs parameters without gaps; later ones align them."""

import shutil
import tarfile
from pathlib import Path

import pytest
import torch

import dcp_checkpoints
import dcp_reading
import legacy_optimizer
from dcp_cases import to_torch_dist
from dcp_checkpoints import RESHARDABLE, World
from dcp_models import Recipe
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import Layout, ModelConfig
from tensor_patterns import assert_same_tensors

SAMPLE = Path(__file__).parents[1] / "data" / "older-optimizers.tar.xz"
DENSE = ModelConfig(layers=2, hidden=24, head_dim=6, ffn=44, vocab=83, vocab_divisor=1, dtype="bfloat16")
MOE = DENSE.with_(family="qwen3_moe", experts=4, expert_ffn=36, ffn=36)
WORLDS = {  # what is in a folder of the sample -> its model, and the layout to go on in
    "dense": (DENSE, Layout(tp=1)), "buckets": (DENSE, Layout(tp=2)), "stages": (DENSE, Layout(tp=2)), "moe": (MOE, Layout(ep=4)),
}  # fmt: skip
RELEASES = ("0.7.0", "0.9.0", "0.13.0")
DISTRIBUTED = "distributed"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(folder, filter="data")
    yield folder
    shutil.rmtree(folder)


def world(name):
    config, layout = WORLDS[name]
    return World(Recipe(config, {"add_bias_linear": False}, layer_norm=True), layout)


def second_step(program, source, scratch):
    """The weights after it, under the keys of torch_dist."""
    trained = shutil.copytree(source, scratch / "trained")
    for shard, weights in torch.load(source / "after_step_2.pt").items():
        path = iteration_folder(trained) / shard / SHARD_FILE
        content = torch.load(path, weights_only=False)
        content["model"].update(weights)
        torch.save(content | {"optimizer": None}, path)
    for path in trained.rglob(legacy_optimizer.DISTRIBUTED_FILE):
        path.unlink()
    return dcp_reading.whole_tensors(iteration_folder(to_torch_dist(program, trained, scratch / "expected", Layout())))


def check(found, expected):
    """But for rows behind the vocabulary, whose number depends on TP."""
    padded = ("embedding.word_embeddings.weight", "output_layer.weight")
    cut = lambda tensors: {key: tensor[: DENSE.vocab] if key in padded else tensor for key, tensor in tensors.items()}  # noqa: E731
    assert_same_tensors(cut(found), cut({key: tensor for key, tensor in expected.items() if not key.startswith("optimizer")}))


@pytest.mark.long_but("0.7.0-buckets", "0.9.0-moe", "0.13.0-stages")
@pytest.mark.parametrize("case", [f"{release}-{name}" for release in RELEASES for name in WORLDS])
def test_training_goes_on_in_a_newer_megatron(case, sample, program, scratch):
    release, name = case.split("-")
    source = sample / release / name
    there = to_torch_dist(program, source, scratch / "there", WORLDS[name][1], model={"true_vocab_size": DENSE.vocab})
    check(dcp_checkpoints.resume(world(name), there, RESHARDABLE), second_step(program, source, scratch))


@pytest.mark.long_but("0.7.0-stages", "0.9.0-buckets")
@pytest.mark.parametrize("case", [f"{release}-{name}" for release in RELEASES for name in WORLDS])
def test_so_it_does_in_rank_folders(case, sample, program, scratch):
    release, name = case.split("-")
    source = sample / release / name
    options = {"layout": WORLDS[name][1].toml(), "overlap_grad_reduce": "off"}
    there = program.run(source, scratch / "there", "megatron", target_options=options, model={"true_vocab_size": DENSE.vocab})
    check(legacy_optimizer.resume(world(name), there, DISTRIBUTED), second_step(program, source, scratch))
