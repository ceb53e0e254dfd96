"""`reshard extract`: a safetensors file with logical tensors of any format and layout, against tensors gathered without the program's maps."""

import json
import os
import shutil
import subprocess
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file

import cases
import hf_models
from logical_tensors import logical_tensors
from numpy_megatron import write_tree
from peer_types import LOCAL, TE_GROUPED, Layout
from quantised_folders import layer_of, quantise_folder
from reshard_job import BINARY, command
from tensor_patterns import make_globals
from test_quantised import saved

SHIM = os.environ.get("RESHARD_DELAY_SHIM")
pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")
NOT_NULL = {"tokenizer_type": "HuggingFaceTokenizer"}  # a null tokenizer counts one token more than vocab_size says
MODELS = {
    "dense": (cases.QWEN2.with_(layers=2), Layout(tp=2, pp=2), LOCAL),
    "moe": (cases.QWEN3_MOE.with_(layers=4, moe_layers=(1, 2, 3)), Layout(tp=2, ep=2), TE_GROUPED)}


def extract(path, output, *words, ranks=1):
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    outcome = subprocess.run([*launcher, BINARY, "extract", path, *words, "-o", output], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    assert [path.name for path in output.parent.glob(f".{output.name}*")] == []
    return load_file(output)


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def source_of(name, form, program, scratch):
    config, layout, spec = MODELS[name]
    if form == "megatron":
        return write_tree(scratch / "tree", config, layout, spec, make_globals(config), enums=NOT_NULL)
    folder = hf_models.save_hf(scratch / "hf", config, make_globals(config), "40KB")
    if form == "huggingface":
        return folder
    if form == "dcp":
        dcp.save(dict(hf_models.read_hf(folder)), checkpoint_id=scratch / "dcp", no_dist=True)
        return scratch / "dcp"
    return program.run(folder, scratch / form, form, target_options={"layout": layout.toml()} if form == "torch_dist" else {})


@pytest.mark.long_but("megatron-moe")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["megatron", "huggingface", "torch_dist", "hdf5", "dcp"])
def test_all_tensors_are_the_gathered_ones(form, name, program, scratch):
    source = source_of(name, form, program, scratch)
    config = MODELS[name][0]
    expected = logical_tensors(config, make_globals(config))
    words = ("--config", scratch / "hf" / "config.json") if form == "dcp" else ()
    output = scratch / "all.safetensors"
    same(extract(source, output, "*", *words, ranks=3), {name: tensor.values for name, tensor in expected.items()})
    with safe_open(output, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    described = json.loads(metadata["reshard"])["tensors"]
    assert {name: tuple(one["axes"]) for name, one in described.items()} == {name: tensor.axes for name, tensor in expected.items()}
    if config.experts:
        assert described["experts.gate"]["indices"] == {"layer": [[1, 4]]} and "indices" not in described["attn.q"]


@pytest.mark.long_but("megatron")
@pytest.mark.parametrize("form", ["megatron", "huggingface", "torch_dist"])
def test_one_layer_and_one_expert_are_cut_out(form, program, scratch):
    source = source_of("moe", form, program, scratch)
    config = MODELS["moe"][0]
    all_of = {name: tensor.values for name, tensor in logical_tensors(config, make_globals(config)).items()}
    output = scratch / "part.safetensors"
    same(extract(source, output, "experts.*", "router.*", "--at", "layer=2,expert=1", ranks=2), {
        name: all_of[name][1, 1] for name in ("experts.gate", "experts.up", "experts.down", "router.weight")})
    layer = extract(source, output, "*", "--at", "layer=0", "--force")
    dense = {name: tensor[0] for name, tensor in all_of.items() if name.startswith(("attn.", "ffn."))}
    same(layer, dense)
    same(extract(source, output, "attn.q", "--at", "head=1", "--force"), {"attn.q": all_of["attn.q"][:, :, 1]})
    by_name = extract(source, output, "layer.2.experts.*", "layer.*.expert.1.experts.up", "experts.up", "--force", ranks=2)
    same(by_name, {f"layer.2.{name}": all_of[name][1] for name in ("experts.gate", "experts.up", "experts.down")} | {"experts.up": all_of["experts.up"]}
         | {f"layer.{layer}.expert.1.experts.up": all_of["experts.up"][layer - 1, 1] for layer in (1, 2, 3)})


def found_bytes(tensors):
    return sorted((str(tensor.dtype), bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())) for tensor in tensors.values())


@pytest.mark.long_but("fp8_block")
@pytest.mark.parametrize("scheme", ["fp8_block", "fp8_tensor", "int4_packed", "nvfp4"])
def test_a_quantised_weight_is_its_parts(scheme, program, scratch):
    """Layer 1 is not quantised: it is what is left of the weight itself."""
    folder = saved("llama", scratch / "source")
    quantise_folder(folder, lambda name: None if layer_of(name) == 1 else scheme)
    stored = hf_models.read_hf(folder)
    found = extract(folder, scratch / "down.safetensors", "ffn.down")
    same({"ffn.down": found.pop("ffn.down")}, {"ffn.down": stored["model.layers.1.mlp.down_proj.weight"][None]})
    assert found
    parts = {name.rsplit("down_proj.")[-1]: torch.stack([stored[name], stored[name.replace(".0.", ".2.")]])
             for name in stored if name.startswith("model.layers.0.mlp.down_proj.")}
    assert found_bytes(found) == found_bytes(parts)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    config = MODELS["dense"][0]
    return hf_models.save_hf(tmp_path_factory.mktemp("extract") / "hf", config, make_globals(config), "40KB")


@pytest.mark.parametrize("words, code, text", [
    (["attn.qq"], 2, "did you mean 'attn.q"), (["nothing.*"], 2, "ls PATH --logical"), (["attn.q", "--at", "layer=9"], 2, "layer from 0 to 1"),
    (["attn.q", "--at", "expert=0"], 2, "no such axis"), (["attn.q", "--at", "layer"], 2, "layer=3"), (["attn.q", "--at", "layer=1,layer=0"], 2, "two indices"),
    (["layer.1.attn.q", "--at", "layer=0"], 2, "two indices"), (["layer.9.attn.q", "attn.k"], 2, "layer.9.attn.q: none"),
    (["layer.1.attn.qq"], 2, "did you mean 'layer.1.attn.q'"), (["layer.0.final_norm"], 2, "no such axis")])
def test_what_is_not_there_is_refused(words, code, text, small, scratch):
    outcome = command("extract", small, *words, "-o", scratch / "out.safetensors")
    assert outcome.returncode == code and text in outcome.stderr, outcome.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(not SHIM, reason="RESHARD_DELAY_SHIM is not set: the file may be written before the source changes")
def test_a_source_that_changes_meanwhile_leaves_no_file(small, scratch):
    source, out, slowly = shutil.copytree(small, scratch / "source"), scratch / "out", scratch / "milliseconds"
    out.mkdir()
    slowly.write_text("1000")
    exports = {"LD_PRELOAD": SHIM, "RESHARD_DELAY_PATH": str(out), "RESHARD_DELAY_FILE": str(slowly)}
    process = subprocess.Popen([BINARY, "extract", source, "*", "-o", out / "x.safetensors"], env=os.environ | exports, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(out.iterdir()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    changed = next(source.glob("*.safetensors"))
    with changed.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"x")
    slowly.unlink()
    _, words = process.communicate(timeout=60)
    assert process.returncode == 5 and f"{changed}: changed while it was read" in words, words
    assert list(out.iterdir()) == []


def test_a_file_is_replaced_only_on_request_and_never_in_the_checkpoint(small, scratch):
    output = scratch / "out.safetensors"
    output.write_text("mine")
    refused = command("extract", small, "attn.q", "-o", output)
    assert refused.returncode == 4 and "--force" in refused.stderr and output.read_text() == "mine"
    assert command("extract", small, "attn.q", "-o", output, "--force").returncode == 0 and set(load_file(output)) == {"attn.q"}
    inside = command("extract", small, "attn.q", "-o", small / "more.safetensors")
    assert inside.returncode == 4 and "is inside the checkpoint" in inside.stderr and not (small / "more.safetensors").exists()
    folder = command("extract", small, "attn.q", "-o", scratch, "--force")
    assert folder.returncode == 4 and "not a regular file" in folder.stderr
