"""Mistral's own folders, params.json and consolidated*.safetensors, to and from Hugging Face folders and Megatron, bit for bit.

What is expected is made here from a folder of transformers: names, and rows of wq and wk, as vLLM's loader and transformers' converter take them apart.
"""

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from family_models import Family, dense, load_family, save_family
from family_models_recent import MISTRAL
from hf_models import read_hf
from peer_types import LOCAL, TE_GROUPED, Layout
from tensor_patterns import assert_same_tensors

YARN = dict(
    rope_type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1)
OWN_YARN = dict(original_max_position_embeddings=16, factor=16, apply_scale=False, beta=32, alpha=1)
LATENT = dict(
    n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=1, moe_intermediate_size=24, num_experts_per_tok=2, q_lora_rank=20, kv_lora_rank=12,
    qk_rope_head_dim=8, qk_nope_head_dim=6, v_head_dim=10, num_key_value_heads=6, head_dim=None)
CUT, ROUTED = Layout(tp=2, pp=2, first_stage_layers=2), Layout(tp=2, pp=2, ep=2, first_stage_layers=3)
SIZES = dict(dim=48, n_layers=5, n_heads=6, vocab_size=90, norm_eps=1e-5, max_position_embeddings=128)
MODELS = {  # model, params.json
    "mistral": (
        Family(dense("Mistral", sliding_window=9, rms_norm_eps=1e-5), CUT, CUT, LOCAL),
        SIZES | dict(n_kv_heads=2, head_dim=8, hidden_dim=60, sliding_window=9)),
    "nemo": (
        Family(dense("Mistral", head_dim=12, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=1e6)), CUT, CUT, LOCAL,
            config=dict(sliding_window=None)),
        SIZES | dict(n_kv_heads=2, head_dim=12, hidden_dim=60)),
    "ministral": (
        Family(
            dense("Ministral", num_hidden_layers=4, rms_norm_eps=1e-5, sliding_window=9, layer_types=["full_attention", "sliding_attention"] * 2), CUT, CUT,
            LOCAL),
        SIZES | dict(n_layers=4, n_kv_heads=2, head_dim=8, hidden_dim=60, sliding_window=[None, 9])),
    "ministral3": (
        Family(dense("Ministral3", rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=YARN), CUT, CUT, LOCAL),
        SIZES | dict(n_kv_heads=2, head_dim=8, hidden_dim=60, rope_theta=1e6, tied_embeddings=True, yarn=OWN_YARN,
                     llama_4_scaling=dict(original_max_position_embeddings=16, beta=0.1))),
    "mixtral": (
        Family(dense("Mixtral", num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, rms_norm_eps=1e-5), ROUTED, ROUTED, TE_GROUPED),
        SIZES | dict(n_kv_heads=2, head_dim=8, hidden_dim=24, rope_theta=1e6, moe=dict(num_experts=6, num_experts_per_tok=2))),
    "mistral4": (
        Family(dense("Mistral4", **LATENT, rms_norm_eps=1e-5, rope_parameters=YARN | dict(partial_rotary_factor=8 / 14)), ROUTED, ROUTED, TE_GROUPED),
        SIZES | dict(
            n_kv_heads=6, hidden_dim=60, rope_theta=1e6, q_lora_rank=20, kv_lora_rank=12, qk_rope_head_dim=8, qk_nope_head_dim=6, v_head_dim=10,
            yarn=OWN_YARN, llama_4_scaling=dict(original_max_position_embeddings=16, beta=0.1),
            moe=dict(num_experts=6, num_experts_per_tok=2, num_shared_experts=2, first_k_dense_replace=1, expert_hidden_dim=24, num_expert_groups=1,
                     num_expert_groups_per_tok=1, routed_scale=1.0, route_every_n=1))),
}  # fmt: skip
NAMES = [
    (r"^model\.embed_tokens\.", "tok_embeddings."), (r"^lm_head\.", "output."), (r"^model\.norm\.", "norm."), (r"^model\.layers\.", "layers."),
    (r"input_layernorm", "attention_norm"), (r"post_attention_layernorm", "ffn_norm"), (r"self_attn\.([qkvo])_proj", r"attention.w\1"),
    (r"self_attn\.(q|kv)_a_layernorm", r"attention.\1_a_norm"), (r"self_attn\.(q|kv)_([ab])_proj", r"attention.w\1_\2"),
    (r"block_sparse_moe\.gate", "feed_forward.gate"), (r"block_sparse_moe\.", "feed_forward."), (r"mlp\.gate\.", "gate."),
    (r"mlp\.(shared_experts|experts)", r"\1"), (r"mlp\.", "feed_forward."), (r"gate_proj", "w1"), (r"down_proj", "w2"), (r"up_proj", "w3")]


def alternating(rows, heads):
    """The halves of each head, which Hugging Face has one after the other, in turn."""
    return rows.view(heads, 2, -1, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def own_tensors(folder, params):
    result = {}
    for name, tensor in read_hf(folder).items():
        if name.endswith("experts.gate_up_proj"):
            for expert, part in enumerate(tensor):
                for own, half in zip(("w1", "w3"), part.chunk(2)):
                    result[own_name(name.replace("gate_up_proj", f"{expert}.{own}.weight"))] = half.contiguous()
        elif name.endswith("experts.down_proj"):
            for expert, part in enumerate(tensor):
                result[own_name(name.replace("down_proj", f"{expert}.w2.weight"))] = part.contiguous()
        else:
            own = own_name(name)
            if own.endswith((".wq.weight", ".wk.weight")):
                tensor = alternating(tensor, params["n_heads" if "wq" in own else "n_kv_heads"])
            result[own] = tensor.contiguous()
    return result


def own_name(name):
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return name


def read_own(folder):
    """The tensors of consolidated*.safetensors: those that the index names, if there is one."""
    index = folder / "consolidated.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["consolidated.safetensors"]
    result = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as opened:
            result |= {name: opened.get_tensor(name) for name in opened.keys()}
    return result


def save_own(folder, tensors, params):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "consolidated.safetensors", metadata={"format": "pt"})
    (folder / "params.json").write_text(json.dumps(params))
    (folder / "tekken.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder_of(name):
        if name not in made:
            family, params = MODELS[name]
            hugging_face = save_family(tmp_path_factory.mktemp(name), family)
            made[name] = hugging_face, save_own(tmp_path_factory.mktemp(f"{name}-own"), own_tensors(hugging_face, params), params)
        return made[name]

    return folder_of


@pytest.mark.long_but("nemo", "mistral4")
@pytest.mark.parametrize("name", MODELS)
def test_becomes_the_hugging_face_folder(name, program, folders, scratch):
    hugging_face, own = folders(name)
    target = program.to_hf(own, scratch / "hf")
    assert_same_tensors(read_hf(target), read_hf(hugging_face))
    found, expected = (load_family(folder, MODELS[name][0]).config.to_dict() for folder in (target, hugging_face))
    apart = ("_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "use_cache", "head_dim")
    different = {key: (found.get(key), value) for key, value in expected.items() if key not in apart and found.get(key) != value}
    assert not different
    assert (target / "tekken.json").exists()


@pytest.mark.long_but("ministral3", "mixtral")
@pytest.mark.parametrize("name", MODELS)
def test_is_written_from_a_hugging_face_folder(name, program, folders, scratch):
    hugging_face, own = folders(name)
    target = program.run(hugging_face, scratch / "own", "mistral")
    assert_same_tensors(read_own(target), read_own(own))
    made, params = json.loads((target / "params.json").read_text()), MODELS[name][1]
    assert {key: made.get(key) for key in params} == params, made
    back = program.to_hf(target, scratch / "back")
    assert_same_tensors(read_hf(back), read_hf(hugging_face))
    assert (back / "config.json").read_bytes() == (hugging_face / "config.json").read_bytes()


@pytest.mark.long_but("mistral")
@pytest.mark.parametrize("name", MODELS)
def test_goes_through_megatron(name, program, folders, scratch):
    _, own = folders(name)
    family = MODELS[name][0]
    megatron = program.to_megatron(own, scratch / "megatron", family.a, family.form)
    target = program.run(megatron, scratch / "own", "mistral", ranks=3)
    assert_same_tensors(read_own(target), read_own(own))
    for file in ("params.json", "tekken.json"):
        assert (target / file).read_bytes() == (own / file).read_bytes()
    assert program.run(target, scratch / "h5", "hdf5").exists()


def test_files_of_a_given_size_have_an_index(program, folders, scratch):
    hugging_face, own = folders("mistral")
    target = program.run(own, scratch / "own", "mistral", target_options={"shard_bytes": "40 KB"})
    files = sorted(file.name for file in target.glob("*.safetensors"))
    assert len(files) > 1 and files[0] == f"consolidated-00001-of-{len(files):05}.safetensors", files
    assert_same_tensors(read_own(target), read_own(own))
    assert_same_tensors(read_hf(program.to_hf(target, scratch / "hf")), read_hf(hugging_face))
    (target / "consolidated.safetensors.index.json").unlink()
    (target / "SHA256SUMS").unlink()
    (target / "reshard.json").unlink()
    refused(program, target, scratch, "consolidated.safetensors.index.json, which maps each tensor", code=3)


def test_of_both_in_one_folder_the_job_chooses(program, folders, scratch):
    """As Mistral's repositories have them. Without a choice it is Hugging Face's."""
    hugging_face, own = folders("mistral")
    both = scratch / "both"
    tensors = {name: tensor + 1 for name, tensor in read_own(own).items()}
    save_own(both, tensors, MODELS["mistral"][1])
    for file in hugging_face.iterdir():
        (both / file.name).write_bytes(file.read_bytes())
    assert_same_tensors(read_hf(program.to_hf(both, scratch / "theirs")), read_hf(hugging_face))
    target = program.run(both, scratch / "own", "mistral", source_options={"format": "mistral"})
    assert_same_tensors(read_own(target), tensors)


def test_fp8_becomes_bf16(program, folders, scratch):
    _, own = folders("nemo")
    tensors = {}
    for name, tensor in read_own(own).items():
        if re.search(r"w[qkvo123]\.weight", name):
            scale = (tensor.abs().max() / 448).to(torch.bfloat16)
            stem = name.removesuffix("weight")
            tensors |= {name: (tensor / scale).to(torch.float8_e4m3fn), stem + "qscale_weight": scale, stem + "qscale_act": scale.clone()}
        else:
            tensors[name] = tensor
    params = MODELS["nemo"][1] | {"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}}
    source = save_own(scratch / "fp8", tensors, params)
    refused(program, source, scratch, 'Set it to "dequantise-bf16"')
    target = program.run(source, scratch / "own", "mistral", model={"quant": "dequantise-bf16"})
    expected = {
        name: tensor if tensor.dtype != torch.float8_e4m3fn else tensor.to(torch.bfloat16) * tensors[name.removesuffix("weight") + "qscale_weight"]
        for name, tensor in tensors.items() if "qscale" not in name}
    assert_same_tensors(read_own(target), expected)
    assert "quantization" not in json.loads((target / "params.json").read_text())


def test_a_hugging_face_folder_of_shards_has_files_of_its_own_names(program, folders, scratch):
    hugging_face, own = folders("mistral")
    cut = program.run(own, scratch / "cut", "mistral", target_options={"shard_bytes": 20000})
    assert len(list(cut.glob("consolidated-*.safetensors"))) > 1
    target = program.to_hf(cut, scratch / "hf")
    assert [path.name for path in target.glob("*.safetensors")] == ["model.safetensors"]
    assert_same_tensors(read_hf(target), read_hf(hugging_face))
    fewer = program.to_hf(cut, scratch / "fewer", target_options={"keep_layers": "0-1"})
    assert not (fewer / "params.json").exists()  # which would tell of all layers


def test_deepspeed_gets_the_names_of_transformers(program, folders, scratch):
    """Of params.json alone: the target is read by the map of the family."""
    hugging_face, own = folders("mistral")
    target = program.run(own, scratch / "universal", "deepspeed")
    state = torch.load(target / "global_step0_universal/mp_rank_00_model_states.pt", weights_only=False)["module"]
    assert_same_tensors(dict(state), read_hf(hugging_face))


def test_a_vision_tower_is_left_out_by_request(program, folders, scratch):
    hugging_face, own = folders("nemo")
    tower = {"vision_encoder.patch_conv.weight": torch.ones(4, 3, 2, 2), "pre_mm_projector_norm.weight": torch.ones(4)}
    source = save_own(scratch / "vision", read_own(own) | tower, MODELS["nemo"][1] | {"vision_encoder": {"hidden_size": 4}})
    refused(program, source, scratch, "2 stored tensors such as 'pre_mm_projector_norm.weight'", "model.unmapped = ")
    refused(program, source, scratch, '[model] unmapped = "keep"', "with rows in another order", model={"unmapped": "keep"})
    target = program.to_hf(source, scratch / "hf", model={"unmapped": "drop"})
    assert_same_tensors(read_hf(target), read_hf(hugging_face))
    text = program.run(source, scratch / "text", "mistral", model={"unmapped": "drop"})
    assert_same_tensors(read_own(text), read_own(own))
    assert json.loads((text / "params.json").read_text()) == MODELS["nemo"][1]
    kept = program.run(source, scratch / "kept", "mistral", model={"unmapped": "keep"})
    assert_same_tensors(read_own(kept), read_own(source))
    assert (kept / "params.json").read_bytes() == (source / "params.json").read_bytes()


# --- refusals -----------------------------------------------------------------------------------------------------------


def refused(program, source, scratch, *words, code=2, target_format="huggingface", **options):
    outcome = program.attempt(source, scratch / "refused", target_format, **options)
    assert outcome.returncode == code and not (scratch / "refused").exists(), outcome.stdout[-2000:] + outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr


BAD_PARAMS = {
    "no sizes": ({"n_layers": 5}, "dim is missing"),
    "windows": (MODELS["nemo"][1] | {"sliding_window": [None, 9]}, "sliding_window has 2 entries, and n_layers is 5"),
    "several windows": (MODELS["ministral"][1] | {"sliding_window": [7, 9]}, "has windows of 7 and 9"),
    "two windows": (MODELS["ministral"][1] | {"_sliding_window": 9}, "both sliding_window and _sliding_window"),
    "no window in a list": (MODELS["ministral"][1] | {"sliding_window": [None, 0]}, "sliding_window is [null, 0]"),
    "windows of experts": (MODELS["ministral"][1] | {"moe": MODELS["mixtral"][1]["moe"]}, "MixtralForCausalLM has one window for all layers"),
    "window": (MODELS["nemo"][1] | {"sliding_window": "9k"}, 'sliding_window is "9k"'),
    "no window": (MODELS["nemo"][1] | {"sliding_window": 0}, "sliding_window is 0, and must be a number above zero"),
    "base": (MODELS["nemo"][1] | {"rope_theta": "1e6"}, 'rope_theta is "1e6", and a number is needed there'),
    "tied": (MODELS["nemo"][1] | {"tied_embeddings": "false"}, 'tied_embeddings is "false", and true or false is needed there'),
    "head": (MODELS["nemo"][1] | {"head_dim": 8.5}, "head_dim is 8.5, and an integer is needed there"),
    "table": (MODELS["mixtral"][1] | {"moe": [4]}, "moe is [4], and a table is needed there"),
    "beta": (MODELS["ministral3"][1] | {"llama_4_scaling": {"beta": "0.1"}}, "llama_4_scaling.beta is "),
    "mamba": (MODELS["nemo"][1] | {"model_type": "mamba"}, "Codestral Mamba"),
    "activation": (MODELS["nemo"][1] | {"activation": "gelu"}, 'activation is "gelu"'),
    "latent": (MODELS["mistral4"][1] | {"moe": None}, 'without "moe"'),
    "shared": (MODELS["mixtral"][1] | {"moe": {"num_shared_experts": 1}}, "shared experts without latent attention"),
    "experts": (MODELS["mixtral"][1] | {"moe": {"num_experts": 6}}, "moe.num_experts_per_tok is missing"),
    "steps": (MODELS["mistral4"][1] | {"moe": {"route_every_n": 2}}, "moe.route_every_n = 2"),
    "yarn": (MODELS["ministral3"][1] | {"yarn": None}, 'no "yarn"'),
    "part of yarn": (MODELS["ministral3"][1] | {"yarn": {"factor": 2}}, "yarn.original_max_position_embeddings is missing"),
}  # fmt: skip


def test_params_that_describe_no_known_model_are_refused(program, scratch):
    for name, (params, words) in BAD_PARAMS.items():
        source = save_own(scratch / name.replace(" ", "-"), {"norm.weight": torch.ones(48)}, params)
        refused(program, source, scratch, "params.json: ", words, code=3, ranks=1)


BAD_CONFIGS = {
    "biases": (dense("Llama", attention_bias=True), "has attention_bias = true"),
    "activation": (dense("Llama", hidden_act="gelu"), 'has hidden_act = "gelu"'),
    "scaled": (dense("Llama", rope_parameters=dict(
        rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)), 'by "llama3"'),
    "factor": (dense("Llama", rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=2.0, original_max_position_embeddings=64, attention_factor=1.5)), "has attention_factor = 1.5"),
    "some windows": (dense("Mistral", layer_types=["sliding_attention"] * 4 + ["full_attention"], sliding_window=9), "layers with and without a window"),
    "router": (dense("Mistral4", **MISTRAL | dict(norm_topk_prob=False)), "has norm_topk_prob = false"),
    "qwen3": (dense("Qwen3"), "it has names for models of type llama, mistral"),
}  # fmt: skip


def test_models_that_params_cannot_describe_are_refused(program, scratch):
    for name, (make, words) in BAD_CONFIGS.items():
        source = save_family(scratch / name, Family(make, CUT, CUT))
        refused(program, source, scratch, '[target] format = "mistral"', words, target_format="mistral", ranks=1)


def test_adapters_and_other_forms_of_weights_are_refused(program, folders, scratch):
    hugging_face, _ = folders("mistral")
    coded = program.to_hf(hugging_face, scratch / "coded", target_options={"quant": "fp8-channel"})
    refused(program, coded, scratch, "in a form that is not Mistral's", target_format="mistral")
    adapter = scratch / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"], "base_model_name_or_path": str(hugging_face)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    pairs = {}
    for name, tensor in read_hf(hugging_face).items():
        if name.endswith("o_proj.weight"):
            stem = "base_model.model." + name.removesuffix("weight")
            pairs |= {stem + "lora_A.weight": torch.ones(2, tensor.shape[1]), stem + "lora_B.weight": torch.ones(tensor.shape[0], 2)}
    save_file(pairs, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    refused(program, adapter, scratch, "a LoRA adapter has no form in Mistral's files", target_format="mistral", source_options={"config": str(hugging_face)})
