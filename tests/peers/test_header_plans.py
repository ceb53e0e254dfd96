"""A model of 108 layers and 512 experts is planned from its headers alone, and its quantisation is described expert by expert."""

import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from header_checkpoints import config_of, header_checkpoint, quantised, stored_tensors
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout
from quantised_folders import layer_of, quantise_folder, stored_bits
from reshard_job import BINARY, job_text

pytestmark = pytest.mark.long

HEADER_TREE = os.environ.get("RESHARD_HEADER_TREE")
EXPERTS, EP, PP = 512, 8, 9
ALGORITHMS = {"nvfp4": {"quant_algo": "NVFP4", "group_size": 16}, "fp8_tensor": {"quant_algo": "FP8"}}


def scheme_of(name):
    """Experts in NVFP4, shared experts and every fourth layer's Mamba output in FP8; multi-token prediction and all else in BF16."""
    if not name.startswith("backbone.layers.") or not name.endswith("_proj.weight"):
        return None
    if ".experts." in name:
        return "nvfp4"
    mamba = name.endswith("mixer.out_proj.weight") and layer_of(name) % 4 == 0
    return "fp8_tensor" if ".shared_experts." in name or mamba else None


def roomy_memory():
    """200,000 headers are scattered over sparse files: a file system in memory takes them, and gives them up, much faster than a disk."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and shutil.disk_usage(memory).free > 4 << 30 else None


@pytest.fixture(scope="module")
def nemotron():
    folder = Path(tempfile.mkdtemp(prefix="reshard-headers-", dir=roomy_memory()))
    config = config_of("nemotron-3-ultra-class")
    header_checkpoint(folder / "hf", config, quantised(stored_tensors(config), scheme_of))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def headers(folder):
    """Name -> dtype and shape, of every file of a folder; the files have their full size."""
    result = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        assert path.stat().st_size == 8 + length + max(entry["data_offsets"][1] for entry in header.values())
        result |= {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}
    return result


def megatron_job(folder):
    job = folder / "to_megatron.toml"
    layout = {"layout": f"{{ tp = 1, pp = {PP}, ep = {EP}, etp = 1 }}"}
    job.write_text(job_text(folder / "hf", folder / "megatron", "megatron", {}, layout, {}, {"memory": "512 MiB"}))
    return job


def checked(command):
    """Nothing is written, so the disk need not be large enough."""
    large_disk = {"LD_PRELOAD": os.environ["RESHARD_CALL_SHIM"], "RESHARD_FREE_BYTES": str(1 << 42)}
    outcome = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | large_disk)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return json.loads(outcome.stdout)


def stored_in_megatron(config):
    """Stored tensors of all ranks of Megatron-Core with Transformer Engine: what all EP ranks of a stage have, and the experts of each."""
    layers = {"M": 9, "*": 3, "E": 7 + 2 * EXPERTS // EP}
    letters = config["hybrid_override_pattern"]
    count = sum(layers[letter] for letter in letters)
    count += letters.count("E") * (2 * EXPERTS // EP * 3 + 2 * 2)  # NVFP4 has four parts, FP8 has three
    count += 2 * sum(letter == "M" and layer % 4 == 0 for layer, letter in enumerate(letters))
    count += 4 + sum(layers[letter] for letter in config["mtp_hybrid_override_pattern"])
    return EP * (count + 4)  # the embedding twice, the last stage needs it; final norm and head


@pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
def test_every_layer_and_expert_is_planned_within_seconds(nemotron):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = checked([BINARY, "plan", megatron_job(nemotron), "--json"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    config = config_of("nemotron-3-ultra-class")
    assert len(config["hybrid_override_pattern"]) == 108 and config["n_routed_experts"] == EXPERTS
    plan = report["plan"]
    assert plan["target_files"] == PP * EP
    assert plan["source_tensors"] == len(headers(nemotron / "hf"))
    assert plan["target_tensors"] == stored_in_megatron(config)
    assert plan["regions"] >= plan["target_tensors"]
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 30, f"{used:.1f} s of CPU"
    assert after.ru_maxrss < 2 << 20, f"{after.ru_maxrss} KiB"


@pytest.mark.skipif(not HEADER_TREE, reason="RESHARD_HEADER_TREE is not set: nothing makes a tree of headers")
def test_512_experts_of_every_layer_come_back_from_pp9_ep8(nemotron):
    checked([HEADER_TREE, megatron_job(nemotron), nemotron / "megatron"])
    job = nemotron / "to_hf.toml"
    job.write_text(job_text(nemotron / "megatron", nemotron / "back", "huggingface", {}, {}, {}, {"memory": "512 MiB"}))
    checked([HEADER_TREE, job, nemotron / "back"])
    source = headers(nemotron / "hf")
    assert headers(nemotron / "back") == source
    wanted = {}
    for name in source:
        module = name.removesuffix(".weight")
        if module != name and (scheme := scheme_of(name)):
            wanted[module] = ALGORITHMS[scheme]
    listed = json.loads((nemotron / "back" / "hf_quant_config.json").read_text())["quantization"]
    assert listed["quantized_layers"] == wanted
    moe_layers = config_of("nemotron-3-ultra-class")["hybrid_override_pattern"].count("E")
    assert sum(".experts." in name for name in wanted) == moe_layers * EXPERTS * 2
    assert not set(listed["exclude_modules"]) & set(wanted)
    assert sum(".experts." in name for name in listed["exclude_modules"]) == EXPERTS * 2  # multi-token prediction is BF16


@pytest.mark.parametrize("form", [TE_GROUPED, TE_SEQUENTIAL], ids=lambda form: form.experts)
def test_descriptions_have_global_experts_whatever_form_they_had(form, program, scratch):
    """Twelve experts, three on each rank: the third rank's local expert 1 is expert 7, on the way there and on the way back."""
    sizes = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=64, intermediate_size=64)
    config = Qwen3MoeConfig(num_hidden_layers=3, num_experts=12, moe_intermediate_size=32, num_experts_per_tok=2, decoder_sparse_step=1, **sizes)
    torch.manual_seed(4)
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(scratch / "hf")
    schemes = {0: "nvfp4", 1: None, 2: "fp8_tensor"}
    quantise_folder(scratch / "hf", lambda name: schemes[layer_of(name)] if ".experts." in name else None)
    megatron = program.to_megatron(scratch / "hf", scratch / "megatron", Layout(tp=2, pp=3, ep=4, etp=1), form)
    back = program.to_hf(megatron, scratch / "back", ranks=3)
    assert stored_bits(back) == stored_bits(scratch / "hf")
    wanted = {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj": ALGORITHMS[scheme]
        for layer, scheme in schemes.items()
        if scheme
        for expert in range(12)
        for part in ("gate", "up", "down")
    }
    listed = json.loads((back / "hf_quant_config.json").read_text())["quantization"]
    assert listed["quantized_layers"] == wanted
    described = json.loads((back / "config.json").read_text())["quantization_config"]
    assert described["quantized_layers"] == wanted
    assert sorted(name for group in described["config_groups"].values() for name in group["targets"]) == sorted(wanted)
