"""Random walks over formats, layouts and forms of optimizer state: whatever a step made is read, verified, compared and described without one
disagreement (walk.py).

    RESHARD_TEST_WALK_STEPS=5000 RESHARD_TEST_SEED=7 pytest -m long tests/peers/test_walk.py

A walk that fails prints its job and the ones before it: with the seed it can be walked again."""

import os
import random
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

import cases
import family_models_hybrid
from adapter_models import save_adapter
from family_models import Family, save_family
from hf_models import save_hf
from peer_types import Layout
from reshard_job import BINARY
from tensor_patterns import make_globals
from walk import Checkpoint, Kind, Walk

DATA = Path(__file__).parents[1] / "data"
SEED = int(os.environ.get("RESHARD_TEST_SEED", "20261128"))
STEPS = int(os.environ.get("RESHARD_TEST_WALK_STEPS", "500"))
DEFAULT_STEPS = 14
LENGTH = 8  # of a walk; then another begins
REFUSED_AT_MOST = 0.1  # of the jobs

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Where walks begin: dense, expert and Mamba models, with and without state, saved by Megatron-Core, DeepSpeed and transformers; an adapter."""
    folder = tmp_path_factory.mktemp("walk")
    for name in ("flattened-optimizer", "older-optimizers", "deepspeed"):
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(folder / name, filter="data")
    shutil.copytree(DATA / "moe-tp2-pp2-ep2", folder / "weights")
    mamba = save_family(folder / "mamba", Family(family_models_hybrid.mamba("M*-ME*"), Layout(), Layout()))
    llama = cases.LLAMA.with_(layers=2)
    adapter = save_adapter(save_hf(folder / "base", llama, make_globals(llama)), folder / "adapter", shared=True)  # in any form
    dense, experts, only_megatron = Kind("llama"), Kind("qwen3_moe", ep=(1, 2, 4)), Kind()
    older = folder / "older-optimizers"
    yield {
        "dense": Checkpoint(folder / "flattened-optimizer" / "dense", "torch_dist", dense, state=True, rng=True),
        "experts": Checkpoint(folder / "flattened-optimizer" / "moe", "torch_dist", experts, state=True, rng=True),
        "ranks": Checkpoint(older / "0.13.0" / "dense", "megatron", only_megatron, state=True, rng=True),
        "rank-experts": Checkpoint(older / "0.9.0" / "moe", "megatron", Kind(ep=(1, 2, 4)), state=True, rng=True),
        "stages": Checkpoint(older / "0.7.0" / "stages", "megatron", only_megatron, state=True, rng=True),
        "weights": Checkpoint(folder / "weights", "megatron", Kind("qwen3_moe", ep=(1, 2, 4), layers=4), rng=True),
        "zero": Checkpoint(folder / "deepspeed" / "zero2", "deepspeed", dense, state=True),
        "hybrid": Checkpoint(mamba, "huggingface", Kind("nemotron_h", ep=(1, 2), layers=6, hybrid=True)),
        "adapter": Checkpoint(adapter, "huggingface", Kind("llama", adapter=True)),
    }
    shutil.rmtree(folder)


def walk_on(starts, steps, seed):
    """Walks until so many steps were made; gives the sentences of refusals and how often each came."""
    generator, made, tried, refused = random.Random(seed), 0, 0, {}
    while made < steps:
        with tempfile.TemporaryDirectory(prefix="reshard-walk-") as folder:
            walk, at = Walk(folder, generator.random()), starts[generator.choice(sorted(starts))]
            for _ in range(LENGTH):
                after = walk.step(at)
                made, tried, at = made + bool(after), tried + 1, after or at
            for sentence, count in walk.refused.items():
                refused[sentence] = refused.get(sentence, 0) + count
    print(f"{made} steps of {tried} jobs, refused: {refused}")
    return tried - made, tried


def test_a_walk_meets_no_disagreement(starts):
    refused, tried = walk_on(starts, DEFAULT_STEPS, SEED)
    assert refused <= REFUSED_AT_MOST * tried + 1


@pytest.mark.long
def test_a_long_walk_meets_no_disagreement(starts):
    refused, tried = walk_on(starts, STEPS, SEED + 1)
    assert refused <= REFUSED_AT_MOST * tried
