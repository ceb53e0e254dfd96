"""Files of ranks in each other's place, or copied over each other, are noticed by headers alone, as Megatron, torch and DeepSpeed write them."""

import shutil

import pytest
import torch

import dcp_worlds
import deepspeed_runs
from family_models import FAMILIES, save_family
from peer_types import Layout

COPIED = "One is a copy of the other"
RECORDS = ("reshard.json", "SHA256SUMS")


def exchange(a, b):
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


def copy(a, b):
    shutil.copyfile(a, b)


def outcome_of(program, source, scratch, **options):
    shutil.rmtree(scratch / "out", ignore_errors=True)
    return program.attempt(source, scratch / "out", "dcp", ranks=2, **options)


def noticed(program, source, scratch, words, **options):
    outcome = outcome_of(program, source, scratch, **options)
    assert outcome.returncode == 3 and words in outcome.stderr, f"exit {outcome.returncode}\n{outcome.stderr[-2000:]}"
    assert not (scratch / "out").exists()


def sound(program, source, scratch, **options):
    outcome = outcome_of(program, source, scratch, **options)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


@pytest.fixture
def shards(program, scratch):
    """Two tensor-parallel ranks, each with the number that Megatron's own runs put into args."""
    folder = save_family(scratch / "folder", FAMILIES["llama"])
    source = program.run(folder, scratch / "source", "megatron", target_options={"layout": Layout(tp=2).toml()}, ranks=1)
    for record in RECORDS:
        (source / record).unlink()
    files = sorted(source.rglob("model_optim_rng.pt"))
    assert len(files) == 2
    for rank, file in enumerate(files):
        state = torch.load(file, weights_only=False)
        state["args"].rank = rank
        torch.save(state, file)
    return source, files



@pytest.mark.parametrize(("change", "words"), [(exchange, "was saved by rank 0 (args.rank)"), (copy, COPIED)])
def test_tensor_parallel_ranks_of_megatron(change, words, program, shards, scratch):
    source, files = shards
    attempt = lambda: program.attempt(source, scratch / "out", "torch_dist", ranks=2)  # noqa: E731
    assert attempt().returncode == 0
    shutil.rmtree(scratch / "out")
    change(*files)
    outcome = attempt()
    assert outcome.returncode == 3 and words in outcome.stderr, outcome.stderr[-2000:]


def test_files_that_one_process_wrote_for_all_ranks_have_one_number(program, shards, scratch):
    source, files = shards
    for file in files:
        state = torch.load(file, weights_only=False)
        state["args"].rank = 0
        torch.save(state, file)
    program.run(source, scratch / "out", "torch_dist")


def test_a_copied_file_of_boxes(program, scratch):
    source = scratch / "source"
    dcp_worlds.run_ranks(dcp_worlds.save_rows_on_rank, 2, str(source), False)
    sound(program, source, scratch)
    copy(source / "__0_0.distcp", source / "__1_0.distcp")
    noticed(program, source, scratch, COPIED)


def test_equal_experts_are_no_copies(program, scratch):
    source = scratch / "source"
    dcp_worlds.run_ranks(dcp_worlds.save_rows_on_rank, 2, str(source), True)
    sound(program, source, scratch)


@pytest.fixture(scope="module")
def zero3(tmp_path_factory):
    root = tmp_path_factory.mktemp("zero3")
    deepspeed_runs.save(2, {"zero3": {"stage": 3, "model": "llama", "folder": str(root / "zero3")}})
    return root / "zero3"


@pytest.mark.parametrize(("change", "words"), [(exchange, "by the name in its archive"), (copy, "by the name in its archive")])
def test_ranks_of_zero(change, words, program, zero3, scratch):
    source = shutil.copytree(zero3, scratch / "source")
    sound(program, source, scratch)
    change(*sorted(source.rglob("*optim_states.pt")))
    noticed(program, source, scratch, words)


def test_a_copy_of_a_rank_of_zero_under_a_name_of_no_rank(program, zero3, scratch):
    """A stream has no name: its checksums tell it."""
    source = shutil.copytree(zero3, scratch / "source")
    files = sorted(source.rglob("*optim_states.pt"))
    for file in files:
        state = torch.load(file, weights_only=False)
        with open(file, "wb") as stream:
            torch.save(state, stream)
    sound(program, source, scratch)
    copy(*files)
    noticed(program, source, scratch, COPIED)
