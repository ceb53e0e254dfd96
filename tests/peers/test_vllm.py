"""Folders that the program writes, loaded by vLLM's own model classes: every parameter of the engine gets its values, quantised ones within a step of the code.

In need of scripts/install_peers.sh vllm (3.5 GB, three minutes).
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import family_models
from family_models import Family, dense, save_family
from family_models_hybrid import FAMILIES as HYBRID
from family_models_hybrid import numbered_mtp
from peer_types import LOCAL, TE_GROUPED, Layout
from reshard_job import Program

ENGINE = Path(os.environ.get("RESHARD_SOURCE_DIR", Path(__file__).parents[2])) / ".cache/peers-vllm/bin/python"
pytestmark = [pytest.mark.long, pytest.mark.skipif(not ENGINE.exists(), reason="vLLM is not installed: scripts/install_peers.sh vllm")]

# Blocks of 128 fit the parts of fused weights, as vLLM asks for.
SIZES = dict(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=256, num_hidden_layers=2)
PLAIN = SIZES | dict(head_dim=None)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=128)
ROUTED = EXPERTS | dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)
LATENT = dict(num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64)
MIXTRAL = dict(num_local_experts=4, num_experts_per_tok=2)
ERNIE = dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=128, moe_num_shared_experts=1, moe_layer_start_index=1)
DELTA = dict(linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4, partial_rotary_factor=0.25)


def of_experts(make, **options):
    return Family(make, Layout(tp=2, pp=2, ep=2), Layout(), TE_GROUPED, **options)


def of_layers(make):
    return Family(make, Layout(tp=2, pp=2), Layout(), LOCAL)


# transformers 5 does not save topk_method, scoring_func and rotary_dim, which published folders have and vLLM asks for.
FAMILIES = {
    "llama": of_layers(dense("Llama", **SIZES)),
    "mistral": of_layers(dense("Mistral", **SIZES, sliding_window=None)),
    "qwen2": of_layers(dense("Qwen2", **PLAIN)),
    "qwen3": of_layers(dense("Qwen3", **SIZES)),
    "gemma3": of_layers(dense("Gemma3", config="Gemma3Text", **SIZES, sliding_window=9)),
    "olmo2": of_layers(dense("Olmo2", **PLAIN)),
    "phi3": of_layers(dense("Phi3", **PLAIN)),
    "mixtral": of_experts(dense("Mixtral", **SIZES, **MIXTRAL)),
    "qwen3-moe": of_experts(dense("Qwen3Moe", **SIZES, **EXPERTS, num_experts=4)),
    "qwen3-next": of_experts(dense("Qwen3Next", **SIZES, **EXPERTS, **DELTA, num_experts=4, shared_expert_intermediate_size=128)),
    "deepseek-v3": of_experts(
        dense("DeepseekV3", **PLAIN | ROUTED | LATENT, num_nextn_predict_layers=0), config=dict(topk_method="noaux_tc", scoring_func="sigmoid")),
    "glm4-moe": of_experts(dense("Glm4Moe", **SIZES, **ROUTED, num_nextn_predict_layers=0, use_qk_norm=True)),
    "minimax-m2": of_experts(dense("MiniMaxM2", **SIZES, **MIXTRAL), config=dict(rotary_dim=32, scoring_func="sigmoid", use_routing_bias=True)),
    "ernie": of_experts(dense("Ernie4_5_Moe", **SIZES, **ERNIE)),
    "olmoe": of_experts(dense("Olmoe", **PLAIN, num_experts=4, num_experts_per_tok=2)),
    "dots1": of_experts(dense("Dots1", **SIZES, **ROUTED)),
    "gpt-oss": of_experts(dense("GptOss", **SIZES, **MIXTRAL, sliding_window=9)),
}
# Families whose config.json can be made from Megatron's args, with their maps.
MADE = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text", "mixtral": "mixtral", "qwen3-moe": "qwen3_moe",
    "qwen3-next": "qwen3_next", "deepseek-v3": "deepseek_v3", "minimax-m2": "minimax_m2", "ernie": "ernie4_5_moe", "olmoe": "olmoe", "gpt-oss": "gpt_oss"}
# Which vLLM loads from Mistral's own files, too: it has no names of Mixtral's there.
OWN = ("llama", "mistral")
LARGE = of_experts(dense(
    "Mistral4", **PLAIN | ROUTED | LATENT, max_position_embeddings=1024, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1, partial_rotary_factor=0.5)))
WINDOWED = of_layers(dense("Ministral", **SIZES | dict(
    num_hidden_layers=4, sliding_window=9, layer_types=["full_attention", *["sliding_attention"] * 3], max_position_embeddings=64)))
DRAFTS = {
    "deepseek-mtp": of_experts(
        dense("DeepseekV3", **PLAIN | ROUTED | LATENT, num_nextn_predict_layers=1), config=dict(topk_method="noaux_tc", scoring_func="sigmoid"),
        add=numbered_mtp(1, 2, 256)),
    "glm4-mtp": family_models.FAMILIES["glm4-moe-mtp"],
    "qwen3-next-mtp": HYBRID["qwen3-next"],
}
QUANTS = {
    "plain": {},
    "fp8-block": dict(quant="fp8-block", quant_for="compressed-tensors"),
    "fp8-block-transformers": dict(quant="fp8-block", quant_for="transformers"),
    "fp8-channel": dict(quant="fp8-channel"),
    "mxfp8": dict(quant="mxfp8"),
    "int4-group": dict(quant="int4-group", quant_block="32"),
    "int8-group": dict(quant="int8-group", quant_block="32"),
    "int8-channel": dict(quant="int8-channel"),
    "mxfp4": dict(quant="mxfp4"),
    "nvfp4": dict(quant="nvfp4"),
    "nvfp4-modelopt": dict(quant="nvfp4", quant_for="modelopt"),
    "fp8-block-modelopt": dict(quant="fp8-block", quant_for="modelopt"),
    "fp8-channel-modelopt": dict(quant="fp8-channel", quant_for="modelopt"),
    "mxfp8-modelopt": dict(quant="mxfp8", quant_for="modelopt"),
}
# Experts of these have no kernel on a CPU, or vLLM 0.32 has no experts in this form (ModelOpt's blocks and channels).
WITHOUT_EXPERTS = ("int8-channel", "nvfp4", "nvfp4-modelopt", "fp8-block-modelopt", "fp8-channel-modelopt")
# Of the largest weight: half a step of three bits of mantissa or of four bits, where a block has it.
STEPS = {"fp8-block": 0.05, "fp8-block-transformers": 0.05, "fp8-channel": 0.05, "mxfp8": 0.05, "int4-group": 0.08}


@pytest.fixture(scope="module")
def folders():
    root = Path(tempfile.mkdtemp(prefix="reshard-vllm-"))
    made = []
    for name, family in FAMILIES.items():
        (root / name).mkdir()
        program = Program(root / name)
        megatron = program.to_megatron(save_family(root / name / "hf", family), root / name / "megatron", family.a, family.form)
        for quant, options in QUANTS.items():
            if quant == "plain" or (name != "gpt-oss" and (quant not in WITHOUT_EXPERTS or family.form == LOCAL)):  # its experts stand in one tensor
                made.append(program.to_hf(megatron, root / name / quant, target_options=options, ranks=1))
        if name in MADE:
            shutil.rmtree(megatron / "huggingface")
            made.append(program.to_hf(megatron, root / name / "made", model=dict(map=MADE[name])))
        if name in OWN:
            made.append(program.run(root / name / "hf", root / name / "own", "mistral", target_options=dict(shard_bytes="1 MB")))
    for name, family in DRAFTS.items():
        (root / name).mkdir()
        made.append(Program(root / name).to_hf(save_family(root / name / "hf", family), root / name / "draft", target_options=dict(mtp="draft")))
    for name, family in (("large", LARGE), ("windowed", WINDOWED)):
        (root / name).mkdir()
        made.append(Program(root / name).run(save_family(root / name / "hf", family), root / name / "own", "mistral"))
    subprocess.run([ENGINE, Path(__file__).with_name("vllm_loader.py"), *made], check=True, capture_output=True, timeout=1700, cwd=root)
    yield root
    shutil.rmtree(root)


def loaded_by_engine(folder):
    """vLLM registers scales of inputs for weights alone, too, and does not use them."""
    content = torch.load(f"{folder}.engine.pt", weights_only=True)
    assert "error" not in content, content["error"]
    unloaded = [name for name in content["unloaded"] if not name.endswith(".input_scale")]
    assert not unloaded, unloaded
    return content["parameters"]


def scales_over(scales, shape):
    """A number for each element: scales are a number, or one for each block of rows and columns."""
    scales = torch.pow(2.0, scales.view(torch.uint8).float() - 127) if scales.dtype in (torch.uint8, torch.float8_e8m0fnu) else scales.float()
    for axis in (-2, -1) if scales.ndim > 1 else ():
        step = 1 << (-(-shape[axis] // scales.shape[axis]) - 1).bit_length()  # the last block may be short
        scales = scales.repeat_interleave(step, axis).narrow(axis, 0, shape[axis])
    return scales


def dequantised(parameters, name, shape):
    """`name` is that of the weight as it is in a folder without quantised weights."""
    stem = name.removesuffix("weight")
    scales = next(tensor for other, tensor in parameters.items() if other.startswith(stem) and "_scale" in other and "input" not in other)
    if name in parameters:
        return parameters[name].float() * scales_over(scales, shape)
    packed = next(tensor for other, tensor in parameters.items() if other.startswith(stem) and other.endswith("_packed"))
    if packed.shape[-1] * 8 != shape[-1]:  # experts: columns first
        packed, scales = packed.transpose(1, 2), scales.transpose(1, 2)
    codes = ((packed.unsqueeze(-1) >> torch.arange(0, 32, 4)) & 15).flatten(-2) - 8
    return codes.float() * scales_over(scales, shape)


def test_every_parameter_of_the_engine_is_loaded(folders):
    for name in FAMILIES:
        assert loaded_by_engine(folders / name / "plain"), name


def test_a_config_made_from_args_is_enough(folders):
    for name in MADE:
        plain, made = (loaded_by_engine(folders / name / folder) for folder in ("plain", "made"))
        assert plain.keys() == made.keys() and all(torch.equal(plain[key], made[key]) for key in plain), name


def test_mistrals_own_files_are_loaded(folders):
    for name in OWN:
        plain, own = (loaded_by_engine(folders / name / folder) for folder in ("plain", "own"))
        assert plain.keys() == own.keys() and all(torch.equal(plain[key], own[key]) for key in plain), name
    assert loaded_by_engine(folders / "large" / "own") and loaded_by_engine(folders / "windowed" / "own")
    assert torch.load(f"{folders / 'windowed' / 'own'}.engine.pt", weights_only=True)["windows"] == [None, 9, 9, 9]


@pytest.mark.parametrize("quant", [quant for quant in QUANTS if quant not in STEPS and quant != "plain"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-oss"])
def test_every_parameter_of_a_quantised_folder_is_loaded(name, quant, folders):
    if quant not in WITHOUT_EXPERTS or FAMILIES[name].form == LOCAL:
        plain, found = loaded_by_engine(folders / name / "plain"), loaded_by_engine(folders / name / quant)
        assert len(found) > len(plain)


def test_a_draft_model_is_complete(folders):
    for name in DRAFTS:
        assert loaded_by_engine(folders / name / "draft"), name


@pytest.mark.parametrize("quant", STEPS)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-oss"])
def test_quantised_weights_are_those_of_the_model(name, quant, folders):
    plain, found = loaded_by_engine(folders / name / "plain"), loaded_by_engine(folders / name / quant)
    left = json.loads((folders / name / quant / "config.json").read_text())["quantization_config"]
    assert left.get("ignore") or left.get("modules_to_not_convert")
    quantised = 0
    for parameter, weight in plain.items():
        if parameter in found and found[parameter].dtype == weight.dtype:
            assert torch.equal(found[parameter], weight), parameter
            continue
        away = (dequantised(found, parameter, weight.shape) - weight.float()).abs().max() / weight.float().abs().max()
        assert away < STEPS[quant], f"{parameter}: {away}"
        quantised += 1
    assert quantised >= 4 * SIZES["num_hidden_layers"]
