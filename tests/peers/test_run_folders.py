"""The folder of a training run: what `inspect` says of each save in it, and which one every command takes."""

import json
import os
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cases
import hf_models
from numpy_megatron import write_tree
from peer_types import LOCAL, Layout
from reshard_job import BINARY, command
from tensor_patterns import make_globals

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")

DENSE = cases.LLAMA.with_(layers=2)
TRACKER = "latest_checkpointed_iteration.txt"
LONG_AGO = 1_700_000_000


@pytest.fixture(scope="module")
def megatron_run(tmp_path_factory):
    """iter_0000010 and 20 are complete, 30 has lost a rank's file, of 40 only the folder was made."""
    root = tmp_path_factory.mktemp("megatron-run")
    tensors = make_globals(DENSE)
    for iteration in (10, 20, 30):
        write_tree(root, DENSE, Layout(tp=2), LOCAL, tensors, iteration=iteration)
    (root / TRACKER).unlink(missing_ok=True)
    shutil.rmtree(root / "iter_0000030/mp_rank_01")
    (root / "iter_0000040").mkdir()
    return root


@pytest.fixture
def run(megatron_run, scratch):
    return shutil.copytree(megatron_run, scratch / "run")


def table(folder, code=0):
    outcome = command("inspect", folder, "--json")
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    said = command("inspect", folder)
    found, text = json.loads(outcome.stdout), said.stdout
    assert said.returncode == code and ("refused" in found) == said.stderr.startswith("error: ")
    for save in found["saves"]:
        assert save["name"] in text
    return found, {save["name"]: save for save in found["saves"]}


def taken(saves):
    return [name for name, save in saves.items() if "taken" in save["marks"]]


def test_without_a_tracker_the_newest_complete_one_is_taken(run, scratch):
    _, saves = table(run)
    assert list(saves) == ["iter_0000040", "iter_0000030", "iter_0000020", "iter_0000010"]
    assert [save["complete"] for save in saves.values()] == [False, False, True, True]
    assert taken(saves) == ["iter_0000020"] and saves["iter_0000020"]["bytes"] > 0
    assert "mp_rank_01" in saves["iter_0000030"]["state"]
    digest = command("digest", run)
    assert digest.returncode == 0 and "iter_0000020 is taken, and newer ones are there" in digest.stdout + digest.stderr
    init = command("init", run)
    assert init.returncode == 0 and "iter_0000020 is taken" in init.stdout


def test_the_tracker_decides(run):
    (run / TRACKER).write_text("10")
    _, saves = table(run)
    assert taken(saves) == ["iter_0000010"]
    assert f"{TRACKER} names it" in saves["iter_0000010"]["marks"] and f"newer than {TRACKER}" in saves["iter_0000020"]["marks"]


def test_an_empty_tracker_or_a_wrong_one_is_refused_with_the_table(run):
    for text, words in (("", "expected an iteration number"), ("30000", "names")):
        (run / TRACKER).write_text(text)
        found, saves = table(run, code=3)
        assert words in found["refused"] and len(saves) == 4 and not taken(saves)
    assert f"{TRACKER}: 30000" in command("inspect", run).stdout


def test_nightly_takes_the_same(run, scratch):
    for folder, _, files in os.walk(run, topdown=False):
        for name in [*files, "."]:
            os.utime(os.path.join(folder, name), (LONG_AGO, LONG_AGO))
    job = scratch / "nightly.toml"
    job.write_text(f'[source]\npath = "{run}"\n[target]\npath = "{scratch}/night"\nformat = "torch_dist"\n')
    outcome = command("nightly", job, "--plan", "--json")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert json.loads(outcome.stdout)["source"].endswith("iter_0000020")


def test_one_save_alone_has_no_table(run):
    assert "saves" not in json.loads(command("inspect", run / "iter_0000010", "--json").stdout)
    for name in ("iter_0000020", "iter_0000030", "iter_0000040"):
        shutil.rmtree(run / name)
    assert "saves" not in json.loads(command("inspect", run, "--json").stdout)


def test_saves_of_torchtitan(scratch):
    for step in (5, 10, 20):
        dcp.save({"w": torch.ones(4, 4) * step}, checkpoint_id=scratch / f"checkpoint/step-{step}", no_dist=True)
    (scratch / "checkpoint/step-20/.metadata").unlink()
    _, saves = table(scratch / "checkpoint")
    assert taken(saves) == ["step-10"]
    assert saves["step-20"]["state"] == "interrupted: has no .metadata, which is written last"


def test_folders_of_the_trainer_of_transformers(scratch):
    root = scratch / "output"
    for step in (500, 1000):
        hf_models.save_hf(root / f"checkpoint-{step}", DENSE, make_globals(DENSE))
    _, saves = table(root)
    assert taken(saves) == ["checkpoint-1000"] and saves["checkpoint-500"]["optimizer"] == "no"
    weights = root / "checkpoint-1000/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    _, saves = table(root)
    assert taken(saves) == ["checkpoint-500"] and not saves["checkpoint-1000"]["complete"]
    shutil.copy(root / "checkpoint-500/model.safetensors", root)  # the model at the end
    shutil.copy(root / "checkpoint-500/config.json", root)
    assert "saves" not in json.loads(command("inspect", root, "--json").stdout)
