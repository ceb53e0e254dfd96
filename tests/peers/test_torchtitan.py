"""torchtitan's names for Llama 3, Qwen3 and DeepSeek-V3, to and from Hugging Face folders and Megatron, bit for bit."""

import importlib
import json
from types import SimpleNamespace

import pytest
import torch

import dcp_reading
import family_models
import family_models_hybrid
import titan_checkpoints
from family_models import DENSE_A, MOE, MOE_A, TE_GROUPED, Family, dense
from family_models_hybrid import LATENT, numbered_mtp
from hf_models import read_hf
from tensor_patterns import assert_same_tensors

CASES = {  # map -> models
    "llama": {"llama": family_models.FAMILIES["llama"], "llama-tied": family_models.FAMILIES["llama-tied"]},
    "qwen3": {
        "qwen3-tied": Family(dense("Qwen3", head_dim=16, tie_word_embeddings=True), DENSE_A, DENSE_A),
        "qwen3-moe": Family(dense("Qwen3Moe", **MOE, num_experts=6, mlp_only_layers=[1]), MOE_A, MOE_A, TE_GROUPED)},
    "deepseek_v3": {
        "deepseek-v2-lite": family_models_hybrid.FAMILIES["deepseek-v2-lite"],
        "deepseek-v3": Family(dense("DeepseekV3", **LATENT | dict(num_nextn_predict_layers=0)), MOE_A, MOE_A, TE_GROUPED),
        "deepseek-v3-mtp": Family(
            dense("DeepseekV3", **LATENT | dict(num_nextn_predict_layers=1)), MOE_A, MOE_A, TE_GROUPED, add=numbered_mtp(1), ignored="model.layers.")},
}
MODELS = {name: (of, family) for of, families in CASES.items() for name, family in families.items()}
ROWS = [(name, release) for name in MODELS for release in ("0.3", "0.2") if (name, release) != ("deepseek-v3-mtp", "0.2")]
IDS = [f"{name}-{release}" for name, release in ROWS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder_of(name):
        if name not in made:
            made[name] = family_models.save_family(tmp_path_factory.mktemp(name), MODELS[name][1])
        return made[name]

    return folder_of


def titan_state(folder, release="0.3"):
    return titan_checkpoints.state_dict(read_hf(folder), json.loads((folder / "config.json").read_text()), release)


def map_of(name, release):
    return f"torchtitan_{'0_2_' if release == '0.2' else ''}{MODELS[name][0]}"


@pytest.mark.long_but("qwen3-moe-0.3")
@pytest.mark.parametrize("name, release", ROWS, ids=IDS)
def test_becomes_the_hugging_face_folder(name, release, program, folders, scratch):
    """The same map reads the names of both releases."""
    folder = folders(name)
    source = titan_checkpoints.save(titan_state(folder, release), scratch / "step-10")
    target = program.to_hf(
        source, scratch / "hf", source_options={"config": str(folder)}, target_options={"reference": str(folder)}, model={"map": map_of(name, "0.3")})
    assert_same_tensors(read_hf(target), read_hf(folder))


@pytest.mark.long_but("llama-tied-0.2")
@pytest.mark.parametrize("name, release", ROWS, ids=IDS)
def test_is_written_from_a_hugging_face_folder(name, release, program, folders, scratch):
    folder = folders(name)
    target = program.run(folder, scratch / "titan", "dcp", target_options={"map": map_of(name, release), "chunks": "ranks", "ranks": 3})
    assert_same_tensors(dcp_reading.whole_tensors(target), titan_state(folder, release))
    assert (target / "huggingface/config.json").exists()


@pytest.mark.long_but("qwen3-tied")
@pytest.mark.parametrize("name", MODELS)
def test_is_written_from_megatron(name, program, folders, scratch):
    """From files of ranks, whose args alone say what model it is."""
    folder, family = folders(name), MODELS[name][1]
    megatron = program.to_megatron(folder, scratch / "megatron", family.a, family.form)
    for carried in megatron.rglob("huggingface"):
        for file in carried.iterdir():
            file.unlink()
    target = program.run(megatron, scratch / "titan", "dcp", target_options={"map": map_of(name, "0.3")})
    assert_same_tensors(dcp_reading.whole_tensors(target), titan_state(folder))
    assert json.loads((target / "huggingface/config.json").read_text())["num_hidden_layers"] == 5


def test_a_family_has_its_own_names_in_dcp(program, folders, scratch):
    megatron = program.run(folders("llama"), scratch / "dist", "torch_dist")
    target = program.run(megatron, scratch / "dcp", "dcp", target_options={"map": "llama", "prefix": "model."})
    assert_same_tensors(dcp_reading.whole_tensors(target), {f"model.{name}": tensor for name, tensor in read_hf(folders("llama")).items()})


def with_moments(state, config, fused):
    """`state` and Adam's moments of it, those of q, k and v in one tensor where the run has one parameter for the three."""
    def moments(slot):
        return {name: torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(slot + name))).abs() for name, tensor in state.items()}

    result = dict(state)
    for slot in ("exp_avg", "exp_avg_sq"):
        found = moments(slot)
        for layer in range(config["num_hidden_layers"] if fused else 0):
            before, rest = f"layers.{layer}.attention.qkv_linear.", config["hidden_size"]
            parts = [found.pop(f"{before}{part}.weight").view(config["num_key_value_heads"], -1, rest) for part in ("wq", "wk", "wv")]
            found[f"{before}wqkv.weight"] = torch.cat(parts, 1).reshape(-1, rest)
        result |= {f"optimizer.state.{name}.{slot}": tensor for name, tensor in found.items()}
        result |= {f"optimizer.state.{name}.step": torch.tensor(3.0) for name in found}
        result |= {f"optimizer.param_groups.{name}.{key}": value for name in found for key, value in ADAMW.items()}
    return result


ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.long_but("llama")
@pytest.mark.parametrize("name", ["llama", "qwen3-tied"])
def test_state_of_a_fused_parameter_is_that_of_its_parts(name, program, folders, scratch):
    """torchtitan 0.3 trains q, k and v as one parameter, and its checkpoints have them apart as weights and together as state."""
    folder = folders(name)
    config = json.loads((folder / "config.json").read_text())
    targets = []
    for fused in (False, True):
        state = {key: tensor.float() for key, tensor in titan_state(folder).items()}
        source = titan_checkpoints.save(with_moments(state, config, fused), scratch / f"step-{10 + fused}")
        targets.append(program.run(
            source, scratch / f"dist-{fused}", "torch_dist", source_options={"config": str(folder)}, model={"map": map_of(name, "0.3")}))
    apart, together = (dcp_reading.whole_tensors(next(target.glob("iter_*"))) for target in targets)
    assert any("exp_avg_sq" in key and "linear_qkv" in key for key in apart)
    assert_same_tensors(together, apart)
    refused(program, source, scratch, "wqkv.weight", "model.map", code=3, target_format="deepspeed")


# --- refusals -----------------------------------------------------------------------------------------------------------


def refused(program, source, scratch, *words, code=2, **options):
    outcome = program.attempt(source, scratch / "refused", options.pop("target_format", "dcp"), **options)
    assert outcome.returncode == code and not (scratch / "refused").exists(), outcome.stdout[-2000:] + outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr


@pytest.mark.long
def test_a_bias_that_qwen3_has_no_place_for_is_the_jobs_decision(program, folders, scratch):
    folder = folders("qwen3-moe")
    state = titan_state(folder)
    state |= {f"layers.{layer}.moe.expert_bias_E": torch.ones(6) for layer in (0, 2, 3, 4)}
    source = titan_checkpoints.save(state, scratch / "step-10")
    options = {"source_options": {"config": str(folder)}, "target_format": "huggingface"}
    refused(program, source, scratch, "layers.0.moe.expert_bias_E", "model.unmapped", model={"map": "torchtitan_qwen3"}, **options)
    target = program.to_hf(
        source, scratch / "hf", source_options={"config": str(folder)}, model={"map": "torchtitan_qwen3", "unmapped": "drop"})
    assert_same_tensors(read_hf(target), read_hf(folder))


@pytest.mark.long
def test_what_does_not_fit_together_is_refused(program, folders, scratch):
    folder = folders("llama")
    refused(program, folder, scratch, "torchtitan_qwen3", "qwen3", "llama", target_options={"map": "torchtitan_qwen3"})
    refused(program, folder, scratch, "there is no such map", target_options={"map": "torchtitan_lama"})
    refused(program, folder, scratch, "whose map is llama", target_options={"map": "qwen3"})
    refused(program, folder, scratch, "the same for every layout", target_options={"map": "torchtitan_llama", "layout": "{ tp = 2 }"})
    refused(program, folder, scratch, "only with target.map", target_options={"layout": "{ tp = 2 }"})
    refused(program, folder, scratch, "only with target.map", target_options={"reference": str(folder)})
    refused(program, folder, scratch, "keeps the names", target_options={"map": "torchtitan_llama"}, model={"map": "none"})
    refused(program, folder, scratch, "does not apply", target_format="torch_dist", target_options={"map": "torchtitan_llama"})
    megatron = program.to_megatron(folder, scratch / "megatron", DENSE_A, MODELS["llama"][1].form)
    refused(program, megatron, scratch, "target.map", target_options={})


# --- torchtitan itself --------------------------------------------------------------------------------------------------

ADAPTERS = {
    "llama": ("llama3", "Llama3StateDictAdapter"), "qwen3": ("qwen3", "Qwen3StateDictAdapter"),
    "deepseek_v3": ("deepseek_v3", "DeepSeekV3StateDictAdapter")}


def sizes_for_an_adapter(config):
    """As much of a model's configuration as adapters look at."""
    attention = SimpleNamespace(
        n_heads=config["num_attention_heads"], n_kv_heads=config.get("num_key_value_heads"), head_dim=config.get("head_dim"),
        q_lora_rank=config.get("q_lora_rank") or 0)
    experts = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts")
    moe = SimpleNamespace(num_experts=experts) if experts else None
    layers = [SimpleNamespace(attention=attention, moe=moe)] * config["num_hidden_layers"]
    return SimpleNamespace(
        dim=config["hidden_size"], layers=layers, mtp_layers=layers[:config.get("num_nextn_predict_layers") or 0],
        enable_weight_tying=config["tie_word_embeddings"])


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_its_own_adapter_finds_the_hugging_face_tensors(name, program, folders, scratch):
    """Where torchtitan 0.3 is installed: it needs no more than itself and spmd_types for this."""
    pytest.importorskip("torchtitan")
    of, folder = MODELS[name][0], folders(name)
    module = importlib.import_module(f"torchtitan.models.{ADAPTERS[of][0]}.state_dict_adapter")
    config = json.loads((folder / "config.json").read_text())
    adapter = getattr(module, ADAPTERS[of][1])(sizes_for_an_adapter(config), None)
    target = program.run(folder, scratch / "titan", "dcp", target_options={"map": f"torchtitan_{of}"})
    found = adapter.to_hf(dcp_reading.whole_tensors(target))
    again = ("embed_tokens.weight", "shared_head.head.weight")  # in layers of multi-token prediction
    expected = {key: value for key, value in read_hf(folder).items() if not (key.startswith("model.layers.") and key.endswith(again))}
    assert_same_tensors(found, expected)
