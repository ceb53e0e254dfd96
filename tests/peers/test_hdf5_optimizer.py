"""Optimizer state in HDF5 containers: h5py reads it, and megatron-core trains on from it to the same bits."""

import h5py
import numpy
import pytest
import torch

import dcp_checkpoints
import dcp_reading
import legacy_optimizer
from dcp_cases import to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE
from numpy_megatron import iteration_folder
from reshard_job import tree_hashes
from tensor_patterns import assert_same_tensors
from test_fsdp_optimizer import SAVES, WORLDS, meant, to_fsdp
from test_legacy_optimizer import DISTRIBUTED
from test_legacy_optimizer_targets import INLINE, to_rank_folders

SLOTS = ["param", "exp_avg", "exp_avg_sq"]


def to_hdf5(program, source, there, **options):
    return program.run(source, there, "hdf5", **options)


@pytest.mark.long_but("dp_reshardable-dense", "inline-moe")
@pytest.mark.parametrize("name", [f"{form}-{case}" for form in SAVES for case in WORLDS if not (case == "odd" and form in ("inline", "fully_reshardable"))])
def test_training_goes_on_behind_hdf5(name, program, scratch):
    form, _, case = name.partition("-")
    source, target = WORLDS[case]
    save, kind = SAVES[form]
    uninterrupted = save(source, scratch / "source", kind)
    there = to_hdf5(program, scratch / "source", scratch / "hdf5")
    back = to_torch_dist(program, there, scratch / "back", target.layout)
    loaded = PLAIN if form in ("inline", "plain") else RESHARDABLE
    assert_same_tensors(meant(source, dcp_checkpoints.resume(target, back, loaded)), meant(source, uninterrupted))


@pytest.mark.long_but(DISTRIBUTED)
@pytest.mark.parametrize("kind", [DISTRIBUTED, INLINE])
def test_training_goes_on_in_rank_folders(kind, program, scratch):
    source, target = WORLDS["dense"]
    uninterrupted = legacy_optimizer.train_and_save(source, scratch / "source", kind)
    there = to_hdf5(program, scratch / "source", scratch / "hdf5")
    back = to_rank_folders(program, there, scratch / "back", target, kind)
    assert_same_tensors(meant(source, legacy_optimizer.resume(target, back, kind)), meant(source, uninterrupted))


def test_h5py_finds_a_dataset_for_each_slot(program, scratch):
    source, _ = WORLDS["dense"]
    dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    whole = dcp_reading.whole_tensors(iteration_folder(scratch / "source"))
    there = to_hdf5(program, scratch / "source", scratch / "hdf5")
    with h5py.File(there / "model.h5") as file:
        assert file.attrs["slots"].decode() == " ".join(SLOTS)
        for slot in SLOTS:
            found = file[f"tensors/final_norm ({slot})"]
            assert found.dtype == numpy.float32 and [dim.label for dim in found.dims] == [dim.label for dim in file["tensors/final_norm"].dims]
            assert numpy.array_equal(found[:], whole[f"optimizer.state.{slot}.decoder.final_layernorm.weight"].numpy())
    weights = program.run(there, scratch / "weights", "torch_dist", source_options={"optimizer": "drop"}, target_options={"layout": source.layout.toml()})
    assert not [key for key in dcp_reading.tensor_entries(iteration_folder(weights)) if key.startswith("optimizer")]


def test_the_same_file_from_every_form_and_layout(program, scratch):
    """Slots are the same bytes, whatever held them before: torch_dist, Megatron-FSDP, HDF5 itself, and however many ranks work."""
    source, target = WORLDS["moe"]
    dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    there = to_hdf5(program, scratch / "source", scratch / "hdf5")
    again = to_hdf5(program, there, scratch / "again", ranks=1)
    assert tree_hashes(again) == tree_hashes(there)
    fsdp = to_fsdp(program, there, scratch / "fsdp", target.layout)
    behind = to_hdf5(program, fsdp, scratch / "behind")
    with h5py.File(there / "model.h5") as one, h5py.File(behind / "model.h5") as other:
        assert set(one["tensors"]) == set(other["tensors"])
        assert all(one["tensors"][name].attrs["crc64"] == other["tensors"][name].attrs["crc64"] for name in one["tensors"])
