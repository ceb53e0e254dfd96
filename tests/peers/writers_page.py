"""python writers_page.py ROWS: writes docs/pytorch-writers.md from the rows that writers_table.py printed."""

import collections
import re
import sys
from importlib.metadata import version
from pathlib import Path

import writers_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch-writers.md"
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "peft", "torchao", "torchtitan")
GROUPS = {  # pattern of a writer -> its line
    r"transformers|torch\.save|dcp no_dist|HuggingFaceStorageWriter": "transformers; torch: `dcp.save`, `HuggingFaceStorageWriter`, `torch.save`",
    r"fsdp2 accelerate": "accelerate with FSDP2", r"fsdp2": "FSDP2 scripts: bare, below a key, below an attribute",
    r"rank files": "FSDP files of ranks: verl and others", r".*universal": "DeepSpeed's `ds_to_universal`", r"deepspeed": "DeepSpeed, ZeRO 0 to 3",
    r"torchtitan": "torchtitan's CheckpointManager", r"torchao": "torchao, saved by transformers",
    r"peft (%s)$" % "|".join(writers_table.TUNERS): "peft, other kinds than LoRA", r"peft": "peft, LoRA"}
COLUMNS = (*writers_table.TARGETS, "merged")
REASONS = {  # pattern of a refusal -> its line
    r"map = \"auto\"|does not state which model": "a model that no map describes",
    r"are pickled": "pickled weights of a Hugging Face folder: `save_pretrained` once",
    r"below which the trainer has saved": "names below a trainer's prefix, which DeepSpeed does not look for: `source.prefix`",
    r"of a run without ZeRO": "state of ZeRO 0 is numbered, and no file tells its parameters",
    r"should be a copy of": "masters of tied weights that differ: `ds_to_universal --inject_missing_state` makes one of the rounded weights",
    r"is not that of its weight": "masters that are not those of their weights "
        "([DeepSpeed's round robin](../findings/deepspeed_round_robin_weights.sh))",
    r"no F32 master weight": "BF16 weights with state and without masters, which DeepSpeed needs",
    r"is in flat vectors": "state of FSDP1 in flat vectors of modules that no file names",
    r"\[model\] unmapped": "biases of experts that Qwen3 of transformers does not have: `model.unmapped`",
    r"matches no entry": "a buffer that the model of transformers does not have",
    r"it has names for models of type": "a family that Mistral's own form cannot describe",
    r"has no config.json": "no `config.json` beside the weights: `source.config`",
    r"quantised by torchao|Beside it there is": "torchao's parts of weights, which no map describes: `model.map = \"none\"` keeps them",
    r"peft_type|adapter_config\.json|adapter|is not a matrix": "adapters other than a product of two matrices, and what peft saves beside such",
    r"unknown|not known": "tensors that are no weights of the model"}
HEAD = """# What the PyTorch side writes, and what becomes of it

`tests/peers/writers_table.py` lets the programs themselves save small models, on CPU processes that are joined by gloo, converts each save
to every format, and compares each target with its source by `reshard verify`. `tests/peers/writers_page.py` made this page of its rows:
{packages}.

{writers} saves, {results} conversions: {same} are the same, bit by bit, and {refused} are refused, for the reasons below. None differs, and
none fails otherwise.
{failed}
Same of all conversions, by target (`-`: not tried). Hugging Face folders and Mistral's form leave the optimizer out; all others have it.
Adapters go to `torch_dist` and back to peft's form, and are merged.

"""


def first(table, text, otherwise):
    return next((line for pattern, line in table.items() if re.match(pattern, text)), otherwise)


def rows_of(path):
    for line in path.read_text().splitlines():
        if line.startswith("| "):
            yield [word.strip() for word in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows)) + "\n"


def main():
    rows = [row for path in sys.argv[1:] for row in rows_of(Path(path))]
    latest = {(writer, target): (result, why) for writer, target, result, why in rows}
    if wrong := [row for row in latest.items() if not row[1][0].startswith(("same", "refused", "writer fails"))]:
        raise SystemExit(f"not a row of the page: {wrong}")
    cells, reasons, failed = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter), []
    for (writer, target), (result, why) in latest.items():
        if result == "writer fails":
            failed.append(writer)
            continue
        group = first(GROUPS, writer, writer)
        cells[group][target, "all"] += 1
        cells[group][target, "same"] += result == "same"
        if result != "same":
            found = next((line for pattern, line in REASONS.items() if re.search(pattern, why)), None)
            if found is None:
                raise SystemExit(f"no reason for {writer} to {target}: {why}")
            reasons[found][group] += 1
    counts = collections.Counter(result.split()[0] for result, _ in latest.values())
    lines = [
        [group, *(f"{cells[group][target, 'same']} of {cells[group][target, 'all']}" if cells[group][target, "all"] else "-" for target in COLUMNS)]
        for group in dict.fromkeys(GROUPS.values()) if group in cells]
    why = [[sum(groups.values()), reason, "; ".join(f"{group}: {count}" for group, count in groups.most_common())] for reason, groups in reasons.items()]
    PAGE.write_text(HEAD.format(
        packages=", ".join(f"{package} {version(package)}" for package in PACKAGES), writers=len({writer for writer, _ in latest}) - len(failed),
        results=counts["same"] + counts["refused"], same=counts["same"], refused=counts["refused"],
        failed="".join(f"Of torchao's settings, {name.split()[-1]} does not run on a CPU.\n" for name in failed))
        + table(["source", *(f"`{target}`" for target in COLUMNS)], lines) + "\n## Why conversions are refused\n\n"
        + table(["conversions", "reason", "of which sources"], sorted(why, key=lambda line: -line[0])))


if __name__ == "__main__":
    main()
