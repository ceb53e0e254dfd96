"""`verify`, `diff` and their sisters on checkpoints that are not read without being told how: no false alarm, and advice that works."""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cases
import family_models_hybrid
import hf_models
import quantised_folders
import titan_checkpoints
from family_models import DENSE_A, FAMILIES, Family, dense, save_family
from hf_models import read_hf
from numpy_megatron import write_tree
from peer_types import LOCAL, Layout
from reshard_job import BINARY, MANIFEST, SUMS, command
from tensor_patterns import make_globals

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")

DATA = Path(__file__).parents[1] / "data"
DENSE = cases.LLAMA.with_(layers=2)


def said(outcome):
    return f"exit {outcome.returncode}\n{outcome.stdout[-2000:]}{outcome.stderr[-2000:]}"


def assert_same(*words):
    outcome = command(*words)
    assert outcome.returncode == 0, said(outcome)
    return outcome.stdout


def refused(code, *words):
    outcome = command(*words)
    assert outcome.returncode == code, said(outcome)
    return outcome.stdout + outcome.stderr


@pytest.fixture
def folder(scratch):
    return hf_models.save_hf(scratch / "model", DENSE, make_globals(DENSE))


@pytest.fixture
def wrapped(folder, scratch):
    """What a script saves of {"model": state_dict}."""
    state = {f"model.{name}": tensor for name, tensor in read_hf(folder).items()}
    dcp.save(state, checkpoint_id=scratch / "wrapped", no_dist=True)
    return scratch / "wrapped"


# --- a prefix -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_format, target, source", [
    ("huggingface", {"reference": "{folder}"}, {}), ("torch_dist", {"layout": "{{ tp = 2 }}"}, {"config": "{folder}"}), ("dcp", {}, {})],
    ids=["huggingface", "torch_dist", "dcp"])
def test_a_target_says_how_its_source_is_read(target_format, target, source, folder, wrapped, program, scratch):
    target, source = ({key: value.format(folder=folder) for key, value in options.items()} for options in (target, source))
    made = program.run(wrapped, scratch / "made", target_format, source_options={"prefix": "model."} | source, target_options=target)
    text = assert_same("verify", wrapped, made)
    assert "same:" in text and 'prefix = "model."' in text, text
    assert_same("verify", made, wrapped)
    assert_same("diff", wrapped, made)
    assert_same("verify", made)
    moved = shutil.move(wrapped, scratch / "moved")  # its contents fit
    if target_format != "dcp":
        assert_same("verify", moved, made)
    (made / MANIFEST).unlink()
    (made / SUMS).unlink()
    options = ["--prefix-a", "model.", *([] if target_format == "dcp" else ["--config-a", folder])]
    assert_same("verify", moved, made, *options)
    if target_format != "dcp":
        assert "read behind 'model.'" in assert_same("verify", moved, made, "--config-a", folder)
        assert "read behind 'model.'" in assert_same("verify", made, moved, "--config-b", folder)
    changed = read_hf(folder)
    changed["model.norm.weight"][3] += 1
    dcp.save({f"model.{name}": tensor for name, tensor in changed.items()}, checkpoint_id=scratch / "changed", no_dist=True)
    refused(1, "verify", scratch / "changed", made, *options)


def test_commands_that_look_have_a_prefix(folder, wrapped, scratch):
    terms = ["--config", folder]
    for words in (["digest"], ["suspects"], ["ls", "--logical"]):
        assert "Give --prefix" in refused(3, words[0], wrapped, *words[1:], *terms, "--prefix", "mod")
        assert_same(words[0], wrapped, *words[1:], *terms)
        assert_same(words[0], wrapped, *words[1:], *terms, "--prefix", "model.")
    alone = assert_same("digest", folder).splitlines()[-1].split(",")[0]
    assert assert_same("digest", wrapped, *terms, "--prefix", "model.").splitlines()[-1].split(",")[0] == alone
    assert_same("extract", wrapped, "embed", "-o", scratch / "one.safetensors", *terms, "--prefix", "model.")
    (array,) = load_file(scratch / "one.safetensors").values()
    assert torch.equal(array, read_hf(folder)["model.embed_tokens.weight"])
    assert_same("view", wrapped, "-o", scratch / "page.html", *terms, "--prefix", "model.")
    assert "no prefix to remove" in refused(2, "digest", folder, "--prefix", "model.")
    assert "--map none" in refused(2, "verify", folder, wrapped, "--map-a", "none")


def test_names_of_a_target_with_a_prefix_are_read_without_it(folder, program, scratch):
    for name, options in (("kept", {}), ("named", {"map": "llama"})):
        target = program.run(folder, scratch / name, "dcp", target_options={"prefix": "model."} | options)
        assert_same("verify", target)
        assert_same("verify", folder, target)
        assert_same("suspects", target)


def test_torchtitans_names_are_compared(program, scratch):
    family = Family(dense("Qwen3", head_dim=16, tie_word_embeddings=True), DENSE_A, DENSE_A)
    folder = save_family(scratch / "folder", family)
    state = titan_checkpoints.state_dict(read_hf(folder), json.loads((folder / "config.json").read_text()), "0.3")
    source = titan_checkpoints.save(state, scratch / "step-10")
    made = program.run(source, scratch / "made", "torch_dist", source_options={"config": str(folder)}, model={"map": "torchtitan_qwen3"})
    assert_same("verify", source, made)
    assert_same("verify", made, source)
    terms = ["--map-a", "torchtitan_qwen3", "--config-a", folder]
    (made / MANIFEST).unlink()
    assert_same("verify", source, made, *terms)
    assert "--map-b" in refused(2, "verify", source, made, "--map", "torchtitan_qwen3", "--config-a", folder)
    written = program.run(folder, scratch / "written", "dcp", target_options={"map": "torchtitan_qwen3"})
    assert_same("verify", written)
    assert_same("verify", folder, written)


# --- what a job did on purpose -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_format, options", [
    ("megatron", {"optimizer": "inline"}), ("megatron", {"optimizer": "distributed"}), ("hdf5", {}), ("dcp", {})], ids=["inline", "distributed", "hdf5", "dcp"])
def test_optimizer_state_of_other_programs_is_compared(target_format, options, program, scratch):
    """What a DeepSpeed run of two ranks saved, and what was made of it."""
    with tarfile.open(DATA / "deepspeed.tar.xz") as archive:
        archive.extractall(scratch, filter="data")
    source = scratch / "zero2"
    layout = {"layout": "{ tp = 2 }"} if target_format == "megatron" else {}
    made = program.run(
        source, scratch / "made", target_format, source_options={"config": str(source)} if target_format == "hdf5" else {}, target_options=layout | options)
    for a, b in ((source, made), (made, source)):
        document = json.loads(assert_same("verify", a, b, "--json"))
        assert document["tensors_compared"] >= 84 and not document["config_differences"], document["summary"]


def test_rows_that_are_no_vocabulary_are_left_out(program, scratch):
    """Args that do not count the vocabulary leave the padded rows in it."""
    tree = write_tree(scratch / "tree", DENSE, Layout(tp=2), LOCAL, make_globals(DENSE))
    for file in tree.rglob("model_optim_rng.pt"):
        saved = torch.load(file, weights_only=False)
        del saved["args"].vocab_size
        torch.save(saved, file)
    made = program.run(tree, scratch / "made", "huggingface", model={"true_vocab_size": DENSE.vocab})
    assert "true_vocab_size" in assert_same("verify", tree, made)


@pytest.mark.parametrize("target_format, options", [("huggingface", {}), ("megatron", {"layout": "{ tp = 2 }"})], ids=["huggingface", "megatron"])
def test_values_that_were_computed_are_computed_again(target_format, options, program, scratch):
    source = save_family(scratch / "source", FAMILIES["llama"])
    quantised_folders.quantise_folder(source, lambda name: "fp8_channel")
    made = program.run(source, scratch / "made", target_format, target_options=options, model={"quant": "dequantise-bf16"})
    for a, b in ((source, made), (made, source)):
        assert "dequantise" in assert_same("verify", a, b)
    tensors = load_file(source / "model.safetensors")
    scale = next(name for name in tensors if name.endswith("o_proj.weight_scale"))
    tensors[scale][2] *= 2
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert "attn.o" in refused(1, "verify", source, made)


def test_a_cast_that_the_map_states_is_no_difference(program, scratch):
    folder = save_family(scratch / "source", family_models_hybrid.FAMILIES["deepseek-v3"])
    tensors = read_hf(folder)
    for file in folder.glob("*.safetensors"):
        held = load_file(file)
        for name in held:
            if name.endswith("e_score_correction_bias"):
                held[name] = held[name].bfloat16()
        save_file(held, file, metadata={"format": "pt"})
    assert any(name.endswith("e_score_correction_bias") for name in tensors)
    outcome = program.attempt(folder, scratch / "megatron", "megatron", arguments=["--json"])
    assert outcome.returncode == 0, said(outcome)
    program.to_hf(scratch / "megatron", scratch / "made", target_options={"reference": str(folder)})
    assert any("router.expert_bias is BF16 in the source and becomes F32" in text for text in json.loads(outcome.stdout)["warnings"])
    for words in ("verify", "diff"):
        assert_same(words, folder, scratch / "made")
    assert "BF16 in a, F32 in b" in assert_same("verify", folder, scratch / "made")
    for file in (scratch / "made").glob("*.safetensors"):
        held = load_file(file)
        for name in held:
            if name.endswith("e_score_correction_bias"):
                held[name][1] += 0.5
        save_file(held, file, metadata={"format": "pt"})
    assert "e_score_correction_bias" in refused(1, "verify", folder, scratch / "made")


# --- what lies around tensors -------------------------------------------------------------------------------------------


def test_headers_that_describe_tensors_are_compared(folder, scratch):
    shutil.copytree(folder, scratch / "other")
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    save_file(tensors, file, metadata={"format": "pt", "made_by": "a tool"})
    assert "made_by" in assert_same("verify", folder, scratch / "other")
    described = {"format": "pt", "model.layers.0.mlp.up_proj.weight": '{"_type": "Int8Tensor"}', "tensor_names": '["model.norm.weight"]'}
    save_file(tensors, file, metadata=described)
    text = refused(1, "verify", folder, scratch / "other")
    assert "__metadata__.tensor_names" in text and "other config" in text
    names = sorted(tensors)
    (scratch / "cut").mkdir()  # the same in two files
    shutil.copy(folder / "config.json", scratch / "cut")
    index = {name: f"{1 + (name in names[:3])}.safetensors" for name in names}
    for part in ("1.safetensors", "2.safetensors"):
        save_file({name: tensors[name] for name in names if index[name] == part}, scratch / "cut" / part, metadata=described)
    (scratch / "cut/model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert_same("verify", folder, scratch / "cut")


def test_a_record_lists_its_own_files(folder, program, scratch):
    """Another checkpoint below a target is not the target, and a SHA256SUMS that lacks a file says nothing of it."""
    made = program.run(folder, scratch / "made", "huggingface")
    shutil.copytree(folder, made / "checkpoint-5")
    for file in (made / "checkpoint-5").glob("*.safetensors"):
        tensors = load_file(file)
        tensors["model.norm.weight"][0] += 1
        save_file(tensors, file, metadata={"format": "pt"})
    program.run(made / "checkpoint-5", scratch / "later", "torch_dist")
    assert "nothing to verify it against" in refused(2, "verify", made / "checkpoint-5")
    assert "nothing to verify" not in assert_same("verify", made)
    lines = (made / SUMS).read_text().splitlines(keepends=True)
    (made / SUMS).write_text("".join(line for line in lines if "config.json" not in line))
    text = refused(1, "verify", made)
    assert "has no line for config.json" in text
    assert "has no line for config.json" in refused(1, "verify", made, "--subset", "1/2", "--record", scratch / "record")


def test_a_tensor_without_elements_is_seen(scratch, program):
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    state = {"model.weight": torch.arange(12.0).reshape(3, 4), "model.empty": torch.empty(0, 4)}
    folder = scratch / "sharded"
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=str(folder), save_distributed=True), checkpoint_id=str(folder), no_dist=True)
    assert "model.empty" in assert_same("digest", folder)
    made = program.run(folder, scratch / "made", "dcp")
    assert_same("verify", folder, made, "--map", "none")


def test_pairs_of_four_bits_are_one_tensor_in_every_format(program, scratch):
    """safetensors 0.8 counts the values of torch's float4_e2m1fn_x2, torch the bytes."""
    packed = torch.arange(30, dtype=torch.uint8).reshape(5, 6)
    folder = scratch / "folder"
    folder.mkdir()
    save_file({"w": packed.view(torch.float4_e2m1fn_x2)}, folder / "model.safetensors", metadata={"format": "pt"})
    made = program.run(folder, scratch / "dcp", "dcp", target_options={"chunks": "ranks", "ranks": 3})
    loaded = {"w": torch.empty(5, 6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    dcp.load(loaded, checkpoint_id=made, no_dist=True)
    assert torch.equal(loaded["w"].view(torch.uint8), packed)
    container = program.run(made, scratch / "hdf5", "hdf5", model={"map": "none"})
    back = program.run(container, scratch / "back", "huggingface", model={"map": "none"})
    with safe_open(back / "model.safetensors", framework="pt") as file:
        assert file.get_slice("w").get_dtype() == "F4" and file.get_slice("w").get_shape() == [5, 12]
        assert torch.equal(file.get_tensor("w").view(torch.uint8), packed)
    for other in (made, container, back):
        assert_same("verify", folder, other, "--map", "none")
    assert "F4_X2" in assert_same("ls", folder) and "w" in assert_same("digest", folder, "--map", "none")


def test_safetensors_inside_of_distcp_are_named(scratch):
    """torch 2.13 writes them for FileSystemWriter(serialization_format=…), and its own reader fails on them."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat

    folder = scratch / "folder"
    writer = FileSystemWriter(folder, serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"w": torch.ones(3, 4)}, storage_writer=writer, checkpoint_id=folder, no_dist=True)
    text = refused(3, "digest", folder)
    assert "a safetensors file is in it" in text and "Save again without that option" in text, text


# --- suspects ------------------------------------------------------------------------------------------------------------


def test_what_the_config_ties_may_be_equal_below_a_key_of_the_trainer(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["llama-tied"])
    state = read_hf(folder)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    dcp.save({"app": {"model": state}, "ema": {"model": {name: tensor + 1 for name, tensor in state.items()}}}, checkpoint_id=scratch / "dcp", no_dist=True)
    shutil.copy(folder / "config.json", scratch / "dcp")
    assert_same("suspects", scratch / "dcp")
    outcome = program.attempt(scratch / "dcp", scratch / "made", "dcp")
    assert outcome.returncode == 0 and "sound model" not in outcome.stdout + outcome.stderr, said(outcome)


def test_what_the_config_ties_may_be_equal(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["llama-tied"])
    state = read_hf(folder)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    dcp.save(state, checkpoint_id=scratch / "dcp", no_dist=True)
    shutil.copy(folder / "config.json", scratch / "dcp")
    assert_same("suspects", scratch / "dcp")
    outcome = program.attempt(scratch / "dcp", scratch / "made", "huggingface", target_options={"reference": str(folder)}, model={"map": "none"})
    assert outcome.returncode == 0 and "sound model" not in outcome.stdout + outcome.stderr, said(outcome)
    state["model.layers.1.mlp.up_proj.weight"] = state["model.layers.0.mlp.up_proj.weight"].clone()
    dcp.save(state, checkpoint_id=scratch / "wrong", no_dist=True)
    shutil.copy(folder / "config.json", scratch / "wrong")
    text = refused(1, "suspects", scratch / "wrong")
    assert "up_proj" in text and "lm_head" not in text


def quantised_experts(folder):
    from family_models import MOE, MOE_A, TE_GROUPED

    save_family(folder, Family(dense("Qwen3Moe", **MOE, num_experts=4), MOE_A, MOE_A, TE_GROUPED))
    tensors = quantised_folders.quantise_folder(folder, lambda name: "nvfp4" if ".experts." in name else None)
    for name in tensors:
        if name.endswith(("weight_scale_2", "input_scale")):
            tensors[name] = torch.tensor(0.5)
        elif name.endswith("weight_scale"):
            tensors[name] = torch.full_like(tensors[name], 1, dtype=torch.float32).to(tensors[name].dtype)
    return tensors


def test_scales_that_engines_cannot_use_are_suspects(program, scratch):
    folder = scratch / "folder"
    tensors = quantised_experts(folder)

    def save(changed):
        save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, folder / "model.safetensors", metadata={"format": "pt"})

    save(tensors)
    assert_same("suspects", folder)
    expert = next(name for name in tensors if name.endswith("experts.2.up_proj.weight_scale_2"))
    save(tensors | {expert: torch.tensor(0.25)})
    text = refused(1, "suspects", folder)
    assert re.search(r"layer\.\d\.expert\.2\.experts\.up\.nvfp4\.scale_2: 0\.25, and layer\.\d\.expert\.2\.experts\.gate\.nvfp4\.scale_2 has 0\.5", text), text
    lacking = expert.replace("weight_scale_2", "input_scale")
    save(tensors | {lacking: None})
    text = refused(1, "suspects", folder)
    assert lacking in text and "3 of" in text
    outcome = program.attempt(folder, scratch / "dist", "torch_dist")
    assert outcome.returncode == 3 and lacking in outcome.stderr and "no token reached" in outcome.stderr, said(outcome)
    assert "different models" not in outcome.stderr
    kept = program.run(folder, scratch / "kept", "huggingface", model={"map": "none"})
    with safe_open(next(kept.glob("*.safetensors")), framework="pt") as file:
        assert set(file.keys()) == set(tensors) - {lacking}
