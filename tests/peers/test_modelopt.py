"""What ModelOpt stores beside weights on Megatron-Core goes through any layout, and between Megatron and Hugging Face."""

import pytest

import dcp_checkpoints
import dcp_reading
import modelopt_quantisers
from dcp_cases import DENSE, MOE, to_torch_dist, vocabulary_of
from dcp_checkpoints import World
from dcp_models import Recipe
from numpy_megatron import iteration_folder
from peer_types import LOCAL, Layout
from reshard_job import tree_hashes

PAIRS = {  # -> config, layout of the source, of the target
    "dense": (DENSE.with_(layers=2, dtype="bfloat16"), Layout(tp=2), Layout(tp=4)),
    "dense-pp": (DENSE.with_(layers=2, dtype="bfloat16"), Layout(tp=2, pp=2), Layout()),
    "moe": (MOE.with_(layers=2, dtype="bfloat16"), Layout(ep=2), Layout(ep=4)),
    "moe-tp": (MOE.with_(layers=2, dtype="bfloat16"), Layout(tp=2, etp=2), Layout(ep=2)),
}


def worlds(name):
    config, source, target = PAIRS[name]
    return World(Recipe(config), source, LOCAL), World(Recipe(config), target, LOCAL)


@pytest.mark.long_but("rows-dense")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("form", modelopt_quantisers.FORMS)
def test_another_layout_has_what_a_run_there_would_have_saved(name, form, program, scratch):
    source, target = worlds(name)
    root = modelopt_quantisers.save(source, scratch / "source", form)
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    theirs = modelopt_quantisers.save(target, scratch / "theirs", form)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(theirs), vocabulary_of(source))
    assert tree_hashes(iteration_folder(there) / "modelopt_state") == tree_hashes(iteration_folder(root) / "modelopt_state")
