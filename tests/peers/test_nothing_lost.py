"""Nothing is lost or contradicted in silence: keys that nothing reads, args that do not describe the files, patterns, adapters, maps without effect."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import family_models_hybrid
from family_models import FAMILIES, MOE, Family, dense, logits_of, save_family, with_fused_experts
from hf_models import read_hf
from megatron_args import args_of, change_args, renamed_dist
from peer_types import Layout
from tensor_patterns import assert_same_tensors

LLAMA = FAMILIES["llama"]
ONE = Layout()
HYBRID = Family(family_models_hybrid.mamba("M*-ME"), ONE, ONE)


def refused(outcome, code, *words):
    assert outcome.returncode == code, f"exit {outcome.returncode}\n{outcome.stderr[-2000:]}"
    for word in words:
        assert word in outcome.stderr, outcome.stderr[-2000:]


def warned(outcome, *words):
    refused(outcome, 0, "warning:", *words)


@pytest.fixture
def program(program):
    """On one rank: what is refused or said is decided before ranks part."""
    attempt = program.attempt
    program.attempt = lambda *places, ranks=1, **options: attempt(*places, ranks=ranks, **options)
    return program


@pytest.fixture
def folder(scratch):
    return save_family(scratch / "folder", LLAMA)


@pytest.fixture
def with_tower(program, folder, scratch):
    """A torch_dist checkpoint as Megatron-Bridge saves a vision-language model."""
    plain = program.run(folder, scratch / "plain", "torch_dist", target_options={"layout": ONE.toml()})
    tower = {f"vision_model.layers.{layer}.weight": torch.randn(4, 4) for layer in range(3)}
    return renamed_dist(plain, scratch / "tower", lambda key: "language_model." + key, tower)


def test_what_is_beside_a_language_model_with_a_root_is_named(program, with_tower, folder, scratch):
    outcome = program.attempt(with_tower, scratch / "out", "huggingface", target_options={"reference": folder})
    refused(outcome, 3, "'vision_model.layers.", "matches no entry of mcore.toml and llama.toml")
    outcome = program.attempt(with_tower, scratch / "again", "torch_dist")
    refused(outcome, 3, "'vision_model.layers.", "is beside the language model", "Set source.config")
    outcome = program.attempt(with_tower, scratch / "out", "huggingface", target_options={"reference": folder}, model={"unmapped": "drop"})
    warned(outcome, "3 stored tensors such as 'vision_model.layers.0.weight' are left out")
    assert_same_tensors(read_hf(scratch / "out"), read_hf(folder))


@pytest.mark.parametrize("unmapped", ["refuse", "keep"])
def test_a_vision_tower_beside_the_prefix_is_not_lost(unmapped, program, with_tower, folder, scratch):
    outcome = program.attempt(
        with_tower, scratch / "out", "huggingface", source_options={"prefix": "language_model."}, target_options={"reference": folder},
        model={"unmapped": unmapped})
    refused(outcome, 2, "3 stored tensors (vision_model.layers.0.weight, ", 'model.unmapped = "drop"')
    assert not (scratch / "out").exists()


def test_a_vision_tower_is_left_out_by_request(program, with_tower, folder, scratch):
    outcome = program.attempt(
        with_tower, scratch / "out", "huggingface", source_options={"prefix": "language_model."}, target_options={"reference": folder},
        model={"unmapped": "drop"})
    warned(outcome, "3 stored tensors (vision_model.layers.0.weight, ")
    assert_same_tensors(read_hf(scratch / "out"), read_hf(folder))


def test_unread_keys_of_a_plain_checkpoint_are_counted(program, scratch):
    import torch.distributed.checkpoint as dcp

    dcp.save({"model.a": torch.ones(4), "other.b": torch.ones(4)}, checkpoint_id=scratch / "source", no_dist=True)
    outcome = program.attempt(scratch / "source", scratch / "out", "dcp", source_options={"prefix": "model."})
    warned(outcome, "1 stored tensor (other.b) does not begin with 'model.' (source.prefix): they are left out")


# --- args ---------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("changes0")
@pytest.mark.parametrize("changes", [dict(conv_kernel=3), dict(use_conv_bias=False)])
def test_an_odd_convolution_is_read_again_by_args_alone(changes, program, scratch):
    folder = save_family(scratch / "folder", replace(HYBRID, make=family_models_hybrid.mamba("M*-ME", **changes)))
    outcome = program.attempt(folder, scratch / "tree", "megatron", target_options={"layout": ONE.toml()})
    warned(outcome, "Megatron-Core's own model, made from the target's args", "mixer.conv1d")
    dist = program.run(scratch / "tree", scratch / "dist", "torch_dist", target_options={"layout": ONE.toml()})
    back = program.to_hf(dist, scratch / "back")
    assert_same_tensors(read_hf(back), read_hf(folder))
    config = json.loads((back / "config.json").read_text())
    assert {key: config[key] for key in changes} == changes


OLMO2 = """
base = "llama"
match = { model_type = ["olmo2"] }
[stored."{l}"]
"input_layernorm.weight" = false
"post_attention_layernorm.weight" = "attn.post_norm: hidden"
"post_feedforward_layernorm.weight" = "ffn.post_norm: hidden"
"self_attn.q_norm.weight" = "attn.q_norm_wide: (group head dim)"
"self_attn.k_norm.weight" = "attn.k_norm_wide: (group dim)"
[args]
qk_layernorm = "true"
"""
OWN = 'qk_layernorm_wide = "true"\nno_input_norm = "true"\nno_pre_mlp_norm = "true"\n'


@pytest.mark.long
def test_a_model_without_norms_in_front(program, scratch):
    """With args of this program alone later jobs need no map; without them each job says what it needs, and works with it."""
    folder = save_family(scratch / "folder", Family(dense("Olmo2", head_dim=None, num_attention_heads=4, num_key_value_heads=2), ONE, ONE))
    for name, args in ("said", OWN), ("unsaid", ""):
        named = {"map": str(scratch / f"{name}.toml")}
        Path(named["map"]).write_text(OLMO2 + args)
        outcome = program.attempt(folder, scratch / name, "megatron", target_options={"layout": ONE.toml()}, model=named)
        warned(outcome, "loading all of it needs layer code of the family's own")
        assert ("do not describe all of it" in outcome.stderr) == (name == "unsaid")
        later = {} if name == "said" else dict(model=named, source_options={"config": folder})
        again = program.run(scratch / name, scratch / f"{name}-dist", "torch_dist", target_options={"layout": ONE.toml()}, **later)
        back = program.to_hf(again, scratch / f"{name}-back", target_options={"reference": folder}, model=named)
        assert_same_tensors(read_hf(back), read_hf(folder))
    refused(program.attempt(scratch / "unsaid", scratch / "no", "torch_dist", target_options={"layout": ONE.toml()}), 3, "q_layernorm.weight' is BF16 [48]")


def test_a_named_map_without_config_says_that_it_is_not_used(program, folder, scratch):
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": ONE.toml()})
    (scratch / "named.toml").write_text('base = "decoder"\nmatch = { model_type = ["named"] }\n')
    outcome = program.attempt(tree, scratch / "out", "megatron", target_options={"layout": ONE.toml()}, model={"map": str(scratch / "named.toml")})
    warned(outcome, "named.toml has no [config], so only the checkpoint's args describe the model", "Set source.config")


# --- patterns of hybrid models ------------------------------------------------------------------------------------


@pytest.mark.long
def test_bounds_of_stages_in_a_pattern(program, scratch):
    folder = save_family(scratch / "folder", HYBRID)
    uneven = Layout(pp=3, first_stage_layers=1)  # 1 + 2 + 2
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": uneven.toml()})
    change_args(tree, hybrid_layer_pattern="M|*-|ME", decoder_first_pipeline_num_layers=None)  # what a Megatron that knows bounds would save
    one = program.run(tree, scratch / "one", "megatron", target_options={"layout": ONE.toml()})
    assert args_of(one).hybrid_layer_pattern == "M*-ME"
    other = program.run(tree, scratch / "other", "megatron", target_options={"layout": Layout(pp=2, first_stage_layers=3).toml()})
    assert args_of(other).hybrid_layer_pattern == "M*-|ME" and args_of(other).decoder_first_pipeline_num_layers is None
    dist = program.run(other, scratch / "dist", "torch_dist", target_options={"layout": Layout(pp=5).toml()})
    assert args_of(dist).hybrid_layer_pattern == "M|*|-|M|E"
    for number, source in enumerate((tree, one, other, dist)):
        assert_same_tensors(read_hf(program.to_hf(source, scratch / f"back{number}", target_options={"reference": folder})), read_hf(folder))


@pytest.mark.long_but("M*XME-words0")
@pytest.mark.parametrize("pattern, words", [("M*XME", ("'X' is not a layer", "M*XME")), ("M*-MEM", ("has 6 decoder layers", "num_layers is 5"))])
def test_a_pattern_that_is_none_of_the_model(pattern, words, program, scratch):
    folder = save_family(scratch / "folder", HYBRID)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": ONE.toml()})
    change_args(tree, hybrid_layer_pattern=pattern)
    refused(program.attempt(tree, scratch / "out", "megatron", target_options={"layout": ONE.toml()}), 3, *words)
    refused(program.attempt(tree, scratch / "out", "huggingface", target_options={"reference": folder}), 3, *words)


# --- adapters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["with", "without"])
def test_a_folder_of_an_adapter_is_called_one(config, program, folder, scratch):
    adapter = scratch / "adapter"
    adapter.mkdir()
    names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB"]
    save_file({name: torch.randn(4, 4) for name in names}, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    if config == "with":
        (adapter / "config.json").write_text((folder / "config.json").read_text())
    outcome = program.attempt(adapter, scratch / "out", "megatron", target_options={"layout": ONE.toml()})
    if config == "with":
        refused(outcome, 3, "q_proj.lora_A.weight' is F32 [4, 4]", "requires [4, 48]")
    else:
        refused(outcome, 2, "holds an adapter (LoRA)", "Set source.config")


@pytest.mark.long_but("beside")
@pytest.mark.parametrize("case", ["wrapped", "beside"])
def test_adapters_of_torch_dist(case, program, folder, scratch):
    plain = program.run(folder, scratch / "plain", "torch_dist", target_options={"layout": ONE.toml()})
    adapters = {f"decoder.layers.self_attention.linear_qkv.adapter.linear_{end}.weight": torch.randn(5, 4, 4) for end in ("in", "out")}
    wrap = (lambda key: key.replace("linear_qkv.weight", "linear_qkv.to_wrap.weight")) if case == "wrapped" else (lambda key: key)
    source = renamed_dist(plain, scratch / "source", wrap, adapters)
    outcome = program.attempt(source, scratch / "out", "megatron", target_options={"layout": ONE.toml()})
    refused(outcome, 3, "an adapter (LoRA)", "Merge the adapter")


# --- forms that were refused --------------------------------------------------------------------------------------


CONVERTED = {
    "experts of two layers in one tensor": Family(dense("Qwen3Moe", **MOE, num_experts=6, num_hidden_layers=2), ONE, ONE, add=with_fused_experts),
    "experts in one tensor and a dense layer 3": Family(
        dense("Qwen3Moe", **MOE, num_experts=6, mlp_only_layers=[3]), ONE, ONE, add=with_fused_experts),
    "qwen2_moe without biases": Family(
        dense("Qwen2Moe", **MOE, num_experts=6, shared_expert_intermediate_size=40, qkv_bias=False), ONE, ONE),
    "qwen3_next with biases": Family(dense("Qwen3Next", **family_models_hybrid.DELTA, attention_bias=True), ONE, ONE),
    "biases of attention alone": Family(dense("Llama", attention_bias=True), ONE, ONE),
    "biases of the MLP alone": Family(dense("Llama", mlp_bias=True), ONE, ONE),
}


@pytest.mark.long_but("experts in one tensor and a dense layer 3")
@pytest.mark.parametrize("case", CONVERTED)
def test_settings_that_random_tests_leave_out(case, program, scratch):
    family = CONVERTED[case]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout(tp=2).toml()})
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder})
    assert_same_tensors(read_hf(back), read_hf(folder))
    if not family.add:
        assert torch.equal(logits_of(back, family), logits_of(folder, family))


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("target", ["huggingface", "megatron"])
def test_a_stored_head_that_a_tied_config_would_lose_is_refused(target, program, scratch):
    """… on every number of ranks; an equal copy is none, and the job can say that it shall go."""
    folder = save_family(scratch / "tied", FAMILIES["llama-tied"])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    head = tensors["model.embed_tokens.weight"].clone()
    options = {"target_options": {"layout": ONE.toml()}} if target == "megatron" else {}
    save_file({**tensors, "lm_head.weight": head}, file, {"format": "pt"})
    warned(program.attempt(folder, scratch / "equal", target, **options), "lm_head.weight is a copy of another stored tensor")
    head[3, 2] += 1
    save_file({**tensors, "lm_head.weight": head}, file, {"format": "pt"})
    for ranks in (1, 2):
        outcome = program.attempt(folder, scratch / "out", target, ranks=ranks, **options)
        refused(outcome, 3, "should be a copy of", f"1 of {head.numel()} elements differ", "tie_word_embeddings = true")
        assert not (scratch / "out").exists()
    warned(program.attempt(folder, scratch / "out", target, source_options={"replicas": "first"}, **options), "lm_head.weight")


def test_a_stored_head_that_a_tied_config_would_lose_is_refused_from_dcp(program, scratch):
    """FSDP saves tied parameters twice. Into a Hugging Face folder names are kept: transformers would tie them."""
    folder = save_family(scratch / "tied", FAMILIES["llama-tied"])
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    for name, change in (("equal", 0), ("differs", 1)):
        head[3, 2] += change
        both = scratch / name
        both.mkdir()
        save_file({**tensors, "lm_head.weight": head}, both / "model.safetensors", {"format": "pt"})
        source = program.run(both, scratch / f"{name}-dcp", "dcp")  # without a config
        for target, options in (("huggingface", {"target_options": {"reference": folder}}), ("torch_dist", {"source_options": {"config": folder}})):
            outcome = program.attempt(source, scratch / f"{name}-{target}", target, **options)
            if not change:
                assert outcome.returncode == 0, outcome.stderr
                continue
            refused(outcome, 3, '"lm_head.weight"', "should be a copy of", f"1 of {head.numel()} elements differ", "tie_word_embeddings = true")
            assert not (scratch / f"{name}-{target}").exists()
            options["source_options"] = options.get("source_options", {}) | {"replicas": "first"}
            assert program.attempt(source, scratch / f"{name}-{target}", target, **options).returncode == 0


@pytest.mark.parametrize("target", ["torch_dist", "huggingface"])
def test_an_embedding_on_the_last_stage_that_differs_is_refused(target, program, scratch):
    """Megatron's own copy of a tied embedding, whatever its size; equal CRC-32 are not read."""
    folder = save_family(scratch / "tied", FAMILIES["llama-tied"])
    source = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout(pp=5).toml(), "transformer_impl": "local"})
    assert program.attempt(source, scratch / "out", target).returncode == 0
    for name in ("reshard.json", "SHA256SUMS"):
        (source / name).unlink()
    file = next(source.glob("*/mp_rank_00_004/model_optim_rng.pt"))
    content = torch.load(file, weights_only=False)
    (key,) = [key for key in content["model"] if key.endswith(("output_layer.weight", "word_embeddings.weight"))]
    content["model"][key][1, 2] += 1
    torch.save(content, file)
    outcome = program.attempt(source, scratch / "again", target)
    refused(outcome, 3, "should be a copy of", "1 of ", "source.replicas")


@pytest.mark.long
def test_inputs_of_a_mixer_stay_whole_in_fsdp(program, scratch):
    """torch_dist has a key for each part of them, Megatron-FSDP one for all."""
    folder = save_family(scratch / "folder", HYBRID)
    fsdp = program.run(folder, scratch / "fsdp", "fsdp_dtensor", target_options={"layout": ONE.toml()})
    back = program.run(fsdp, scratch / "back", "huggingface")
    assert_same_tensors(read_hf(back), read_hf(folder))


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("target", ["dcp", "huggingface"])
def test_dequantising_needs_a_map(target, program, folder, scratch):
    dcp = program.run(folder, scratch / "dcp", "dcp")
    outcome = program.attempt(dcp, scratch / "out", target, model={"quant": "dequantise-bf16"})
    refused(outcome, 2, 'quant = "dequantise-bf16": names are kept')


# --- headers of safetensors files -------------------------------------------------------------------------------------


def with_metadata(folder):
    """Tensors of a quantiser whose class is in the header alone, as transformers saves those of torchao, in two files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "of_no_map"}))
    weight_map, described = {}, {"format": "pt", "tensor_names": '["a", "b"]', "a": '{"_type": "Int8Tensor"}', "b": '{"_type": "Int8Tensor"}'}
    for number, name in enumerate("ab", 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({f"{name}._weight_qdata": torch.arange(24, dtype=torch.int8).reshape(4, 6), f"{name}._weight_scale": torch.rand(4)}, folder / file, metadata=described)
        weight_map |= {f"{name}._weight_{part}": file for part in ("qdata", "scale")}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 80}, "weight_map": weight_map}))
    return folder


def metadata_of(folder):
    result = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            result[file.name] = opened.metadata()
    return result


@pytest.mark.parametrize("between", ["dcp", "hdf5"])
def test_metadata_of_safetensors_files_travels(between, program, scratch):
    source = with_metadata(scratch / "source")
    names_kept = {"model": {"map": "none"}}
    held = program.run(source, scratch / "held", between, **names_kept)
    back = program.run(held, scratch / "back", "huggingface", **names_kept)
    in_order = [{json.dumps(one, sort_keys=True) for one in metadata_of(folder).values()} for folder in (back, source)]
    assert in_order[0] == in_order[1]
    assert_same_tensors(read_hf(back), read_hf(source))
    again = program.run(held, scratch / "again", "huggingface", target_options={"reference": source}, **names_kept)
    assert metadata_of(again) == metadata_of(source)


def test_metadata_without_a_config_is_named(program, scratch):
    source = with_metadata(scratch / "source")
    (source / "config.json").unlink()
    outcome = program.attempt(source, scratch / "held", "dcp", model={"map": "none"})
    warned(outcome, 'more metadata than "format" (', "target.reference")


# --- args that change the function ------------------------------------------------------------------------------------


def test_args_that_a_config_cannot_hold_are_named(program, folder, scratch):
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": ONE.toml()})
    change_args(tree, use_mup=True, mup_output_mult=2.0, moe_unheard_of=3)
    for options in ({}, {"target_options": {"reference": folder}}):
        outcome = program.attempt(tree, scratch / f"out{len(options)}", "huggingface", **options)
        warned(outcome, "use_mup", "moe_unheard_of = 3")


def test_a_config_that_names_a_shorter_dtype_than_the_weights_is_named(program, folder, scratch):
    tensors = {name: tensor.float() for name, tensor in read_hf(folder).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    held = program.run(folder, scratch / "held", "dcp")
    outcome = program.attempt(held, scratch / "out", "huggingface")
    warned(outcome, "tensors in the target are F32", 'dtype = "bfloat16"')
