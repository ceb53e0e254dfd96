"""mcore-bridge itself, ms-swift's library of models: what it saves comes back as the folder that it loaded, and it loads what the program writes."""

import importlib.util
import json

import pytest
import torch

from bridge_families import save_with_tokenizer
from hf_models import read_hf
from mcore_bridge_families import ARGUMENTS, FAMILIES, FAULTS, MODELS, REFUSED, TOWERS
from tensor_patterns import assert_same_tensors
from test_bridge import without_padding

pytestmark = [pytest.mark.long, pytest.mark.skipif(importlib.util.find_spec("mcore_bridge") is None, reason="mcore-bridge is not installed")]
CASES = {name: model_type for model_type, names in MODELS.items() for name in names}
TAKEN = [name for name in CASES if name not in REFUSED | FAULTS]
# Of another kind: it has the weights, and others than the folder, or leaves some of the folder's out.
TRACKER = "latest_checkpointed_iteration.txt"
WITHOUT_TRACE = ("ernie-4.5-biases", "ernie-4.5-moe", "gpt-oss-mxfp4", "mimo", "qwen3-vl-moe")


def of_mcore_bridge(name, *arguments, tp=1):
    import mcore_bridge_runs

    return mcore_bridge_runs.of_mcore_bridge(getattr(mcore_bridge_runs, name), *arguments, tp=tp)


def make(name, scratch):
    """A folder, and what a job says of the model."""
    folder = save_with_tokenizer(scratch / "folder", FAMILIES[name])
    config = json.loads((folder / "config.json").read_text())
    assert CASES[name] in (config["model_type"], "llava_onevision1_5")
    has_tower = any(part in str(key) for key in config for part in ("vision_config", "audio_config", "vit_config", "thinker_config"))
    return folder, {"unmapped": "keep"} if has_tower else {}


def with_rounded_routers(tensors):
    """Megatron-Core's Float16Module, which every trainer puts around a model, rounds the biases of routers to the model's dtype."""
    routers = "expert_bias", "e_score_correction_bias"
    return {name: tensor.bfloat16().float() if name.endswith(routers) else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", TAKEN)
def test_mcore_bridge_and_the_program_make_the_same(name, program, scratch):
    folder, model = make(name, scratch)
    arguments = ARGUMENTS.get(name, {})
    loaded = of_mcore_bridge("import_folder", folder, scratch / "save", arguments)
    assert not left_as_before(loaded)
    there = program.run(folder, scratch / "there", "torch_dist", ranks=1, model=model, target_options={"program": "ms-swift"})
    target = of_mcore_bridge("load_target", folder, there / f"iter_{int((there / TRACKER).read_text()):07}", arguments)
    assert_same_tensors(with_rounded_routers(without_padding(target, loaded)), with_rounded_routers(loaded))
    back = program.to_hf(scratch / "save", scratch / "back", model=model, ranks=1, source_options={"config": folder})
    assert_same_tensors(with_rounded_routers(read_hf(back)), with_rounded_routers(read_hf(folder)))


def left_as_before(weights):
    from mcore_bridge_runs import UNSET

    return [name for name, tensor in weights.items() if tensor.numel() and bool((tensor == torch.tensor(UNSET, dtype=tensor.dtype)).all())]


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss", "olmoe", "minimax-m2", "nemotron-3", "usual-qwen3.5-vl-moe", "muse-glimmer", "ling-2.5"])
def test_what_two_ranks_save_comes_back(name, program, scratch):
    """With tensor parallelism: rows of a layout of ms-swift's own lie rank by rank in no other order than of one rank."""
    folder, model = make(name, scratch)
    of_mcore_bridge("import_folder", folder, scratch / "save", ARGUMENTS.get(name, {}), 2, tp=2)
    back = program.to_hf(scratch / "save", scratch / "back", model=model, ranks=1, source_options={"config": folder})
    assert_same_tensors(with_rounded_routers(read_hf(back)), with_rounded_routers(read_hf(folder)))


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in WITHOUT_TRACE])
def test_mcore_bridge_leaves_weights_as_they_were(name, scratch):
    folder, _ = make(name, scratch)
    assert left_as_before(of_mcore_bridge("import_folder", folder, scratch / "save", ARGUMENTS.get(name, {})))


@pytest.mark.parametrize("name", REFUSED)
def test_mcore_bridge_takes_no_more_than_is_said(name, scratch):
    folder, _ = make(name, scratch)
    with pytest.raises(RuntimeError):
        of_mcore_bridge("import_folder", folder, scratch / "save", ARGUMENTS.get(name, {}))


def test_the_page_has_every_model_type():
    import mcore_bridge_runs

    assert set(of_mcore_bridge("model_types", None)) == set(MODELS) and mcore_bridge_runs.TOWERS_OF_NAMES == TOWERS
