"""Quantised weights keep every byte through any layout, and their description names every module."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config, DeepseekV3ForCausalLM, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig,
    Qwen3MoeForCausalLM)

from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from quantised_folders import MODELOPT, SCHEMES, WIDE_BLOCKS, layer_of, quantise_folder, stored_bits
from reshard_job import BINARY

LLAMA = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, head_dim=32, vocab_size=96)
QWEN = LLAMA | dict(num_experts=6, moe_intermediate_size=64, num_experts_per_tok=2, decoder_sparse_step=1)
DEEPSEEK = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, vocab_size=96,
    q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=24, v_head_dim=32, n_routed_experts=4, moe_intermediate_size=128,
    n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, num_experts_per_tok=2, num_nextn_predict_layers=0,
)  # fmt: skip
MODELS = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), Layout(tp=2, pp=3), Layout(tp=4), LOCAL),
    "qwen3_moe": (lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**QWEN)), Layout(tp=2, ep=2, pp=3), Layout(ep=3, etp=1, tp=1), TE_GROUPED),
    "deepseek_v3": (lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**DEEPSEEK)), Layout(tp=2, ep=2, etp=1), Layout(tp=2, ep=1, pp=3), TE_SEQUENTIAL),
}
MOE_SCHEMES = ("fp8_block", "fp8_tensor", "nvfp4", "int4_packed", "fp4_tiles")
CASES = [("llama", scheme) for scheme in SCHEMES if scheme != WIDE_BLOCKS] + [(model, scheme) for model in ("qwen3_moe", "deepseek_v3") for scheme in MOE_SCHEMES]


def saved(model, folder):
    torch.manual_seed(3)
    made = MODELS[model][0]().to(torch.bfloat16)
    for name, buffer in made.named_buffers():
        if name.endswith("e_score_correction_bias"):  # F32 in published folders, whatever the weights are
            made.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = torch.rand(buffer.shape, generator=torch.Generator().manual_seed(5))
    made.save_pretrained(folder)
    return folder


def there_and_back(model, folder, program, scratch, **options):
    _, a, b, form = MODELS[model]
    first = program.to_megatron(folder, scratch / "a", a, form, **options)
    dist = program.run(first, scratch / "dist", "torch_dist")
    second = program.to_megatron(dist, scratch / "b", b, form, ranks=3)
    return program.to_hf(second, scratch / "hf", target_options={"reference": folder})


@pytest.mark.long_but("llama-mxfp4_packed", "llama-int5_packed_asymmetric", "llama-int8_channel", "qwen3_moe-fp8_block", "deepseek_v3-nvfp4")
@pytest.mark.parametrize(("model", "scheme"), CASES)
def test_every_byte_comes_back(model, scheme, program, scratch):
    source = saved(model, scratch / "source")
    quantise_folder(source, lambda name: None if layer_of(name) == 1 else scheme)
    back = there_and_back(model, source, program, scratch)
    assert stored_bits(back) == stored_bits(source)
    described = json.loads((back / "config.json").read_text())["quantization_config"]
    if scheme not in MODELOPT:
        assert described == json.loads((source / "config.json").read_text())["quantization_config"]


def test_a_matrix_of_one_block_is_read_back_by_the_scheme_of_its_config(program, scratch):
    """Where Megatron fuses gate and up, their blocks have the shape of one scale for each of the two."""
    source = saved("deepseek_v3", scratch / "source")
    quantise_folder(source, lambda name: WIDE_BLOCKS)
    there = program.to_megatron(source, scratch / "there", Layout(ep=2), TE_SEQUENTIAL)
    for sides in ([there], [source, there]):
        outcome = subprocess.run([BINARY, "verify", *map(str, sides)], capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert stored_bits(program.to_hf(there, scratch / "back", target_options={"reference": source})) == stored_bits(source)


def packed(tensors):
    """Experts of a layer in one tensor, gate before up, and their scales likewise: as transformers 5 holds them."""
    result, stacks = {}, {}
    for name, tensor in tensors.items():
        before, found, after = name.partition(".mlp.experts.")
        if not found:
            result[name] = tensor
            continue
        _, projection, ending = after.split(".")  # experts of a layer are in order
        stacks.setdefault((before, projection, ending), []).append(tensor)
    for (before, projection, ending), experts in stacks.items():
        whole, to = torch.stack(experts), f"{before}.mlp.experts."
        if projection == "down_proj":
            result[to + projection + ending.removeprefix("weight")] = whole
        elif projection == "gate_proj":
            result[to + "gate_up_proj" + ending.removeprefix("weight")] = torch.cat([whole, torch.stack(stacks[before, "up_proj", ending])], dim=1)
    return result


@pytest.mark.long
def test_packed_experts_become_one_tensor_each_and_back(program, scratch):
    """Without a reference the folder has a tensor for each expert, as vLLM reads them; with a packed one they are packed."""
    source = saved("qwen3_moe", scratch / "source")
    quantise_folder(source, lambda name: "fp8_block" if ".experts." in name else None)
    apart = stored_bits(source)
    path = source / "model.safetensors"
    save_file(packed(load_file(path)), path, metadata={"format": "pt"})
    dist = program.run(source, scratch / "dist", "torch_dist", target_options={"layout": "{ ep = 2 }"})
    assert stored_bits(program.to_hf(dist, scratch / "apart")) == apart
    assert stored_bits(program.to_hf(dist, scratch / "packed", target_options={"reference": source})) == stored_bits(source)


@pytest.mark.long
def test_without_a_reference_block_sizes_are_remembered(program, scratch):
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: "fp8_block")
    back = program.to_hf(program.to_megatron(source, scratch / "a", Layout(tp=2), LOCAL), scratch / "hf")
    assert stored_bits(back) == stored_bits(source)
    assert json.loads((back / "config.json").read_text())["quantization_config"]["weight_block_size"] == [16, 16]


@pytest.mark.long
def test_mixed_precision_names_every_expert_of_every_layer(program, scratch):
    """What an export at EP > 1 once lost: the experts of the other ranks, in files and in the description."""
    source = saved("qwen3_moe", scratch / "source")
    schemes = {0: "nvfp4", 1: "fp8_tensor", 2: None}
    stored = quantise_folder(source, lambda name: schemes[layer_of(name)])
    back = there_and_back("qwen3_moe", source, program, scratch)
    assert stored_bits(back) == stored_bits(source)
    file = json.loads((back / "hf_quant_config.json").read_text())["quantization"]
    wanted = {name.removesuffix(".weight_scale"): schemes[layer_of(name)] for name in stored if name.endswith(".weight_scale")}
    assert len([name for name in wanted if ".experts." in name]) == 2 * 6 * 3
    algorithms = {"nvfp4": {"quant_algo": "NVFP4", "group_size": 16}, "fp8_tensor": {"quant_algo": "FP8"}}
    assert file["quant_algo"] == "MIXED_PRECISION"
    assert file["quantized_layers"] == {name: algorithms[scheme] for name, scheme in wanted.items()}
    config = json.loads((back / "config.json").read_text())["quantization_config"]
    assert config["quantized_layers"] == file["quantized_layers"] and config["quant_method"] == "modelopt"
    listed = [name for group in config["config_groups"].values() for name in group["targets"]]
    assert sorted(listed) == sorted(wanted)
    assert "lm_head" in file["exclude_modules"] and "model.layers.2.mlp.experts.5.up_proj" in file["exclude_modules"]
    assert not set(file["exclude_modules"]) & set(wanted)


@pytest.mark.long
def test_one_format_needs_no_list_of_layers(program, scratch):
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: "nvfp4")
    (source / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt", "version": "9"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    )
    back = there_and_back("llama", source, program, scratch)
    file = json.loads((back / "hf_quant_config.json").read_text())
    assert file["producer"] == {"name": "modelopt", "version": "9"}
    expected = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    assert file["quantization"] == expected


def test_parts_of_one_weight_with_different_formats_cannot_be_fused(program, scratch):
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: None if name.endswith("k_proj.weight") else "fp8_block")
    outcome = program.attempt(source, scratch / "a", "megatron", target_options={"layout": "{ tp = 1 }"})
    assert outcome.returncode == 2 and "attn.k" in outcome.stderr, outcome.stderr
    assert not (scratch / "a").exists()


def test_experts_of_one_layer_must_be_stored_alike(program, scratch):
    source = saved("qwen3_moe", scratch / "source")
    quantise_folder(source, lambda name: "fp8_block" if ".experts.3." in name else None)
    outcome = program.attempt(source, scratch / "a", "megatron", target_options={"layout": "{ tp = 1 }"}, ranks=3)
    assert outcome.returncode == 3 and "must be stored alike" in outcome.stderr, outcome.stderr


def test_a_missing_scale_is_one_error_on_all_ranks(program, scratch):
    source = saved("qwen3_moe", scratch / "source")
    quantise_folder(source, lambda name: "nvfp4")
    tensors = stored_bits(source)
    path = source / "model.safetensors"
    data = path.read_bytes()
    lost = "model.layers.2.mlp.experts.4.up_proj.weight_scale"
    assert lost in tensors
    path.write_bytes(data.replace(lost.encode(), lost.replace("weight_scale", "weight_sca1e").encode(), 1))
    outcome = program.attempt(source, scratch / "a", "megatron", target_options={"layout": "{ ep = 2 }"}, ranks=3)
    assert outcome.returncode == 3 and outcome.stderr.count("error:") == 1, outcome.stderr
    assert not (scratch / "a").exists()


def test_dequantising_drops_the_description(program, scratch):
    source = saved("llama", scratch / "source")
    stored = quantise_folder(source, lambda name: "fp8_tensor")
    megatron = program.to_megatron(source, scratch / "a", Layout(tp=4, pp=3), LOCAL, model={"quant": "dequantise-bf16"})
    back = program.to_hf(megatron, scratch / "hf", target_options={"reference": source})
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    name = "model.layers.2.mlp.down_proj.weight"
    exact = stored[name].double() * stored[name + "_scale"].double()
    dtype, shape, data = stored_bits(back)[name]
    got = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(shape)
    wanted = exact.to(torch.bfloat16)
    assert dtype == "BF16" and torch.equal(got.view(torch.int16)[~wanted.isnan()], wanted.view(torch.int16)[~wanted.isnan()])
    assert len(stored_bits(back)) == len([n for n in stored if n.endswith("weight")])


def by_projections(tensors):
    """Experts one by one under the names of their projections, as llm-compressor saves those of Mixtral and gpt-oss."""
    words = {".w1.": ".gate_proj.", ".w3.": ".up_proj.", ".w2.": ".down_proj."}
    result = {}
    for name, tensor in tensors.items():
        stem, dot, last = name.rpartition(".experts.")
        if dot and "_proj" in last and not last[0].isdigit():  # [expert, input, output] and [expert, output] of gpt-oss
            kind = "bias" if last.endswith("_bias") else "weight"
            for expert, matrix in enumerate(tensor if kind == "bias" else tensor.mT):
                parts = {"gate_proj": matrix[::2], "up_proj": matrix[1::2]} if last.startswith("gate_up") else {"down_proj": matrix}
                result |= {f"{stem}.experts.{expert}.{word}.{kind}": part.contiguous() for word, part in parts.items()}
            continue
        for old, new in words.items():
            name = name.replace(old, new)
        result[name] = tensor
    return result


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_named_by_their_projections(family, program, scratch):
    sizes = LLAMA | dict(num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2)
    windows = ["sliding_attention", "full_attention"]
    made = MixtralForCausalLM(MixtralConfig(**sizes)) if family == "mixtral" else GptOssForCausalLM(GptOssConfig(**sizes, layer_types=windows))
    source = scratch / "source"
    made.to(torch.bfloat16).save_pretrained(source)
    save_file(by_projections(load_file(source / "model.safetensors")), source / "model.safetensors", metadata={"format": "pt"})
    quantise_folder(source, lambda name: "int4_packed" if ".experts." in name else None)
    first = program.to_megatron(source, scratch / "a", Layout(tp=2, ep=2, etp=1), TE_GROUPED)
    back = program.to_hf(first, scratch / "hf", target_options={"reference": source})
    assert stored_bits(back) == stored_bits(source) and any(".experts.3.gate_proj.weight_packed" in name for name in stored_bits(back))


INTEGERS = [  # of each layer: bits, columns that share a scale (0: all), symmetric, packed
    (4, 32, False, True), (8, 0, True, False), (4, 64, True, True), (8, 0, False, True), (2, 32, True, True), (4, 32, True, False)]


def integers_of_the_library(folder):
    """A llama whose layers are quantised by compressed-tensors, each in another integer form. Returns what the library decompresses."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    LlamaForCausalLM(LlamaConfig(**LLAMA | {"num_hidden_layers": len(INTEGERS)})).to(torch.bfloat16).save_pretrained(folder)
    groups, schemes, compressors = {}, [], []
    for layer, (bits, group, symmetric, packed) in enumerate(INTEGERS):
        weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel", group_size=group or None)
        schemes.append(QuantizationScheme(targets=[f"re:.*layers[.]{layer}[.].*"], weights=weights))
        compressors.append(BaseCompressor.get_value_from_registry("pack-quantized" if packed else "int-quantized"))
        groups[f"group_{layer}"] = json.loads(schemes[-1].model_dump_json())
    stored, expected = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = expected[name] = weight
            continue
        scheme, compressor = schemes[layer_of(name)], compressors[layer_of(name)]
        blocks = weight.unflatten(1, (-1, scheme.weights.group_size or weight.shape[1]))
        scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights)
        parts = compressor.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme)
        stored |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
        expected[name] = compressor.decompress(dict(parts), scheme)["weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, "ignore": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def test_integers_of_the_library_come_back_and_become_its_values(program, scratch):
    expected = integers_of_the_library(scratch / "source")
    first = program.to_megatron(scratch / "source", scratch / "a", Layout(tp=2, pp=3), LOCAL)
    back = program.to_hf(program.run(first, scratch / "dist", "torch_dist"), scratch / "hf", target_options={"reference": scratch / "source"})
    assert stored_bits(back) == stored_bits(scratch / "source")
    for source in (scratch / "source", first):
        values = program.to_hf(source, scratch / f"values-{source.name}", model={"quant": "dequantise-bf16"}, target_options={"reference": scratch / "source"})
        found = {name: tensor for path in values.glob("*.safetensors") for name, tensor in load_file(path).items()}
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected), source


@pytest.mark.long
def test_what_was_recorded_of_parts_does_not_stop_dequantising(program, scratch):
    """The manifest of a Megatron target of ours lists values and scales; a job that computes the weight reads neither by name."""
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: "fp8_block")
    megatron = program.to_megatron(source, scratch / "a", Layout(), LOCAL)
    assert (megatron / "reshard.json").exists()
    program.to_hf(megatron, scratch / "hf", model={"quant": "dequantise-bf16"})


@pytest.mark.long_but("model_keys0")
@pytest.mark.parametrize("model_keys", [{}, {"quant": "dequantise-bf16"}])
def test_a_weight_without_its_scale_is_refused(model_keys, program, scratch):
    source = saved("llama", scratch / "source")
    stored = quantise_folder(source, lambda name: "fp8_block")
    lost = "model.layers.1.mlp.down_proj.weight_scale_inv"
    save_file({name: tensor for name, tensor in stored.items() if name != lost}, source / "model.safetensors", metadata={"format": "pt"})
    outcome = program.attempt(source, scratch / "a", "megatron", target_options={"layout": "{ tp = 1 }"}, model=model_keys)
    assert outcome.returncode == 3 and "'model.layers.1.mlp.down_proj.weight' is F8_E4M3" in outcome.stderr, outcome.stderr
    assert not (scratch / "a").exists()


@pytest.mark.long
def test_an_output_layer_of_its_own_is_not_lost_to_a_tied_reference(program, scratch):
    source = saved("llama", scratch / "source")
    megatron = program.to_megatron(source, scratch / "a", Layout(pp=2, last_stage_layers=1), LOCAL)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    outcome = program.attempt(megatron, scratch / "hf", "huggingface", target_options={"reference": source})
    assert outcome.returncode == 3 and "its own output layer" in outcome.stderr, outcome.stderr
    assert not (scratch / "hf").exists()
