"""Megatron-Bridge itself: what it saves comes back as the folder that it imported, and what the program writes is what it loads."""

import importlib.util
import json

import pytest

from bridge_families import BRIDGES_FAULT, FAMILIES, IN_FLOAT32, NEEDS_A_CONFIG, NOT_TAKEN, save_with_tokenizer
from hf_models import read_hf
from tensor_patterns import assert_same_tensors

pytestmark = pytest.mark.skipif(importlib.util.find_spec("megatron.bridge") is None, reason="Megatron-Bridge is not installed")
NOT_BUILT = "vision_tower.head."  # of Gemma 3: transformers makes it, and no published folder has it
TAKEN = [name for name in FAMILIES if name not in NOT_TAKEN]


def of_bridge(name, *arguments):
    import bridge_runs

    return bridge_runs.of_bridge(getattr(bridge_runs, name), *arguments)


def model_options(folder):
    config = json.loads((folder / "config.json").read_text())
    return {"unmapped": "keep"} if any("vision_config" in str(key) or "audio_config" in str(key) for key in config) else {}


def in_one_dtype(tensors):
    """Megatron-Bridge reads the dtype of the top level of config.json: where only text_config has one, it makes float32 of all. The values are the same."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_bridge_and_the_program_make_the_same(name, program, scratch):
    folder = save_with_tokenizer(scratch / "folder", FAMILIES[name])
    model = model_options(folder)
    imported = of_bridge("import_folder", folder, scratch / "bridge")
    there = program.run(folder, scratch / "there", "torch_dist", ranks=1, model=model)
    if name not in BRIDGES_FAULT:
        assert_same_tensors(of_bridge("load_target", folder, there / "release"), imported)
    source = {"config": folder} if name in NEEDS_A_CONFIG else {}
    back = program.to_hf(scratch / "bridge", scratch / "back", source_options=source, model=model, ranks=1)
    if name not in BRIDGES_FAULT:
        kept = in_one_dtype if name in IN_FLOAT32 else dict
        expected = {key: tensor for key, tensor in read_hf(folder).items() if not key.startswith(NOT_BUILT)}
        assert_same_tensors(kept(read_hf(back)), kept(expected))


@pytest.mark.long
@pytest.mark.parametrize("name", NOT_TAKEN)
def test_bridge_takes_no_more_than_is_said(name, scratch):
    folder = save_with_tokenizer(scratch / "folder", FAMILIES[name])
    with pytest.raises(RuntimeError):
        of_bridge("import_folder", folder, scratch / "bridge")
