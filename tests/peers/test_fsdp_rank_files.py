"""One file a rank, as verl and SkyRL save FSDP models: real FSDP1 and FSDP2 save them on CPU ranks, and what torch itself gathers there is the truth."""

import shutil

import pytest
import torch

import dcp_reading
import fsdp_rank_saves as saves
from reshard_job import command
from tensor_patterns import same_bits

KINDS = (
    "fsdp2", "hsdp-moe", "tp", "uneven-hsdp-tp", "ignored-buffer-tied-bf16", "names", "fsdp1", "fsdp1-hsdp-tied",
    "fsdp1-sharded-tensor", "fsdp1-orig", "fsdp1-mlp")
FLAT = "fsdp1-mlp"  # modules inside of blocks were wrapped
DROP = {"rng": "drop", "optimizer": "drop"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder with a run of each kind, and kind -> flat name -> whole tensor."""
    root = tmp_path_factory.mktemp("fsdp-ranks")
    return root, saves.save(KINDS, root)


def assert_all(found, truth):
    assert set(found) == set(truth)
    for name, tensor in truth.items():
        assert found[name].dtype == tensor.dtype and same_bits(found[name], tensor), name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != FLAT])
def test_weights_and_state_are_what_torch_gathers(kind, saved, program, scratch):
    root, truth = saved
    target = program.run(root / kind, scratch / "dcp", "dcp", source_options={"rng": "drop"})
    same_training = truth["fsdp1"] if kind == "fsdp1-orig" else truth[kind]  # its state is what flat parameters come to
    assert_all(dcp_reading.whole_tensors(target), same_training)


def test_flat_state_of_other_modules_than_blocks_is_refused(saved, program, scratch):
    root, truth = saved
    refused = program.attempt(root / FLAT, scratch / "dcp", "dcp", source_options={"rng": "drop"})
    assert refused.returncode == 3 and "the optimizer state of FSDP1 is in flat vectors" in refused.stderr
    target = program.run(root / FLAT, scratch / "dcp", "dcp", source_options=DROP)
    assert_all(dcp_reading.whole_tensors(target), {name: one for name, one in truth[FLAT].items() if not name.startswith("optimizer.")})


@pytest.mark.parametrize("kind", ["fsdp2", "hsdp-moe", "fsdp1"])
def test_transformers_loads_the_actor_with_equal_logits(kind, saved, program, scratch):
    from transformers import AutoModelForCausalLM

    root, truth = saved
    target = program.to_hf(root / kind, scratch / "hf", source_options=DROP)
    weights = {name: tensor for name, tensor in truth[kind].items() if not name.startswith("optimizer.")}
    trained = type(saves.model_of(kind)).from_pretrained(None, config=saves.config_of(kind), state_dict=weights, dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    words = torch.arange(10).reshape(1, 10)
    assert_all(loaded.state_dict(), trained.state_dict())
    with torch.no_grad():  # how a matrix lies in memory changes the order of sums
        assert torch.allclose(loaded(words).logits, trained(words).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target_format", ["torch_dist", pytest.param("megatron", marks=pytest.mark.long)])
def test_megatron_gets_weights_and_state(target_format, saved, program, scratch):
    root, truth = saved
    run = root / "hsdp-moe"
    layout = "{ tp = 2, ep = 2 }"
    target = program.run(run, scratch / "megatron", target_format, source_options={"rng": "drop"}, target_options={"layout": layout})
    same = command("verify", run, target)
    assert same.returncode == 0, same.stdout + same.stderr
    back = program.to_hf(target, scratch / "hf", source_options=DROP)
    assert command("verify", "--weights-only", run, back).returncode == 0


def test_torch_loads_weights_and_optimizer_on_other_ranks(saved, program, scratch):
    root, truth = saved
    target = program.run(root / "fsdp2", scratch / "dcp", "dcp", source_options={"rng": "drop"})
    found, rates = saves.resume("fsdp2", target, 2)
    assert rates == [1e-3]
    assert_all(found, truth["fsdp2"])


def test_inspect_says_what_it_is(saved):
    said = command("inspect", saved[0] / "fsdp2").stdout
    for part in ("fsdp_ranks", "FSDP2 of 4 ranks, 8 files", "step              2", "exp_avg, exp_avg_sq, after 2 steps"):
        assert part in said, said


def test_a_rank_that_is_missing_is_named(saved, scratch):
    run = scratch / "run"
    shutil.copytree(saved[0] / "fsdp2", run)
    (run / "global_step_2" / "actor" / "model_world_size_4_rank_3.pt").unlink()
    said = command("inspect", run)
    assert said.returncode == 3 and "the model file of rank 3 of 4 is missing; 3 are there" in said.stderr


def test_a_tensor_shorter_than_its_storage_is_checked_as_well(scratch):
    """fully_shard pads the part of the last rank, so it has a record of more bytes, which no sum of what is read fills."""
    def save(rank, tensor):
        path = scratch / f"model_world_size_2_rank_{rank}.pt"
        torch.save({"w": tensor[:20], "again": tensor[:20], "next": tensor[20:22]}, path)
        return path

    padded = torch.arange(24, dtype=torch.float32)
    file = [save(rank, padded) for rank in range(2)][1]
    assert command("inspect", scratch).returncode == 0
    whole = file.read_bytes()
    begin = whole.index(padded[:20].numpy().tobytes())
    for at in (begin + 40, begin + 90):  # of the tensor, and of the padding
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        said = command("digest", scratch)
        assert said.returncode == 3 and "is recorded: the file is damaged" in said.stderr, said.stderr
    other = padded.clone()
    other[23] = 7
    save(1, other)  # another padding
    assert command("digest", scratch).returncode == 0
    other[3] = 7
    save(1, other)
    said = command("digest", scratch)
    assert said.returncode == 3 and "the two must hold the same values" in said.stderr, said.stderr


def test_a_step_that_the_tracker_names_and_that_is_not_there_is_refused(saved, scratch):
    run = scratch / "run"
    shutil.copytree(saved[0] / "fsdp2", run)
    (run / "latest_checkpointed_iteration.txt").write_text("30")
    said = command("inspect", run)
    assert said.returncode == 3 and "names step 30, and there is no complete save of it: " in said.stderr, said.stderr
