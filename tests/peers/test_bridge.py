"""Megatron-Bridge itself: what it saves comes back as the folder that it imported, and what the program writes is what it loads."""

import importlib.util
import json

import pytest
from safetensors.torch import load_file

import dcp_checkpoints
import megatron_trainer as trainer
from bridge_families import BRIDGES_FAULT, COPIES, FAMILIES, IN_FLOAT32, NEEDS, NO_FORM, NOT_STARTED, NOT_TAKEN, save_named
from hf_models import read_hf
from peer_types import Layout
from tensor_patterns import assert_same_tensors
from test_trainer import CASES

with_bridge = pytest.mark.skipif(importlib.util.find_spec("megatron.bridge") is None, reason="Megatron-Bridge is not installed")
FOR_BRIDGE = {"program": "megatron-bridge"}
TAKEN = [name for name in FAMILIES if name not in NOT_TAKEN | BRIDGES_FAULT | NO_FORM]


def of_bridge(name, *arguments):
    import bridge_runs

    return bridge_runs.of_bridge(getattr(bridge_runs, name), *arguments)


def model_options(folder):
    config = json.loads((folder / "config.json").read_text())
    return {"unmapped": "keep"} if any(key.endswith(("vision_config", "audio_config", "thinker_config")) for key in config) else {}


def in_one_dtype(tensors):
    """Megatron-Bridge reads the dtype of the top level of config.json: where only text_config has one, it makes float32 of all. The values are the same."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_bridge_and_the_program_make_the_same(name, program, scratch):
    folder = save_named(scratch / "folder", name)
    model = model_options(folder)
    kept = in_one_dtype if name in IN_FLOAT32 else dict
    imported = of_bridge("import_folder", folder, scratch / "bridge")
    if name in NOT_STARTED:
        there = program.run(folder, scratch / "there", "torch_dist", ranks=1, model=model)
        assert_same_tensors(of_bridge("load_target", folder, there / "release"), imported)
    else:
        there = program.run(folder, scratch / "there", "torch_dist", ranks=1, target_options=FOR_BRIDGE, model=model)
        assert_same_tensors(kept(without_padding(of_bridge("start_from", there / "iter_0000000"), imported)), kept(imported))
    given = {"source_options": {"config": folder}} if NEEDS.get(name) == "config" else {"target_options": {"reference": folder}} if name in NEEDS else {}
    back = program.to_hf(scratch / "bridge", scratch / "back", model=model, ranks=1, **given)
    assert_same_tensors(kept(read_hf(back)), kept(without_copies(read_hf(folder))))


def without_padding(tensors, like):
    """Without rows behind the vocabulary, which Megatron-Bridge's import does not make."""
    return {name: tensor[:len(like[name])] if name in like and name.endswith(("word_embeddings.weight", "output_layer.weight")) else tensor
            for name, tensor in tensors.items()}


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize("name", NOT_STARTED)
def test_settings_are_refused_where_bridge_would_build_another_model(name, program, scratch):
    folder = save_named(scratch / "folder", name)
    refused = program.attempt(folder, scratch / "there", "torch_dist", ranks=1, target_options=FOR_BRIDGE, model=model_options(folder))
    assert refused.returncode == 2 and "[target] program" in refused.stderr, refused.stderr


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3", "deepseek-v3", "usual-qwen3-moe"])
@pytest.mark.parametrize("kind", ["fused", "canonical"])
def test_an_adapter_of_bridge_is_that_of_its_own_export(name, kind, program, scratch):
    folder = save_named(scratch / "folder", name)
    of_bridge("save_adapter", folder, scratch / "saved", scratch / "exported", kind)
    back = program.to_hf(scratch / "saved", scratch / "back", ranks=1)
    ours, theirs = (load_file(place / "adapter_model.safetensors") for place in (back, scratch / "exported"))
    assert_same_tensors(ours, theirs)
    terms = [json.loads((place / "adapter_config.json").read_text()) for place in (back, scratch / "exported")]
    for member in "base_model_name_or_path", "r", "lora_alpha":
        assert terms[0][member] == terms[1][member]


@with_bridge
@pytest.mark.long
def test_settings_of_a_model_that_sees_are_refused_without_its_tower(program, scratch):
    folder = save_named(scratch / "folder", "qwen3-vl")
    refused = program.attempt(folder, scratch / "there", "torch_dist", ranks=1, target_options=FOR_BRIDGE, model={"unmapped": "drop"})
    assert refused.returncode == 2 and "parts that see or hear" in refused.stderr, refused.stderr


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize(("name", "layers"), [("llama", "stacked"), ("llama", "separate"), ("qwen3-vl", "stacked")])
def test_bridge_starts_from_its_own_save_in_another_layout(name, layers, program, scratch):
    folder = save_named(scratch / "folder", name)
    imported = of_bridge("import_folder", folder, scratch / "bridge")
    options = {"source_options": {"config": folder}, "model": {"unmapped": "keep"}} if name == "qwen3-vl" else {}
    there = program.run(scratch / "bridge", scratch / "there", "torch_dist", ranks=1, **options,
                        target_options={"layout": Layout(tp=2, pp=5).toml(), "layers": layers})
    assert_same_tensors(of_bridge("start_from", there / "iter_0000000"), imported)
    settings = (there / "iter_0000000" / "run_config.yaml").read_text()
    assert "  tensor_model_parallel_size: 2\n  " in settings and "  pipeline_model_parallel_size: 5\n" in settings


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "experts-default-etp"])
def test_bridge_goes_on_from_a_run_of_megatron_lm(name, program, scratch):
    """With its optimizer and scheduler: the next step is that of a run that never stopped. The trainer builds norms of its own, Bridge those of Transformer
    Engine, and Megatron-Core calls the norm before experts otherwise there."""
    saved, uninterrupted = trainer.train_and_save(CASES[name][0], scratch / "source")
    there = program.run(scratch / "source", scratch / "there", "torch_dist", source_options={"rng": "drop"},
                        target_options=FOR_BRIDGE | {"transformer_impl": "transformer_engine"})
    *sides, progress = of_bridge("resume_from", there, 8)
    assert progress == (trainer.ITERATION, trainer.OPERATIONS)
    for side, expected in zip(sides, (saved, uninterrupted), strict=True):
        of_experts = any(".experts." in key for key in expected)
        norm = ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight") if of_experts else ("", "")
        assert_same_tensors(trainer.within_vocabulary(dcp_checkpoints.joined([side])), {key.replace(*norm): tensor for key, tensor in expected.items()})


def without_copies(tensors):
    """Without what transformers makes and no published folder has (Gemma 3's head of the tower), and without copies in prediction layers."""
    return {name: tensor for name, tensor in tensors.items()
            if not name.startswith("vision_tower.head.") and not (name.startswith("model.layers.") and name.endswith(COPIES))}


@with_bridge
@pytest.mark.long
@pytest.mark.parametrize("name", NOT_TAKEN)
def test_bridge_takes_no_more_than_is_said(name, scratch):
    folder = save_named(scratch / "folder", name)
    with pytest.raises(RuntimeError):
        of_bridge("import_folder", folder, scratch / "bridge")


def test_the_page_says_what_these_tests_assert():
    import peers_page

    assert peers_page.PAGE.read_text() == peers_page.page(), "run tests/peers/peers_page.py"
