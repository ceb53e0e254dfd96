"""What ModelOpt stores beside weights on Megatron-Core goes through any layout, and between Megatron and Hugging Face."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import NemotronHConfig, NemotronHForCausalLM

import dcp_reading
import modelopt_quantisers
from dcp_cases import DENSE, MOE, to_torch_dist, vocabulary_of
from dcp_checkpoints import World
from dcp_models import Recipe
from numpy_megatron import iteration_folder
from peer_types import LOCAL, TE_SEQUENTIAL, Layout
from quantised_folders import generator, is_projection, layer_of, quantisation_config, quantise_folder, quantised_parts, stored_bits
from reshard_job import tree_hashes
from tensor_patterns import same_bits
from test_quantised import saved

# Blocks of 16 columns fit the shares of four ranks.
BLOCKED = DENSE.with_(layers=2, hidden=96, head_dim=16, ffn=192, dtype="bfloat16")
EXPERTS = MOE.with_(layers=2, expert_ffn=32, dtype="bfloat16")
PAIRS = {  # -> config, layout of the source, of the target
    "dense": (BLOCKED, Layout(tp=2), Layout(tp=4)),
    "dense-pp": (BLOCKED, Layout(tp=2, pp=2), Layout()),
    "moe": (EXPERTS, Layout(ep=2), Layout(ep=4)),
    "moe-tp": (EXPERTS, Layout(tp=2, etp=2), Layout(ep=2)),
}


def worlds(name):
    config, source, target = PAIRS[name]
    return World(Recipe(config), source, LOCAL), World(Recipe(config), target, LOCAL)


@pytest.mark.long_but("rows-dense")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("form", modelopt_quantisers.FORMS)
def test_another_layout_has_what_a_run_there_would_have_saved(name, form, program, scratch):
    source, target = worlds(name)
    root = modelopt_quantisers.save(source, scratch / "source", form)
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    theirs = modelopt_quantisers.save(target, scratch / "theirs", form)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(theirs), vocabulary_of(source))
    held = modelopt_quantisers.load(target, there, form)
    wrong = [key for key, tensor in held.items() if not same_bits(tensor, modelopt_quantisers.whole_values(key, tensor.shape, tensor.dtype, target))]
    assert not wrong and any("_quantizer." in key for key in held), wrong[:4]
    assert tree_hashes(iteration_folder(there) / "modelopt_state") == tree_hashes(iteration_folder(root) / "modelopt_state")


# --- beside the weights of a Hugging Face folder --------------------------------------------------------------------

ENDINGS = ("weight_quantizer._amax", "input_quantizer._amax", "output_quantizer._amax")
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}


def with_quantisers(folder, rows=()):
    """What mtq.quantize leaves in a model's state: scalars, the same for all that is fused elsewhere; one for each row of the layers in `rows`."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if is_projection(name)]:
        module, projection = name.removesuffix(".weight"), name.split(".")[-2]
        for ending in ENDINGS:
            by_row = ending.startswith("weight") and any(f".{layer}." in name for layer in rows)
            key = f"{module}.{ending}" if by_row else f"{layer_of(name)}.{FUSED.get(projection, projection)}.{ending}"
            shape = [tensors[name].shape[0], 1] if by_row else []
            tensors[f"{module}.{ending}"] = torch.rand(shape, generator=generator(key)) + 0.5
    attention = [name.removesuffix("q_proj.weight") for name in tensors if name.endswith("q_proj.weight")]
    for module in attention:
        for kind in "kv":
            tensors[f"{module}{kind}_bmm_quantizer._amax"] = torch.rand([], generator=generator(module + kind))
    save_file(tensors, path, metadata={"format": "pt"})
    return tensors


def test_between_hugging_face_and_megatron(program, scratch):
    """One number for all that is fused, read for each: torch_dist has it once, the folder as often as it had it."""
    source = saved("llama", scratch / "source")
    tensors = with_quantisers(source, rows=[1])
    dist = program.run(source, scratch / "dist", "torch_dist", target_options={"layout": "{ tp = 2, pp = 3 }", "layers": "separate"})
    whole = dcp_reading.whole_tensors(iteration_folder(dist))
    block = "decoder.layers.0.self_attention."
    q = tensors["model.layers.0.self_attn.q_proj.weight_quantizer._amax"]
    assert torch.equal(whole[block + "linear_qkv.weight_quantizer._amax"], q.reshape(1))
    assert whole["decoder.layers.1.mlp.linear_fc1.weight_quantizer._amax"].shape == (512, 1)
    assert whole[block + "core_attention.k_bmm_quantizer._amax"].shape == ()
    legacy = program.to_megatron(dist, scratch / "legacy", Layout(tp=4), LOCAL, ranks=3)
    back = program.to_hf(legacy, scratch / "hf", target_options={"reference": source})
    assert stored_bits(back) == stored_bits(source)


@pytest.mark.long
def test_the_weights_alone(program, scratch):
    """A run that trained with simulated quantisers, as a BF16 folder without their numbers."""
    source = saved("llama", scratch / "source")
    weights = stored_bits(source)
    with_quantisers(source, rows=[1])
    dist = program.run(source, scratch / "dist", "torch_dist", target_options={"layout": "{ tp = 2 }"})
    back = program.to_hf(dist, scratch / "hf", model={"quant": "dequantise-bf16"}, target_options={"reference": source})
    found = stored_bits(back)
    assert {name: found[name] for name in weights} == weights
    assert all("_bmm_quantizer." in name for name in found.keys() - weights.keys())
    outcome = program.attempt(dist, scratch / "b", "torch_dist", model={"quant": "dequantise-bf16"})
    assert outcome.returncode == 2 and "dequantise-bf16" in outcome.stderr, outcome.stderr


@pytest.mark.long_but("k_proj")
@pytest.mark.parametrize("projection", ["k_proj", "up_proj"])
def test_different_numbers_of_what_is_fused_are_refused_with_both(projection, program, scratch):
    source = saved("llama", scratch / "source")
    tensors = with_quantisers(source)
    name = next(name for name in tensors if ".layers.2." in name and name.endswith(projection + ".input_quantizer._amax"))
    other = tensors[name.replace("k_proj", "q_proj").replace("up_proj", "gate_proj")].item()
    tensors[name] = torch.tensor(0.25)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    outcome = program.attempt(source, scratch / "a", "megatron", target_options={"layout": "{ tp = 2 }"})
    assert outcome.returncode == 3 and name in outcome.stderr and "must be equal" in outcome.stderr, outcome.stderr
    assert "0.25" in outcome.stderr and f"{other:.6}"[:6] in outcome.stderr, outcome.stderr
    assert not (scratch / "a").exists()


@pytest.mark.long
def test_scales_of_the_cache_come_along(program, scratch):
    source = saved("llama", scratch / "source")
    quantise_folder(source, lambda name: "fp8_tensor")
    path = source / "model.safetensors"
    tensors = load_file(path)
    for layer in range(3):
        for kind in "kv":
            tensors[f"model.layers.{layer}.self_attn.{kind}_proj.{kind}_scale"] = torch.tensor(layer + 0.25)
    save_file(tensors, path, metadata={"format": "pt"})
    dist = program.run(source, scratch / "dist", "torch_dist", target_options={"layout": "{ tp = 2 }"})
    back = program.to_hf(dist, scratch / "hf", target_options={"reference": source})
    assert stored_bits(back) == stored_bits(source)


# --- one scale for a fused tensor -----------------------------------------------------------------------------------


def fp8_projections(folder, endings):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    chosen = [name for name in tensors if name.endswith(endings)]
    assert chosen
    for name in chosen:
        tensors |= quantised_parts(name, tensors[name].shape, "fp8_tensor")
    save_file(tensors, path, metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text()) | {"quantization_config": quantisation_config("fp8_tensor")}
    (folder / "config.json").write_text(json.dumps(described, indent=2))
    return tensors


def test_mambas_input_projection_under_one_scale(program, scratch):
    """It is five weights to Megatron; each has the scale then."""
    torch.manual_seed(3)
    sizes = dict(hidden_size=64, num_hidden_layers=None, hybrid_override_pattern="M-*", vocab_size=96, intermediate_size=128, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16)  # fmt: skip
    source = scratch / "source"
    NemotronHForCausalLM(NemotronHConfig(**sizes)).to(torch.bfloat16).save_pretrained(source)
    fp8_projections(source, ("mixer.in_proj.weight", "mixer.out_proj.weight"))
    first = program.to_megatron(source, scratch / "a", Layout(tp=2), TE_SEQUENTIAL)
    dist = program.run(first, scratch / "dist", "torch_dist")
    second = program.to_megatron(dist, scratch / "b", Layout(pp=3), TE_SEQUENTIAL, ranks=3)
    back = program.to_hf(second, scratch / "hf", target_options={"reference": source})
    assert stored_bits(back) == stored_bits(source)
