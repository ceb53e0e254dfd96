"""What is published can be read: a target that no later job could open as its source ends the run with exit code 7, and nothing of it stays.

The targets are sound when they are written. A job is held when they are verified and before their record is written, and a file is changed then, as a
fault of the program would have written it."""

import json
import os
import shutil

import pytest

import bad_sources
from bad_job import SELF_CHECK, Held, expect
from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not (BINARY and os.environ.get("RESHARD_CALL_SHIM")), reason="needs the program and the call shim")

RECORD = "write:/reshard.json"
NAME, OTHER = b'"model.norm.weight"', b'"model.mron.weight"'


def renamed_tensor(part):
    for file in part.glob("*.safetensors"):
        file.write_bytes(file.read_bytes().replace(NAME, OTHER))


def lost_rank(part):
    shutil.rmtree(next(part.rglob("mp_rank_01*")))


def lost_metadata(part):
    next(part.rglob(".metadata")).unlink()


CASES = {  # name -> (source, format, options of the target, of the model, what is done, what is said)
    "unknown tensor": ("hf", "huggingface", {}, {}, renamed_tensor, ("lacks 'model.norm.weight'",)),
    "another name": (
        "hf", "huggingface", {}, {"map": "none"}, renamed_tensor,
        ("'model.norm.weight' is recorded, but not found", "'model.mron.weight' is found, but not recorded")),
    "rank missing": ("dense", "megatron", {"layout": "{ tp = 2 }"}, {}, lost_rank, ("mp_rank_01",)),
    "file missing": ("dense", "torch_dist", {}, {}, lost_metadata, (".metadata",)),
}


@pytest.mark.long_but("unknown tensor-3", "another name-1", "rank missing-1")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_target_that_cannot_be_read_is_not_published(name, ranks, bad_jobs):
    source, target_format, target_options, model, change, words = CASES[name]
    text = bad_jobs.text(bad_sources.original(source), target_format, target_options=target_options, model=model)
    held = Held(bad_jobs, text, RECORD, ranks=ranks)
    change(bad_jobs.part())
    outcome = held.go()
    expect(outcome, SELF_CHECK, ("cannot be read as a source", "Nothing was published", *words))
    assert ".part-" not in outcome.error, "the reader's sentence names the target"
    assert bad_jobs.names() == set()
    again = bad_jobs.run(text)
    assert again.code == 0, again.error
    assert bad_jobs.command("verify", bad_jobs.target).code == 0


def test_the_gate_is_there_without_records(bad_jobs):
    """With run.verify = "off" nothing is recorded, and the headers are read all the same."""
    text = bad_jobs.text(bad_sources.original("hf"), "huggingface") + 'verify = "off"\n'
    held = Held(bad_jobs, text, "fsync:.part-")
    renamed_tensor(bad_jobs.part())
    expect(held.go(), SELF_CHECK, ("cannot be read as a source", "lacks 'model.norm.weight'"))
    assert bad_jobs.names() == set()
    assert bad_jobs.run(text).code == 0
    assert not (bad_jobs.target / "reshard.json").exists() and json.loads((bad_jobs.target / "config.json").read_text())
