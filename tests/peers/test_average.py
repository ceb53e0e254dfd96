"""source.average against torch: the sum of the weights in F32, one after the other, divided by their number and rounded once."""

import functools
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import save_file

import dcp_reading
import fsdp_rank_saves as saves
from hf_models import read_hf
from reshard_job import manifest_of, tree_hashes

DATA = Path(os.environ.get("RESHARD_SOURCE_DIR", Path(__file__).parents[2])) / "tests/data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
DROP = {"rng": "drop", "optimizer": "drop"}


@functools.cache
def state_of(seed, dtype):
    torch.manual_seed(seed)
    return {name: (tensor * (1 + seed % 7)).to(dtype) for name, tensor in transformers.LlamaForCausalLM(saves.config_of("plain")).state_dict().items()}


def folder_of(place, seed, dtype, form="huggingface"):
    place.mkdir(parents=True)
    if form == "huggingface":
        save_file(state_of(seed, dtype), place / "model.safetensors", metadata={"format": "pt"})
    else:
        dcp.save(state_of(seed, dtype), checkpoint_id=place, no_dist=True)
    (place / "config.json").write_text(json.dumps(saves.config_of("plain").to_diff_dict() | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": str(dtype).split(".")[1]}))
    return place


def mean(seeds, dtype, wanted=None):
    states = [state_of(seed, dtype) for seed in seeds]
    return {name: (functools.reduce(torch.add, [state[name].float() for state in states]) / len(states)).to(wanted or dtype) for name in states[0]}


def assert_equal(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def averaged(paths, **more):
    return {"average": [str(path) for path in paths], **more}


@pytest.mark.parametrize(("form", "into"), [("huggingface", "huggingface"), ("dcp", "dcp"), ("dcp", "huggingface")])
@pytest.mark.parametrize(("dtype", "wanted"), [(torch.bfloat16, None), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_the_mean_is_torch_s(form, into, dtype, wanted, program, scratch):
    first, *others = [folder_of(scratch / str(seed), seed, dtype, form) for seed in (3, 12, 25)]
    word = {None: "keep", torch.bfloat16: "bf16", torch.float32: "f32"}[wanted]
    options = {"source_options": averaged(others), "target_options": {"dtype": word}}
    outcome = program.attempt(first, scratch / "one", into, ranks=1, **options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "mean of 3 checkpoints" in outcome.stdout
    program.run(first, scratch / "two", into, ranks=3, memory="1 MiB", **options)
    assert tree_hashes(scratch / "one") == tree_hashes(scratch / "two")
    found = read_hf(scratch / "one") if into == "huggingface" else dcp_reading.whole_tensors(scratch / "one")
    assert_equal(found, mean((3, 12, 25), dtype, wanted))
    assert [one["path"] for one in manifest_of(scratch / "one")["source"]["average"]] == [str(path) for path in others]


@pytest.mark.parametrize(("form", "layout"), [("megatron", "{ pp = 2 }"), ("torch_dist", "{ pp = 2 }")])
def test_parts_of_ranks_are_averaged_one_by_one(form, layout, program, scratch):
    first, other = [program.run(folder_of(scratch / f"hf{seed}", seed, torch.bfloat16), scratch / f"mg{seed}", form, target_options={"layout": layout})
                    for seed in (3, 12)]
    program.to_hf(first, scratch / "mean", source_options=averaged([other]), target_options={"reference": scratch / "hf3"})
    assert_equal(read_hf(scratch / "mean"), mean((3, 12), torch.bfloat16))


def test_a_checkpoint_with_an_optimizer_and_itself(program, scratch):
    plain = program.to_hf(SAMPLE, scratch / "plain", source_options=DROP)
    same = program.to_hf(SAMPLE, scratch / "mean", source_options=averaged([SAMPLE, SAMPLE, SAMPLE], **DROP))
    assert_equal(read_hf(same), read_hf(plain))


@pytest.mark.parametrize(("change", "code", "words"), [
    ("layout", 3, "has the shape"), ("name", 3, "has no 'model.norm.weight'"), ("format", 3, "is a huggingface checkpoint"),
    ("optimizer", 3, "source.optimizer"), ("integers", 3, "Only floating weights have a mean"), ("codes", 3, "the codes of a quantised weight have no mean"), ("boxes", 3, "lies in other boxes"),
    ("more", 3, "which"), ("config", 3, "are other models: rms_norm_eps is"), ("sum", 3, "is beyond F32"), ("f64", 3, "is F64")])
def test_checkpoints_that_have_no_mean_are_refused(change, code, words, program, scratch):
    first = folder_of(scratch / "a", 3, torch.bfloat16)
    other = scratch / "b"
    options = {}
    if change == "format":
        first, other = folder_of(scratch / "c", 3, torch.bfloat16, "dcp"), folder_of(other, 12, torch.bfloat16)
    elif change == "boxes":
        program.run(first, other, "dcp", target_options={"chunks": "ranks", "ranks": 2})
        first = program.run(first, scratch / "whole", "dcp")
        options = {"model": {"map": "none"}}
    elif change == "codes":
        first = other = scratch / "codes"
        first.mkdir()
        save_file({"w": torch.ones(128, 64, dtype=torch.int8)}, first / "model.safetensors")
        options = {"model": {"map": "none"}}
    elif change == "optimizer":
        state = state_of(3, torch.bfloat16) | {"optimizer.state.model.norm.weight.exp_avg": torch.ones(8)}
        first = other = scratch / "state"
        dcp.save(state, checkpoint_id=first, no_dist=True)
    else:
        state = dict(state_of(12, torch.bfloat16))
        key = "model.norm.weight"
        if change == "layout":
            state[key] = torch.cat([state[key], state[key]])
        elif change == "name":
            del state[key]
        elif change == "more":
            state["lm_head.bias"] = state[key].clone()
        elif change in ("sum", "f64"):
            state[key] = torch.full_like(state[key], 3e38)
            state[key] = state[key].double() if change == "f64" else state[key]
            save_file(state, first / "model.safetensors", metadata={"format": "pt"})
        elif change == "integers":
            state[key] = state[key].to(torch.int64)
        other.mkdir()
        save_file(state, other / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((first / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | ({"rms_norm_eps": 0.5} if change == "config" else {})))
        if change == "f64":
            options = {"model": {"map": "none"}}
    outcome = program.attempt(first, scratch / "out", "dcp" if change == "optimizer" else "huggingface", ranks=1, source_options=averaged([other]), **options)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    assert words in outcome.stderr and not (scratch / "out").exists()
