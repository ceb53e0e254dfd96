"""Rows of a file, prediction layers of another folder, and draft models: what the program makes is what torch makes of the same tensors."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import quantised_folders
from hf_models import read_hf
from peer_types import Layout
from reshard_job import command, tree_hashes
from test_model_changes import ROWS, assert_equal, refuse

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES | family_models_kinds.FAMILIES | family_models_more.FAMILIES
PREDICTS = {"deepseek-v3": ("model.layers.5.", "model.layers.6."), "glm4-moe-mtp": ("model.layers.5.", "model.layers.6."), "qwen3-next": ("mtp.",)}


def rows_file(folder, plain, count, dtype=torch.bfloat16, names=None):
    torch.manual_seed(3)
    weights = {name: tensor for name, tensor in plain.items() if name in ("model.embed_tokens.weight", "lm_head.weight")}
    rows = {name: torch.randn(count, *tensor.shape[1:]).to(dtype) for name, tensor in weights.items()}
    save_file({(names or {}).get(name, name): tensor for name, tensor in rows.items()}, folder / "rows.safetensors")
    return rows


@pytest.mark.long_but("llama-huggingface-f32", "llama-tied-megatron-bf16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("name", "form"), [("llama", "huggingface"), ("llama-tied", "megatron"), ("llama", "torch_dist")])
def test_rows_of_a_file(name, form, dtype, program, scratch):
    family = FAMILIES[name]
    plain = family_models.save_family(scratch / "hf", family)
    source = {"huggingface": lambda: plain,
              "megatron": lambda: program.to_megatron(plain, scratch / "source", family.a, family.form),
              "torch_dist": lambda: program.run(plain, scratch / "source", form, target_options={"layout": family.a.toml()})}[form]()
    held = read_hf(plain)
    megatron = {"model.embed_tokens.weight": "embedding.word_embeddings.weight", "lm_head.weight": "output_layer.weight"}
    rows = rows_file(scratch, held, 7, dtype, megatron if form == "torch_dist" else None)
    old = held["model.embed_tokens.weight"].shape[0]
    options = {"vocab_size": old + 7, "rows_from": str(scratch / "rows.safetensors")} | ({} if form == "huggingface" else {"reference": str(plain)})
    made = program.to_hf(source, scratch / "made", target_options=options, ranks=1)
    other = program.to_hf(source, scratch / "three", target_options=options, ranks=3, memory="1 MiB")
    assert tree_hashes(made) == tree_hashes(other)
    assert_equal(read_hf(made), {key: torch.cat([tensor, rows[key].to(tensor.dtype)]) if key in rows else tensor for key, tensor in held.items()})
    assert json.loads((made / "config.json").read_text())["vocab_size"] == old + 7
    family_models.load_family(made, family)
    same = command("verify", source, made)
    assert same.returncode == 0 and "is changed as that job did" in same.stdout, same.stdout + same.stderr


def test_rows_of_a_file_go_to_every_format(program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    rows_file(scratch, read_hf(plain), 7)
    options = {"vocab_size": 97, "rows_from": str(scratch / "rows.safetensors")}
    wanted = read_hf(program.to_hf(plain, scratch / "made", target_options=options))
    cut = {"layout": Layout(tp=2).toml()}
    for form, more in (("megatron", cut), ("torch_dist", cut), ("dcp", {"map": "llama"}), ("hdf5", {}), ("deepspeed", {})):
        target = program.run(plain, scratch / form, form, target_options=options | more)
        assert_equal(read_hf(program.to_hf(target, scratch / f"{form}-back", target_options={"reference": str(scratch / "made")})), wanted)


def test_rows_are_not_rounded_on_the_way_to_a_wider_dtype(program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    held = read_hf(plain)
    rows = rows_file(scratch, held, 7, torch.float32)
    options = {"vocab_size": 97, "rows_from": str(scratch / "rows.safetensors")}
    wide = program.to_hf(plain, scratch / "wide", target_options=options | {"dtype": "f32"})
    wanted = {key: torch.cat([tensor.float(), rows[key]]) if key in rows else tensor.float() for key, tensor in held.items()}
    assert_equal(read_hf(wide), wanted)
    trained = program.run(plain, scratch / "trained", "deepspeed", target_options=options)
    masters = next(trained.rglob("model.embed_tokens.weight/fp32.pt"))
    assert torch.equal(torch.load(masters, weights_only=True)["param"], wanted["model.embed_tokens.weight"])


def test_a_night_notices_other_rows(scratch):
    held = read_hf(family_models.save_family(scratch / "train" / "step_10", FAMILIES["llama"]))
    rows_file(scratch, held, 7)
    job = scratch / "job.toml"
    job.write_text(f'[source]\npath = "{scratch / "train"}"\n[target]\npath = "{scratch / "serving"}"\nformat = "huggingface"\nvocab_size = 97\n'
                   f'rows_from = "{scratch / "rows.safetensors"}"\n[nightly]\nsettle_seconds = 0\n')

    def night():
        done = command("nightly", job, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["action"]

    assert [night(), night()] == ["converted", "up_to_date"]
    other = {key: 2 * tensor for key, tensor in load_file(scratch / "rows.safetensors").items()}
    save_file(other, scratch / "rows.safetensors")
    assert [night(), night()] == ["converted", "up_to_date"]
    assert torch.equal(read_hf(scratch / "serving" / "step_10")["lm_head.weight"][90:], other["lm_head.weight"])


@pytest.mark.parametrize(("change", "options", "words"), [
    (lambda rows: {}, {}, "holds no 'model.embed_tokens.weight'"),
    (lambda rows: {key: rows[key] for key in rows if key != "lm_head.weight"}, {}, "holds no 'lm_head.weight'"),
    (lambda rows: rows | {"model.norm.weight": torch.zeros(7)}, {}, "'model.norm.weight' is no weight of this model with a row for each token"),
    (lambda rows: rows, {"vocab_size": 98}, "has the shape [7, "),
    (lambda rows: rows | {"lm_head.weight": rows["lm_head.weight"][:, :3].contiguous()}, {}, "has the shape [7, 3]"),
    (lambda rows: rows | {"lm_head.weight": rows["lm_head.weight"].to(torch.int32)}, {}, "Save the rows as F32, BF16 or F16"),
    (lambda rows: rows, {"vocab_size": 0}, "[target] rows_from: no rows are added"),
    (lambda rows: rows, {"vocab_size": 80}, "[target] rows_from: the source has 90 rows"),
    (lambda rows: rows, {"new_rows": "zero"}, "they are those of a file. Remove one of the keys"),
])
def test_rows_that_do_not_fit_are_refused(change, options, words, program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    rows = rows_file(scratch, read_hf(plain), 7)
    save_file(change(rows), scratch / "rows.safetensors")
    options = {"vocab_size": 97, "rows_from": str(scratch / "rows.safetensors")} | options
    outcome = program.attempt(plain, scratch / "made", "huggingface", target_options={key: value for key, value in options.items() if value != 0}, ranks=1)
    assert outcome.returncode in (2, 3) and words in outcome.stderr and not (scratch / "made").exists(), outcome.stderr


def test_rows_are_read_from_a_file(program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    refuse(program, plain, scratch / "made", {"vocab_size": 97, "rows_from": str(plain)}, "rows are read from one safetensors file")


def predicts(name, key):
    return key.startswith(PREDICTS[name])


def trained_on(folder, made, name):
    """The same model, whose prediction layers have other values."""
    shutil.copytree(folder, made)
    for path in made.glob("*.safetensors"):
        tensors = {key: tensor * 2 if predicts(name, key) and not key.endswith(ROWS) else tensor for key, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    return made


@pytest.mark.long_but("deepseek-v3-False", "qwen3-next-True")
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("name", PREDICTS)
def test_prediction_layers_of_another_folder(name, stale, program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES[name])
    other = trained_on(plain, scratch / "other", name)
    source = plain if stale else program.to_hf(plain, scratch / "source", target_options={"mtp": "drop"})
    options = {"mtp_from": str(other)}
    made = program.to_hf(source, scratch / "made", target_options=options, ranks=1)
    assert tree_hashes(made) == tree_hashes(program.to_hf(source, scratch / "three", target_options=options, ranks=3, memory="1 MiB"))
    assert_equal(read_hf(made), read_hf(other))
    config, wanted = (json.loads((folder / "config.json").read_text()) for folder in (made, plain))
    assert config == wanted
    same = command("verify", source, made)
    assert same.returncode == 0 and "is changed as that job did" in same.stdout, same.stdout + same.stderr
    family = FAMILIES[name]
    megatron = program.to_megatron(source, scratch / "mg", family.a, family.form, target_options=options)
    back = read_hf(program.to_hf(megatron, scratch / "back", target_options={"reference": made}))
    assert_equal(back, read_hf(made))


@pytest.mark.long_but("deepseek-v3")
@pytest.mark.parametrize("name", PREDICTS)
def test_a_draft_model_is_the_prediction_layers(name, program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES[name])
    held = read_hf(plain)
    wanted = {key: tensor for key, tensor in held.items() if predicts(name, key) or key in ("model.embed_tokens.weight", "lm_head.weight")}
    draft = program.to_hf(plain, scratch / "draft", target_options={"mtp": "draft"}, ranks=1)
    assert_equal(read_hf(draft), wanted)
    assert (draft / "config.json").read_bytes() == (plain / "config.json").read_bytes()
    family = FAMILIES[name]
    megatron = program.to_megatron(plain, scratch / "mg", family.a, family.form)
    of_megatron = program.to_hf(megatron, scratch / "of-mg", target_options={"mtp": "draft", "reference": str(plain)}, ranks=3, memory="1 MiB")
    assert_equal(read_hf(of_megatron), wanted)
    for source, made in ((plain, draft), (megatron, of_megatron)):
        same = command("verify", source, made)
        assert same.returncode == 0, same.stdout + same.stderr
    assert command("verify", draft).returncode == command("suspects", draft).returncode == command("inspect", draft).returncode == 0
    assert_equal(read_hf(program.to_hf(draft, scratch / "again", target_options={"dtype": "f32"})), {key: tensor.float() for key, tensor in wanted.items()})
    coded = read_hf(program.to_hf(plain, scratch / "coded", target_options={"mtp": "draft", "quant": "fp8-channel"}))
    codes = {key for key, tensor in coded.items() if tensor.dtype == torch.float8_e4m3fn}
    small = ("gate.weight", "eh_proj.weight", "fc.weight", "norm.weight", "embed_tokens.weight", "head.weight")
    assert codes and codes == {key for key, tensor in wanted.items() if tensor.ndim == 2 and not key.endswith(small)}
    refused = program.attempt(draft, scratch / "dist", "torch_dist", ranks=1)
    assert refused.returncode == 2 and "are a draft model, which engines load from a Hugging Face folder" in refused.stderr, refused.stderr
    stripped = program.to_hf(plain, scratch / "stripped", target_options={"mtp": "drop"})
    assert_equal(read_hf(program.to_hf(stripped, scratch / "whole", target_options={"mtp_from": str(draft)})), held)


def test_quantised_layers_are_taken_by_quantised_models(program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["qwen3-next"])
    (scratch / "coded").mkdir()
    save_file(read_hf(plain), scratch / "coded" / "model.safetensors", metadata={"format": "pt"})
    coded = Path(shutil.copy(plain / "config.json", scratch / "coded")).parent
    quantised_folders.quantise_folder(coded, lambda name: "fp8_channel")
    assert any(predicts("qwen3-next", key) and key.endswith("weight_scale") for key in read_hf(coded))
    stripped = program.to_hf(coded, scratch / "stripped", target_options={"mtp": "drop"})
    assert_equal(read_hf(program.to_hf(stripped, scratch / "made", target_options={"mtp_from": str(coded)})), read_hf(coded))
    draft = read_hf(program.to_hf(coded, scratch / "draft", target_options={"mtp": "draft"}))
    assert_equal(draft, {key: tensor for key, tensor in read_hf(coded).items() if key in draft})
    assert any(key.endswith("weight_scale") for key in draft)
    outcome = program.attempt(plain, scratch / "mixed", "huggingface", target_options={"mtp_from": str(coded)}, ranks=1)
    assert outcome.returncode == 3 and "are quantised, and those of" in outcome.stderr, outcome.stderr


@pytest.mark.parametrize(("name", "options", "words"), [
    ("llama", {"mtp": "draft"}, "the source has no layers for multi-token prediction"),
    ("qwen3-next", {"mtp": "draft", "vocab_size": 80}, "nothing else of it changes. Remove target.vocab_size"),
])
def test_a_draft_that_cannot_be_is_refused(name, options, words, program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES[name])
    refuse(program, plain, scratch / "made", options, words)


@pytest.mark.parametrize(("name", "other", "words"), [
    ("qwen3-next", "qwen3-moe", "counts 0 layers for multi-token prediction, and 0 of its tensors"),
    ("qwen3-moe", "qwen3-next", "is a model of"),
    ("qwen3-moe", "qwen3-moe", "no map describes the model of"),
])
def test_layers_of_another_model_are_refused(name, other, words, program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES[name])
    wrong = family_models.save_family(scratch / "other", FAMILIES[other])
    if "no map" in words:
        config = json.loads((wrong / "config.json").read_text())
        (wrong / "config.json").write_text(json.dumps(config | {"model_type": "of_no_map", "architectures": ["OfNoMap"]}))
    outcome = program.attempt(plain, scratch / "made", "huggingface", target_options={"mtp_from": str(wrong)}, ranks=1)
    assert outcome.returncode == 3 and words in outcome.stderr and not (scratch / "made").exists(), outcome.stderr


def test_layers_are_taken_between_hugging_face_folders(program, scratch):
    family = FAMILIES["qwen3-next"]
    plain = family_models.save_family(scratch / "hf", family)
    megatron = program.to_megatron(plain, scratch / "mg", family.a, family.form)
    outcome = program.attempt(megatron, scratch / "made", "huggingface", target_options={"mtp_from": str(plain), "reference": str(plain)}, ranks=1)
    assert outcome.returncode == 3 and "layers are taken from one Hugging Face folder" in outcome.stderr, outcome.stderr
    outcome = program.attempt(plain, scratch / "made", "huggingface", target_options={"mtp_from": str(scratch / "gone")}, ranks=1)
    assert outcome.returncode == 3 and f"[target] mtp_from = {scratch / 'gone'}: does not exist" in outcome.stderr, outcome.stderr


def test_no_layers_to_leave_out_is_said(program, scratch):
    plain = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    outcome = program.attempt(plain, scratch / "made", "huggingface", target_options={"mtp": "drop"}, ranks=1)
    assert outcome.returncode == 0 and "so none are left out" in outcome.stdout + outcome.stderr, outcome.stdout + outcome.stderr
