"""`--self-check`: a second arithmetic finds random elements of a target in its source, in every format; planted faults are found as often as promised."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cases
import hf_models
import plan_oracle
from numpy_megatron import SHARD_FILE, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, Layout
from plan_oracle import NOT_NULL, numbered
from reshard_job import BINARY, RECORDS, Program
from test_plan_oracle_parts import QUANTISED, Quantised, Training, write_training

SHIM = os.environ.get("RESHARD_CALL_SHIM")

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")

MOE = cases.QWEN3_MOE_MIXED.with_(layers=3, moe_layers=(1, 2), experts=4, vocab=77, dtype="float32")


def check(a, b, *words, ranks=1):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), BINARY, "verify", a, b, "--json", *words]
    outcome = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240)
    assert outcome.returncode in (0, 1), f"{outcome.stdout[-2000:]}\n{outcome.stderr[-2000:]}"
    found = json.loads(outcome.stdout)
    assert (found["wrong"] > 0) == (outcome.returncode == 1) and bool(found["faults"]) == (found["wrong"] > 0)
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("self-check"))


@pytest.fixture(scope="module")
def targets(program):
    """One model in every format, each made of the one before it."""
    folder = program.scratch
    source = write_tree(folder / "source", MOE, Layout(tp=2, pp=3, ep=2), TE_GROUPED, numbered(MOE).tensors, enums=NOT_NULL)
    made = {"source": source}
    made["huggingface"] = program.run(source, folder / "hf", "huggingface", model={"map": "qwen3_moe"})
    made["hdf5"] = program.run(made["huggingface"], folder / "h5", "hdf5")
    made["torch_dist"] = program.run(made["hdf5"], folder / "dist", "torch_dist", target_options={"layout": Layout(tp=2, ep=2).toml()})
    made["fsdp_dtensor"] = program.run(made["torch_dist"], folder / "fsdp", "fsdp_dtensor", target_options={"layout": Layout(ep=2).toml()})
    made["megatron"] = program.run(made["fsdp_dtensor"], folder / "megatron", "megatron", target_options={"layout": Layout(tp=8, pp=3, vpp=1, ep=4).toml()})
    made["dcp"] = program.run(made["megatron"], folder / "dcp", "dcp", target_options={"map": "qwen3_moe", "chunks": "ranks", "ranks": 3})
    return made


@pytest.mark.long_but("source-huggingface", "huggingface-hdf5", "torch_dist-fsdp_dtensor", "fsdp_dtensor-megatron")
@pytest.mark.parametrize("pair", ["source-huggingface", "huggingface-hdf5", "hdf5-torch_dist", "torch_dist-fsdp_dtensor", "fsdp_dtensor-megatron",
                                  "megatron-dcp", "source-megatron", "huggingface-torch_dist", "torch_dist-source"])
def test_every_format_is_the_others_values(pair, targets):
    a, b = pair.split("-")
    more = ("--config-b", targets["huggingface"]) if b == "dcp" else ()
    found = check(targets[a], targets[b], "--self-check", 40, *more, ranks=2)
    assert found["wrong"] == 0 and found["tensors"] > 10 and found["elements"] > 20 * found["tensors"]
    assert (found["unplaced"], found["computed"], found["not_covered"], found["converted"]) == (0, 0, 0, 0), found


def test_the_same_seed_takes_the_same_elements_on_any_number_of_ranks(targets):
    counts = [check(targets["source"], targets["megatron"], "--self-check", 7, "--seed", 5, ranks=ranks) for ranks in (1, 3)]
    assert counts[0] == counts[1] and counts[0]["seed"] == "5"


def changed(targets, scratch, change):
    """The Hugging Face folder with some tensors changed by hand, without its records."""
    folder = shutil.copytree(targets["huggingface"], scratch / "changed")
    for name in RECORDS:
        (folder / name).unlink()
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})
    return folder


def swap(state, one, other):
    state[one], state[other] = state[other].clone(), state[one].clone()


EXPERT = "model.layers.2.mlp.experts.{}.{}_proj.weight".format
HALVES = "model.layers.1.self_attn.q_proj.weight"


def swap_halves(state):
    first, second = state[HALVES].chunk(2)
    state[HALVES] = torch.cat([second, first]).contiguous()


FAULTS = {
    "two-experts": (lambda state: swap(state, EXPERT(1, "down"), EXPERT(3, "down")), "experts.1.down_proj"),
    "gate-and-up": (lambda state: swap(state, EXPERT(0, "gate"), EXPERT(0, "up")), "experts.0.gate_proj"),
    "two-layers": (lambda state: swap(state, "model.layers.1.self_attn.o_proj.weight", "model.layers.2.self_attn.o_proj.weight"), "layers.1.self_attn.o_proj"),
    "two-halves": (swap_halves, "layers.1.self_attn.q_proj")}


@pytest.mark.long_but("two-halves")
@pytest.mark.parametrize("name", FAULTS)
def test_blocks_that_were_exchanged_are_found_for_certain(name, targets, scratch):
    """Each of the k draws is from another k-th of a tensor: no fault of that size can lie between them."""
    change, word = FAULTS[name]
    found = check(targets["source"], changed(targets, scratch, change), "--self-check", 4)
    assert found["wrong"] >= 2 and any(word in fault for fault in found["faults"])
    fault = next(fault for fault in found["faults"] if word in fault)
    assert "model.safetensors at byte" in fault and SHARD_FILE in fault and "its value in the source is" in fault


def flip_one(state):
    state[HALVES][5, 7] += 1


def test_one_element_is_found_where_all_are_taken(targets, scratch):
    folder = changed(targets, scratch, flip_one)
    found = check(targets["source"], folder, "--self-check", 1_000_000)
    assert found["wrong"] == 1 and f"'{HALVES}' [5, 7]" in found["faults"][0]
    assert found["elements"] == sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())


@pytest.mark.long
def test_one_element_is_found_as_often_as_stated(targets, scratch):
    """k of N elements: with probability k / N. Forty seeds at a quarter: within four standard deviations of ten."""
    folder = changed(targets, scratch, flip_one)
    size = load_file(folder / "model.safetensors")[HALVES].numel()
    hits = sum(check(targets["source"], folder, "--self-check", size // 4, "--seed", seed)["wrong"] for seed in range(1, 41))
    assert 0 < hits <= 21


# --- in a run -----------------------------------------------------------------------------------------------------


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_checks_itself_before_it_publishes(ranks, targets, program, scratch):
    outcome = program.attempt(targets["torch_dist"], scratch / "there", "megatron", ranks=ranks, target_options={"layout": Layout(tp=4, pp=3).toml()},
                              run={"self_check": 20}, arguments=("--json",))
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)["run"]["self_check"]
    assert report["wrong"] == 0 and report["elements"] > 1000 and report["not_covered"] == 0
    again = check(targets["torch_dist"], scratch / "there", "--self-check", 20, "--seed", report["seed"])
    assert again["elements"] == report["elements"]


@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: every write arrives")
def test_what_a_disk_lost_without_a_word_is_not_published(targets, program, scratch):
    outcome = program.attempt(targets["torch_dist"], scratch / "there", "huggingface", ranks=1, run={"self_check": 20, "verify": "streamed", "io": "posix"},
                              exports={"LD_PRELOAD": SHIM, "RESHARD_CALLS": "pwritev2:.safetensors:ok"})
    assert outcome.returncode == 7 and "elements are not those of the source" in outcome.stderr and "Nothing was published" in outcome.stderr, outcome.stderr
    assert not (scratch / "there").exists()


def test_kept_names_and_prefixes(targets, program, scratch):
    outcome = program.attempt(targets["huggingface"], scratch / "there", "dcp", source_options={"prefix": "model."}, target_options={"prefix": "inner."},
                              run={"self_check": 20}, arguments=("--json",))
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)["run"]["self_check"]
    assert report["wrong"] == 0 and report["elements"] > 1000 and report["not_covered"] == 0


# --- computed values ----------------------------------------------------------------------------------------------


@pytest.mark.long_but("dense")
@pytest.mark.parametrize("name", QUANTISED)
def test_dequantised_values_are_compared_through_their_scales(name, program, scratch):
    model = Quantised(QUANTISED[name][0])
    source = model.folder(scratch / "source")
    there = program.to_hf(source, scratch / "there", model={"quant": "dequantise-bf16"}, run={"self_check": 30})
    found = check(source, there, "--self-check", 30)
    assert found["wrong"] == 0 and found["converted"] > 100 and found["computed"] + found["unplaced"] == 0
    for record in RECORDS:
        (there / record).unlink()
    state = load_file(there / "model.safetensors")
    name = next(name for name in state if "q_proj.weight" in name)
    state[name][0] = -state[name][0]
    save_file(state, there / "model.safetensors", metadata={"format": "pt"})
    found = check(source, there, "--self-check", 1_000_000)
    assert found["wrong"] and "times the scale" in found["faults"][0]


def test_optimizer_state_is_compared_and_flat_buffers_are_counted(program, scratch):
    config = cases.QWEN3.with_(layers=2, dtype="float32")
    root = write_training(scratch / "source", Training(config), Layout(tp=2), LOCAL, random.Random(5))
    there = program.run(root, scratch / "hdf5", "hdf5", run={"self_check": 10})
    found = check(root, there, "--self-check", 10)
    assert found["wrong"] == 0 and found["tensors"] > 40 and found["not_covered"] == 0
    files = program.run(there, scratch / "files", "megatron", target_options={"layout": Layout(tp=2).toml()})
    flat = check(there, files, "--self-check", 10)
    assert flat["wrong"] == 0 and flat["not_covered"] > 0 and flat["not_covered_names"]
