"""What a job wrote is read by every other command and job, and says what its source said: targets of programs without args, with names kept, of other steps."""

import functools
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reshard_job import command

DATA = Path(__file__).parents[1] / "data"
NAMED = {"map": "none"}


@functools.cache
def folder():
    return tempfile.TemporaryDirectory(prefix="reshard-own-targets-")


@functools.cache
def data(name):
    """The folder of one of the archives, unpacked once."""
    to = Path(folder().name) / name.replace("/", "-")
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to


def sound(target):
    outcomes = {words[0]: command(*words) for words in (["verify", target], ["inspect", target], ["digest", target])}
    assert {name: outcome.returncode for name, outcome in outcomes.items()} == dict.fromkeys(outcomes, 0), outcomes


def same(a, b, *options):
    outcome = command("verify", a, b, *options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


# --- sources without args -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["nemo", "verl", "bridge", "swift"])
@pytest.mark.parametrize("target_format", ["torch_dist", "fsdp_dtensor", "dcp"])
def test_folders_of_other_programs_become_what_is_read_again(source, target_format, program, scratch):
    root = data("folder-shapes") / source
    outcome = program.attempt(root, scratch / "target", target_format, ranks=1)
    if source == "swift" and target_format != "dcp":
        assert outcome.returncode == 3 and "so the sizes of the model are not known" in outcome.stderr, outcome.stderr
        return
    assert outcome.returncode == 0, outcome.stderr
    if source != "swift":  # whose args describe no model
        sound(scratch / "target")
    assert command("verify", scratch / "target").returncode == command("inspect", scratch / "target").returncode == 0
    same(root, scratch / "target")


# --- names that are kept --------------------------------------------------------------------------------------------


def test_what_lies_beside_the_weights_comes_back_by_way_of_kept_names(program, scratch):
    source = data("golden/v1") / "huggingface-fp8"
    container = program.run(source, scratch / "container", "hdf5", model=NAMED)
    boxes = program.run(container, scratch / "boxes", "dcp", model=NAMED)
    back = program.run(boxes, scratch / "back", "huggingface", model=NAMED)
    for name in ("config.json", "generation_config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes(), name
    same(source, back)


def test_a_container_and_what_kept_its_names_are_the_same(program, scratch):
    source = data("golden/v1") / "hdf5"
    for name, outcome in (("boxes", program.attempt(source, scratch / "boxes", "dcp")),
                          ("shards", program.attempt(source, scratch / "shards", "huggingface", model=NAMED))):
        assert outcome.returncode == 0, outcome.stderr
        same(source, scratch / name)
        same(scratch / name, source)


def test_an_adapter_keeps_its_settings_or_a_warning_names_them(program, scratch):
    peft = DATA / "moe-lora"
    folder = program.run(peft, scratch / "folder", "huggingface", model=NAMED)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (folder / name).exists(), name
    assert (folder / "adapter_config.json").read_bytes() == (peft / "adapter_config.json").read_bytes()
    outcome = program.attempt(peft, scratch / "boxes", "dcp")
    assert outcome.returncode == 0 and f"{peft}/adapter_config.json, which states rank and scale" in outcome.stdout + outcome.stderr


def test_weights_alone_have_one_digest_in_every_format(program, scratch):
    source = data("deepspeed") / "zero2"
    weights = program.run(source, scratch / "weights", "huggingface", source_options={"optimizer": "drop"})
    totals = {json.loads(command("digest", weights, "--json").stdout)["total"]}
    for target_format in ("dcp", "hdf5"):
        target = program.run(source, scratch / target_format, target_format)
        totals.add(json.loads(command("digest", target, "--weights-only", "--json").stdout)["total"])
    totals.add(json.loads(command("digest", source, "--weights-only", "--json").stdout)["total"])
    assert len(totals) == 1


# --- what a job leaves out ------------------------------------------------------------------------------------------


def test_a_vocabulary_that_the_job_names_is_that_of_all_that_the_target_carries(program, scratch):
    source = data("golden/v1") / "hdf5"
    rows = json.loads((source.parent / "huggingface" / "config.json").read_text())["vocab_size"] - 3
    target = program.run(source, scratch / "target", "torch_dist", model={"true_vocab_size": rows})
    assert json.loads((target / "huggingface" / "config.json").read_text())["vocab_size"] == rows
    back = program.run(target, scratch / "back", "huggingface")
    assert json.loads((back / "config.json").read_text())["vocab_size"] == rows
    embedding = next(tensor for file in back.glob("*.safetensors") for name, tensor in load_file(file).items() if name == "model.embed_tokens.weight")
    assert len(embedding) == rows
    assert "same weights" in command("verify", source, target).stdout
    refused = program.attempt(source.parent / "huggingface", scratch / "refused", "torch_dist", model={"true_vocab_size": rows})
    assert refused.returncode == 2 and "has no padding behind them" in refused.stderr
    unused = program.attempt(source.parent / "huggingface", scratch / "unused", "dcp", model={"true_vocab_size": rows})
    assert unused.returncode == 0 and "is not used: names are kept" in unused.stdout + unused.stderr


def test_masters_without_their_state_are_named(program, scratch):
    dense = data("flattened-optimizer") / "dense"
    masters = program.run(dense, scratch / "masters", "fsdp_dtensor", source_options={"rng": "drop"})
    outcome = program.attempt(masters, scratch / "weights", "torch_dist", source_options={"optimizer": "drop"})
    assert outcome.returncode == 0 and "although the run computes in BF16 by its args" in outcome.stdout + outcome.stderr


def test_a_size_of_shards_that_is_not_followed_is_named(program, scratch):
    source = data("golden/v1") / "huggingface"
    outcome = program.attempt(source, scratch / "target", "huggingface", target_options={"shard_bytes": "1 KB"})
    assert outcome.returncode == 0 and "is not followed, because the tensors lie in files as in" in outcome.stdout + outcome.stderr


# --- steps ----------------------------------------------------------------------------------------------------------

COMMANDS = {"inspect": (), "digest": (), "suspects": (), "ls": (), "view": ("-o", "page.html"), "extract": ("*norm*", "-o", "norms.safetensors"), "diff": None,
            "verify": None}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_the_newer_save_that_it_does_not_take(name, scratch, monkeypatch):
    monkeypatch.chdir(scratch)
    root = shutil.copytree(DATA / "moe-tp2-pp2-ep2", scratch / "run")
    shutil.copytree(root / "iter_0001000", root / "iter_0002000")
    options = (str(root),) if COMMANDS[name] is None else COMMANDS[name]
    outcome = command(name, root, *options)
    assert outcome.returncode == 0, outcome.stderr
    said = outcome.stdout + outcome.stderr + (Path("page.html").read_text() if name == "view" else "")
    assert "iter_0001000 is taken" in said and "a newer one is there: iter_0002000" in said, said


def test_universal_folders_are_steps_of_a_run_of_deepspeed(program, scratch):
    root = shutil.copytree(data("deepspeed") / "zero2", scratch / "run")
    universal = program.run(root, scratch / "universal", "deepspeed")
    save = next(universal.glob("global_step*_universal"))
    shutil.copytree(save, root / "global_step9_universal")
    outcome = command("inspect", root)
    assert "a newer one is there: global_step9_universal" in outcome.stdout, outcome.stdout


# --- what messages propose ------------------------------------------------------------------------------------------


def test_a_prefix_is_proposed_where_it_helps(program, scratch):
    """A model of transformers has names that begin with "model." by itself: without them it has none."""
    source = data("deepspeed") / "zero2"
    outcome = program.attempt(source, scratch / "target", "huggingface")
    assert outcome.returncode == 3 and 'Set source.optimizer = "drop"' in outcome.stderr and "prefix" not in outcome.stderr, outcome.stderr


def test_init_says_which_formats_need_the_state_dropped_and_proposes_what_can_be_done(program, scratch):
    text = command("init", data("deepspeed") / "zero2").stdout
    assert '"huggingface" (with source.optimizer = "drop")' in text
    outcome = program.attempt(data("golden/v1") / "huggingface", scratch / "target", "dcp", model={"map": "qwen3_moe"})
    assert outcome.returncode == 2 and "leave out model.map to keep the names" in outcome.stderr, outcome.stderr


def test_codes_are_no_weights_in_full(program, scratch):
    """Scales are F32 whatever dtype config.json names."""
    boxes = program.run(data("golden/v1") / "huggingface-fp8", scratch / "boxes", "dcp")
    outcome = program.attempt(boxes, scratch / "back", "huggingface")
    assert outcome.returncode == 0 and "transformers rounds them" not in outcome.stdout + outcome.stderr


def test_shards_of_other_programs_are_read_by_every_command(scratch, monkeypatch):
    monkeypatch.chdir(scratch)
    root = data("folder-shapes") / "nemo"
    for words in (["verify", root, root], ["diff", root, root], ["digest", root], ["suspects", root], ["view", root, "-o", "page.html"], ["ls", root],
                  ["extract", root, "*norm*", "-o", "norms.safetensors"]):
        outcome = command(*words)
        assert outcome.returncode == 0, (words[0], outcome.stderr)
    assert torch.isfinite(next(iter(load_file("norms.safetensors").values())).float()).all()
