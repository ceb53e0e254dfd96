"""State dicts in state dicts, as torch's examples and accelerate save them: which of their names are the model's is found without being told."""

import json
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

import dcp_reading
import dcp_trainers as trainers
from reshard_job import command
from tensor_patterns import assert_same_tensors

LAYOUT = {"layout": "{ tp = 2 }", "transformer_impl": "local"}


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    root = tmp_path_factory.mktemp("nests")
    trainers.save(2, [(form, False, 2, str(root / form)) for form in trainers.NESTS])
    return root


@pytest.fixture(scope="module")
def weights(saves):
    return {key.removeprefix("model."): value for key, value in trainers.values_of(saves / "nested").items() if key.startswith("model.")}


def compared(*words, code=0):
    outcome = command(*words)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    return outcome.stdout + outcome.stderr


@pytest.mark.parametrize("form", trainers.NESTS)
def test_weights_and_state_are_found(form, saves, program, scratch):
    stated = program.run(saves / "nested", scratch / "stated", "torch_dist", source_options={"prefix": "model."}, target_options=LAYOUT)
    found = program.run(saves / form, scratch / "found", "torch_dist", target_options=LAYOUT)
    assert "state of 0" not in compared("inspect", found)
    compared("verify", stated, found)
    text = compared("verify", saves / form, found)
    assert "same: " in text and ("read behind" in text or "is read as" in text)
    compared("verify", found, saves / form)
    total = json.loads(compared("digest", found, "--json"))["total"]
    assert total == json.loads(compared("digest", stated, "--json"))["total"]


@pytest.mark.parametrize("form", trainers.NESTS)
def test_a_hugging_face_folder_has_the_names_of_the_model(form, saves, weights, program, scratch):
    from transformers import AutoModelForCausalLM

    made = program.run(saves / form, scratch / "made", "huggingface", source_options={"optimizer": "drop"})
    _, report = AutoModelForCausalLM.from_pretrained(made, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    from safetensors.torch import load_file

    assert_same_tensors(load_file(made / "model.safetensors"), {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)})


@pytest.mark.parametrize("form", trainers.NESTS)
def test_commands_without_a_job_find_them(form, saves):
    assert "(exp_avg)" in compared("ls", saves / form, "--logical", "--config", saves / "nested")
    assert "names are read behind" in compared("digest", saves / form, "--config", saves / "nested")
    compared("suspects", saves / form, "--config", saves / "nested")
    assert "llama.toml" in json.loads(compared("inspect", saves / form, "--json"))["read_as"]
    assert "names are read behind" in compared("inspect", saves / form, "--config", saves / "nested")
    assert "[source]" not in compared("inspect", saves / form, "--prefix", "optimizer.", code=3)


def test_what_a_hugging_face_folder_cannot_hold_is_dropped_on_request_only(saves, program, scratch):
    outcome = program.attempt(saves / "nested", scratch / "made", "huggingface")
    assert outcome.returncode == 3 and "holds optimizer state" in outcome.stderr


def test_several_readings_are_listed(saves, program, scratch):
    values = trainers.values_of(saves / "nested")
    model = {key.removeprefix("model."): value for key, value in values.items() if key.startswith("model.")}
    folder = trainers.save_values({f"{place}.{key}": value for place in ("model", "ema") for key, value in model.items()}, scratch / "ema")
    text = compared("digest", folder, "--config", saves / "nested", code=3)
    assert "behind 'ema.', 'model.'. Give --prefix to the one that is meant" in text
    compared("digest", folder, "--config", saves / "nested", "--prefix", "ema.")


def test_a_wrapped_module_is_none_of_megatron(saves, weights, program, scratch):
    wrapped = {"model": {f"module._orig_mod.{key}": value for key, value in weights.items()}}
    dcp.save(wrapped, checkpoint_id=scratch / "ddp", no_dist=True)
    shutil.copy(saves / "nested/config.json", scratch / "ddp")
    made = program.run(scratch / "ddp", scratch / "made", "huggingface")
    assert "same: " in compared("verify", scratch / "ddp", made)


def test_an_interrupted_save_of_accelerate_is_named(saves, scratch):
    folder = shutil.copytree(saves / "accelerate", scratch / "cut")
    (folder / "optimizer_0/.metadata").unlink()
    assert "optimizer_0: has no .metadata" in compared("digest", folder, code=3)


def test_state_of_accelerate_goes_along(saves, program, scratch):
    made = program.run(saves / "accelerate", scratch / "made", "dcp")
    before = {part: trainers.values_of(saves / "accelerate" / part) for part in ("pytorch_model_fsdp_0", "optimizer_0")}
    after = dcp_reading.whole_tensors(made)
    for values in before.values():
        tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
        assert_same_tensors({key: after[key] for key in tensors}, tensors)
