"""Writes docs/megatron-args.md from the maps and the parsers of the releases that scripts/install_peers.sh has installed: python tests/peers/args_page.py"""

import json
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAPS, PAGE = ROOT / "configs" / "models", ROOT / "docs" / "megatron-args.md"
RELEASES = ("0.17.1", "0.18.2", "0.19.2")
EFFECTS = {"function_args": "computes", "structure_args": "shapes", "layout_args": "order of rows"}
HEAD = """# Arguments of Megatron

The arguments in a checkpoint's `args` that say something of the model, and what this program makes of them. `tests/peers/args_page.py` writes this page from
[args.toml](../configs/models/args.toml), the maps, and the parsers of Megatron-Core {releases}; `test_args_table.py` compares it with each of them. An
argument of a parser that `args.toml` lacks fails that test. A job warns of an argument in a checkpoint that `args.toml` lacks, if its name resembles those of
a model.

Since 0.17 `norm_epsilon` is called `layernorm_epsilon`, and `apply_layernorm_1p` is called `layernorm_zero_centered_gamma`; since 0.19 YaRN of attention without
a low rank has `rotary_scaling_factor`, `mscale` and `mscale_all_dim` where the column below has a name with `yarn_`. Both names are read, and both are
written where the release of the target ([`target.megatron`](job-spec.md)) has them.

- *computes*: changes what the model computes, and no tensor shows it. Two checkpoints that differ in one are different models. Where `config.json` has no place for a
  value, a job warns.
- *shapes*: gives tensors their names, shapes, dtypes and places.
- *order of rows*: rows of a weight have another order than maps describe; a source with a value is refused.
- `config.json`: members that maps make of the argument, the most frequent first. Families differ: `reshard check-map FAMILY --config FILE` has those of one.
- `run_config.yaml`: members of `model` in the settings of Megatron-Bridge.

"""
PARSER = """
import argparse, json, megatron_release
megatron_release.stand_in_for_cuda()
from megatron.training.arguments import add_megatron_arguments
def shown(value): return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
print(json.dumps({action.dest: shown(action.default) for action in add_megatron_arguments(argparse.ArgumentParser())._actions}))
"""


def parser_of(release):
    """dest -> default, by the Python that has the release."""
    python = ROOT / ".cache" / f"peers-megatron-core-{release}" / "bin" / "python"
    outcome = subprocess.run([python, "-c", PARSER], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return json.loads(outcome.stdout.splitlines()[-1])


def tables():
    return {path.stem: tomllib.loads(path.read_text()) for path in sorted(MAPS.glob("*.toml"))}


def words(expression):
    return set(re.findall(r"[a-z_0-9]+", re.sub(r"'[^']*'", "", str(expression))))


def members_by_argument(documents):
    """argument -> the members of config.json whose expressions speak of it, the most frequent first."""
    found = {}
    for document in documents:
        for member, expression in document.get("config", {}).items():
            for word in words(expression):
                found.setdefault(word, Counter())[member] += 1
    return {word: [member for member, _ in counts.most_common(3)] for word, counts in found.items()}


def settings_by_argument():
    table = tomllib.loads((MAPS / "settings" / "megatron_bridge_target.toml").read_text())["args"]
    found = {}
    for member, expression in table.items():
        for word in words(expression):
            found.setdefault(word, []).append(member)
    return {word: sorted(members, key=lambda member: member != word)[:2] for word, members in found.items() if len(members) < 6}


def code(names):
    return ", ".join(f"`{name}`" for name in names)


def page():
    documents, parsers = tables(), {release: parser_of(release) for release in RELEASES}
    table, own = documents["args"], documents["mcore"]["own_args"]
    members, settings = members_by_argument(documents.values()), settings_by_argument()
    lines = ["| argument | effect | releases | default | `config.json` | `run_config.yaml` |", "| --- | --- | --- | --- | --- | --- |"]
    effects = {name: effect for key, effect in EFFECTS.items() for name in table[key]}
    for name in sorted(effects):
        having = [release for release in RELEASES if name in parsers[release]]
        default = json.dumps(parsers[having[-1]][name]) if having else ""
        lines.append(f"| `{name}` | {effects[name]} | {', '.join(release[:4] for release in having) or 'no parser'} | {default} "
                     f"| {code(members.get(name, []))} | {code(settings.get(name, []))} |")
    text = "\n".join(lines)
    return (HEAD.format(releases=", ".join(RELEASES)) + text + "\n\nAn argument that no parser has is of an older release, is computed from others, or is one that maps "
            f"of Megatron-Core's users write.\n\nMegatron has no argument for these, and a model needs layers of its own: {code(sorted(own))}.\n")


def releases_by_argument():
    """argument -> the releases that the page states."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    return {name: set(stated.split(", ")) for name, stated in rows}


if __name__ == "__main__":
    PAGE.write_text(page())
