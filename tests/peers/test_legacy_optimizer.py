"""Legacy `mp_rank` checkpoints with optimizer state that megatron-core saved become `torch_dist`, in another layout, and megatron-core trains on to
the bits of a run that never stopped."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import cases
import dcp_checkpoints
import dcp_reading
import legacy_optimizer
from checkpoint_args import random_state
from dcp_cases import DENSE, LATENT, LATENT_MOE, MIXED, MLA, MOE, SHARED, common_of, to_torch_dist, vocabulary_of
from dcp_checkpoints import PLAIN, RESHARDABLE, World
from dcp_models import Recipe
from legacy_optimizer import DISTRIBUTED_FILE
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import BINARY
from tensor_patterns import assert_same_tensors


def bf16(config, **changes):
    return config.with_(dtype="bfloat16", **changes)


def world(config, layout, *form, replicas=1, bucket_size=None, torch_adam=False, **recipe):
    return World(Recipe(config, **recipe), layout, *form, replicas=replicas, bucket_size=bucket_size, torch_adam=torch_adam)


TIED = bf16(cases.LLAMA_TIED, layers=4)
ODD = bf16(cases.LLAMA, layers=2, ffn=44, vocab=83, vocab_divisor=1, hidden=24, head_dim=6)  # no size is a multiple of 64
ODD_TIED = bf16(cases.LLAMA_TIED, layers=2, ffn=44, vocab=83, vocab_divisor=1, hidden=24, head_dim=6)
SMALL, MOE_4 = bf16(DENSE, layers=2), bf16(MOE, experts=4)
CHANGES = {  # name -> (source world, target world)
    "dense": (world(SMALL, Layout(tp=2), replicas=2), world(SMALL, Layout(pp=2), replicas=2)),
    "odd-sizes": (world(ODD, Layout(tp=2), replicas=3), world(ODD, Layout(tp=1), replicas=2)),
    "buckets": (world(ODD, Layout(tp=1), replicas=3, bucket_size=1500), world(ODD, Layout(tp=2))),
    "buckets-pp": (world(ODD, Layout(pp=2), replicas=2, bucket_size=1500), world(ODD, Layout(tp=1))),
    "fp32": (world(DENSE.with_(layers=2), Layout(tp=2), replicas=2), world(DENSE.with_(layers=2), Layout(tp=4))),
    "te": (world(bf16(DENSE), Layout(tp=2, pp=2), TE_SEQUENTIAL), world(bf16(DENSE), Layout(tp=1), TE_SEQUENTIAL, replicas=2)),
    "virtual": (world(bf16(DENSE), Layout(pp=2, vpp=2), replicas=2), world(bf16(DENSE), Layout(tp=2))),
    "rows-cut": (world(bf16(cases.QWEN2, layers=2), Layout(tp=4)), world(bf16(cases.QWEN2, layers=2), Layout(tp=1), replicas=2)),
    "uneven": (world(bf16(DENSE), Layout(tp=2, pp=2, first_stage_layers=1)), world(bf16(DENSE), Layout(pp=2, last_stage_layers=1))),
    "tied": (world(TIED, Layout(tp=1, pp=2)), world(TIED, Layout(tp=2), replicas=2)),
    "tied-odd": (world(ODD_TIED, Layout(tp=1, pp=2), replicas=2, bucket_size=1500), world(ODD_TIED, Layout(tp=1))),
    "tied-apart": (world(TIED, Layout(tp=2), replicas=2), world(TIED, Layout(tp=1, pp=4))),
    "biases": (world(bf16(cases.LLAMA, layers=2), Layout(tp=2), replicas=2, layer_norm=True), world(bf16(cases.LLAMA, layers=2), Layout(pp=2), layer_norm=True)),
    "moe": (world(MOE_4, Layout(tp=2, ep=2)), world(MOE_4, Layout(ep=4))),
    "moe-one-group": (world(MOE_4, Layout(tp=2, etp=2)), world(MOE_4, Layout(tp=4, etp=4))),  # experts are cut as dense weights are: Megatron's default
    "moe-grouped": (world(bf16(MOE), Layout(ep=4), TE_GROUPED, replicas=2), world(bf16(MOE), Layout(tp=2, ep=2, etp=2), TE_GROUPED)),
    "moe-together": (world(MOE_4, Layout(tp=2, ep=2, etp=2)), world(MOE_4, Layout(tp=2))),
    "moe-apart": (world(MOE_4, Layout(tp=2), replicas=2), world(MOE_4, Layout(pp=2, ep=2))),
    "mixed": (world(bf16(MIXED), Layout(pp=3, ep=2)), world(bf16(MIXED), Layout(tp=2, ep=4))),
    "mla": (world(bf16(MLA), Layout(tp=2), replicas=2, settings=LATENT, mla=True), world(bf16(MLA), Layout(pp=2), settings=LATENT, mla=True)),
    "mla-moe-shared": (world(bf16(LATENT_MOE), Layout(tp=2, ep=2), settings=LATENT | SHARED, mla=True),
                       world(bf16(LATENT_MOE), Layout(tp=2, ep=4), settings=LATENT | SHARED, mla=True)),
    "mtp": (world(SMALL, Layout(tp=1, pp=2), replicas=2, mtp=1), world(SMALL, Layout(tp=2), mtp=1)),
}
DISTRIBUTED = "distributed"


def check_training_goes_on(source, target, kind, program, scratch):
    uninterrupted = legacy_optimizer.train_and_save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    resumed = dcp_checkpoints.resume(target, there, PLAIN if kind == PLAIN else RESHARDABLE)
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})
    common = common_of(there)
    assert common["opt_param_scheduler"] and not hasattr(common["args"], "no_save_optim") and common["args"].no_save_rng


@pytest.mark.long_but("tied-odd", "moe", "moe-one-group")
@pytest.mark.parametrize("name", CHANGES)
def test_training_goes_on_from_a_distributed_optimizer(name, program, scratch):
    check_training_goes_on(*CHANGES[name], DISTRIBUTED, program, scratch)


@pytest.mark.long_but("moe")
@pytest.mark.parametrize("name", [name for name in CHANGES if "buckets" not in name])
def test_training_goes_on_from_state_inside_the_model_files(name, program, scratch):
    check_training_goes_on(*CHANGES[name], PLAIN, program, scratch)


@pytest.mark.parametrize("kind", [DISTRIBUTED, PLAIN])
def test_source_and_target_are_compared_with_their_state(kind, program, trained, scratch):
    source = trained / kind
    there = to_torch_dist(program, source, scratch / "there", Layout(pp=2))
    for a, b in ((source, there), (there, source)):
        outcome = subprocess.run([BINARY, "verify", str(a), str(b)], capture_output=True, text=True)
        assert outcome.returncode == 0 and "same: " in outcome.stdout, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("kind", [DISTRIBUTED, PLAIN])
def test_a_checkpoint_is_checked_by_itself(kind, trained, scratch):
    source = Path(shutil.copytree(trained / kind, scratch / "source"))
    sound = subprocess.run([BINARY, "verify", str(source)], capture_output=True, text=True)
    assert sound.returncode == 0 and "master weights" in sound.stdout, sound.stdout + sound.stderr
    spoil_masters(source, kind)
    spoiled = subprocess.run([BINARY, "verify", str(source)], capture_output=True, text=True)
    assert spoiled.returncode == 1 and "do not round to it" in spoiled.stdout, spoiled.stdout + spoiled.stderr


def spoil_masters(source, kind):
    """What rank 0 alone holds: the embedding's first rows."""
    if kind == PLAIN:
        return change(source, 0, SHARD_FILE, lambda content: content["optimizer"]["fp32_from_fp16_params"][0][0].mul_(1.5))
    return change(source, 0, DISTRIBUTED_FILE, lambda content: buffer(content)["param"][-8:].mul_(1.5))


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    root = Path(tempfile.mkdtemp(prefix="reshard-legacy-"))
    legacy_optimizer.train_and_save(world(ODD, Layout(tp=2), replicas=2, bucket_size=1500), root / "distributed", DISTRIBUTED)
    legacy_optimizer.train_and_save(world(ODD, Layout(tp=2)), root / "plain", PLAIN)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def source(trained, scratch):
    return Path(shutil.copytree(trained / "distributed", scratch / "source"))


@pytest.fixture
def plain(trained, scratch):
    return Path(shutil.copytree(trained / "plain", scratch / "plain"))


def refusal(program, source, scratch, format="torch_dist", **options):
    """What the program says; it must publish nothing."""
    outcome = program.attempt(source, scratch / "there", format, target_options={"layout": Layout(tp=1).toml()}, **options)
    assert outcome.returncode == 3 and not (scratch / "there").exists(), outcome.stderr
    said = outcome.stderr.partition("error: ")[2].split("-" * 40)[0].strip()
    assert "\n" not in said and str(source) in said, said
    return said


def change(source, rank, file, edit):
    path = iteration_folder(source) / f"mp_rank_{rank:02d}" / file
    content = torch.load(path, weights_only=False)
    edit(content)
    torch.save(content, path)


def buffer(content):
    return next(iter(content[0].values()))


def shift(content):
    buffer(content)["param"] = torch.roll(buffer(content)["param"], 1)


def cut(content):
    for slot in ("param", "exp_avg", "exp_avg_sq"):
        buffer(content)[slot] = buffer(content)[slot][:-1].clone()
    buffer(content)["numel_unpadded"] -= 1


def misstate(content):
    buffer(content)["numel_unpadded"] += 128


def halve(content):
    buffer(content)["exp_avg"] = buffer(content)["exp_avg"].bfloat16()


def forget_moment(content):
    del buffer(content)["exp_avg_sq"]


def older(content):
    del content["buckets_coalesced"]


def other_dtype(content):
    content[0] = {(torch.float16, torch.float32): buffer(content)}


@pytest.mark.parametrize("edit, words", [
    (shift, "should be the same"), (cut, "no order known to this version gives this number"), (misstate, "numel_unpadded"),
    (halve, "expected a contiguous vector of F32"), (forget_moment, "lacks 'exp_avg_sq'"), (older, "before Megatron-Core 0.7"),
    (other_dtype, "holds state of float16 weights"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_buffers_that_are_not_those_of_the_run_are_refused(edit, words, program, source, scratch):
    change(source, 1, DISTRIBUTED_FILE, edit)
    said = refusal(program, source, scratch)
    assert words in said, said


def test_shifted_masters_are_found_by_their_weights(program, scratch):
    """No other rank has anything to compare them with."""
    legacy_optimizer.train_and_save(world(ODD, Layout(tp=1)), scratch / "source", DISTRIBUTED)
    sound = subprocess.run([BINARY, "suspects", scratch / "source"], capture_output=True, text=True)
    assert sound.returncode == 0 and " master weights" in sound.stdout, sound.stdout + sound.stderr
    change(scratch / "source", 0, DISTRIBUTED_FILE, shift)
    suspects = subprocess.run([BINARY, "suspects", scratch / "source"], capture_output=True, text=True)
    assert suspects.returncode == 1 and "master weights differ. Weights were edited" in suspects.stdout, suspects.stdout + suspects.stderr
    said = refusal(program, scratch / "source", scratch)
    assert "do not round to it" in said and 'source.optimizer = "drop"' in said, said


def test_another_bucket_size_is_refused(program, source, scratch):
    """Its total may be the same: the proof by the weights finds it then."""
    for rank in (0, 1):
        change(source, rank, SHARD_FILE, lambda content: setattr(content["args"], "overlap_grad_reduce", False))
    said = refusal(program, source, scratch)
    assert "no order known to this version gives this number" in said or "do not round to it" in said, said


def test_a_lost_file_is_refused(program, source, scratch):
    (iteration_folder(source) / "mp_rank_01" / DISTRIBUTED_FILE).unlink()
    said = refusal(program, source, scratch)
    assert "tensor rank 1 in pipeline rank 0" in said and 'source.optimizer = "drop"' in said, said


def test_a_lost_file_of_experts_is_refused(program, scratch):
    legacy_optimizer.train_and_save(world(MOE_4, Layout(ep=2)), scratch / "source", DISTRIBUTED)
    (iteration_folder(scratch / "source") / "mp_rank_00_001" / DISTRIBUTED_FILE).unlink()
    outcome = program.attempt(scratch / "source", scratch / "there", "torch_dist")
    assert outcome.returncode == 3 and "nothing holds expert 2:4" in outcome.stderr, outcome.stderr


def test_state_without_any_file_is_refused(program, source, scratch):
    for rank in (0, 1):
        (iteration_folder(source) / f"mp_rank_{rank:02d}" / DISTRIBUTED_FILE).unlink()
    said = refusal(program, source, scratch)
    assert DISTRIBUTED_FILE in said and 'source.optimizer = "drop"' in said, said


def test_another_step_is_refused(program, source, scratch):
    change(source, 1, SHARD_FILE, lambda content: content["optimizer"]["optimizer"]["param_groups"][0].update(step=7))
    assert "at step 7" in refusal(program, source, scratch)


def test_formats_without_a_place_for_state_are_refused_with_a_way(program, source, scratch):
    outcome = program.attempt(source, scratch / "there", "huggingface")
    said = outcome.stderr
    assert outcome.returncode == 3 and 'target.format = "torch_dist"' in said and 'source.optimizer = "drop"' in said, said
    assert not (scratch / "there").exists()


def swap(content):
    masters = content["optimizer"]["fp32_from_fp16_params"]
    same = [m for m in range(len(masters[0])) for n in range(m) if masters[0][m].shape == masters[0][n].shape]
    first = next(n for n in range(same[0]) if masters[0][n].shape == masters[0][same[0]].shape)
    masters[0][first], masters[0][same[0]] = masters[0][same[0]], masters[0][first]


def freeze(content):
    group = content["optimizer"]["optimizer"]["param_groups"][0]
    group["params"] = group["params"][:-1]
    content["optimizer"]["fp32_from_fp16_params"][0].pop()


def regroup(content):
    for group in content["optimizer"]["optimizer"]["param_groups"]:
        group["wd_mult"] = 1.0


def repeat(content):
    group = content["optimizer"]["optimizer"]["param_groups"][0]
    group["params"] = [group["params"][0]] * len(group["params"])


def reshape(content):
    state = content["optimizer"]["optimizer"]["state"]
    state[0]["exp_avg"] = state[0]["exp_avg"].reshape(-1)


@pytest.mark.parametrize("edit, words", [
    (swap, "do not round to it"), (freeze, "parameters"), (regroup, "no group without weight decay"), (repeat, "twice"), (reshape, "has the shape"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_state_in_model_files_that_does_not_fit_is_refused(edit, words, program, plain, scratch):
    change(plain, 1, SHARD_FILE, edit)
    said = refusal(program, plain, scratch)
    assert words in said and 'source.optimizer = "drop"' in said, said


def with_generators(content):
    content["rng_state"] = random_state()


def test_generators_stay_behind_with_a_warning(program, source, scratch):
    for rank in (0, 1):
        change(source, rank, SHARD_FILE, with_generators)
    outcome = program.attempt(source, scratch / "there", "torch_dist", target_options={"layout": Layout(tp=1).toml()})
    assert outcome.returncode == 0 and "--no-load-rng" in outcome.stdout + outcome.stderr, outcome.stderr
    assert common_of(scratch / "there")["args"].no_save_rng


@pytest.mark.parametrize("kind", ["source", "plain"])
def test_state_can_be_left_behind(kind, program, request, scratch):
    there = to_torch_dist(program, request.getfixturevalue(kind), scratch / "there", Layout(tp=1), source_options={"optimizer": "drop"})
    assert not [key for key in dcp_reading.catalogue(iteration_folder(there)).state_dict_metadata if "optimizer" in key]
    assert "optimizer" not in common_of(there) and common_of(there)["args"].no_save_optim
