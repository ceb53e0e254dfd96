"""`reshard inspect`: which layout a set of names is, from which evidence, and what is said when the evidence disagrees."""

import json
import subprocess

import pytest

import bad_sources
from bad_job import SOURCE, TIMEOUT_SECONDS, USAGE, environment
from numpy_megatron import iteration_folder, shard_directories, write_tree
from peer_types import LOCAL, TE_GROUPED, Layout, ModelConfig
from reshard_job import BINARY
from tensor_patterns import make_globals

DENSE = ModelConfig(layers=4)
MOE = ModelConfig(family="qwen3_moe", layers=2, qk_norm=True, experts=12, vocab=64)
pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")

LAYOUTS = [  # config, layout, form, class, loader, number of directories
    (MOE, Layout(tp=2, pp=1, ep=4, etp=1), TE_GROUPED, "3D (pp elided)", "EP-aware", 4),
    (MOE, Layout(tp=2, pp=2, ep=2, etp=2), TE_GROUPED, "3D", "EP-aware", 8),
    (MOE, Layout(tp=4, pp=1, ep=4, etp=2), TE_GROUPED, "3D (pp elided)", "EP-aware", 8),
    (MOE, Layout(tp=2, pp=1, ep=3, etp=1), LOCAL, "3D (pp elided)", "EP-aware", 6),
    (MOE, Layout(tp=2, ep=2, etp=2), TE_GROUPED, "3D (pp elided)", "EP-aware", 4),
    (MOE, Layout(tp=4, ep=4, etp=1), TE_GROUPED, "3D (pp elided)", "EP-aware", 4),
    (MOE, Layout(pp=2, ep=4), LOCAL, "3D", "EP-aware", 8),
    (MOE, Layout(tp=2, pp=2), LOCAL, "2D", "non-EP", 4),
    (DENSE, Layout(), LOCAL, "1D", "non-EP", 1),
    (DENSE, Layout(tp=4), LOCAL, "1D", "non-EP", 4),
    (DENSE, Layout(tp=2, pp=2), LOCAL, "2D", "non-EP", 4),
    (DENSE, Layout(tp=2, pp=2, vpp=2), LOCAL, "2D", "non-EP", 4),
]


def inspect(path, *options):
    return subprocess.run([BINARY, "inspect", str(path), *options], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment())


def report(path, *options, code=0):
    """The one JSON document of --json, the same in two runs."""
    runs = [inspect(path, "--json", *options) for _ in range(2)]
    assert runs[0].returncode == code, runs[0].stderr + runs[0].stdout
    assert runs[0].stdout == runs[1].stdout
    assert "error" not in runs[0].stderr
    return json.loads(runs[0].stdout)


def tree(scratch, config, layout, form):
    return write_tree(scratch / "tree", config, layout, form, make_globals(config))


def sizes(found):
    return {axis: size["value"] for axis, size in found["sizes"].items()}


def without_args(root):
    bad_sources.edit_shards(root, lambda content: content.pop("args"))
    return root


@pytest.mark.long_but("qwen3_moe-tp2pp2v1ep2x2", "qwen3_moe-tp4pp1v1ep4x2", "qwen3_moe-tp2pp1v1ep3x1", "llama-tp2pp2v2ep1x1")
@pytest.mark.parametrize("config, layout, form, layout_class, loader, count", LAYOUTS, ids=[row[0].family + "-" + row[1].label() for row in LAYOUTS])
def test_names_and_args_say_the_layout(config, layout, form, layout_class, loader, count, scratch):
    found = report(tree(scratch, config, layout, form))
    assert (found["format"], found["layout_class"], found["loader"], found["mismatches"]) == ("megatron", layout_class, loader, [])
    expected = {"tensor": layout.tp, "pipeline": layout.pp, "virtual_pipeline": layout.vpp, "expert": layout.ep, "expert_tensor": layout.etp}
    assert {axis: size for axis, size in sizes(found).items() if config.experts or axis != "expert_tensor"} == {
        axis: size for axis, size in expected.items() if config.experts or axis != "expert_tensor"}
    assert found["found"]["directories"] == count == len(shard_directories(layout))
    assert found["found"]["missing"] == []


@pytest.mark.parametrize("with_args", [True, False], ids=["args", "keys"])
def test_the_same_four_names_of_stages_and_of_experts(with_args, scratch):
    names = ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"]
    for config, layout, layout_class, pp, ep in [
            (DENSE, Layout(tp=2, pp=2), "2D", 2, 1), (MOE, Layout(tp=2, ep=2, etp=2), "3D (pp elided)", 1, 2)]:
        root = write_tree(scratch / config.family, config, layout, LOCAL, make_globals(config))
        assert sorted(path.name for path in iteration_folder(root).iterdir()) == names
        found = report(root if with_args else without_args(root))
        assert (found["layout_class"], sizes(found)["pipeline"], sizes(found)["expert"]) == (layout_class, pp, ep)
        assert "args" in found["reason"] if with_args else "shard" in found["reason"]


def test_the_three_diagonal_files_of_megatrons_own_writer(scratch):
    """Of six possible files it makes three, each weight once: readable, and the gap is a note."""
    root = tree(scratch, MOE, Layout(tp=2, ep=3, etp=1), LOCAL)
    bad_sources.without_directories("mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_002")(root)
    found = report(root)
    assert sizes(found)["expert"] == 3 and found["mismatches"] == []
    assert "mp_rank_00_001" in json.dumps(found["notes"]) + json.dumps(found["found"]["missing"])


@pytest.mark.long_but("4 of 2", "1 of 2 in stages")
@pytest.mark.parametrize("config, layout, stated", [
    (MOE, Layout(tp=2, ep=2, etp=2), 4), (MOE, Layout(tp=2, ep=2, etp=2), 1), (DENSE, Layout(tp=2, pp=2), 2), (MOE, Layout(pp=2, ep=2), 1)],
    ids=["4 of 2", "1 of 2", "dense", "1 of 2 in stages"])
def test_a_stated_size_that_contradicts_is_a_mismatch(config, layout, stated, scratch):
    root = tree(scratch, config, layout, LOCAL)
    found = report(root, "--expert-parallel-size", str(stated), code=SOURCE)
    assert found["mismatches"], found
    assert str(stated) in json.dumps(found["mismatches"])
    told = inspect(root, "--expert-parallel-size", str(stated))
    assert told.returncode == SOURCE and "mismatch" in told.stdout


@pytest.mark.long_but("-1", "two")
@pytest.mark.parametrize("stated", ["0", "-1", "two", "2.5", "99999999999999999999"])
def test_a_stated_size_that_is_none(stated, scratch):
    told = inspect(tree(scratch, DENSE, Layout(tp=2), LOCAL), "--expert-parallel-size", stated)
    assert told.returncode == USAGE and stated in told.stderr, told.stderr


def test_a_stated_size_that_agrees(scratch):
    found = report(tree(scratch, MOE, Layout(tp=2, ep=2, etp=2), LOCAL), "--expert-parallel-size", "2")
    assert found["mismatches"] == [] and found["sizes"]["expert"]["value"] == 2


def test_damage_is_listed_beside_what_is_sound(scratch):
    root = tree(scratch, DENSE, Layout(tp=2, pp=2), LOCAL)
    bad_sources.cut("mp_rank_01_001", 0.5)(root)
    found = report(root, code=SOURCE)
    assert "mp_rank_01_001/model_optim_rng.pt" in json.dumps(found["mismatches"])
    assert sizes(found)["tensor"] == 2


def test_a_hugging_face_folder(scratch):
    found = report(bad_sources.original("hf2"))
    assert (found["format"], found["model_type"], found["files"], found["index"], found["mismatches"]) == ("huggingface", "llama", 2, True, [])
    assert found["dtypes"]["BF16"]["tensors"] == found["tensors"]


@pytest.mark.parametrize("kind", ["absent", "file", "empty"])
def test_what_is_no_checkpoint(kind, scratch):
    path = scratch / "thing"
    if kind == "file":
        path.write_text("text")
    elif kind == "empty":
        path.mkdir()
    told = inspect(path)
    assert told.returncode == SOURCE and "thing" in told.stderr and told.stdout == ""
