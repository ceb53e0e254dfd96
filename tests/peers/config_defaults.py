"""Megatron's args of a config.json, or its tensors where Megatron has no form of it, by `reshard check-map`, and small configs of transformers' own
classes: the table of test_config_defaults.py."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from reshard_job import BINARY

MAPS = Path(os.environ.get("RESHARD_MAPS") or Path(__file__).parents[2] / "configs" / "models")
# Of no effect on what a model computes.
NO_FUNCTION = {"attention_dropout", "hidden_dropout", "init_method_std", "moe_aux_loss_coeff", "moe_router_load_balancing_type", "mtp_num_layers"}
# Sizes: a folder that leaves one out is refused where the map does not know it, and its tensors' shapes say it where it does.
SIZES = dict(intermediate_size=96, num_hidden_layers=8, vocab_size=256, num_experts=6, num_local_experts=6, n_routed_experts=8)


def has_axes(name):
    """Maps of names alone have none, and inherit none."""
    text = tomllib.loads((MAPS / f"{name}.toml").read_text())
    bases = text.get("base", [])
    return "axes" in text or any(has_axes(base) for base in ([bases] if isinstance(bases, str) else bases))


def map_of():
    """model_type -> map, of those that transformers knows."""
    result = {}
    for file in sorted(MAPS.glob("*.toml")):
        if not has_axes(file.stem):
            continue
        match = tomllib.loads(file.read_text()).get("match", {})
        for kind in match.get("model_type", []):
            if kind in CONFIG_MAPPING and "config" not in match:
                result[kind] = file.stem
    return result


def small_config(kind):
    """What transformers takes for a model of this type with few layers, as its save_pretrained writes it."""
    cls = CONFIG_MAPPING[kind]
    default = cls().to_dict()
    text = dict(text_of(default))
    kept = {key: value for key, value in SIZES.items() if key in text}
    for key in kept.keys() & {"num_experts", "n_routed_experts"}:  # some classes insist on as many as a token chooses
        kept[key] = max(kept[key], text.get("num_experts_per_tok") or 0)
    if kind == "nemotron_h":
        kept.pop("num_hidden_layers", None)
    alone = CONFIG_MAPPING[text["model_type"]]().to_dict() if text.get("model_type") in CONFIG_MAPPING else text  # some outer classes change its defaults
    heads = max(4, 2 * (alone.get("num_key_value_heads") or 0)) if "kv_lora_rank" not in text else 8
    if "num_attention_heads" in text:
        kept |= dict(num_attention_heads=heads, hidden_size=16 * heads)
    if "kv_lora_rank" in text and text.get("num_key_value_heads") == text.get("num_attention_heads"):
        kept |= dict(num_key_value_heads=heads)
    if outer := outer_of(default):
        kept = {"model_type": text["model_type"]} | kept
    for key in reversed(outer):
        kept = {key: kept}
    return cls(**kept).to_dict()


def written(config):
    return json.loads(json.dumps(config).replace("Infinity", "1e308"))


ARGS = {}


def args_of(config, scratch, family):
    """None where the config is refused."""
    key = family, json.dumps(written(config))
    if key not in ARGS:
        ARGS[key] = args_by_program(config, scratch, family)
    return ARGS[key]


def args_by_program(config, scratch, family):
    path = scratch / "config.json"
    path.write_text(json.dumps(written(config)))
    outcome = subprocess.run([BINARY, "check-map", family, "--config", str(path), "--json"], capture_output=True, text=True, timeout=120)
    document = json.loads(outcome.stdout) if outcome.stdout else {}
    if document.get("no_megatron"):  # then its tensors say what was understood
        return {tensor["name"]: [(axis["axis"], axis["size"], axis["runs"]) for axis in tensor["axes"]] for tensor in document["tensors"]}
    return {key: value for key, value in (document.get("args") or {}).items() if key not in NO_FUNCTION} or None


def outer_of(config):
    """The members that the text model's own are in, from the outside inwards."""
    outer = []
    for key in "thinker_config", "text_config":
        if config.get(key):
            outer.append(key)
            config = config[key]
    return outer


def text_of(config):
    for key in outer_of(config):
        config = config[key]
    return config


def completed(kind, config):
    """What transformers makes of a config.json, as a config.json that says it all."""
    return CONFIG_MAPPING[kind].from_dict(json.loads(json.dumps(config))).to_dict()


def without(config, keys):
    config = json.loads(json.dumps(config))
    for key in keys:
        text_of(config).pop(key, None)
    return config


# Sizes and patterns without which no layer can be told apart: those are refused, not guessed.
NEEDED = {
    "model_type", "hidden_size", "num_hidden_layers", "num_layers", "num_attention_heads", "intermediate_size", "vocab_size", "intermediate_size_mlp",
    "layers_block_type", "o_groups", "o_lora_rank", "hc_mult", "num_experts", "num_local_experts", "n_routed_experts", "num_nextn_predict_layers", "tie_word_embeddings"}  # fmt: skip


WORDS = {word for file in MAPS.glob("*.toml") for word in re.findall(r"\w+", file.read_text())}


def members_of(config):
    """Those that may be left out, and that some map speaks of."""
    return [key for key in text_of(config) if key not in NEEDED and key in WORDS]


def fault_without(kind, config, keys, family, scratch):
    """How the args without these members differ from those of the config that transformers makes of it; "" where they do not."""
    left_out = without(config, keys)
    try:
        full = completed(kind, left_out)
    except Exception:  # noqa: BLE001  transformers refuses it, too
        return ""
    ours, theirs = args_of(left_out, scratch, family), args_of(full, scratch, family)
    if theirs is None or ours is None:
        return f"{keys} left out: refused" if theirs else "the whole config is refused"
    differ = {key: (ours.get(key), theirs.get(key)) for key in ours | theirs if ours.get(key) != theirs.get(key)}
    return f"{keys} left out: {differ}, ours and those of transformers' config" if differ else ""
