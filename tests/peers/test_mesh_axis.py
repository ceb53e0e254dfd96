"""A fifth parallel axis: a rule in a map and a size in a job file, and chunks are cut along it. No code names it."""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import dcp_reading
from bad_job import TIMEOUT_SECONDS, USAGE, environment
from numpy_megatron import iteration_folder
from reshard_job import BINARY, tree_hashes

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
ROOT = Path(__file__).parents[2]
MAPS = Path(os.environ.get("RESHARD_MAPS") or ROOT / "configs" / "models")
SOURCE = ROOT / "tests" / "data" / "moe-tp2-pp2-ep2"
HIDDEN = 64  # of SOURCE


@pytest.fixture
def maps(scratch):
    """The maps with data sharding of the hidden axis, which Megatron-Core's own has not."""
    shutil.copytree(MAPS, scratch / "maps")
    core = scratch / "maps" / "mcore.toml"
    text = core.read_text()
    for line, more in (('mesh = [ "tp",', 'mesh = [ "zz", "tp",'), ('\nep = [ "expert" ]\n', '\nep = [ "expert" ]\nzz = [ "hidden" ]\n')):
        assert line in text
        text = text.replace(line, more)
    core.write_text(text)
    return scratch / "maps"


def reshard(folder, maps, *words, code=0):
    done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, cwd=folder, timeout=TIMEOUT_SECONDS,
                          env=environment() | {"RESHARD_MAPS": str(maps)})
    assert done.returncode == code, f"exit {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout if code == 0 else " ".join(done.stderr.split())


def job(scratch, source, target, target_format, *layout):
    text = f'[source]\npath = "{source}"\noptimizer = "drop"\nrng = "drop"\n[target]\npath = "{target}"\nformat = "{target_format}"\n'
    (scratch / "job.toml").write_text(text + "[target.layout]\n" + "\n".join(layout) + "\n")
    return "job.toml"


def hidden_cuts(folder):
    """Of each stored tensor the bounds of its chunks along dimensions of the hidden size."""
    cuts = {}
    for key, entry in dcp_reading.tensor_entries(folder).items():
        for d, size in enumerate(entry.size):
            if size == HIDDEN:
                cuts.setdefault(key, []).append({(chunk.offsets[d], chunk.offsets[d] + chunk.sizes[d]) for chunk in entry.chunks})
    return cuts


@pytest.mark.parametrize("target_format", ["torch_dist", "fsdp_dtensor"])
def test_chunks_are_cut_along_it_and_the_way_back_is_the_same(target_format, maps, scratch):
    reshard(scratch, maps, "run", job(scratch, SOURCE, "cut", target_format, "zz = 2", "tp = 2", "ep = 2", "etp = 1"))
    cuts = hidden_cuts(iteration_folder(scratch / "cut"))
    halves = {(0, HIDDEN // 2), (HIDDEN // 2, HIDDEN)}
    whole = {(0, HIDDEN)}
    assert all(halves in of_dimensions or whole not in of_dimensions for of_dimensions in cuts.values()), cuts
    assert sum(halves in of_dimensions for of_dimensions in cuts.values()) >= 10
    dcp_reading.check_catalogue(iteration_folder(scratch / "cut"), hints=False)
    reshard(scratch, maps, "verify", SOURCE, "cut")
    recorded = tomllib.loads(json.loads((scratch / "cut" / "reshard.json").read_text())["job"])
    assert recorded["target"]["layout"]["zz"] == 2

    reshard(scratch, maps, "run", job(scratch, SOURCE, "uncut", target_format, "tp = 2", "ep = 2", "etp = 1"))
    dcp_reading.assert_same_content(iteration_folder(scratch / "cut"), iteration_folder(scratch / "uncut"))
    for source in ("cut", "uncut"):
        reshard(scratch, MAPS, "run", job(scratch, source, f"{source}-back", "megatron", "tp = 2", "pp = 2", "ep = 2"))
    assert tree_hashes(scratch / "cut-back") == tree_hashes(scratch / "uncut-back")


def test_experts_may_be_cut_finer_than_the_rest(scratch):
    """etp above tp: the ranks that hold an expert's parts are places of their own."""
    reshard(scratch, MAPS, "run", job(scratch, SOURCE, "cut", "torch_dist", "tp = 1", "etp = 2", "ep = 2"))
    reshard(scratch, MAPS, "verify", SOURCE, "cut")


def test_a_size_of_one_changes_nothing(maps, scratch):
    reshard(scratch, maps, "run", job(scratch, SOURCE, "one", "torch_dist", "zz = 1", "tp = 2"))
    reshard(scratch, MAPS, "run", job(scratch, SOURCE, "usual", "torch_dist", "tp = 2"))
    assert tree_hashes(scratch / "one") == tree_hashes(scratch / "usual")


def test_it_is_unknown_without_the_rule(maps, scratch):
    said = reshard(scratch, MAPS, "run", job(scratch, SOURCE, "cut", "torch_dist", "zz = 2"), code=USAGE)
    assert "job.toml:9:1: [target.layout] unknown key \"zz\"" in said and "known here: tp, pp, vpp, ep, etp," in said
    said = reshard(scratch, maps, "run", job(scratch, SOURCE, "cut", "torch_dist", "sequence = 2"), code=USAGE)
    assert "known here: tp, pp, vpp, ep, etp," in said and ", zz" in said
    assert not (scratch / "cut").exists()


def test_folders_of_shards_have_no_number_for_it(maps, scratch):
    said = reshard(scratch, maps, "run", job(scratch, SOURCE, "cut", "megatron", "zz = 2"), code=USAGE)
    assert "[target] layout.zz = 2" in said and "have no place for this axis" in said and '"torch_dist"' in said


def test_a_size_that_does_not_divide_is_refused(maps, scratch):
    said = reshard(scratch, maps, "run", job(scratch, SOURCE, "cut", "torch_dist", "zz = 3"), code=USAGE)
    assert f"[target] layout.zz = 3: axis 'hidden' (from hidden_size) has {HIDDEN} indices, which 3 does not divide" in said


def test_an_axis_that_cuts_nothing_of_the_model_is_refused(maps, scratch):
    core = maps / "mcore.toml"
    core.write_text(core.read_text().replace('zz = [ "hidden" ]', 'zz = [ "ih" ]'))  # of models with an indexer
    said = reshard(scratch, maps, "run", job(scratch, SOURCE, "cut", "torch_dist", "zz = 2"), code=USAGE)
    assert "[target] layout.zz = 2: no rule of mcore.toml splits this model along it" in said
