"""Megatron Lite checkpoints, saved by torch from gloo processes, become Hugging Face folders and torch_dist, bit for bit."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import cases
import dcp_reading
import mlite_checkpoints
from hf_models import globals_to_hf, hf_config, load_hf, read_hf, save_hf
from mlite_checkpoints import LiteLayout
from numpy_megatron import iteration_folder
from tensor_patterns import assert_same_tensors, make_globals

CONFIG = cases.QWEN3_MOE.with_(layers=3, experts=8, dtype="bfloat16")
TENSORS = make_globals(CONFIG)
MAP = {"map": "mlite_qwen3_moe"}
LAYOUTS = [
    LiteLayout(),
    LiteLayout(world=2, ep=2),
    LiteLayout(world=4, ep=4, tp=2),
    LiteLayout(world=8, ep=8),
    LiteLayout(world=2, etp=2, tp=2),
    LiteLayout(world=4, ep=2, etp=2, tp=4),
    LiteLayout(world=4, pp=2, ep=2, stage_layers=(2, 1)),
    LiteLayout(world=8, pp=2, ep=2, etp=2, tp=2, stage_layers=(1, 2)),
    LiteLayout(world=6, pp=3, ep=2, stage_layers=(2, 1, 0)),
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """The model's own folder: config.json, and what transformers needs beside it."""
    folder = tmp_path_factory.mktemp("mlite-model")
    hf_config(CONFIG).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Each layout is saved once."""
    folders = {}

    def folder_of(layout, **how):
        key = (layout, *how.items())
        if key not in folders:
            folders[key] = mlite_checkpoints.save(CONFIG, TENSORS, layout, tmp_path_factory.mktemp(layout.label()) / "step_12", **how)
        return folders[key]

    return folder_of


def options_for(model_folder, layout, **more):
    return {"config": str(model_folder)} | ({"etp": layout.etp} if layout.etp > 1 else {}) | more


def refused(program, source, scratch, model_folder, layout=LiteLayout(), model=MAP, code=3, **more):
    outcome = program.attempt(source, scratch / "target", "huggingface", source_options=options_for(model_folder, layout, **more), model=model)
    assert outcome.returncode == code, f"exit {outcome.returncode}: {outcome.stdout}{outcome.stderr}"
    assert not (scratch / "target").exists()
    return outcome.stderr


# --- conversion ---------------------------------------------------------------------------------------------------


@pytest.mark.long_but("tp1-pp3-ep2-etp1")
@pytest.mark.parametrize("layout", LAYOUTS, ids=LiteLayout.label)
def test_becomes_a_hugging_face_folder(layout, program, saved, model_folder, scratch):
    target = program.to_hf(
        saved(layout), scratch / "hf", source_options=options_for(model_folder, layout), target_options={"reference": str(model_folder)}, model=MAP)
    assert_same_tensors(read_hf(target), globals_to_hf(CONFIG, TENSORS))
    load_hf(target)


@pytest.mark.long_but("tp2-pp2-ep2-etp2")
@pytest.mark.parametrize("layout", [LAYOUTS[2], LAYOUTS[7]], ids=LiteLayout.label)
def test_becomes_the_same_torch_dist_as_the_hugging_face_folder(layout, program, saved, model_folder, scratch):
    target_options = {"layout": "{ tp = 2, ep = 2 }"}
    expected = program.run(save_hf(scratch / "hf", CONFIG, TENSORS), scratch / "expected", "torch_dist", target_options=target_options)
    found = program.run(
        saved(layout), scratch / "found", "torch_dist", source_options=options_for(model_folder, layout), target_options=target_options, model=MAP)
    dcp_reading.assert_same_content(iteration_folder(found), iteration_folder(expected))


def test_the_file_has_one_tensor_per_expert_of_a_rank(saved):
    """What torch makes of DTensors over expert-parallel ranks, so that the tests above read what they mean to."""
    entries = dcp_reading.tensor_entries(saved(LAYOUTS[5]))
    of_layer = sorted(name for name in entries if "layers.0.moe.experts.fc1" in name)
    assert of_layer == [f"model.layers.0.moe.experts.fc1.weight{expert}" for expert in range(4)]
    assert tuple(entries[of_layer[0]].size) == (2 * 2 * CONFIG.expert_ffn, CONFIG.hidden)
    assert tuple(entries["model.embed.embedding.weight"].size) == (128, CONFIG.hidden)


def test_source_prefix_cuts_first(program, saved, model_folder, scratch):
    layout = LAYOUTS[1]
    target = program.to_hf(saved(layout), scratch / "hf", source_options=options_for(model_folder, layout, prefix="model."), model=MAP)
    assert_same_tensors(read_hf(target), globals_to_hf(CONFIG, TENSORS))


# --- expert tensor parallelism, which the file does not say ---------------------------------------------------------


@pytest.mark.long
def test_a_wrong_etp_mixes_gate_and_up_and_draws_a_warning(program, saved, model_folder, scratch):
    """Every shape fits, so this cannot be an error; that columns are cut is a sign."""
    layout = LAYOUTS[4]
    outcome = program.attempt(saved(layout), scratch / "hf", "huggingface", source_options={"config": str(model_folder)}, model=MAP)
    assert outcome.returncode == 0 and "source.etp = 1" in outcome.stderr
    found, expected = read_hf(scratch / "hf"), globals_to_hf(CONFIG, TENSORS)
    wrong = {name for name in expected if not torch.equal(found[name], expected[name])}
    assert wrong == {name for name in expected if ".experts." in name and "down_proj" not in name}
    right = program.attempt(saved(layout), scratch / "right", "huggingface", source_options=options_for(model_folder, layout), model=MAP)
    assert "source.etp" not in right.stderr


def test_an_etp_that_does_not_divide_is_refused(program, saved, model_folder, scratch):
    assert "[source] etp = 5" in refused(program, saved(LAYOUTS[0]), scratch, model_folder, code=2, etp=5)


def test_etp_of_another_source_is_refused(program, model_folder, scratch):
    hf = save_hf(scratch / "hf", CONFIG, TENSORS)
    assert "[source] etp = 2" in refused(program, hf, scratch, model_folder, model={"map": "qwen3_moe"}, code=2, etp=2)


# --- what is not whole --------------------------------------------------------------------------------------------


@pytest.mark.long_but("2-4")
@pytest.mark.parametrize("ep, world", [(2, 2), (4, 4), (2, 4)])
def test_files_with_the_experts_of_one_rank_are_refused(ep, world, program, saved, model_folder, scratch):
    layout = LiteLayout(world=world, ep=ep)
    says = refused(program, saved(layout, broken=True), scratch, model_folder)
    assert f"1/{ep} of the experts" in says and "cannot be repaired" in says and "fc1.weight0" in says


@pytest.mark.long
def test_files_with_the_rows_of_one_tensor_parallel_rank_are_refused(program, saved, model_folder, scratch):
    says = refused(program, saved(LiteLayout(world=2, tp=2), broken=True), scratch, model_folder)
    assert "1/2 of this tensor" in says


@pytest.mark.long_but("experts")
@pytest.mark.parametrize("change, says", [
    ({"num_experts": 16, "num_local_experts": 16}, "chooses among 8 experts, and config.json gives 16"),
    ({"moe_intermediate_size": 12}, "are 8 expert-parallel ranks of 2 x 12 rows; but 8 experts under 2 names are 4 ranks"),
    ({"num_hidden_layers": 4}, "holds 3 layers, and config.json gives 4"),
    ({"hidden_size": 64}, "'model.embed.embedding.weight' is BF16 [128, 32]"),
], ids=["experts", "rows", "layers", "hidden"])
def test_the_config_of_another_model_is_refused_with_both_sizes(change, says, program, saved, model_folder, scratch):
    other = scratch / "config.json"
    other.write_text(json.dumps(json.loads((model_folder / "config.json").read_text()) | change))
    assert says in refused(program, saved(LAYOUTS[2]), scratch, other)


@pytest.mark.long_but("stage", "unknown")
@pytest.mark.parametrize("edit, says", [
    (lambda state: rename(state, "model_pp1.", "model_pp2."), "no keys of stage model_pp1"),
    (lambda state: rename(state, "model_pp0.layers.0.", "model_pp0.layers.7."), "the highest number is 7"),
    (lambda state: drop(state, "model_pp1."), "holds 2 layers"),
    (lambda state: state | {"model.layers.0.mlp_norm.weight": torch.ones(4)}, "names a pipeline stage"),
    (lambda state: state | {"model_pp1.embed.embedding.weight": torch.ones(4)}, "for several pipeline stages"),
    (lambda state: drop(state, "model_pp0.layers.1.mlp_norm"), "lacks 'layers.1.mlp_norm.weight'"),
    (lambda state: state | {"model_pp1.mtp.layers.0.enorm.weight": torch.ones(4)}, "mtp.layers.0.enorm.weight"),
], ids=["stage", "layer", "last stage", "both forms", "twice", "tensor", "unknown"])
def test_parts_that_are_missing_or_too_many_are_refused(edit, says, program, saved, model_folder, scratch):
    state = dcp_reading.whole_tensors(saved(LAYOUTS[6]))
    dcp.save(edit(state), checkpoint_id=scratch / "source", no_dist=True)
    assert says in refused(program, scratch / "source", scratch, model_folder)


def rename(state, old, new):
    return {name.replace(old, new): tensor for name, tensor in state.items()}


def drop(state, prefix):
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}


# --- what lies beside the weights ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kept, file", [("optimizer", "optimizer_rank_"), ("rng", "rng_state_rank_")])
def test_state_of_single_ranks_is_refused(kept, file, program, saved, model_folder, scratch):
    dropped = {"optimizer": "drop", "rng": "drop"} | {kept: "refuse"}
    says = refused(program, saved(LAYOUTS[1], sidecars=True), scratch, model_folder, **dropped)
    assert file in says and f'source.{kept} = "drop"' in says


def test_state_of_single_ranks_can_be_left_out(program, saved, model_folder, scratch):
    source = saved(LAYOUTS[1], sidecars=True)
    options = options_for(model_folder, LAYOUTS[1], optimizer="drop", rng="drop")
    outcome = program.attempt(source, scratch / "dist", "torch_dist", source_options=options, model=MAP)
    said = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0 and "optimizer state is dropped" in said and "random-generator state is dropped" in said and "step" in said
    assert not [path.name for path in (scratch / "dist").rglob("*_rank_*")]


# --- the map is only for these files ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_hugging_face_folder_of_the_model_is_read_by_the_familys_map(program, scratch):
    source = save_hf(scratch / "hf", CONFIG, TENSORS)
    outcome = program.attempt(source, scratch / "dist", "torch_dist")
    assert outcome.returncode == 0 and "mlite" not in outcome.stdout + outcome.stderr
    outcome = program.attempt(source, scratch / "other", "torch_dist", model=MAP)
    assert outcome.returncode == 2 and "mlite_qwen3_moe" in outcome.stderr


def stored_names(*maps):
    """The [names] and [stored] of maps that inherit from each other, in one text."""
    sections = {"[names]": ""}
    for name in maps:
        text = (Path(__file__).parents[2] / f"configs/models/{name}.toml").read_text()
        for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
            head, _, lines = section.partition("\n")
            head = head.partition("#")[0].strip()
            if head.startswith(("[names]", "[stored")):
                sections[head] = sections.get(head, "") + lines
    return "".join(f"{head}\n{lines}" for head, lines in sections.items())


@pytest.mark.long
def test_a_map_of_names_alone_reads_a_folder_under_other_names(program, model_folder, scratch):
    (scratch / "names.toml").write_text(stored_names("decoder", "qwen3", "experts").replace('model = "model."', 'model = "inner."'))
    state = {re.sub("^model", "inner", name): tensor for name, tensor in globals_to_hf(CONFIG, TENSORS).items()}
    source = shutil.copytree(model_folder, scratch / "hf")
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    target = program.to_hf(source, scratch / "target", model={"map": str(scratch / "names.toml")})
    assert_same_tensors(read_hf(target), globals_to_hf(CONFIG, TENSORS))
