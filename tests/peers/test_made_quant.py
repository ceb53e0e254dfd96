"""target.quant against the libraries' own rounding: compressed-tensors 0.20 and transformers 5.23, tensor by tensor and config.json."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compressed_tensors.compressors import compress_module
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, initialize_module_for_quantization, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Quantize

import family_models
import family_models_hybrid
import family_models_more
from family_models import dense
from hf_models import read_hf
from peer_types import Layout
from reshard_job import command, tree_hashes

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES | family_models_more.FAMILIES
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96)
# Blocks at the ends are short, and straddle heads.
WIDE = dict(hidden_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=40, intermediate_size=192)
MODELS = {
    "qwen3": family_models.Family(dense("Qwen3", **WIDE), Layout(tp=2), Layout()),
    "qwen3-moe": family_models.Family(dense("Qwen3Moe", **WIDE, **EXPERTS), Layout(tp=2, pp=2, ep=2, first_stage_layers=2), Layout()),
    "tied-llama": family_models.Family(dense("Llama", **WIDE, tie_word_embeddings=True), Layout(tp=2), Layout()),
}
DATA = Path(os.environ.get("RESHARD_SOURCE_DIR", Path(__file__).parents[2])) / "tests/data"
SCHEMES = {
    "fp8-block": "FP8_BLOCK", "fp8-channel": "FP8_DYNAMIC", "mxfp8": "MXFP8", "int4-group": "W4A16", "int8-group": "W8A16", "int8-channel": "W8A8",
    "mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16"}
# Weights of modules that engines join have one second scale: llm-compressor's FUSED_LAYER_NAMES.
JOINED = [("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3")]


def scheme_of(form, block):
    scheme = preset_name_to_scheme(SCHEMES[form], ["Linear"])
    if form in ("int4-group", "int8-group"):
        scheme.weights.group_size = block
    return scheme


def block_option(quant):
    return {"quant_block": "32"} if quant in ("int4-group", "int8-group") else {}


def joined_largest(state):
    """The largest magnitude of each weight and those that share its second scale."""
    result = {}
    for name, tensor in state.items():
        parent, _, module = name.removesuffix(".weight").rpartition(".")
        group = next((group for group in JOINED if module in group and all(f"{parent}.{one}.weight" in state for one in group)), (module,))
        result[id(tensor)] = max(state[f"{parent}.{one}.weight" if one != module else name].abs().max() for one in group)
    return result


def blocks_of(weight, weights):
    """[.., elements of a block], blocks at the ends filled with zeros: what llm-compressor's observer looks at."""
    if weights.strategy == "channel":
        return weight.unsqueeze(-2)
    if weights.strategy in ("group", "tensor_group"):
        return weight.unflatten(-1, (-1, weights.group_size))
    rows, columns = weights.block_structure
    whole = torch.zeros(-(-weight.shape[0] // rows) * rows, -(-weight.shape[1] // columns) * columns, dtype=weight.dtype)
    whole[: weight.shape[0], : weight.shape[1]] = weight
    return whole.reshape(whole.shape[0] // rows, rows, whole.shape[1] // columns, columns).transpose(1, 2).flatten(-2)


def by_compressed_tensors(weight, scheme, largest=None):
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    module.weight.data.copy_(weight)
    initialize_module_for_quantization(module, scheme, force_zero_point=False)
    blocks = blocks_of(weight, scheme.weights)
    second = None
    if scheme.weights.strategy == "tensor_group":
        second = generate_gparam(-largest.reshape(1), largest.reshape(1))
        module.weight_global_scale.data.copy_(second)
    module.weight_scale.data.copy_(calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, global_scale=second)[0])
    compress_module(module)
    return dict(module.state_dict())


def by_transformers(weight, block, scale_format="float"):
    """Its blocks must fit: those at the ends are filled with zeros here."""
    rows, columns = (-(-size // step) * step for size, step in zip(weight.shape, block))
    whole = torch.zeros(rows, columns, dtype=weight.dtype)
    whole[: weight.shape[0], : weight.shape[1]] = weight
    config = SimpleNamespace(weight_block_size=block, scale_fmt=scale_format)
    made = Fp8Quantize(SimpleNamespace(quantization_config=config))._quantize_one("weight", whole)
    return made | {"weight": made["weight"][: weight.shape[0], : weight.shape[1]].contiguous()}


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).contiguous().view(torch.uint8)), name


def expected_of(plain, left, quantise):
    result = {}
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        linear = name.endswith(".weight") and tensor.ndim == 2 and "embed" not in name and module not in left
        result |= {f"{module}.{part}": one for part, one in quantise(tensor).items()} if linear else {name: tensor}
    return result


def source_of(name, family, form, program, scratch):
    """A checkpoint in the form, and the plain folder that has the same weights."""
    folder = family_models.save_family(scratch / "hf", family)
    if form == "huggingface":
        return folder, folder
    if form == "megatron":
        return program.to_megatron(folder, scratch / "megatron", family.a, family.form), folder
    return program.run(folder, scratch / form, form, target_options={"map": family.map or name} if form == "dcp" else {"layout": family.a.toml()}), folder


def left_of(target):
    config = json.loads((target / "config.json").read_text())["quantization_config"]
    return config, config.get("ignore", config.get("modules_to_not_convert"))


@pytest.mark.long_but("qwen3-torch_dist-fp8-block", "qwen3-moe-megatron-fp8-channel", "tied-llama-huggingface-int4-group", "qwen3-megatron-mxfp8",
                       "qwen3-moe-torch_dist-nvfp4", "tied-llama-megatron-mxfp4", "qwen3-huggingface-int8-group", "qwen3-moe-huggingface-int8-channel")
@pytest.mark.parametrize(("name", "form", "quant"), [
    pytest.param(name, form, quant, id=f"{name}-{form}-{quant}") for name in MODELS for form in ("huggingface", "megatron", "torch_dist") for quant in SCHEMES])
def test_compressed_tensors_makes_the_same(name, form, quant, program, scratch):
    source, plain = source_of(name, MODELS[name], form, program, scratch)
    options = {"quant": quant, "quant_for": "compressed-tensors", "reference": plain} | block_option(quant)
    target = program.to_hf(source, scratch / "made", target_options=options, ranks=1)
    config, left = left_of(target)
    scheme = scheme_of(quant, 32)
    state = read_hf(plain)
    largest = joined_largest(state)
    assert_same(read_hf(target), expected_of(state, left, lambda weight: by_compressed_tensors(weight, scheme, largest[id(weight)])))
    assert "lm_head" in left and (name != "qwen3-moe" or any(module.endswith("mlp.gate") for module in left))
    group = next(iter(config["config_groups"]))
    library = QuantizationConfig(config_groups={group: scheme}, ignore=left, format=scheme.format, quantization_status="compressed").model_dump()
    assert {key: config[key] for key in library} == json.loads(json.dumps(library, default=str))
    other = program.to_hf(source, scratch / "other", target_options=options, ranks=3, memory="1 MiB")
    assert tree_hashes(target) == tree_hashes(other)
    same = command("verify", source, target)
    assert same.returncode == 0 and "was made with target.quant" in same.stdout, same.stdout + same.stderr


@pytest.mark.parametrize(("block", "scales"), [((128, 128), "f32"), ((1, 32), "e8m0"), ((48, 40), "e8m0")])
def test_transformers_makes_the_same(block, scales, program, scratch):
    source, plain = source_of("qwen3", MODELS["qwen3"], "megatron", program, scratch)
    options = {"quant": "fp8-block", "quant_block": "x".join(map(str, block)), "quant_scales": scales, "reference": plain}
    target = program.to_hf(source, scratch / "made", target_options=options)
    config, left = left_of(target)
    scale_format = "ue8m0" if scales == "e8m0" else "float"
    assert_same(read_hf(target), expected_of(read_hf(plain), left, lambda weight: by_transformers(weight, block, scale_format)))
    assert config["quant_method"] == "fp8" and config["weight_block_size"] == list(block) and config["scale_fmt"] == scale_format
    assert command("verify", source, target).returncode == 0


def split_experts(state):
    """Tensors of their own, as llm-compressor's model_free_ptq names them."""
    result = {}
    for name, tensor in state.items():
        stem, _, kind = name.partition(".experts.")
        if kind not in ("gate_up_proj", "down_proj"):
            result[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if kind == "gate_up_proj" else [(kind, matrix)]
            result |= {f"{stem}.experts.{expert}.{part}.weight": one.contiguous() for part, one in parts}
    return result


def test_experts_in_one_tensor_become_those_of_the_library(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["qwen3-moe-fused"])
    assert any(name.endswith("experts.gate_up_proj") for name in read_hf(folder))
    target = program.to_hf(folder, scratch / "made", target_options={"quant": "fp8-channel"})
    expected = expected_of(split_experts(read_hf(folder)), left_of(target)[1], lambda weight: by_compressed_tensors(weight, scheme_of("fp8-channel", 0)))
    assert_same(read_hf(target), expected)
    assert command("verify", folder, target).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "fp16"])
def test_weights_of_other_dtypes_and_odd_values(dtype, program, scratch):
    folder = family_models.save_family(scratch / "hf", MODELS["qwen3"])
    state = {name: tensor.to(dtype) for name, tensor in read_hf(folder).items()}
    odd = state["model.layers.1.mlp.up_proj.weight"]
    odd[:, :64] = 0
    odd[0, :8] = torch.tensor([6e-8, -6e-8, 3e-7, 1e-5, 60.0, -448.0, 0.0, -0.0]).to(dtype)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    for quant in SCHEMES:
        shutil.rmtree(scratch / "made", ignore_errors=True)
        options = {"quant": quant, "quant_for": "compressed-tensors"} | block_option(quant)
        target = program.to_hf(folder, scratch / "made", target_options=options)
        scheme = scheme_of(quant, 32)
        largest = joined_largest(state)
        assert_same(read_hf(target), expected_of(state, left_of(target)[1], lambda weight: by_compressed_tensors(weight, scheme, largest[id(weight)])))


def test_a_flipped_byte_is_found(program, scratch):
    folder = family_models.save_family(scratch / "hf", MODELS["qwen3"])
    target = program.to_hf(folder, scratch / "made", target_options={"quant": "fp8-block"})
    path = target / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    found = command("verify", folder, target)
    assert found.returncode == 1 and "weight" in found.stdout, found.stdout + found.stderr
    assert command("verify", target).returncode != 0


def test_a_copy_in_another_format_is_compared_as_it_is(program, scratch):
    target = program.to_hf(family_models.save_family(scratch / "hf", MODELS["qwen3"]), scratch / "made", target_options={"quant": "fp8-block"})
    copy = program.run(target, scratch / "copy", "dcp")
    for one, other in ((target, copy), (copy, target)):
        same = command("verify", one, other)
        assert same.returncode == 0, same.stdout + same.stderr


def test_its_config_belongs_to_the_weights(program, scratch):
    folder = family_models.save_family(scratch / "hf", MODELS["qwen3"])
    target = program.to_hf(folder, scratch / "made", target_options={"quant": "fp8-block"})
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [64, 64]
    (target / "config.json").write_text(json.dumps(config))
    found = command("verify", folder, target)
    assert found.returncode == 1 and "other config    quantization_config" in found.stdout, found.stdout + found.stderr


def test_scales_of_f16_empty_tensors_and_patterns_that_match_nothing(program, scratch):
    folder = family_models.save_family(scratch / "hf", MODELS["qwen3"])
    state = {name: tensor.to(torch.float16) for name, tensor in read_hf(folder).items()}
    for path in folder.glob("*.safetensors"):
        path.unlink()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    outcome = program.attempt(folder, scratch / "made", "huggingface", target_options={"quant": "fp8-channel", "quant_ignore": "o_proj"})
    assert outcome.returncode == 0 and "'o_proj' is the name of no module" in outcome.stderr, outcome.stderr
    back = read_hf(program.to_hf(scratch / "made", scratch / "back", model={"quant": "dequantise-bf16"}))
    made = read_hf(scratch / "made")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(back[name], (made[name].float() * made[name + "_scale"].float()).to(torch.bfloat16))
    save_file(state | {"empty.weight": torch.zeros(0, 64)}, folder / "model.safetensors", metadata={"format": "pt"})
    target = program.to_hf(folder, scratch / "empty", target_options={"quant": "fp8-block", "quant_scales": "e8m0"}, model={"map": "none"})
    assert read_hf(target)["empty.weight"].shape == (0, 64)
    assert "sound model" not in command("suspects", target, "--map", "none").stdout


def refusal(program, scratch, source, **options):
    outcome = program.attempt(source, scratch / "made", "huggingface", ranks=1, **options)
    assert outcome.returncode in (2, 3), outcome.stdout
    return outcome.stderr


def test_what_cannot_be_quantised_is_refused(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["qwen3"])
    assert "are no multiple of 32 columns" in refusal(program, scratch, folder, target_options={"quant": "mxfp8"})
    assert "blocks of FP8, and MXFP4 of gpt-oss" in refusal(program, scratch, folder, target_options={"quant": "mxfp8", "quant_for": "transformers"})
    assert "quant_scales" in refusal(program, scratch, folder, target_options={"quant": "mxfp8", "quant_scales": "e8m0"})
    assert 'quant = "none"' in refusal(program, scratch, folder, target_options={"quant_ignore": "*.o_proj"})
    for quant, block in (("fp8-block", "128"), ("fp8-channel", "8"), ("int4-group", "12")):
        assert f'quant_block = "{block}"' in refusal(program, scratch, folder, target_options={"quant": quant, "quant_block": block})
    assert "an adapter is not quantised" in refusal(program, scratch, DATA / "moe-lora", target_options={"quant": "fp8-block"},
                                                    source_options={"config": DATA / "moe-hf-reference"})
    made = program.to_hf(folder, scratch / "fp8", target_options={"quant": "fp8-block"})
    assert "quantised already" in refusal(program, scratch, made, target_options={"quant": "fp8-channel"})
    assert "no weight of the target" in refusal(program, scratch, folder, target_options={"quant": "fp8-block", "quant_ignore": "model.*"})
    state = read_hf(folder)
    path = folder / "model.safetensors"
    state["model.layers.0.mlp.up_proj.weight"][3, 7] = torch.nan
    save_file(state, path, metadata={"format": "pt"})
    assert "element 151 is nan, and no scale is for that" in refusal(program, scratch, folder, target_options={"quant": "fp8-block"})
    state = {name: tensor.nan_to_num() for name, tensor in load_file(path).items()} | {
        f"model.layers.{layer}.self_attn.k_scale": torch.ones(1) for layer in range(5)}
    save_file(state, path, metadata={"format": "pt"})
    assert "static scale of activations" in refusal(program, scratch, folder, target_options={"quant": "fp8-block"})
