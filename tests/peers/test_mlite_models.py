"""Megatron Lite's DeepSeek-V4, DeepSeek-V3 and Kimi-K2, GLM-5 and Qwen3.5, to and from Hugging Face folders, bit for bit."""

import json
from dataclasses import dataclass

import pytest
import torch

import family_models
import family_models_hybrid
import mlite_models
from hf_models import read_hf
from mlite_checkpoints import LiteLayout
from tensor_patterns import assert_same_tensors

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES


@dataclass(frozen=True)
class Case:
    family: str
    layout: LiteLayout
    lacking: tuple = ()  # ends of names that FSDP2 saves do not have: buffers

    def source(self, folder, **more):
        sizes = {key: getattr(self.layout, key) for key in ("tp", "etp") if getattr(self.layout, key) > 1}
        return {"config": str(folder)} | sizes | more

    def target_layout(self):
        stages = "|".join("t" * count for count in self.layout.stage_layers or ())
        words = [f"{key} = {getattr(self.layout, key)}" for key in ("tp", "pp", "ep", "etp")]
        if stages:
            words.append(f'pipeline = "E{stages}{"m" * DEPTHS.get(self.family, 0)}L"')
        return "{ " + ", ".join(words) + " }"


DEPTHS = {"deepseek-v3": 2, "glm-5": 1, "deepseek-v4-published": 1}
CASES = {
    "kimi_k2": Case("deepseek-v3", LiteLayout(world=4, pp=2, tp=2, ep=2, stage_layers=(3, 2)), ("e_score_correction_bias",)),
    "glm5": Case("glm-5", LiteLayout(world=4, pp=2, ep=2, stage_layers=(2, 3)), ("e_score_correction_bias",)),
    "deepseek_v4": Case("deepseek-v4-published", LiteLayout(world=4, pp=2, ep=2, stage_layers=(3, 2)), ("ffn.gate.bias", "tid2eid")),
    "qwen3_5": Case("qwen3.5-moe-text", LiteLayout(world=4, tp=2, ep=2, etp=2)),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The Hugging Face folder of each model, made once."""
    made = {}

    def folder_of(kind):
        if kind not in made:
            made[kind] = family_models.save_family(tmp_path_factory.mktemp(kind), FAMILIES[CASES[kind].family])
        return made[kind]

    return folder_of


def lite_model(kind, folder):
    return mlite_models.LiteModel(kind, read_hf(folder), json.loads((folder / "config.json").read_text()))


@pytest.fixture(scope="module")
def saved(folders, tmp_path_factory):
    made = {}

    def save(kind, layout=None, **how):
        layout = layout or CASES[kind].layout
        key = (kind, layout, *how.items())
        if key not in made:
            made[key] = mlite_models.save(lite_model(kind, folders(kind)), layout, tmp_path_factory.mktemp(kind) / "step_12", **how)
        return made[key]

    return save


def expected_tensors(kind, folder, lacking=True):
    return {name: tensor for name, tensor in read_hf(folder).items() if not (lacking and name.endswith(CASES[kind].lacking or "\0"))}


# --- from it ----------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("deepseek_v4")
@pytest.mark.parametrize("kind", CASES)
def test_becomes_the_hugging_face_folder(kind, program, saved, folders, scratch):
    folder = folders(kind)
    outcome = program.attempt(
        saved(kind), scratch / "hf", "huggingface", source_options=CASES[kind].source(folder), target_options={"reference": str(folder)},
        model={"map": f"mlite_{kind}"})
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert_same_tensors(read_hf(scratch / "hf"), expected_tensors(kind, folder))
    assert bool(CASES[kind].lacking) == ("the target lacks it too" in outcome.stderr), outcome.stderr


@pytest.mark.long
def test_rows_over_data_parallel_ranks_and_ranks_without_rows(program, saved, folders, scratch):
    """FSDP2 cuts the heads of the hyper-connections, too: of 3 rows and of 1 over 4 ranks some have none."""
    layout = LiteLayout(world=4, ep=2)
    target = program.to_hf(
        saved("deepseek_v4", layout, sharded=True), scratch / "hf", source_options={"config": str(folders("deepseek_v4"))},
        target_options={"reference": str(folders("deepseek_v4"))}, model={"map": "mlite_deepseek_v4"})
    assert_same_tensors(read_hf(target), expected_tensors("deepseek_v4", folders("deepseek_v4")))


@pytest.mark.long_but("pp1")
@pytest.mark.parametrize("layout", [LiteLayout(world=2, ep=2), LiteLayout(world=2, pp=2, stage_layers=(3, 2))], ids=["pp1", "pp2"])
def test_dist_opt_saves_are_read_as_plain_dcp(layout, program, folders, scratch):
    """They have the biases that choose experts, and counters, which are buffers."""
    folder = folders("kimi_k2")
    model = lite_model("kimi_k2", folder)
    buffers = {}
    for stage in range(layout.pp):
        for at, layer in model.stage(layout, stage)[0].items():
            if model.experts(layer):
                buffers[(stage, at + "moe.router.expert_bias")] = model.hf[f"{model.at(layer)}mlp.gate.e_score_correction_bias"]
                buffers[(stage, at + "moe.router.local_tokens_per_expert")] = torch.ones(model.experts(layer))
    source = mlite_models.save_dist_opt(model, layout, scratch / "run/step_3", buffers)
    target = program.to_hf(
        source, scratch / "hf", source_options={"config": str(folder), "format": "dcp"}, target_options={"reference": str(folder)},
        model={"map": "mlite_kimi_k2"})
    assert_same_tensors(read_hf(target), expected_tensors("kimi_k2", folder, lacking=False))


@pytest.mark.long
def test_a_wrong_tp_draws_a_warning(program, saved, folders, scratch):
    case = CASES["kimi_k2"]
    outcome = program.attempt(
        saved("kimi_k2"), scratch / "hf", "huggingface", source_options={"config": str(folders("kimi_k2"))}, model={"map": "mlite_kimi_k2"})
    assert outcome.returncode == 0 and f"source.tp = 1, but weights are stored in {case.layout.tp} column parts" in outcome.stderr, outcome.stderr


@pytest.mark.long
def test_the_names_of_another_model_are_refused(program, saved, folders, scratch):
    outcome = program.attempt(
        saved("kimi_k2"), scratch / "hf", "huggingface", source_options=CASES["kimi_k2"].source(folders("kimi_k2")), model={"map": "mlite_glm5"})
    assert outcome.returncode == 2 and "glm_moe_dsa" in outcome.stderr and "deepseek_v3" in outcome.stderr, outcome.stderr


# --- into it ----------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("kimi_k2")
@pytest.mark.parametrize("kind", CASES)
def test_is_written_as_every_rank_loads_it(kind, program, folders, scratch):
    case, folder = CASES[kind], folders(kind)
    target = program.run(
        folder, scratch / "step_0", "dcp", target_options={"map": f"mlite_{kind}", "layout": case.target_layout()})
    differing = mlite_models.differing_when_loaded(lite_model(kind, folder), case.layout, target)
    assert differing == [[]] * case.layout.world
    assert (target / "huggingface/config.json").read_text() == (folder / "config.json").read_text()
