"""What docs/comparison.md says of other converters that run here: PyTorch's format_utils and DeepSpeed's ds_to_universal, on the samples of the page."""

import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tensor_patterns import same_bits

SAMPLES = Path(__file__).parents[1] / "data"


def unpacked(archive, folder):
    with tarfile.open(SAMPLES / archive) as packed:
        packed.extractall(folder)
    return folder


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_of_format_utils_ends_with_0_where_there_is_no_source(scratch):
    command = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", scratch / "nowhere", scratch / "weights.pt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "No checkpoint found" in done.stdout and not (scratch / "weights.pt").exists()


def test_format_utils_makes_the_same_of_a_folder_and_of_ours(program, scratch):
    """Names and values stay, those of the optimizer too."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    source = unpacked("gallery.tar.xz", scratch) / "titan/outputs/checkpoint/step-3"
    ours = program.run(source, scratch / "ours", "dcp")
    dcp_to_torch_save(source, scratch / "theirs.pt")
    dcp_to_torch_save(ours, scratch / "ours.pt")
    expected, found = (torch.load(scratch / name, weights_only=False) for name in ("theirs.pt", "ours.pt"))
    tensors = {name for name, value in expected.items() if torch.is_tensor(value)}
    assert len(tensors) > 20 and set(found) == set(expected)
    assert not [name for name in tensors if not same_bits(found[name], expected[name])]


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


def by_deepspeed(source, target, inject):
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(SimpleNamespace(
        input_folder=str(source / "global_step2"), output_folder=str(target), num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False,
        strict=True, inject_missing_state=inject))
    return target


def parameters(folder):
    values = {path.relative_to(folder).as_posix(): torch.load(path, weights_only=False) for path in folder.glob("*/*.pt")}
    return {name: torch.as_tensor(value["param"] if isinstance(value, dict) else value) for name, value in values.items()}


@pytest.mark.long_but("zero2")
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_universal_checkpoints_hold_the_values_of_those_that_deepspeed_makes(stage, program, scratch):
    source = unpacked("deepspeed.tar.xz", scratch) / stage
    expected = parameters(by_deepspeed(source, scratch / "theirs", inject=stage == "zero2") / "zero")
    ours = program.run(source, scratch / "ours", "deepspeed")
    found = parameters(ours / "global_step2_universal" / "zero")
    expected = {name: value for name, value in expected.items() if not name.endswith("step.pt")}
    assert len(expected) == 63 and set(expected) <= set(found)
    different = [name for name, value in expected.items() if not same_bits(found[name].reshape(value.shape), value)]
    assert not different


@pytest.mark.long
def test_deepspeed_asks_for_a_state_that_this_run_has_not_saved(scratch):
    with pytest.raises(AssertionError, match="universal_checkpoint_info state is missing"):
        by_deepspeed(unpacked("deepspeed.tar.xz", scratch) / "zero2", scratch / "theirs", inject=False)
