"""Any layout to any other and back again: the weights that return are the weights that left."""

import os

import pytest

import random_layouts
from numpy_megatron import write_tree
from tensor_patterns import make_globals
from tree_checks import assert_same_shards, check_tree, with_written_norms

pytestmark = pytest.mark.long

RANKS = (1, 2, 3, 4, 7)
SEED = int(os.environ.get("RESHARD_TEST_SEED", "20240607"))
COUNT = int(os.environ.get("RESHARD_TEST_PAIRS", "64"))
PAIRS = random_layouts.pairs(COUNT, SEED)


@pytest.mark.parametrize("number", range(COUNT), ids=[pair[0] for pair in PAIRS])
def test_there_and_back(number, program, scratch):
    _, config, source_form, source, target_form, target = PAIRS[number]
    original = write_tree(scratch / "source", config, source, source_form, make_globals(config))
    ranks = RANKS[number % len(RANKS)]
    there = program.to_megatron(original, scratch / "there", target, target_form, ranks=ranks)
    check_tree(there, config, target, with_written_norms(target_form, there, source_form), make_globals(config))
    back = program.to_megatron(there, scratch / "back", source, source_form, ranks=RANKS[(number + 1) % len(RANKS)])
    assert_same_shards(back, original, source, norm_extras_known=target_form.impl == "te" or source_form.impl == "local")
