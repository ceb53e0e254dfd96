"""The GPU path writes the bytes of the host path. Here with the emulated device, which runs the kernels' functions on the host: without a GPU this shows
that rounds, programs, uploads, messages and downloads fit together; that a GPU computes the same is what tests/gpu shows."""

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp

import random_layouts
from numpy_megatron import write_tree
from peer_types import LOCAL, Layout
from quantised_folders import quantise_folder
from reshard_job import tree_hashes
from tensor_patterns import make_globals
from test_quantised import saved
from tree_checks import check_tree, with_written_norms

PATHS = [(1, "auto"), (2, "auto"), (2, "mpi"), (3, "mpi"), (4, "mpi"), (7, "mpi")]
PAIRS = random_layouts.pairs(12, 20261121)
SCHEMES = ["fp8_block", "nvfp4", "int4_packed", "fp8_tensor"]


def on_device(transport="auto", **more):
    return {"device": "emulated", "transport": transport, **more}


@pytest.mark.long_but("08-*", "10-*")
@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[pair[0] for pair in PAIRS])
def test_any_layout_to_any_other(number, program, scratch):
    _, config, source_form, source, target_form, target = PAIRS[number]
    original = write_tree(scratch / "source", config, source, source_form, make_globals(config))
    ranks, transport = PATHS[number % len(PATHS)]
    there = program.to_megatron(original, scratch / "there", target, target_form, ranks=ranks, run=on_device(transport))
    check_tree(there, config, target, with_written_norms(target_form, there, source_form), make_globals(config))
    host = program.to_megatron(original, scratch / "host", target, target_form, ranks=2)
    assert tree_hashes(there) == tree_hashes(host)


@pytest.mark.long_but("0", "6")
@pytest.mark.parametrize("number", range(8))
def test_dequantised_values(number, program, scratch):
    scheme, (ranks, transport) = SCHEMES[number % 4], PATHS[(number + number // 4) % 4]
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: scheme)
    options = {"model": {"quant": "dequantise-bf16"}}
    found = program.to_megatron(source, scratch / "device", Layout(tp=2, pp=3), LOCAL, ranks=ranks, run=on_device(transport), **options)
    host = program.to_megatron(source, scratch / "host", Layout(tp=2, pp=3), LOCAL, **options)
    assert tree_hashes(found) == tree_hashes(host)


def test_small_memory_of_the_device_makes_more_rounds(program, scratch):
    source = saved("llama", scratch / "source")
    host = program.to_megatron(source, scratch / "host", Layout(tp=4), LOCAL)
    for number, size in enumerate(["4 MiB", "1 MiB"]):
        found = program.to_megatron(source, scratch / f"device{number}", Layout(tp=4), LOCAL, memory="8 MiB", run=on_device(device_memory=size))
        assert tree_hashes(found) == tree_hashes(host)


def test_a_trace_shows_every_stage(program, scratch):
    source = saved("llama", scratch / "source")
    outcome = program.attempt(source, scratch / "target", "megatron", target_options={"layout": "{ tp = 2 }"}, run=on_device("mpi"),
                              arguments=["--trace", str(scratch / "run.trace"), "--json"])
    assert outcome.returncode == 0, outcome.stderr
    events = json.loads((scratch / "run.trace").read_text())["traceEvents"]
    lanes = {(event["pid"], event["name"].split()[0]) for event in events if event["ph"] == "X"}
    assert lanes >= {(rank, lane) for rank in (0, 1) for lane in ("read", "upload", "pack", "download", "write")}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    report = json.loads(outcome.stdout)
    assert report["plan"]["device"] == "emulated" and report["plan"]["transport"] == "mpi"
    assert report["run"]["bytes_uploaded"] > 0 and report["run"]["bytes_downloaded"] > 0


def test_bytes_that_only_move_stay_on_the_host(program, scratch):
    tensors = {f"w{i}": torch.randint(0, 256, (512, 2048), dtype=torch.uint8) for i in range(8)}
    dcp.save(tensors, checkpoint_id=scratch / "source", no_dist=True)
    outcome = program.attempt(scratch / "source", scratch / "target", "dcp", run=on_device(), arguments=["--json"])
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["run"]["bytes_uploaded"] == 0 and report["run"]["bytes_written"] >= 8 * 512 * 2048
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(found, checkpoint_id=scratch / "target", no_dist=True)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_trace_takes_no_place_of_the_job_or_of_others(program, scratch):
    source = saved("llama", scratch / "source")
    before = tree_hashes(source)
    (scratch / "notes").write_text("mine")
    target = scratch / "target"
    for place in (source / "model.safetensors", source / "run.trace", target / "run.trace", scratch / ".target.part", scratch / "notes", scratch,
                  scratch / "missing" / "run.trace", ""):
        outcome = program.attempt(source, target, "megatron", arguments=["--trace", str(place)])
        assert outcome.returncode == 2, (place, outcome.stdout, outcome.stderr)
        assert ("Choose another path" if place else "the path is empty") in outcome.stderr and not target.exists()
    assert tree_hashes(source) == before and (scratch / "notes").read_text() == "mine"


@pytest.mark.long
def test_many_small_pieces_keep_to_the_memory(program, scratch):
    """Their records lie near each other: reading one reads its neighbours along."""
    tensors = {f"w{i:05d}": torch.randint(0, 256, (7, 3), dtype=torch.uint8) for i in range(6000)}
    dcp.save(tensors, checkpoint_id=scratch / "source", no_dist=True)
    options = {"chunks": "mesh", "mesh": "a=2 b=3", "placements": "*: S1 S0"}
    for device in ("host", "emulated"):
        outcome = program.attempt(scratch / "source", scratch / device, "dcp", ranks=3, target_options=options, memory="1 MiB",
                                  run={"device": device, "transport": "mpi"})
        assert outcome.returncode == 0, outcome.stderr
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        dcp.load(found, checkpoint_id=scratch / device, no_dist=True)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_without_a_gpu_the_path_is_chosen_or_refused_with_the_reason(device, program, scratch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    source = saved("llama", scratch / "source")
    outcome = program.attempt(source, scratch / "target", "megatron", target_options={"layout": "{ tp = 2 }"}, run={"device": device},
                              arguments=["--verbose"])
    if device == "auto":
        assert outcome.returncode == 0 and "device      host memory: " in outcome.stdout and "a GPU would not be faster" in outcome.stdout
    else:
        assert outcome.returncode == 6 and 'run.device = "host"' in outcome.stderr and not (scratch / "target").exists()


def test_nccl_without_a_gpu_is_refused(program, scratch):
    source = saved("llama", scratch / "source")
    host = program.attempt(source, scratch / "target", "megatron", run={"transport": "nccl", "device": "host"})
    assert host.returncode == 2 and "run.transport" in host.stderr
    if not torch.cuda.is_available():
        alone = program.attempt(source, scratch / "target", "megatron", run={"transport": "nccl"})
        assert alone.returncode == 6 and "has no GPU" in alone.stderr
