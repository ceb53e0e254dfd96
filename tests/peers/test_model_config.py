"""A model is its weights and its config: what transformers computes is the same after every way there and back, without a reference folder.

Where Megatron's args cannot hold a setting, the way into Megatron names it, and what travels in `huggingface/` brings it back all the same.
"""

import json
import shutil
import subprocess

import pytest
import torch

from config_cases import SETTINGS, family_of
from family_models import logits_of, save_family
from megatron_args import change_args
from reshard_job import BINARY

WAYS = {
    "megatron": dict(target_options={"layout": "{ tp = 2 }"}), "torch_dist": dict(target_options={"layout": "{ tp = 2 }"}), "hdf5": {}, "dcp": {}}
QUICK = [name for name, setting in SETTINGS.items() if setting.quick]


def convert(program, source, target, form, **options):
    outcome = program.attempt(source, target, form, ranks=1, **options)
    assert outcome.returncode == 0, outcome.stderr[-3000:] + outcome.stdout[-2000:]
    return " ".join((outcome.stdout + outcome.stderr).split())


def compare(*arguments):
    outcome = subprocess.run([BINARY, "verify", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    return outcome.returncode, outcome.stdout + outcome.stderr


def beside(folder):
    """The files that are no weights."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".txt", ".jinja") and path.name != "reshard.json"}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def save_model(scratch, setting):
    folder = save_family(scratch / "model", family_of(setting))
    (folder / "tokenizer.json").write_text('{"a tokenizer": true}\n')
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    return folder


def way_there_and_back(program, folder, way, setting, scratch):
    """'carried', or raises; what the program said on the way in."""
    said = convert(program, folder, scratch / way, way, **WAYS[way])
    back = scratch / f"{way}-back"
    convert(program, scratch / way, back, "huggingface")
    assert beside(back) == beside(folder), "other files than those that were there"
    assert torch.equal(logits_of(back, family_of(setting)), logits_of(folder, family_of(setting)))
    return said


def of_args_alone(program, folder, setting, scratch):
    """What args say when nothing travelled with them: 'set in args' or 'warned'."""
    bare = scratch / "bare"
    shutil.copytree(scratch / "megatron", bare)
    shutil.rmtree(bare / "huggingface")
    back = scratch / "bare-back"
    convert(program, bare, back, "huggingface")
    same = torch.equal(logits_of(back, family_of(setting)), logits_of(folder, family_of(setting)))
    if not same:
        return "warned"
    known = set(config_of(folder)["architectures"])
    assert set(config_of(back)["architectures"]) <= known | {"LlamaForCausalLM"}, "another class"
    return "set in args"


def try_setting(program, setting, scratch, ways):
    folder = save_model(scratch, setting)
    result = {}
    for way in ways:
        said = way_there_and_back(program, folder, way, setting, scratch)
        result[way] = "carried"
        warned = "which Megatron's args cannot hold" in said
        assert warned == (setting.key is not None and way in ("megatron", "torch_dist")), said[-1500:]
        assert not warned or setting.key + " = " in said
    result["args alone"] = of_args_alone(program, folder, setting, scratch)
    assert result["args alone"] == "set in args" or setting.key is not None, "args lost it, and nobody was told"
    return result


@pytest.mark.long_but("qwen2, max_window_layers", "qwen3, rope yarn")
@pytest.mark.parametrize("name", QUICK)
def test_settings_come_back(name, program, scratch):
    try_setting(program, SETTINGS[name], scratch, ["megatron"])


@pytest.mark.long_but("torch_dist", "hdf5")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "megatron"])
def test_every_format_carries_the_files(way, program, scratch):
    folder = save_model(scratch, SETTINGS["llama, rope linear"])
    way_there_and_back(program, folder, way, SETTINGS["llama, rope linear"], scratch)


def test_files_travel_from_format_to_format(program, scratch):
    """… and are found beside the iterations, where training goes on, and listed in the manifest."""
    setting = SETTINGS["llama, rope linear"]
    folder = save_model(scratch, setting)
    place = folder
    for number, way in enumerate(["megatron", "torch_dist", "megatron", "hdf5", "torch_dist"]):
        convert(program, place, scratch / f"{number}", way, **WAYS[way])
        place = scratch / f"{number}"
        if way != "hdf5":
            listed = {record["path"] for record in json.loads((place / "reshard.json").read_text())["files"]}
            assert {f"huggingface/{name}" for name in beside(folder)} <= listed
    convert(program, place, scratch / "back", "huggingface")
    assert beside(scratch / "back") == beside(folder)
    iteration = next(path for path in (scratch / "2").iterdir() if path.name.startswith(("iter_", "release")))
    convert(program, iteration, scratch / "from-iteration", "huggingface")
    assert beside(scratch / "from-iteration") == beside(folder)
    (scratch / "0" / "huggingface" / "tokenizer.json").write_text("{}")
    code, text = compare(scratch / "0")
    assert code == 1 and "huggingface/tokenizer.json" in text


def test_args_that_changed_change_the_config(program, scratch):
    """Training went on with another base of its rotations."""
    folder = save_model(scratch, SETTINGS["mistral, sliding_window"])
    convert(program, folder, scratch / "tree", "megatron", **WAYS["megatron"])
    for file in (scratch / "tree").rglob("*.pt"):
        content = torch.load(file, weights_only=False)
        content["args"].rotary_base = 777
        torch.save(content, file)
    (scratch / "tree" / "reshard.json").unlink()
    said = convert(program, scratch / "tree", scratch / "back", "huggingface")
    assert "rope_theta was 10000.0, the checkpoint's args give 777" in said
    before, now = config_of(folder), config_of(scratch / "back")
    before["rope_parameters"]["rope_theta"] = 777
    assert now == before


def test_args_that_no_config_says_are_told(program, scratch):
    """… with the config that travelled and without it, and `verify` finds them between two Megatron checkpoints."""
    folder = save_model(scratch, SETTINGS["mistral, sliding_window"])
    convert(program, folder, scratch / "tree", "megatron", **WAYS["megatron"])
    shutil.copytree(scratch / "tree", scratch / "other")
    change_args(scratch / "other", rotary_interleaved=True, softmax_type="off-by-one")
    code, text = compare(scratch / "tree", scratch / "other")
    assert code == 1 and "args.rotary_interleaved" in text and "args.softmax_type" in text
    said = convert(program, scratch / "other", scratch / "back", "huggingface")
    assert "the checkpoint has \"off-by-one\". This config.json is the target's as it is" in said
    shutil.rmtree(scratch / "other" / "huggingface")
    said = convert(program, scratch / "other", scratch / "bare", "huggingface")
    assert 'it has no member for rotary_interleaved = true, softmax_type = "off-by-one"' in said


def test_a_number_that_is_none_is_refused(program, scratch):
    folder = save_model(scratch, SETTINGS["mistral, sliding_window"])
    (folder / "config.json").write_text(json.dumps(config_of(folder) | {"rms_norm_eps": float("nan")}))
    outcome = program.attempt(folder, scratch / "tree", "megatron", ranks=1)
    assert outcome.returncode == 3 and "args.norm_epsilon would be NaN" in " ".join(outcome.stderr.split())


def test_a_dcp_folder_with_its_config_becomes_megatron(program, scratch):
    """… without source.config, and comes back with the same logits."""
    setting = SETTINGS["llama, rope linear"]
    folder = save_model(scratch, setting)
    convert(program, folder, scratch / "dcp", "dcp")
    convert(program, scratch / "dcp", scratch / "tree", "megatron", **WAYS["megatron"])
    convert(program, scratch / "tree", scratch / "back", "huggingface")
    assert beside(scratch / "back") == beside(folder)
    assert torch.equal(logits_of(scratch / "back", family_of(setting)), logits_of(folder, family_of(setting)))


def test_a_dcp_folder_without_config_is_warned_of(program, scratch):
    folder = save_model(scratch, SETTINGS["mistral, plain"])
    convert(program, folder, scratch / "dcp", "dcp")
    shutil.rmtree(scratch / "dcp" / "huggingface")
    assert "transformers cannot load it without them" in convert(program, scratch / "dcp", scratch / "back", "huggingface")

