"""target.vocab_size, keep_layers, keep_experts and mtp against torch on the same weights, and transformers that loads the result."""

import dataclasses
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import family_models
import family_models_hybrid
import family_models_kinds
import family_models_more
import quantised_folders
from hf_models import read_hf
from peer_types import Layout
from reshard_job import command, tree_hashes

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES | family_models_kinds.FAMILIES | family_models_more.FAMILIES
EXPERT = re.compile(r"(model\.layers\.)(\d+)(\.mlp\.experts\.)(\d+)(\..*)")
LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")
ROWS = ("embed_tokens.weight", "lm_head.weight", "shared_head.head.weight")  # in prediction layers, too
ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.(weight|e_score_correction_bias)")


def with_rows(state, rows, fill):
    """What torch makes of the tensors with a row for each token."""
    old = state["model.embed_tokens.weight"].shape[0]

    def changed(tensor):
        if rows <= old:
            return tensor[:rows]
        new = tensor.double().mean(0, keepdim=True).to(tensor.dtype) if fill == "mean" else torch.zeros_like(tensor[:1])
        return torch.cat([tensor, new.expand(rows - old, *tensor.shape[1:])])

    return {name: changed(tensor) if name.endswith(ROWS) else tensor for name, tensor in state.items()}


def with_layers(state, kept, count=None):
    """`count`: of decoder layers, behind which those for prediction are."""
    kept = kept if count is None else [*kept, count, count + 1]
    result = {}
    for name, tensor in state.items():
        found = LAYER.fullmatch(name)
        if not found:
            result[name] = tensor
        elif int(found[2]) in kept:
            result[f"{found[1]}{kept.index(int(found[2]))}{found[3]}"] = tensor
    return result


def with_experts(state, kept):
    """`kept`: of each layer."""
    result = {}
    for name, tensor in state.items():
        expert, router = EXPERT.fullmatch(name), ROUTER.fullmatch(name)
        if expert and int(expert[4]) not in kept(int(expert[2])):
            continue
        if expert:
            result[f"{expert[1]}{expert[2]}{expert[3]}{kept(int(expert[2])).index(int(expert[4]))}{expert[5]}"] = tensor
        else:
            result[name] = tensor[kept(int(router[1]))] if router else tensor
    return result


def assert_equal(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def source_of(name, form, program, scratch):
    family = FAMILIES[name]
    folder = family_models.save_family(scratch / "hf", family)
    if form == "huggingface":
        return folder, folder
    if form == "megatron":
        return program.to_megatron(folder, scratch / "source", family.a, family.form), folder
    options = {"layout": family.a.toml()} if form == "torch_dist" else {"map": family.map or name}
    return program.run(folder, scratch / "source", form, target_options=options), folder


def changed(name, form, options, program, scratch):
    """A Hugging Face folder with the changes, made directly and by way of Megatron's files, by several ranks; and the plain one."""
    source, plain = source_of(name, form, program, scratch)
    reference = {} if form == "huggingface" else {"reference": plain}
    made = program.to_hf(source, scratch / "made", target_options=options | reference, ranks=1)
    other = program.to_hf(source, scratch / "three", target_options=options | reference, ranks=3, memory="1 MiB")
    assert tree_hashes(made) == tree_hashes(other)
    family = FAMILIES[name]
    megatron = program.to_megatron(source, scratch / "mg", family_models.Layout(), family.form, target_options=dict(options))
    back = program.to_hf(megatron, scratch / "back", target_options={"reference": made})
    assert_equal(read_hf(back), read_hf(made))
    for target in (made, megatron):
        same = command("verify", source, target)
        assert same.returncode == 0 and "is changed as that job did" in same.stdout, same.stdout + same.stderr
    return made, read_hf(plain), json.loads((made / "config.json").read_text())


@pytest.mark.parametrize("form", ["huggingface", "megatron", "torch_dist"])
@pytest.mark.parametrize(("name", "rows", "fill"), [("llama", 61, None), ("llama", 128, "mean"), ("llama-tied", 131, "zero")])
def test_rows_of_the_vocabulary(name, rows, fill, form, program, scratch):
    options = {"vocab_size": rows} | ({"new_rows": fill} if fill else {})
    made, plain, config = changed(name, form, options, program, scratch)
    assert_equal(read_hf(made), with_rows(plain, rows, fill))
    assert config["vocab_size"] == rows
    family_models.load_family(made, FAMILIES[name])


@pytest.mark.parametrize(("name", "layers", "kept"), [
    ("llama", "0, 2", [0, 2]), ("qwen3-moe", "1-2", [1, 2]), ("glm4-moe-mtp", "0, 3-4", [0, 3, 4])])
@pytest.mark.parametrize("form", ["huggingface", "megatron"])
def test_layers(name, layers, kept, form, program, scratch):
    options = {"keep_layers": layers} | ({"mtp": "drop"} if "mtp" in name else {})
    made, plain, config = changed(name, form, options, program, scratch)
    assert_equal(read_hf(made), with_layers(plain, kept))
    assert config["num_hidden_layers"] == len(kept)
    if "mtp" in name:
        assert config["num_nextn_predict_layers"] == 0 and config["first_k_dense_replace"] == 1
    family_models.load_family(made, FAMILIES[name])


@pytest.mark.parametrize(("name", "experts", "kept"), [
    ("qwen3-moe", "0-1, 4", lambda layer: [0, 1, 4]),
    ("qwen3-moe", "0: 0-3; 2-4: 1, 3-5", lambda layer: [0, 1, 2, 3] if layer == 0 else [1, 3, 4, 5]),
    ("deepseek-yarn", "1-2, 4-5", lambda layer: [1, 2, 4, 5])])
@pytest.mark.parametrize("form", ["huggingface", "megatron"])
def test_experts(name, experts, kept, form, program, scratch):
    made, plain, config = changed(name, form, {"keep_experts": experts}, program, scratch)
    assert_equal(read_hf(made), with_experts(plain, kept))
    assert [value for key, value in config.items() if key in ("n_routed_experts", "num_experts", "num_local_experts")] == [len(kept(0))]
    family_models.load_family(made, FAMILIES[name])


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-next"])
def test_prediction_layers_are_left_out(name, program, scratch):
    made, plain, config = changed(name, "huggingface", {"mtp": "drop"}, program, scratch)
    behind = re.compile(r"model\.layers\.[56]\..*|mtp\..*")
    assert_equal(read_hf(made), {key: tensor for key, tensor in plain.items() if not behind.fullmatch(key)})
    assert not config["num_nextn_predict_layers"]


@pytest.mark.parametrize("name", ["deepseek-v3", "glm4-moe-mtp"])
def test_prediction_layers_that_stay_keep_their_copies(name, program, scratch):
    source = family_models.save_family(scratch / "hf", FAMILIES[name])
    plain = read_hf(source)
    assert any(key.endswith("shared_head.head.weight") for key in plain)
    for options, wanted in (({"keep_layers": "0, 3-4"}, with_layers(plain, [0, 3, 4], 5)), ({"vocab_size": 70}, with_rows(plain, 70, None)),
                            ({"vocab_size": 131, "new_rows": "zero"}, with_rows(plain, 131, "zero"))):
        made = program.to_hf(source, scratch / "-".join(options), target_options=options, ranks=1)
        assert_equal(read_hf(made), wanted)
        assert command("verify", source, made).returncode == 0


ALL_CHANGES = {"vocab_size": 101, "new_rows": "mean", "keep_layers": "0, 3-4", "keep_experts": "0: 0-2; 2-4: 3-5"}


@pytest.mark.parametrize("form", ["hdf5", "dcp", "torch_dist"])
@pytest.mark.parametrize(("name", "options"), [
    ("qwen3-moe", ALL_CHANGES), ("glm4-moe-mtp", {"keep_layers": "0, 3-4", "vocab_size": 70}), ("qwen3-next", {"keep_layers": "1, 3-4", "vocab_size": 70}),
    ("nemotron-h", {"keep_layers": "0, 2-4", "vocab_size": 70})])
def test_other_formats(name, options, form, program, scratch):
    family = FAMILIES[name]
    source = family_models.save_family(scratch / "hf", family)
    wanted = program.to_hf(source, scratch / "made", target_options=options)
    maps = {"glm4-moe-mtp": "glm4_moe"}
    form_options = {"torch_dist": {"layout": family_models.Layout().toml()}, "dcp": {"map": maps.get(name, name.replace("-", "_"))}}.get(form, {})
    target = program.run(source, scratch / "target", form, target_options=options | form_options)
    back = program.to_hf(target, scratch / "back", target_options={"reference": wanted})
    copies = (".3.embed_tokens.weight", ".3.shared_head.head.weight") if form == "dcp" else ()  # which DCP under a map's names does not hold
    assert_equal(read_hf(back), {key: tensor for key, tensor in read_hf(wanted).items() if not key.endswith(copies)})
    family_models.load_family(wanted, dataclasses.replace(family, ignored="model.layers.3" if "mtp" in name else family.ignored))
    for folder in (wanted, target):
        assert command("verify", source, folder).returncode == 0


def test_parts_that_see_stay(program, scratch):
    source = family_models.save_family(scratch / "hf", FAMILIES["llava"])
    made = program.to_hf(source, scratch / "made", target_options={"keep_layers": "0, 3-4"}, model={"unmapped": "keep"})
    changed_layers = {key: tensor for key, tensor in read_hf(source).items() if not key.startswith("language_model.model.layers.")}
    prefix = "language_model."
    of_text = {key.removeprefix(prefix): tensor for key, tensor in read_hf(source).items() if key.startswith(f"{prefix}model.layers.")}
    assert_equal(read_hf(made), changed_layers | {prefix + key: tensor for key, tensor in with_layers(of_text, [0, 3, 4]).items()})


def test_all_at_once_and_quantised(program, scratch):
    source = family_models.save_family(scratch / "hf", FAMILIES["qwen3-moe"])
    quant = {"quant": "fp8-channel"}
    at_once = program.to_hf(source, scratch / "made", target_options=ALL_CHANGES | quant)
    plain = program.to_hf(source, scratch / "plain", target_options=ALL_CHANGES)
    assert_equal(read_hf(at_once), read_hf(program.to_hf(plain, scratch / "then", target_options=quant)))
    assert json.loads((at_once / "config.json").read_text()) == json.loads((scratch / "then" / "config.json").read_text())


@pytest.mark.parametrize("scheme", ["fp8_channel", "int4_packed_channel"])
def test_layers_of_quantised_weights(scheme, program, scratch):
    source = family_models.save_family(scratch / "hf", FAMILIES["qwen3-moe"])
    quantised_folders.quantise_folder(source, lambda name: scheme)
    made = program.to_hf(source, scratch / "made", target_options={"keep_layers": "0, 3-4", "keep_experts": "0, 2-3"})
    assert_equal(read_hf(made), with_layers(with_experts(read_hf(source), lambda layer: [0, 2, 3]), [0, 3, 4]))
    assert command("verify", source, made).returncode == 0


def test_all_at_once_with_a_cast(program, scratch):
    family = FAMILIES["qwen3-moe"]
    plain = family_models.save_family(scratch / "hf", family)
    options = {"vocab_size": 101, "new_rows": "mean", "keep_layers": "0, 3-4", "keep_experts": "0: 0-2; 2-4: 3-5", "dtype": "f32"}
    made = program.to_hf(plain, scratch / "made", target_options=options)
    wanted = with_layers(with_experts(with_rows({key: tensor for key, tensor in read_hf(plain).items()}, 90, None),
                                      lambda layer: [0, 1, 2] if layer == 0 else [3, 4, 5]), [0, 3, 4])
    wanted = {key: tensor.double() if tensor.ndim and tensor.shape[0] == 90 else tensor.float() for key, tensor in wanted.items()}
    wanted = {key: tensor.float() for key, tensor in with_rows(wanted, 101, "mean").items()}
    assert_equal(read_hf(made), wanted)
    assert json.loads((made / "config.json").read_text())["mlp_only_layers"] == []
    assert command("verify", plain, made).returncode == 0


def write_tokenizer(folder):
    tokens = {f"t{number}": number for number in range(80)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    (folder / "tokenizer.json").write_text(json.dumps(
        {"model": {"type": "BPE", "vocab": tokens, "merges": []}, "added_tokens": [{"id": 84, "content": "<pad>"}]}))


@pytest.mark.parametrize(("options", "words"), [
    ({"vocab_size": 84}, 'vocab_size = 84: tokenizer.json has the id 84 ("<pad>"), which needs 85 rows'),
    ({"vocab_size": 96}, "the source has 90 rows"),
    ({"vocab_size": 85, "new_rows": "zero"}, "so none are added"),
    ({"new_rows": "zero"}, "no rows are added"),
    ({"keep_layers": "0-7"}, "names number 7, and there are 5 decoder layers"),
    ({"keep_layers": "2, 1"}, "does not ascend"),
    ({"keep_layers": "one"}, "is neither an index nor a range"),
    ({"keep_layers": ","}, "the list is empty"),
    ({"keep_experts": "1"}, "1 are kept, and"),
    ({"keep_experts": "0-2; 1: 3"}, "names no layers"),
    ({"keep_experts": "0: 0-2"}, "layer 2 has experts and is not named"),
    ({"keep_experts": "0, 2: 0-2; 3-4: 0-1"}, "keep as many in each"),
    ({"keep_experts": "0: 0-2; 0: 0-2"}, "layer 0 is named twice"),
    ({"keep_experts": "1: 0-2"}, "layer 1 has no routed experts"),
])
def test_what_does_not_fit_is_refused(options, words, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["qwen3-moe"])
    write_tokenizer(folder)
    outcome = program.attempt(folder, scratch / "made", "huggingface", target_options=options, ranks=1)
    assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr


@pytest.mark.parametrize(("name", "members", "options", "words"), [
    ("llama", {}, {"keep_experts": "0"}, "the model has no routed experts"),
    ("deepseek-yarn", {}, {"keep_experts": "0-3"}, "Keep as many of each group"),
    ("deepseek-yarn", {}, {"keep_experts": "0, 3"}, "Keep more"),
    ("deepseek-v4", {}, {"keep_experts": "0-3"}, "holds the numbers of the experts of each token"),
    ("deepseek-v4", {}, {"vocab_size": 70}, "say something else of 'token' than these weights are. Remove the key"),
    ("llama4-text", {}, {"keep_layers": "1-4"}, "say something else of 'layer.dense' than these weights are. Choose layers"),
    ("llama", {"sliding_window_pattern": 2}, {"keep_layers": "1-4"}, "sliding_window_pattern = 2, and no list says"),
    ("llama", {"num_kv_shared_layers": 2}, {"keep_layers": "0-2"}, "num_kv_shared_layers = 2: the last layers take keys"),
    ("llama", {}, {"vocab_size": 2}, "has eos_token_id = 2"),
])
def test_a_config_that_cannot_say_it_is_refused(name, members, options, words, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES[name])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | members))
    refuse(program, folder, scratch / "made", options, words)


def refuse(program, source, target, options, words, **others):
    outcome = program.attempt(source, target, "huggingface", target_options=options, ranks=1, **others)
    assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr
    assert not target.exists()


def test_plain_dcp_needs_names(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    outcome = program.attempt(folder, scratch / "made", "dcp", target_options={"keep_layers": "0-1"}, ranks=1)
    assert outcome.returncode == 2 and "a changed model has others. Set target.map" in outcome.stderr, outcome.stderr


def with_head(folder, scheme):
    """The output layer is quantised."""
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    save_file(tensors | quantised_folders.quantised_parts("lm_head.weight", head.shape, scheme), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised_folders.quantisation_config(scheme)}))


@pytest.mark.parametrize(("scheme", "options", "words"), [
    ("int4_awq", {"vocab_size": 70}, "its indices of 'vocab' are stored in parts"),
    ("int4_packed_channel", {"vocab_size": 70}, "the quantised 'lm_head' is stored with its shape (weight_shape)"),
    ("fp8_channel", {"vocab_size": 96, "new_rows": "zero"}, "is F8_E4M3, and rows are added to F32, BF16 and F16 only"),
])
def test_rows_of_a_quantised_output_layer(scheme, options, words, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    with_head(folder, scheme)
    refuse(program, folder, scratch / "made", options, words)


def test_a_quantised_form_that_no_map_cuts_is_not_copied_whole(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    quantised_folders.quantise_folder(folder, lambda name: "fp8_block")
    outcome = program.attempt(folder, scratch / "made", "huggingface", target_options={"keep_layers": "0-1"}, ranks=1)
    assert outcome.returncode == 3 and "no scale in a form that a map describes" in outcome.stderr and not (scratch / "made").exists()


def test_rows_are_not_added_to_a_mean(program, scratch):
    folders = [family_models.save_family(scratch / seed, FAMILIES["llama"], seed) for seed in ("1", "2")]
    refuse(program, folders[0], scratch / "made", {"vocab_size": 96, "new_rows": "zero"}, "not to a mean", source_options={"average": [str(folders[1])]})


def test_a_model_without_a_vocabulary(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if not name.endswith(ROWS)}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    refuse(program, folder, scratch / "made", {"vocab_size": 96, "new_rows": "zero"}, "the model has no vocabulary")


@pytest.mark.parametrize(("name", "options"), [("apertus", {"keep_layers": "0, 3-4"}), ("minimax-m3", {"keep_layers": "1-4"})])
def test_parts_of_layers_that_no_map_describes(name, options, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES[name])
    refuse(program, folder, scratch / "made", options, "is carried as it is, and belongs to what target.keep_layers would change", model={"unmapped": "keep"})


def test_an_adapter_is_of_the_complete_model(program, scratch):
    lora_models = pytest.importorskip("lora_models", reason="peft is not installed")
    base = lora_models.save_base(scratch / "base", lora_models.llama(torch.bfloat16))
    adapter = lora_models.adapter_of(scratch / "adapter", base, r=4, target_modules=["q_proj"])
    refuse(program, adapter, scratch / "made", {"keep_layers": "0-1"}, "holds an adapter, whose matrices", source_options={"config": base / "config.json"})


@pytest.mark.parametrize(("options", "words"), [
    ({"run": {"self_check": 4}}, "is not combined with target.vocab_size"),
    ({"model": {"map": "none"}}, "is not combined with target.vocab_size"),
])
def test_keys_that_look_for_values_of_the_source_are_refused(options, words, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["llama"])
    outcome = program.attempt(folder, scratch / "made", "huggingface", target_options={"keep_layers": "0-1"}, ranks=1, **options)
    assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr


def test_megatron_s_own_files_without_a_config(program, scratch):
    sample = family_models.Path(__file__).parents[1] / "data/moe-tp2-pp2-ep2"
    made = program.run(sample, scratch / "made", "torch_dist", target_options={"keep_layers": "0", "keep_experts": "1, 3"}, source_options={"rng": "drop"})
    same = command("verify", sample, made)
    assert same.returncode == 0 and "is changed as that job did" in same.stdout, same.stdout + same.stderr
    assert "not compared: the configs" not in same.stdout  # the args are


def test_a_target_of_a_target_is_compared_as_it_is(program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES["qwen3"])
    first = program.to_hf(folder, scratch / "first", target_options={"keep_layers": "0, 3-4"})
    second = program.run(first, scratch / "second", "torch_dist", target_options={"layout": Layout().toml()})
    third = program.to_hf(second, scratch / "third")
    for one, other in ((first, third), (folder, first), (first, second)):
        same = command("verify", one, other)
        assert same.returncode == 0, same.stdout + same.stderr
