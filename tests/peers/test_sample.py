"""The shipped sample: what it holds, and what the program makes of it."""

import json
import sys
from pathlib import Path

import pytest
import torch

DATA = Path(__file__).resolve().parent.parent / "data"
sys.path.insert(0, str(DATA))

import make_moe_sample as sample  # noqa: E402

import hf_models  # noqa: E402
import megatron_models  # noqa: E402
import numpy_megatron  # noqa: E402
from peer_types import LOCAL, Layout  # noqa: E402
from tree_checks import check_tree  # noqa: E402

CHECKPOINT, REFERENCE = DATA / sample.CHECKPOINT, DATA / sample.REFERENCE
DIGESTS = json.loads((DATA / sample.DIGESTS).read_text())
TOKENS = (torch.arange(24).reshape(2, 12) * 7) % sample.MODEL.vocab


def sample_globals():
    return numpy_megatron.read_tree(CHECKPOINT, sample.MODEL, sample.LAYOUT, LOCAL)


def test_the_sample_holds_what_its_digests_say():
    assert sample.digests(sample_globals()) == DIGESTS


def test_the_sample_is_small():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 2_600_000


def test_megatron_core_loads_the_sample():
    logits = megatron_models.load_and_logits(CHECKPOINT, sample.MODEL, sample.LAYOUT, LOCAL, TOKENS)
    assert logits.shape == (2, 12, sample.MODEL.vocab) and logits.isfinite().all()


def test_sample_to_hf_matches_the_digests(program, scratch):
    there = program.to_hf(CHECKPOINT, scratch / "there", ranks=3, target_options={"reference": REFERENCE})
    state = hf_models.read_hf(there)
    assert {name: sample.describe(tensor) for name, tensor in state.items()} == DIGESTS
    hf_models.load_hf(there)
    for path in REFERENCE.iterdir():
        assert (there / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.long
def test_sample_to_hf_needs_no_reference_and_no_map(program, scratch):
    # Its args name the null tokenizer, which appends a token that this model does not have.
    there = program.to_hf(CHECKPOINT, scratch / "there", model={"true_vocab_size": sample.MODEL.vocab})
    hf_models.load_hf(there)
    assert {name: sample.describe(tensor) for name, tensor in hf_models.read_hf(there).items()} == DIGESTS


@pytest.mark.long_but("tp1pp4v1ep4x1")
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=8, ep=8), Layout(pp=4, ep=4), Layout(tp=4, pp=2, vpp=2, ep=2)], ids=Layout.label)
def test_sample_to_other_layouts(layout, program, scratch):
    there = program.to_megatron(CHECKPOINT, scratch / "there", layout, LOCAL)
    check_tree(there, sample.MODEL, layout, LOCAL, sample_globals())
