"""Checkpoints with the optimizer state that Megatron saves by default: its buffers as they are in memory, which it can load in the same layout alone.

After the program changed the layout, megatron-core trains on to the bits of a run that never stopped."""

import io
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import cases
import dcp_checkpoints
import dcp_reading
from dcp_cases import DENSE, LATENT, LATENT_MOE, MIXED, MLA, MOE, SHARED, common_of, comparable_common, to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, GATHERED, RESHARDABLE, World
from dcp_models import Recipe
from megatron_release import write_common
from numpy_megatron import iteration_folder
from peer_types import TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import BINARY
from tensor_patterns import assert_same_tensors, raw


def bf16(config, **changes):
    return config.with_(dtype="bfloat16", **changes)


TIED = bf16(cases.LLAMA_TIED, layers=4)
ODD = bf16(cases.LLAMA, layers=2, ffn=44, vocab=83, vocab_divisor=1, hidden=24, head_dim=6)  # no size is a multiple of 64
CHANGES = {  # name -> (source world, target world)
    "dense": (World(Recipe(bf16(DENSE, layers=2)), Layout(tp=2), replicas=2), World(Recipe(bf16(DENSE, layers=2)), Layout(pp=2), replicas=2)),
    "odd-sizes": (World(Recipe(ODD), Layout(tp=2), replicas=3), World(Recipe(ODD), Layout(tp=1), replicas=2)),
    "buckets": (World(Recipe(ODD), Layout(tp=1), replicas=3, bucket_size=1500), World(Recipe(ODD), Layout(tp=2), replicas=1)),
    "fp32": (World(Recipe(DENSE.with_(layers=2)), Layout(tp=2), replicas=2), World(Recipe(DENSE.with_(layers=2)), Layout(tp=4))),
    "te": (World(Recipe(bf16(DENSE)), Layout(tp=2, pp=2), TE_SEQUENTIAL), World(Recipe(bf16(DENSE)), Layout(tp=1), TE_SEQUENTIAL, replicas=2)),
    "virtual": (World(Recipe(bf16(DENSE)), Layout(pp=2, vpp=2), replicas=2), World(Recipe(bf16(DENSE)), Layout(tp=2))),
    "rows-cut": (World(Recipe(bf16(cases.QWEN2, layers=2)), Layout(tp=4)), World(Recipe(bf16(cases.QWEN2, layers=2)), Layout(tp=1), replicas=2)),
    "uneven": (World(Recipe(bf16(DENSE)), Layout(tp=2, pp=2, first_stage_layers=1)), World(Recipe(bf16(DENSE)), Layout(pp=2, last_stage_layers=1))),
    "tied": (World(Recipe(TIED), Layout(tp=1, pp=2)), World(Recipe(TIED), Layout(tp=2), replicas=2)),
    "tied-apart": (World(Recipe(TIED), Layout(tp=2), replicas=2), World(Recipe(TIED), Layout(tp=1, pp=4))),
    "biases": (World(Recipe(bf16(cases.LLAMA, layers=2), layer_norm=True), Layout(tp=2), replicas=2),
               World(Recipe(bf16(cases.LLAMA, layers=2), layer_norm=True), Layout(pp=2))),
    "moe": (World(Recipe(bf16(MOE, experts=4)), Layout(tp=2, ep=2)), World(Recipe(bf16(MOE, experts=4)), Layout(ep=4))),
    "moe-one-group": (World(Recipe(bf16(MOE, experts=4)), Layout(tp=2, etp=2)), World(Recipe(bf16(MOE, experts=4)), Layout(tp=4, etp=2))),
    "moe-grouped": (World(Recipe(bf16(MOE)), Layout(ep=4), TE_GROUPED, replicas=2), World(Recipe(bf16(MOE)), Layout(tp=2, ep=2, etp=2), TE_GROUPED)),
    "moe-together": (World(Recipe(bf16(MOE, experts=4)), Layout(tp=2, ep=2, etp=2)), World(Recipe(bf16(MOE, experts=4)), Layout(tp=2))),
    "moe-apart": (World(Recipe(bf16(MOE, experts=4)), Layout(tp=2), replicas=2), World(Recipe(bf16(MOE, experts=4)), Layout(pp=2, ep=2))),
    "mixed": (World(Recipe(bf16(MIXED)), Layout(pp=3, ep=2)), World(Recipe(bf16(MIXED)), Layout(tp=2, ep=4))),
    "mla": (World(Recipe(bf16(MLA), LATENT, mla=True), Layout(tp=2), replicas=2), World(Recipe(bf16(MLA), LATENT, mla=True), Layout(pp=2))),
    "mla-moe-shared": (World(Recipe(bf16(LATENT_MOE), LATENT | SHARED, mla=True), Layout(tp=2, ep=2)),
                       World(Recipe(bf16(LATENT_MOE), LATENT | SHARED, mla=True), Layout(tp=2, ep=4))),
    "mtp": (World(Recipe(bf16(DENSE, layers=2), mtp=1), Layout(tp=2), replicas=2), World(Recipe(bf16(DENSE, layers=2), mtp=1), Layout(tp=1, pp=2))),
}


@pytest.mark.long_but("odd-sizes", "moe", "moe-one-group")
@pytest.mark.parametrize("name", CHANGES)
def test_training_goes_on_in_another_layout_as_if_nothing_had_happened(name, program, scratch):
    check_training_goes_on(*CHANGES[name], DP_RESHARDABLE, program, scratch)


@pytest.mark.long_but("buckets", "moe-apart")
@pytest.mark.parametrize("name", CHANGES)
def test_training_goes_on_from_the_form_that_gathers_each_group_in_one_object(name, program, scratch):
    check_training_goes_on(*CHANGES[name], GATHERED, program, scratch)


def check_training_goes_on(source, target, kind, program, scratch):
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    resumed = dcp_checkpoints.resume(target, there, RESHARDABLE)
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})


@pytest.mark.long
def test_the_result_is_what_megatron_saves_in_its_form_for_every_layout(program, scratch):
    """The same run saved in both forms: the same tensors, and the same common state."""
    world, _ = CHANGES["moe"]
    dcp_checkpoints.train_and_save(world, scratch / "buffers", DP_RESHARDABLE)
    dcp_checkpoints.train_and_save(world, scratch / "whole", RESHARDABLE)
    there = to_torch_dist(program, scratch / "buffers", scratch / "there", world.layout)
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(scratch / "whole"), vocabulary_of(world))
    assert comparable_common(common_of(there)) == comparable_common(common_of(scratch / "whole"))


# --- what is refused ----------------------------------------------------------------------------------------------


PARAM, MOMENT = "param", "exp_avg_sq"


@pytest.fixture(scope="module")
def trained():
    root = Path(tempfile.mkdtemp(prefix="reshard-trained-"))
    dcp_checkpoints.train_and_save(World(Recipe(ODD), Layout(tp=2), replicas=2), root / "source", DP_RESHARDABLE)
    yield root / "source"
    shutil.rmtree(root)


@pytest.fixture
def source(trained, scratch):
    return Path(shutil.copytree(trained, scratch / "source"))


def refusal(program, source, scratch, **options):
    """What the program says; it must publish nothing."""
    outcome = program.attempt(source, scratch / "there", "torch_dist", target_options={"layout": Layout(tp=1).toml()}, **options)
    assert outcome.returncode == 3 and not (scratch / "there").exists(), outcome.stderr
    said = outcome.stderr.partition("error: ")[2].split("-" * 40)[0].strip()
    assert "\n" not in said and str(source) in said, said
    return said


def chunks_of(folder, slot, group=0):
    """(file, first byte, elements, place in the bucket) of every chunk of a group's only bucket."""
    found = []
    for index, place in dcp_reading.catalogue(folder).storage_data.items():
        if f"dp_group_idx_{group}." in index.fqn and index.fqn.endswith(f".{slot}"):
            with open(folder / place.relative_path, "rb") as file:
                file.seek(place.offset)
                item = file.read(place.length)
            tensor = torch.load(io.BytesIO(item), weights_only=True)
            found.append((folder / place.relative_path, place.offset + item.index(raw(tensor)), tensor.numel(), index.offset[0]))
    return sorted(found, key=lambda chunk: chunk[3])


def read_floats(chunk):
    with open(chunk[0], "rb") as file:
        file.seek(chunk[1])
        return torch.frombuffer(bytearray(file.read(4 * chunk[2])), dtype=torch.float32)


def write_floats(chunk, values):
    """Without a care for checksums: the job does not look at them (source.verify)."""
    with open(chunk[0], "r+b") as file:
        file.seek(chunk[1])
        file.write(raw(values))


UNCHECKED = {"source_options": {"verify": "off"}}


def test_masters_that_are_not_those_of_their_weights_are_refused(program, source, scratch):
    chunk = max(chunks_of(iteration_folder(source), PARAM), key=lambda one: one[2])
    write_floats(chunk, torch.roll(read_floats(chunk), 1))
    said = refusal(program, source, scratch, **UNCHECKED)
    assert "do not round to it" in said and "PR #5077" in said and 'source.optimizer = "drop"' in said and "layer" in said, said


def test_one_wrong_bit_is_counted_and_named(program, source, scratch):
    chunk = max(chunks_of(iteration_folder(source), PARAM), key=lambda one: one[2])
    values = read_floats(chunk)
    values[7] = values[7] * 1.5 + 1
    write_floats(chunk, values)
    said = refusal(program, source, scratch, **UNCHECKED)
    assert ": 1 of " in said and f"{values[7].item():.3g}"[:4] in said, said


def test_state_that_megatron_itself_saved_shifted_is_refused(program, scratch):
    """Megatron-Core up to 0.19 mixes up places with and without padding when it saves several buckets in the form for every layout."""
    dcp_checkpoints.train_and_save(World(Recipe(ODD), Layout(tp=1), replicas=3, bucket_size=1500), scratch / "source", RESHARDABLE)
    said = refusal(program, scratch / "source", scratch)
    assert "do not round to it" in said and "PR #5077" in said, said


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_second_moments_that_none_can_be_are_refused(value, program, source, scratch):
    chunk = max(chunks_of(iteration_folder(source), MOMENT), key=lambda one: one[2])
    values = read_floats(chunk)
    values[5] = value
    write_floats(chunk, values)
    said = refusal(program, source, scratch, **UNCHECKED)
    assert "a second moment must be finite and not negative" in said and "exp_avg_sq" in said, said


def test_groups_in_each_other_s_place_are_refused(program, source, scratch):
    folder = iteration_folder(source)
    ours, theirs = chunks_of(folder, PARAM, 0), chunks_of(folder, PARAM, 1)
    assert [chunk[2:] for chunk in ours] == [chunk[2:] for chunk in theirs]
    held = [(read_floats(a), read_floats(b)) for a, b in zip(ours, theirs)]
    for a, b, (x, y) in zip(ours, theirs, held):
        write_floats(a, y), write_floats(b, x)
    assert "do not round to it" in refusal(program, source, scratch, **UNCHECKED)


def change_args(source, **changes):
    common = common_of(source)
    vars(common["args"]).update(changes)
    write_common(iteration_folder(source), common)


@pytest.mark.parametrize("changes, words", [
    (dict(tensor_model_parallel_size=1), "has 2 groups|layout of args"),
    (dict(pipeline_model_parallel_size=2), "layout of args"),
], ids=["tp", "pp"])  # fmt: skip
def test_args_of_another_layout_are_refused(changes, words, program, source, scratch):
    change_args(source, **changes)
    said = refusal(program, source, scratch)
    assert re.search(words, said) and 'source.optimizer = "drop"' in said, said


def test_state_can_be_left_behind(program, source, scratch):
    there = to_torch_dist(program, source, scratch / "there", Layout(tp=1), source_options={"optimizer": "drop"})
    assert not [key for key in dcp_reading.catalogue(iteration_folder(there)).state_dict_metadata if "optimizer" in key]
    assert "optimizer" not in common_of(there)


# --- verify -------------------------------------------------------------------------------------------------------


def verdict(source, code):
    outcome = subprocess.run([BINARY, "verify", str(source)], capture_output=True, text=True)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    return outcome.stdout


def test_verify_compares_state_with_its_weights_where_nothing_else_is_recorded(source):
    said = verdict(source, 0)
    assert re.fullmatch(r"OK: \d+ tensors of master weights against their weights, \d+ of second moments\n", said), said


def test_verify_names_masters_and_moments_that_are_wrong(source):
    folder = iteration_folder(source)
    for slot, wrong in ((PARAM, lambda values: torch.roll(values, 1)), (MOMENT, lambda values: -1 - values)):
        chunk = max(chunks_of(folder, slot), key=lambda one: one[2])
        write_floats(chunk, wrong(read_floats(chunk)))
    said = verdict(source, 1)
    assert "master weights do not round to it, first at " in said and "exp_avg_sq)': has a value that is negative" in said, said
    assert said.splitlines()[-1].startswith("damaged: ") and "faults" in said, said


@pytest.mark.parametrize("ranks", [1, 3])
def test_suspects_names_masters_and_moments_that_are_wrong(ranks, source):
    def found():
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), BINARY, "suspects", str(source), "--json"]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        assert answer["masters"] > 0
        return answer["suspects"]

    assert found() == []
    folder = iteration_folder(source)
    for slot, wrong in ((PARAM, lambda values: torch.roll(values, 1)), (MOMENT, lambda values: -1 - values)):
        chunk = max(chunks_of(folder, slot), key=lambda one: one[2])
        write_floats(chunk, wrong(read_floats(chunk)))
    rows = found()
    assert {row["kind"] for row in rows} == {"negative", "master weights differ"}, rows
    assert all(row["count"] > 0 and row["cause"] for row in rows)
    assert any("master weights do not round to it, first at " in row["found"] for row in rows)
