"""python quantised_matrix.py BINARY FOLDER... [--page PAGE]: what becomes of folders that quantisers have written (quantiser_runs.py makes them).

Each is copied under its stored names (Hugging Face to Hugging Face), goes through HDF5, through Megatron and through torch_dist, with tensor parallelism 2 and
expert parallelism 2, and back, and is dequantised (quantised_values.py). Where a cut of tensor parallelism 2 falls inside blocks, it is 1. A row for each folder says: the same
tensors and configs, what differs, or the refusal; dequantised values are compared with those of the library where it can decompress.
Then come the counts of each, refusals by their words. `--page` writes the table between the marks of a page.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from quantised_values import configs_of, values

ROUTED = ("num_experts", "n_routed_experts", "num_local_experts")
STEPS = ("names kept", "HDF5", "Megatron", "torch_dist", "dequantised")
MARKS = "<!-- made by tests/peers/quantised_matrix.py -->\n", "\n<!-- end of what it made -->"


def tensors_of(folder):
    """name -> dtype, shape and bytes, whatever the dtype."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            for name, entry in header.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    file.seek(8 + size + begin)
                    found[name] = entry["dtype"], tuple(entry["shape"]), file.read(end - begin)
    return found


def run(binary, scratch, source, target, form, *lines):
    job = scratch / "job.toml"
    job.write_text(f'source.path = "{source}"\ntarget.path = "{target}"\ntarget.format = "{form}"\n' + "".join(f"{line}\n" for line in lines))
    outcome = subprocess.run([binary, "run", job], capture_output=True, text=True, timeout=300)
    errors = [line for line in outcome.stderr.splitlines() if "error" in line.lower()]
    return "" if outcome.returncode == 0 else (errors or outcome.stderr.splitlines() or ["?"])[-1]


def reason(error):
    """The words of a refusal without its names and numbers."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|\d+|\[[^]]*\]", "_", error.split(": ", 1)[-1])
    return words[:110]


def compared(source, target):
    before, after = tensors_of(source), tensors_of(target)
    away = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if away:
        return f"{len(away)} of {len(before)} tensors differ, such as {sorted(away)[0]}"
    return "the same" if configs_of(source) == configs_of(target) else "the same, other configs"


def there_and_back(binary, scratch, folder, form, model, layout=()):
    error = run(binary, scratch, folder, scratch / form, form, *model, *layout)
    error = error or run(binary, scratch, scratch / form, scratch / f"{form}-back", "huggingface", f'target.reference = "{folder}"', *model)
    return error, error or compared(folder, scratch / f"{form}-back")


def tried(binary, scratch, folder, counts):
    config = configs_of(folder)[0]
    routed = any((config.get("text_config", config).get(key) or 0) > 1 for key in ROUTED)
    more = ['model.unmapped = "keep"'] if "vision_config" in config else []
    error = run(binary, scratch, folder, scratch / "copy", "huggingface", *more)
    yield "names kept", error, error or compared(folder, scratch / "copy")
    yield "HDF5", *there_and_back(binary, scratch, folder, "hdf5", ['model.map = "none"'] if more else [])
    for form in ("megatron", "torch_dist"):
        layout = ["target.layout.ep = 2"] if routed else []
        error, result = there_and_back(binary, scratch, folder, form, more, [*layout, "target.layout.tp = 2"])
        if "falls inside a block" in error:
            error, result = there_and_back(binary, scratch, folder, form, more, layout)
            result += "" if error else " at TP 1"
        yield "Megatron" if form == "megatron" else form, error, result
    error = run(binary, scratch, folder, scratch / "values", "huggingface", 'model.quant = "dequantise-bf16"', *more)
    yield "dequantised", error, error or values(folder, scratch / "values", counts)


def table(rows):
    """Markdown: kinds of one library whose folders have the same results, in a row."""
    kinds = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, results in rows.items():
        library, kind, _ = name.split("-")
        for step, (error, result) in results.items():
            word = "by name" if error else "yes" if result.startswith(("the same", "made")) else "differs"
            kinds[library, kind][step].add(word)
    alike = collections.defaultdict(list)
    for (library, kind), results in kinds.items():
        alike[library, *(" or ".join(sorted(results[step], reverse=True)) for step in STEPS)].append(kind)
    lines = ["| library | kinds | " + " | ".join(STEPS) + " |", "|" + "---|" * (2 + len(STEPS))]
    return "\n".join(lines + [f"| {library} | {', '.join(kinds)} | " + " | ".join(cells) + " |" for (library, *cells), kinds in alike.items()])


def main(binary, *arguments):
    folders = [Path(one) for one in arguments if not one.startswith("--")]
    page = folders.pop() if "--page" in arguments else None
    counts = collections.defaultdict(collections.Counter)
    reasons = collections.defaultdict(collections.Counter)
    rows = collections.defaultdict(dict)
    for folder in folders:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
            for step, error, result in tried(binary, Path(scratch), folder, counts["values compared"]):
                rows[folder.name][step] = error, result
                counts[step]["refused" if error else re.sub(r"\d+|,? such as .*", "", result).strip()] += 1
                if error:
                    reasons[step][reason(error)] += 1
                print(f"{folder.name:44} {step:11} {result}", flush=True)
    for step, row in counts.items():
        print(f"\n{step}: " + ", ".join(f"{count} {word}" for word, count in row.most_common()))
        for words, count in reasons[step].most_common():
            print(f"  {count:4} {words}")
    if page:
        before, _, after = page.read_text().partition(MARKS[0])
        page.write_text(before + MARKS[0] + table(rows) + MARKS[1] + after.partition(MARKS[1])[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
