"""target.quant for ModelOpt, against its own export; and families whose experts stand in one tensor, against llm-compressor's rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import family_models
from hf_models import read_hf
from peer_types import TE_GROUPED, Layout
from reshard_job import command, tree_hashes
from test_made_quant import FAMILIES as KNOWN
from test_made_quant import EXPERTS, MODELS, WIDE, assert_same, by_compressed_tensors, expected_of, left_of, refusal, scheme_of, source_of
import family_models_kinds

FAMILIES = KNOWN | family_models_kinds.FAMILIES | family_models_kinds.WITHOUT_MEGATRON
GPT_OSS = family_models.Family(
    family_models.dense("GptOss", hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96, num_local_experts=4,
                        num_experts_per_tok=2, sliding_window=9), Layout(tp=2, ep=2), Layout(), TE_GROUPED)
MODELOPT = {
    "fp8-block": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "fp8-channel": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "mxfp8": "MXFP8_DEFAULT_CFG",
    "nvfp4": "W4A16_NVFP4_CFG",
}


# ModelOpt takes blocks of an expert's gate and up together, and shifts them where rows are no multiple of 128.
EXPORTED = MODELS | {
    "qwen3-moe": family_models.Family(
        family_models.dense("Qwen3Moe", **WIDE, **EXPERTS | dict(moe_intermediate_size=128)), Layout(tp=2, pp=2, ep=2, first_stage_layers=2), Layout())}


@pytest.mark.long_but("qwen3-moe")
@pytest.mark.parametrize("name", EXPORTED)
def test_modelopt_makes_the_same(name, program, scratch):
    source, plain = source_of(name, EXPORTED[name], "megatron", program, scratch)
    exported = scratch / "modelopt"
    script = Path(__file__).with_name("modelopt_export.py")
    subprocess.run([sys.executable, script, plain, exported, *MODELOPT.values()], check=True, capture_output=True, timeout=300)
    for quant, config in MODELOPT.items():
        options = {"quant": quant, "quant_for": "modelopt", "reference": plain}
        target = program.to_hf(source, scratch / f"made-{quant}", target_options=options)
        theirs = Path(f"{exported}-{config}")
        assert_same(read_hf(target), read_hf(theirs))
        assert (target / "hf_quant_config.json").read_bytes() == (theirs / "hf_quant_config.json").read_bytes()
        made, wanted = (json.loads((folder / "config.json").read_text())["quantization_config"] for folder in (target, theirs))
        assert made == wanted and list(made) == list(wanted)
        other = program.to_hf(source, scratch / f"other-{quant}", target_options=options, ranks=3, memory="1 MiB")
        assert tree_hashes(target) == tree_hashes(other)
        assert command("verify", source, target).returncode == 0


def test_forms_that_modelopt_makes_and_no_engine_reads_are_refused(program, scratch):
    folder = family_models.save_family(scratch / "hf", MODELS["qwen3"])
    for quant in ("int4-group", "mxfp4", "int8-channel"):
        assert "engines read fp8-block, fp8-channel, mxfp8 and nvfp4" in refusal(
            program, scratch, folder, target_options={"quant": quant, "quant_for": "modelopt"})
    assert "the one block of ModelOpt's form" in refusal(
        program, scratch, folder, target_options={"quant": "fp8-block", "quant_for": "modelopt", "quant_block": "64x64"})


# Stacks of each family: gate and up beside each other or in turn; rows first, or columns.
STACKED = {
    "llama4-text": ("experts.gate_up_proj", "experts.down_proj", True),
    "granite-moe": ("input_linear.weight", "output_linear.weight", False),
    "granitemoehybrid": ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight", False),
    "qwen3-vl-moe": ("experts.gate_up_proj", "experts.down_proj", False),
    "qwen3-vl-moe-published": ("experts.gate_up_proj", "experts.down_proj", True),
    "gemma4-moe": ("experts.gate_up_proj", "experts.down_proj", False),
}


def apart(state, joined, down, turned):
    """Experts as llm-compressor's LinearExperts2D takes them apart."""
    result = {}
    for name, tensor in state.items():
        if tensor.ndim != 3 or not name.endswith((joined, down)):
            result[name] = tensor
            continue
        stem = name[:-len(joined if name.endswith(joined) else down)] + ("block_sparse_moe." if joined.startswith("block_sparse_moe") else "")
        for expert, matrix in enumerate(tensor.transpose(1, 2) if turned else tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if name.endswith(joined) else [("down_proj", matrix)]
            result |= {f"{stem}experts.{expert}.{part}.weight": one.contiguous() for part, one in parts}
    return result


@pytest.mark.parametrize("name", STACKED)
def test_experts_in_one_tensor_are_taken_apart(name, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES[name])
    model = {"unmapped": "keep"}
    target = program.to_hf(folder, scratch / "made", target_options={"quant": "fp8-channel"}, model=model)
    state = apart(read_hf(folder), *STACKED[name])
    left = left_of(target)[1]
    kept = {key.removesuffix(".weight") for key, tensor in state.items() if tensor.ndim == 2 and f"{key}_scale" not in read_hf(target)}
    assert kept <= set(left) | {key for key in kept if "embed" in key}
    assert not any(".experts." in module for module in kept)
    scheme = scheme_of("fp8-channel", 0)
    assert_same(read_hf(target), expected_of(state, set(left) | kept, lambda weight: by_compressed_tensors(weight, scheme)))
    assert command("verify", folder, target).returncode == 0
    back = program.to_hf(target, scratch / "back", model=model | {"quant": "dequantise-bf16"})
    assert not any(key.endswith("weight_scale") for key in read_hf(back))


def mxfp4(weight):
    """[.., rows, columns] as triton_kernels' downcast_to_mxfp_torch rounds: scales are the power of two at or above a sixth of the largest."""
    blocks = weight.float().unflatten(-1, (-1, 32))
    sixth = (blocks.abs().amax(-1) / 6).contiguous().view(torch.int32)
    field = (sixth + 0x7FFFFF) >> 23
    scaled = (blocks.double() * torch.pow(2.0, 127.0 - field.double()).unsqueeze(-1))
    codes = torch.zeros(scaled.shape, dtype=torch.uint8)
    for bound, includes in ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5, False)):
        codes += (scaled.abs() >= bound if includes else scaled.abs() > bound).to(torch.uint8)
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    return codes[..., 0::2] | codes[..., 1::2] << 4, field.to(torch.uint8)


@pytest.mark.parametrize("form", ["huggingface", "megatron"])
def test_experts_of_gpt_oss_become_mxfp4(form, program, scratch):
    source, plain = source_of("gpt-oss", GPT_OSS, form, program, scratch)
    target = program.to_hf(source, scratch / "made", target_options={"quant": "mxfp4", "reference": plain})
    expected = {}
    for name, tensor in read_hf(plain).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = mxfp4(tensor.transpose(1, 2).contiguous())
            expected |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            expected[name] = tensor
    assert_same(read_hf(target), expected)
    config, left = left_of(target)
    assert config["quant_method"] == "mxfp4" and left == ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    assert command("verify", source, target).returncode == 0
    back = program.to_hf(target, scratch / "back", model={"quant": "dequantise-bf16"})
    assert read_hf(back)["model.layers.0.mlp.experts.down_proj"].shape == read_hf(plain)["model.layers.0.mlp.experts.down_proj"].shape
    again = program.to_hf(back, scratch / "again", target_options={"quant": "mxfp4"})
    assert_same(read_hf(program.to_hf(again, scratch / "values", model={"quant": "dequantise-bf16"})), read_hf(back))


def test_other_forms_of_gpt_oss_and_dbrx_are_refused(program, scratch):
    folder = family_models.save_family(scratch / "gpt", GPT_OSS)
    for quant in ("fp8-channel", "nvfp4"):
        assert 'read as MXFP4 alone. Set target.quant = "mxfp4"' in refusal(program, scratch, folder, target_options={"quant": quant})
    assert "quantised already" in refusal(
        program, scratch, program.to_hf(folder, scratch / "mxfp4", target_options={"quant": "mxfp4"}), target_options={"quant": "fp8-channel"})
    target = program.to_hf(folder, scratch / "attention", target_options={"quant": "fp8-channel", "quant_ignore": "*.experts.*"})
    assert "model.layers.0.mlp.experts" in left_of(target)[1]
    name = "transformer.blocks.0.ffn.experts.mlp.w1"
    dbrx = scratch / "dbrx"
    dbrx.mkdir()
    save_file({name: torch.ones(64, 32), "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight": torch.ones(64, 32)}, dbrx / "model.safetensors",
              metadata={"format": "pt"})
    (dbrx / "config.json").write_text(json.dumps({"model_type": "dbrx"}))
    assert f"'{name}' [64, 32] holds the experts" in refusal(program, scratch, dbrx, target_options={"quant": "fp8-channel"}, model={"map": "none"})


@pytest.mark.parametrize("hidden", [256, 160])
def test_scales_that_transformers_has_together_are_those_of_their_experts(hidden, program, scratch, monkeypatch):
    """transformers saves FP8 that it made while loading with experts apart and the scales of a layer's experts in one tensor. Weights whose sides are no
    multiples of a block stay BF16; beside them stands a tensor of scales that was never set."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    monkeypatch.setattr(AUTO_QUANTIZER_MAPPING["fp8"], "validate_environment", lambda self, *args, **keys: None)  # asks for a GPU
    family = family_models.Family(family_models.dense("Qwen3Moe", **WIDE | EXPERTS | dict(hidden_size=hidden, moe_intermediate_size=128)), Layout(), Layout())
    plain, made = family_models.save_family(scratch / "hf", family), scratch / "fp8"
    settings = FineGrainedFP8Config(modules_to_not_convert=["lm_head"])
    AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16, quantization_config=settings, device_map="cpu").save_pretrained(made)
    state = read_hf(made)
    values = read_hf(program.to_hf(made, scratch / "values", model={"quant": "dequantise-bf16"}))
    experts = [name for name in state if ".experts." in name and name.endswith(".weight")]
    assert experts and not any(f"{name}_scale_inv" in state for name in experts)
    assert {state[name].dtype for name in experts} == {torch.float8_e4m3fn if hidden % 128 == 0 else torch.bfloat16}
    for name in experts:
        if state[name].dtype == torch.bfloat16:
            assert torch.equal(values[name], state[name]), name
            continue
        stem, expert, part = name.removesuffix(".weight").rsplit(".", 2)
        joined = state[f"{stem}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}_scale_inv"][int(expert)]
        scale = joined if part == "down_proj" else joined.chunk(2)[part == "up_proj"]
        rows, columns = state[name].shape
        wide = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        assert torch.equal(values[name], (state[name].float() * wide.float()).to(torch.bfloat16)), name
    if hidden % 128:
        return
    outcome = program.attempt(made, scratch / "megatron", "megatron", ranks=1)
    assert outcome.returncode == 3
    assert "quantised by fp8" in outcome.stderr and 'model.quant = "dequantise-bf16" computes BF16 weights for any target' in outcome.stderr
