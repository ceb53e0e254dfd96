"""`reshard suspects`: each planted fault is found with its layer and expert, in any format and layout, and sound models have none."""

import json
import re
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from family_models import save_family
from hf_models import read_hf
from reshard_job import BINARY
from test_families import FAMILIES, names_of

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


def look(path, ranks=1):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), BINARY, "suspects", path, "--json"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert outcome.returncode in (0, 1), outcome.stderr
    answer = json.loads(outcome.stdout)
    assert bool(answer["suspects"]) == (outcome.returncode == 1)
    assert all(row["cause"] for row in answer["suspects"])
    return answer


def suspects(path, ranks=1):
    return look(path, ranks)["suspects"]


@pytest.mark.long_but("glm4-moe-mtp", "gpt-oss-mxfp4", "nemotron-h")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sound_model_has_none(name, program, scratch):
    """Neither as transformers saves it nor in a layout of Megatron, where replicas and padding are; nor does a run warn."""
    family = FAMILIES[name]
    folder = save_family(scratch / "folder", family)
    assert suspects(folder) == []
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    options = dict(model={"map": family.map or model_type, "unmapped": "keep"} if family.keeps_parts else {})
    outcome = program.attempt(
        folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()} | names_of(family.form), arguments=["--json"], **options)
    assert outcome.returncode == 0, outcome.stderr
    assert not any("sound model" in text for text in json.loads(outcome.stdout)["warnings"])
    answer = look(scratch / "tree")
    assert answer["suspects"] == answer["notes"] == []


def plant(state):
    """Faults of every kind in a GLM-4 MoE model: what is to be found of each."""
    attention, expert = "model.layers.{}.self_attn.{}_proj.weight".format, "model.layers.2.mlp.experts.{}.{}_proj.weight".format
    state[attention(1, "q")][3, 5] = float("nan")
    state[attention(2, "o")][0, 0] = float("-inf")
    state[expert(2, "gate")].zero_()
    state[expert(3, "up")].fill_(0.5)
    state[expert(1, "down")].copy_(state[expert(0, "down")])
    tiny = state[attention(0, "k")]
    tiny.view(torch.int16).copy_(torch.arange(tiny.numel()).reshape(tiny.shape) % 5 + 1)
    return {
        ("not finite", "layer.1.", 1), ("not finite", "layer.2.", 1), ("zero", "layer.2.expert.2.", 0), ("constant", "layer.2.expert.3.", 0),
        ("equal", "layer.2.expert.0.", 2), ("subnormal", "layer.0.", 0)}


def front_of(row):
    """What the name begins with: "layer.2.expert.0."."""
    return re.match(r"(\w+\.\d+\.)*", row["tensor"])[0]


@pytest.mark.parametrize("ranks", [1, 3])
def test_planted_faults_are_found_in_every_layout(ranks, program, scratch):
    family = FAMILIES["glm4-moe-mtp"]
    folder = save_family(scratch / "folder", family)
    planted = with_state(folder, plant)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    found = {}
    for place in (folder, tree):
        rows = suspects(place, ranks)
        found[place] = [(row["kind"], row["tensor"], row["found"]) for row in rows]
        assert {(row["kind"], front_of(row), row["count"] if row["kind"] in ("not finite", "equal") else 0) for row in rows} == planted
    assert found[folder] == found[tree]


def with_state(folder, edit):
    """The folder's weights after `edit`, in one file."""
    state = read_hf(folder)
    result = edit(state)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return result


def edited(path, edit):
    """A file of a rank after `edit` of its weights."""
    content = torch.load(path, weights_only=False)
    edit(content["model"])
    torch.save(content, path)


def warnings_of(program, source, target, ranks, **options):
    outcome = program.attempt(source, target, "megatron", ranks=ranks, arguments=["--json"], **options)
    assert outcome.returncode == 0, outcome.stderr
    return [text for text in json.loads(outcome.stdout)["warnings"] if "sound model" in text]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_warns_of_what_its_digests_show(ranks, program, scratch):
    """Equal experts and one that is zero: not NaN and one value, which only the look at all values sees."""
    family = FAMILIES["glm4-moe-mtp"]
    options = {"target_options": {"layout": family.a.toml()}}
    folder = save_family(scratch / "folder", family)
    assert warnings_of(program, folder, scratch / "sound", ranks, **options) == []
    with_state(folder, plant)
    (warning,) = warnings_of(program, folder, scratch / "tree", ranks, **options)
    assert "2 parts" in warning and "zero: " in warning and "layer.2.expert.2." in warning, warning
    assert "equal: " in warning and "layer.2.expert.0.experts.down: the same bytes as layer.2.expert.1.experts.down" in warning, warning
    (again,) = warnings_of(program, scratch / "tree", scratch / "other", ranks)
    assert again == warning


@pytest.mark.parametrize("ranks", [1, 3])
def test_replicas_and_padding_are_looked_at(ranks, program, scratch):
    family = FAMILIES["glm4-moe-mtp"]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": "{ tp = 2 }", "transformer_impl": "local"})
    sound = look(tree, ranks)
    assert sound["suspects"] == sound["notes"] == [] and sound["replicas"] > 0
    first, second = sorted(tree.rglob("model_optim_rng.pt"))
    table, norm = "embedding.word_embeddings.weight", "decoder.layers.1.input_layernorm.weight"
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]

    def other_norm(model):
        model[norm] = model[norm].clone()
        model[norm][:2] += 1

    def padding(model, begin, end):
        model[table] = model[table].clone()
        model[table][begin:end] = 0.5

    edited(first, other_norm)
    (row,) = look(tree, ranks)["suspects"]
    assert (row["kind"], front_of(row), row["count"]) == ("replicas differ", "layer.1.", 2)
    assert norm in row["found"] and "mp_rank_00" in row["found"] and "mp_rank_01" in row["found"] and "hidden 0 (" in row["found"]

    before = torch.load(second, weights_only=False)["model"][table].shape[0]  # rows that each rank has
    edited(second, lambda model: padding(model, before - 2, before))
    found = [one for one in look(tree, ranks)["suspects"] if one["kind"] == "padding"]
    padded = 2 * before - rows
    assert padded > 2
    assert [(one["tensor"], one["count"]) for one in found] == [("embed", 2 * torch.load(second, weights_only=False)["model"][table].shape[1])]
    assert f"2 of {padded} rows" in found[0]["found"] and found[0]["found"].endswith(f"the first is {2 * before - 2}")

    for path, begin in ((first, max(0, rows)), (second, max(0, rows - before))):  # all of it has values, as after training in Megatron
        edited(path, lambda model, begin=begin: padding(model, begin, before))
    answer = look(tree, ranks)
    assert [one["kind"] for one in answer["suspects"]] == ["replicas differ"]
    assert len(answer["notes"]) == 1 and f"vocabulary of {rows}" in answer["notes"][0]


def test_tied_weights_that_differ_are_found(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["qwen2-tied"])
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]

    def store_apart(state):
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    with_state(folder, store_apart)
    sound = look(folder)
    assert sound["suspects"] == [] and sound["replicas"] == 1

    def change(state):
        state["lm_head.weight"][3, 5] += 1

    with_state(folder, change)
    for ranks in (1, 3):
        (row,) = suspects(folder, ranks)
        assert (row["kind"], row["count"]) == ("tied weights differ", 1)
        assert "lm_head.weight" in row["found"] and "vocab 3, hidden 5" in row["found"]


def test_what_is_no_checkpoint_is_refused(tmp_path):
    outcome = subprocess.run([BINARY, "suspects", tmp_path / "nothing"], capture_output=True, text=True, timeout=60)
    assert outcome.returncode in (2, 3) and "nothing" in outcome.stderr
