"""target.dtype against torch's Tensor.to(): every kind of source, into a Hugging Face folder, torch_dist and DCP."""

import dataclasses
import itertools
import json
import os
import tarfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file

import dcp_reading
import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import family_models_recent
import fsdp_rank_saves as saves
from hf_models import hf_logits, read_hf
from reshard_job import command, tree_hashes

WORDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}
PAIRS = [pair for pair in itertools.product(WORDS, WORDS) if pair[0] != pair[1]]
DATA = Path(os.environ.get("RESHARD_SOURCE_DIR", Path(__file__).parents[2])) / "tests/data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
FAMILIES = (family_models.FAMILIES | family_models_hybrid.FAMILIES | family_models_more.FAMILIES | family_models_kinds.FAMILIES
            | family_models_kinds.WITHOUT_MEGATRON | family_models_recent.FAMILIES | family_models_recent.WITHOUT_MEGATRON)
# What Megatron-Core makes in F32 stays so by the maps of every family; transformers rounds it in some.
OF_MEGATRON = (".A_log", ".D", ".dt_bias", ".expert_bias", ".e_score_correction_bias")
DROP = {"rng": "drop", "optimizer": "drop"}


def bits(tensor):
    """Of equal numbers equal; NaN is one number, because torch itself makes several of it."""
    whole = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return torch.where(tensor.isnan(), torch.tensor(-1, dtype=whole), tensor.contiguous().view(whole))


def assert_cast(found, source, dtype, same=()):
    assert set(found) == set(source)
    for name, tensor in source.items():
        wanted = tensor.to(dtype) if tensor.is_floating_point() and name not in same else tensor
        if not tensor.is_floating_point():
            assert torch.equal(found[name], tensor), name
            continue
        assert found[name].dtype == wanted.dtype and torch.equal(bits(found[name]), bits(wanted)), name


def special(tensor):
    """Ties, neighbours of ties, numbers below the smallest ones, infinities and NaN at the beginning."""
    odd = torch.tensor([1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 2.0**-25 + 2.0**-40, 3 * 2.0**-26,
                        2.0**-140, -(2.0**-149), -0.0, torch.inf, -torch.inf, torch.nan, 65504, -65519, 2.0**-14 - 2.0**-26])
    flat = tensor.flatten().clone().to(torch.float32)
    flat[: len(odd)] = odd
    return flat.reshape(tensor.shape)


def state_of(word):
    torch.manual_seed(20261130)
    state = transformers.LlamaForCausalLM(saves.config_of("plain")).state_dict()
    state["model.layers.1.mlp.up_proj.weight"] = special(state["model.layers.1.mlp.up_proj.weight"])
    result = {}
    for name, tensor in state.items():
        tensor = tensor.to(WORDS[word])
        result[name] = torch.where(tensor.isinf() & ~state[name].isinf(), torch.tensor(1.0, dtype=tensor.dtype), tensor)
    return result


def save_source(folder, form, state, word):
    """The same tensors as a Hugging Face folder or as DCP, with a config.json that states their dtype."""
    config = saves.config_of("plain")
    folder.mkdir(parents=True)
    if form == "huggingface":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict() | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": str(WORDS[word]).split(".")[1]}))
    return folder


def tensors_of(target, form, program, scratch):
    if form == "dcp":
        return dcp_reading.whole_tensors(target)
    if form == "torch_dist":
        target = program.to_hf(target, scratch / "back", model={"map": "llama"}, source_options=DROP)
    return read_hf(target)


@pytest.mark.long_but("f32-bf16-dcp-huggingface", "f32-bf16-huggingface-torch_dist", "bf16-fp16-dcp-dcp", "bf16-f32-huggingface-huggingface")
@pytest.mark.parametrize(("source", "wanted", "form", "into"), [
    pytest.param(*pair, form, into, id="-".join((*pair, form, into)))
    for pair in PAIRS for form in ("huggingface", "dcp") for into in ("huggingface", "torch_dist", "dcp")])
def test_every_weight_is_what_torch_makes_of_it(source, wanted, form, into, program, scratch):
    state = state_of(source)
    if wanted == "fp16":
        state = {name: torch.where(one.abs() > 60000, torch.where(one.isinf(), one, 1).to(one.dtype), one) for name, one in state.items()}
    folder = save_source(scratch / "in", form, state, source)
    options = {"target_options": {"dtype": wanted}}
    if form == "dcp" and into == "torch_dist":
        options["source_options"] = {"config": folder}
    outcome = program.attempt(folder, scratch / "one", into, ranks=1, run={"self_check": 50}, **options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f" {source.upper().replace('FP', 'F')} -> {wanted.upper().replace('FP', 'F')} (" in outcome.stdout
    program.run(folder, scratch / "two", into, ranks=3, memory="1 MiB", **options)
    assert tree_hashes(scratch / "one") == tree_hashes(scratch / "two")
    assert_cast(tensors_of(scratch / "one", into, program, scratch), state, WORDS[wanted])
    configs = list((scratch / "one").rglob("config.json"))
    assert configs and all(json.loads(config.read_text())["dtype"] == str(WORDS[wanted]).split(".")[1] for config in configs)
    same = command("verify", folder, scratch / "one")
    assert same.returncode == 0 and f'was made with target.dtype = "{wanted}"' in same.stdout, same.stdout + same.stderr


def test_files_of_ranks_become_a_bf16_folder_that_transformers_loads(program, scratch):
    truth = saves.save(("hsdp-moe",), scratch)["hsdp-moe"]
    target = program.to_hf(scratch / "hsdp-moe", scratch / "hf", source_options=DROP, target_options={"dtype": "bf16"})
    weights = {name: tensor for name, tensor in truth.items() if not name.startswith("optimizer.")}
    kept = program.to_hf(scratch / "hsdp-moe", scratch / "f32", source_options=DROP)
    assert set(read_hf(kept)) == set(read_hf(target))
    assert_cast(read_hf(target), read_hf(kept), torch.bfloat16)
    assert len(weights) > 0 and transformers.AutoConfig.from_pretrained(target).dtype == torch.bfloat16
    assert hf_logits(target, torch.arange(8).reshape(1, 8)).isfinite().all()
    state = program.run(scratch / "hsdp-moe", scratch / "dcp", "dcp", source_options={"rng": "drop"}, target_options={"dtype": "bf16"})
    found = dcp_reading.whole_tensors(state)
    for name, tensor in truth.items():  # optimizer state is never cast
        assert found[name].dtype == (tensor.dtype if name.startswith("optimizer.") or tensor.ndim == 0 else torch.bfloat16), name


def test_rank_files_of_a_mixture_of_experts(program, scratch):
    source = scratch / "moe"
    wide = program.to_hf(SAMPLE, scratch / "f32", source_options=DROP, model={"map": "qwen3_moe"}, target_options={"dtype": "f32"})
    program.run(wide, source, "megatron", target_options={"layout": "{ tp = 2, ep = 2 }"})
    for word in ("bf16", "fp16"):
        into = program.run(source, scratch / f"dist-{word}", "torch_dist", source_options=DROP, target_options={"dtype": word})
        back = program.to_hf(into, scratch / f"hf-{word}", source_options=DROP, model={"map": "qwen3_moe"})
        assert_cast(read_hf(back), read_hf(wide), WORDS[word])
        args = command("inspect", into).stdout
        assert "params_dtype" not in args or str(WORDS[word]) in args


def test_a_value_that_fp16_does_not_have_is_refused(program, scratch):
    state = state_of("bf16")
    state["model.norm.weight"][3] = 70000
    folder = save_source(scratch / "in", "huggingface", {n: torch.nan_to_num(one, 0, 0, 0) for n, one in state.items()}, "bf16")
    refused = program.attempt(folder, scratch / "out", "huggingface", target_options={"dtype": "fp16"})
    assert refused.returncode == 3 and "'model.norm.weight': element 3 is 70144, and the largest number of F16 is 65504" in refused.stderr, refused.stderr
    assert not (scratch / "out").exists()


def test_as_config_is_what_the_config_states(program, scratch):
    state = state_of("f32")
    folder = save_source(scratch / "in", "dcp", state, "bf16")
    target = program.to_hf(folder, scratch / "out", target_options={"dtype": "as-config"})
    assert_cast(read_hf(target), state, torch.bfloat16)
    plain = program.attempt(folder, scratch / "plain", "huggingface")
    assert plain.returncode == 0 and 'Set target.dtype = "bf16" to write BF16' in plain.stderr, plain.stderr
    (folder / "config.json").unlink()
    refused = program.attempt(folder, scratch / "none", "dcp", target_options={"dtype": "as-config"})
    assert refused.returncode == 2 and 'dtype = "as-config": ' in refused.stderr and "has no config.json" in refused.stderr, refused.stderr


def test_scales_and_codes_stay(program, scratch):
    folder = scratch / "in"
    folder.mkdir()
    state = {"model.layers.0.mlp.up_proj.weight": torch.randn(128, 128).to(torch.float8_e4m3fn),
             "model.layers.0.mlp.up_proj.weight_scale_inv": torch.rand(1, 1), "model.embed_tokens.weight": torch.randn(16, 128),
             "model.layers.0.mlp.gate.e_score_correction_bias": torch.rand(8), "steps": torch.arange(3)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    target = program.run(folder, scratch / "out", "huggingface", target_options={"dtype": "bf16"}, model={"map": "none"})
    found = load_file(target / "model.safetensors")
    for name, tensor in state.items():
        wanted = tensor.to(torch.bfloat16) if name == "model.embed_tokens.weight" else tensor
        assert found[name].dtype == wanted.dtype and torch.equal(found[name].view(torch.uint8), wanted.view(torch.uint8)), name


def unpacked(archive, member, scratch):
    with tarfile.open(DATA / archive) as tar:
        tar.extractall(scratch, [one for one in tar if one.name.removeprefix("./").split("/")[0] == member], filter="data")
    return scratch / member


def test_optimizer_state_of_megatron_stays_with_its_weights(program, scratch):
    source = unpacked("flattened-optimizer.tar.xz", "moe", scratch)
    refused = program.attempt(source, scratch / "out", "torch_dist", source_options={"rng": "drop"}, target_options={"dtype": "f32"})
    assert refused.returncode == 2 and "weights of another dtype have other optimizer state in torch_dist" in refused.stderr, refused.stderr


def test_masters_that_a_source_holds_alone_are_rounded_once(program, scratch):
    source = unpacked("deepspeed.tar.xz", "zero3", scratch)
    kept, wide, half = (read_hf(program.to_hf(source, scratch / word, source_options=DROP, target_options={"dtype": word}))
                        for word in ("keep", "f32", "fp16"))
    assert_cast(kept, wide, torch.bfloat16)
    assert_cast(half, wide, torch.float16)
    assert any(not torch.equal(wide[name], kept[name].float()) for name in wide)


@pytest.mark.long_but("deepseek-v4-bf16", "bailing-hybrid-bf16", "ernie-4.5-moe-bf16", "gpt-oss-fp16")
@pytest.mark.parametrize("word", ["bf16", "fp16"])
@pytest.mark.parametrize("name", [
    "deepseek-v4", "bailing-hybrid", "glm-5-next", "hunyuan-4", "ernie-4.5-moe", "ernie4-5-vl", "glm4-moe", "nemotron-h", "qwen3-next", "gpt-oss", "trinity",
    "longcat-flash", "glm-5"])
def test_what_transformers_keeps_in_f32_stays(name, word, program, scratch):
    """Its own rounding, when it loads a folder of F32 weights and saves it, is the truth for dtypes and values."""
    family = FAMILIES[name]
    family = dataclasses.replace(family, dtype=torch.float32, add=None, ignored=None, config=None)
    folder = family_models.save_family(scratch / "f32", family)
    target = program.to_hf(folder, scratch / word, target_options={"dtype": word}, model={"unmapped": "keep"})
    architecture = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    getattr(transformers, architecture).from_pretrained(folder, dtype=WORDS[word]).save_pretrained(scratch / "truth")
    found, truth, source = read_hf(target), read_hf(scratch / "truth"), read_hf(folder)
    assert set(found) == set(truth)
    same = {key for key in truth if truth[key].dtype == torch.float32 or key.endswith(OF_MEGATRON)}
    wrong = {key: (str(found[key].dtype), str(truth[key].dtype)) for key in truth if (found[key].dtype == torch.float32) != (key in same)}
    assert not wrong, sorted(wrong.items())[:12]
    assert_cast(found, source, WORDS[word], same)
