"""python quantised_matrix.py BINARY FOLDER...: what becomes of folders that quantisers have written.

Each is copied under its stored names (Hugging Face to Hugging Face), goes through Megatron with tensor parallelism 2 and back, and is dequantised. A row
for each folder says: the same files' tensors, what differs, or the first words of the refusal; then come the counts of each, refusals by their words.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROUTED = ("num_experts", "n_routed_experts", "num_local_experts")


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
    return f"{len(away)} of {len(before)} tensors differ" if away else "the same"


def tried(binary, scratch, folder):
    config = json.loads((folder / "config.json").read_text())
    routed = any((config.get("text_config", config).get(key) or 0) > 1 for key in ROUTED)
    layout = ["target.layout.tp = 2"] + (["target.layout.ep = 2"] if routed else [])
    error = run(binary, scratch, folder, scratch / "copy", "huggingface")
    yield "names kept", error, error or compared(folder, scratch / "copy")
    error = run(binary, scratch, folder, scratch / "megatron", "megatron", *layout)
    error = error or run(binary, scratch, scratch / "megatron", scratch / "back", "huggingface", f'target.reference = "{folder}"')
    yield "Megatron", error, error or compared(folder, scratch / "back")
    error = run(binary, scratch, folder, scratch / "values", "huggingface", 'model.quant = "dequantise-bf16"')
    yield "dequantised", error, error or "made"


def main(binary, *folders):
    counts = collections.defaultdict(collections.Counter)
    reasons = collections.defaultdict(collections.Counter)
    for folder in map(Path, folders):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
            for step, error, result in tried(binary, Path(scratch), folder):
                counts[step]["refused" if error else result if result in ("the same", "made") else "differs"] += 1
                if error:
                    reasons[step][reason(error)] += 1
                print(f"{folder.name:44} {step:11} {result[:200]}", flush=True)
    for step, row in counts.items():
        print(f"\n{step}: " + ", ".join(f"{count} {word}" for word, count in row.most_common()))
        for words, count in reasons[step].most_common():
            print(f"  {count:4} {words}")


if __name__ == "__main__":
    main(*sys.argv[1:])
