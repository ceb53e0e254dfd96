"""Two descriptions of one model in one job: which of them counts, that the other is told of with key and both values, and that a target never says two
things. What is published computes what it says: logits, not only members.
"""

import json
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import family_models_hybrid
from config_cases import SETTINGS, family_of
from family_models import GLM, Family, dense, logits_of, save_family
from megatron_args import args_of
from peer_types import Layout
from reshard_job import BINARY

MODEL = family_of(SETTINGS["llama, rope linear"])
LAYOUTS = {"megatron": {"layout": "{ tp = 2 }"}, "torch_dist": {"layout": "{ tp = 2 }"}}


@pytest.fixture
def folder(scratch):
    folder = save_family(scratch / "model", MODEL)
    (folder / "tokenizer.json").write_text('{"a tokenizer": true}\n')
    return folder


@pytest.fixture
def convert(program):
    """Runs a job and gives back all that it said, in one line."""

    def run(source, target, form, code=0, options=None, **others):
        outcome = program.attempt(source, target, form, ranks=1, target_options=LAYOUTS.get(form, {}) | (options or {}), **others)
        assert outcome.returncode == code, outcome.stderr[-3000:]
        return " ".join((outcome.stdout + outcome.stderr).split())

    return run


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def other_config(folder, target, **changes):
    """A copy of a folder without its weights, whose config says otherwise."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    (target / "config.json").write_text(json.dumps(config_of(folder) | changes))
    return target


def described(folder, target, **changes):
    """The weights of one config under another: what a target that says so computes."""
    shutil.copytree(folder, target)
    (target / "config.json").write_text(json.dumps(config_of(folder) | changes))
    return logits_of(target, MODEL)


def files(folder):
    return {path.name for path in folder.iterdir() if path.name not in ("reshard.json", "SHA256SUMS", "model.safetensors", "model.h5")}


def computes_as(folder, other):
    return torch.equal(logits_of(folder, MODEL), logits_of(other, MODEL))


# --- source.config ------------------------------------------------------------------------------------------------


@pytest.mark.long_but("megatron")
@pytest.mark.parametrize("form", ["megatron", "torch_dist"])
def test_source_config_is_what_hugging_face_gets(form, convert, folder, scratch):
    """… with what lies beside it; a config.json alone takes the files that travelled."""
    convert(folder, scratch / "tree", form)
    named = other_config(folder, scratch / "named")
    (named / "merges.txt").write_text("a b\n")
    convert(scratch / "tree", scratch / "back", "huggingface", source_options={"config": named})
    assert files(scratch / "back") == files(named)
    (scratch / "alone").mkdir()
    shutil.copy(named / "config.json", scratch / "alone" / "config.json")
    shutil.move(scratch / "alone" / "config.json", scratch / "alone" / "other.json")
    convert(scratch / "tree", scratch / "again", "huggingface", source_options={"config": scratch / "alone" / "other.json"})
    assert files(scratch / "again") == files(folder)
    assert computes_as(scratch / "back", folder) and computes_as(scratch / "again", folder)


@pytest.mark.long_but("torch_dist-megatron")
@pytest.mark.parametrize("there, then", [("torch_dist", "megatron"), ("megatron", "torch_dist"), ("megatron", "hdf5"), ("megatron", "huggingface")])
def test_args_count_before_source_config(there, then, convert, folder, scratch):
    convert(folder, scratch / "tree", there)
    named = other_config(folder, scratch / "named", rms_norm_eps=0.1)
    said = convert(scratch / "tree", scratch / "target", then, source_options={"config": named})
    assert "rms_norm_eps was 0.1, the checkpoint's args give 1e-06" in said
    for found in (scratch / "target").rglob("config.json"):
        assert json.loads(found.read_text())["rms_norm_eps"] == 1e-6
    if then in LAYOUTS:
        assert args_of(scratch / "target").norm_epsilon == 1e-6
    if then != "huggingface":
        assert "rms_norm_eps" not in convert(scratch / "target", scratch / "back", "huggingface")
    assert computes_as(scratch / ("target" if then == "huggingface" else "back"), folder)


def test_source_config_of_another_model_is_refused(convert, folder, scratch):
    convert(folder, scratch / "tree", "megatron")
    named = other_config(folder, scratch / "named", num_hidden_layers=4)
    said = convert(scratch / "tree", scratch / "target", "torch_dist", code=3, source_options={"config": named})
    assert "layer is 4 in" in said and "and 5 in args" in said and "check source.config" in said


@pytest.mark.long_but("hdf5")
@pytest.mark.parametrize("there", ["huggingface", "hdf5"])
def test_source_config_counts_before_a_config(there, convert, folder, scratch):
    source = folder
    if there == "hdf5":
        convert(folder, scratch / "hdf5", "hdf5")
        source = scratch / "hdf5"
    named = other_config(folder, scratch / "named", rms_norm_eps=0.1)
    said = convert(source, scratch / "target", "huggingface", source_options={"config": named})
    assert "rms_norm_eps is 0.1 and 1e-06" in said and "source.config is used" in said
    assert torch.equal(logits_of(scratch / "target", MODEL), described(folder, scratch / "as-said", rms_norm_eps=0.1))
    convert(source, scratch / "tree", "megatron", source_options={"config": named})
    assert args_of(scratch / "tree").norm_epsilon == 0.1 and config_of(scratch / "tree" / "huggingface")["rms_norm_eps"] == 0.1


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("form", ["huggingface", "megatron"])
def test_the_config_inside_a_container_counts_before_the_one_beside(form, convert, folder, scratch):
    convert(folder, scratch / "hdf5", "hdf5")
    (scratch / "hdf5" / "config.json").write_text(json.dumps(config_of(folder) | dict(rms_norm_eps=0.1)))
    said = convert(scratch / "hdf5", scratch / "target", form)
    assert "rms_norm_eps is 1e-06 and 0.1" in said and "The one inside is used" in said
    if form == "megatron":
        assert args_of(scratch / "target").norm_epsilon == 1e-6 and config_of(scratch / "target" / "huggingface") == config_of(folder)
    else:
        assert files(scratch / "target") == files(folder) and computes_as(scratch / "target", folder)


# --- target.reference ---------------------------------------------------------------------------------------------


@pytest.mark.long_but("rms_norm_eps-*-huggingface")
@pytest.mark.parametrize("there", ["huggingface", "megatron"])
@pytest.mark.parametrize("key, value, was", [("rms_norm_eps", 0.1, 1e-6), ("hidden_act", "gelu", "silu")])
def test_a_reference_that_says_otherwise(there, key, value, was, convert, folder, scratch):
    if there == "megatron":
        convert(folder, scratch / "tree", "megatron")
    reference = other_config(folder, scratch / "reference", **{key: value})
    source = folder if there == "huggingface" else scratch / "tree"
    said = convert(source, scratch / "target", "huggingface", options={"reference": reference})
    assert f"{key} is {json.dumps(value)} and {json.dumps(was)}" in said
    assert torch.equal(logits_of(scratch / "target", MODEL), described(folder, scratch / "as-said", **{key: value}))


@pytest.mark.long_but("auto-vocab_size-70", "none-num_hidden_layers-3")
@pytest.mark.parametrize("key, value", [("num_key_value_heads", 1), ("vocab_size", 70), ("num_hidden_layers", 3)])
@pytest.mark.parametrize("kept", ["auto", "none"])
def test_a_reference_of_other_sizes(key, value, kept, convert, folder, scratch):
    reference = other_config(folder, scratch / "reference", **{key: value})
    said = convert(folder, scratch / "target", "huggingface", code=3, options={"reference": reference}, model={"map": kept})
    assert f"{key} is {value} and {config_of(folder)[key]}" in said


def test_a_reference_of_another_family(convert, folder, scratch):
    reference = other_config(folder, scratch / "reference", model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    said = convert(folder, scratch / "target", "huggingface", code=3, options={"reference": reference})
    assert "10 of the" in said and "q_norm.weight" in said


# --- names --------------------------------------------------------------------------------------------------------


def test_logical_names_are_no_model(convert, folder, scratch):
    convert(folder, scratch / "hdf5", "hdf5")
    assert "logical names of the HDF5 container" in convert(scratch / "hdf5", scratch / "dcp", "dcp")
    said = convert(scratch / "dcp", scratch / "target", "huggingface", code=3)
    assert "model.layers.0.input_layernorm.weight" in said and "random values" in said and "attn.k" in said


@pytest.mark.long
def test_names_of_another_program(convert, folder, scratch):
    """… are written as they are only where the job says so."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.layers.", "layers.").replace("model.embed_tokens", "tok_embeddings"): value for name, value in tensors.items()}
    dcp.save(renamed, checkpoint_id=scratch / "dcp", no_dist=True)
    shutil.copy(folder / "config.json", scratch / "dcp")
    convert(scratch / "dcp", scratch / "target", "huggingface", code=3)
    said = convert(scratch / "dcp", scratch / "target", "huggingface", model={"map": "none"})
    assert "warning" in said and "random values" in said
    shutil.rmtree(scratch / "dcp")
    dcp.save(tensors, checkpoint_id=scratch / "dcp", no_dist=True)
    shutil.copy(folder / "config.json", scratch / "dcp")
    said = convert(scratch / "dcp", scratch / "good", "huggingface")
    assert [line for line in said.splitlines() if "warning" in line and "no tokenizer" not in line] == []
    assert computes_as(scratch / "good", folder)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_files_of_dcp_reach_hdf5(convert, folder, scratch):
    convert(folder, scratch / "dcp", "dcp")
    convert(scratch / "dcp", scratch / "hdf5", "hdf5")
    assert files(scratch / "hdf5") == files(folder)
    convert(scratch / "hdf5", scratch / "again", "hdf5")
    for number, place in enumerate(("hdf5", "again")):
        convert(scratch / place, scratch / f"back{number}", "huggingface")
        assert files(scratch / f"back{number}") == files(folder) and computes_as(scratch / f"back{number}", folder)


@pytest.mark.long
def test_verify_finds_the_config_of_a_dcp_folder(convert, folder, scratch):
    convert(folder, scratch / "dcp", "dcp")
    convert(folder, scratch / "tree", "megatron")
    for pair in (("dcp", "tree"), ("tree", "dcp")):
        outcome = subprocess.run([BINARY, "verify", *(str(scratch / name) for name in pair)], capture_output=True, text=True, timeout=120)
        assert outcome.returncode == 0 and "same" in outcome.stdout, outcome.stderr + outcome.stdout


# --- layers for multi-token prediction ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_count_of_layers_that_is_changed_is_told(convert, scratch):
    """save_pretrained writes none of these layers, whatever config.json says."""
    folder = save_family(scratch / "model", Family(dense("Glm4Moe", **GLM | dict(num_nextn_predict_layers=1)), Layout(), Layout()))
    convert(folder, scratch / "tree", "megatron")
    said = convert(scratch / "tree", scratch / "back", "huggingface")
    assert "config.json is changed: num_nextn_predict_layers = 0" in said
    assert config_of(scratch / "back") == config_of(folder) | dict(num_nextn_predict_layers=0)


@pytest.mark.long
def test_a_hybrid_model_of_args_alone_can_be_loaded(convert, scratch):
    model = Family(family_models_hybrid.mamba("M*-ME"), Layout(), Layout(), dtype=torch.float32)
    folder = save_family(scratch / "model", model)
    convert(folder, scratch / "tree", "megatron")
    shutil.rmtree(scratch / "tree" / "huggingface")
    convert(scratch / "tree", scratch / "back", "huggingface")
    assert torch.equal(logits_of(scratch / "back", model), logits_of(folder, model))
