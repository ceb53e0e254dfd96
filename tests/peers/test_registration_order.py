"""mcore.toml lists the order in which Megatron-Core registers its parameters: the order of the distributed optimizer's buffers."""

import tomllib
from pathlib import Path

import pytest

import dcp_checkpoints
import megatron_models
from dcp_cases import CHANGES
from dcp_checkpoints import World
from family_models import dense
from family_models_hybrid import DELTA, LATENT, mamba
from megatron_hybrid import build_delta, build_latent, build_mamba
from peer_types import Layout

MAP = tomllib.loads((Path(__file__).parents[2] / "configs/models/mcore.toml").read_text())
WORDS = MAP["registration"]


def part_key(part):
    """Parts without a number at their end come first, then by the number, then by the word's place in the list; what is not there has no order."""
    word = part.rstrip("0123456789")
    number = part[len(word) :]
    return (number != "", int(number or 0), WORDS.index(word) if word in WORDS else word)


def ordered(names):
    return sorted(names, key=lambda name: [part_key(part) for part in name.split(".")])


def names_on_rank(rank, models, world, parallel_state):
    return [name for model in models for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", CHANGES)
def test_the_map_has_the_order_of_named_parameters(name):
    recipe, form, _, _ = CHANGES[name]
    (names,) = dcp_checkpoints.run(names_on_rank, World(recipe, Layout(), form))
    assert len(names) > 10 and names == ordered(reversed(names))


def hybrid_names_on_rank(rank, config, layout, build):
    return [name for name, _ in build(config, layout, megatron_models.start_parallel_state(layout)).named_parameters()]


HYBRIDS = {
    "latent": (dense("DeepseekV3", **LATENT), build_latent),
    "gated-delta-net": (dense("Qwen3Next", **DELTA), build_delta),
    "mamba": (mamba("M-M*-M"), build_mamba),
    "mamba-experts": (mamba("ME*EMM"), build_mamba),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HYBRIDS)
def test_so_has_it_for_hybrid_models(name):
    make, build = HYBRIDS[name]
    (names,) = megatron_models.run_ranks(hybrid_names_on_rank, 1, make().config, Layout(), build)
    assert len(names) > 10 and names == ordered(reversed(names))
