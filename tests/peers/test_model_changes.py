"""target.vocab_size, keep_layers, keep_experts and mtp against torch on the same weights, and transformers that loads the result."""

import json
import re

import pytest
import torch
from safetensors import safe_open

import family_models
import family_models_hybrid
from hf_models import read_hf
from reshard_job import command, tree_hashes

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES
EXPERT = re.compile(r"(model\.layers\.)(\d+)(\.mlp\.experts\.)(\d+)(\..*)")
LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")
ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.(weight|e_score_correction_bias)")


def with_rows(state, rows, fill):
    """What torch makes of the tensors with a row for each token."""
    old = state["model.embed_tokens.weight"].shape[0]

    def changed(tensor):
        if rows <= old:
            return tensor[:rows]
        new = tensor.double().mean(0, keepdim=True).to(tensor.dtype) if fill == "mean" else torch.zeros_like(tensor[:1])
        return torch.cat([tensor, new.expand(rows - old, *tensor.shape[1:])])

    return {name: changed(tensor) if name in ("model.embed_tokens.weight", "lm_head.weight") else tensor for name, tensor in state.items()}


def with_layers(state, kept):
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
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def source_of(name, form, program, scratch):
    family = FAMILIES[name]
    folder = family_models.save_family(scratch / "hf", family)
    if form == "huggingface":
        return folder, folder
    if form == "megatron":
        return program.to_megatron(folder, scratch / "source", family.a, family.form), folder
    return program.run(folder, scratch / "source", form, target_options={"layout": family.a.toml()} if form == "torch_dist" else {"map": family.map or name}), folder


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


@pytest.mark.parametrize(("name", "options", "words"), [
    ("llama", {"keep_experts": "0"}, "the model has no routed experts"),
    ("deepseek-yarn", {"keep_experts": "0-3"}, "Keep as many of each group"),
    ("llama", {"keep_layers": "1-4"}, "sliding_window_pattern = 2, and no list says"),
    ("llama", {"vocab_size": 2}, "has eos_token_id = 2"),
])
def test_a_config_that_cannot_say_it_is_refused(name, options, words, program, scratch):
    folder = family_models.save_family(scratch / "hf", FAMILIES[name])
    if "pattern" in words:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"sliding_window_pattern": 2}))
    outcome = program.attempt(folder, scratch / "made", "huggingface", target_options=options, ranks=1)
    assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr


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
