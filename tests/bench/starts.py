#!/usr/bin/env python3
"""Starts each command that reads, without a launcher, many times and many at a time, and counts exit codes other than 0. Standard library only.

    python3 tests/bench/starts.py build/quick/pipeline/reshard [--starts 1000] [--at-a-time 8] [--module packaging/python]

Run it inside a step of Slurm too: srun -n 1 --mpi=none|pmix|pmi2 python3 tests/bench/starts.py …
"""

import argparse
import itertools
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAPS = Path(__file__).resolve().parents[2] / "configs" / "models"


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "float32",
}
SHAPES = {
    "model.embed_tokens": [16, 8], "model.norm": [8], "lm_head": [16, 8], "model.layers.0.input_layernorm": [8],
    "model.layers.0.post_attention_layernorm": [8], "model.layers.0.mlp.gate_proj": [12, 8], "model.layers.0.mlp.up_proj": [12, 8],
    "model.layers.0.mlp.down_proj": [8, 12], **{f"model.layers.0.self_attn.{name}_proj": [8, 8] for name in "qkvo"},
}


def make_source(folder):
    """A Hugging Face folder of a very small model."""
    folder.mkdir()
    header, end = {}, 0
    for name, shape in sorted(SHAPES.items()):
        begin, end = end, end + 4 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = struct.pack(f"<{end // 4}f", *(1 + i / 1000 for i in range(end // 4)))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def commands_in(place):
    """By name, the words of each command; OUT stands for a file that is not there yet."""
    source, target, job = (str(place / name) for name in ("source", "target", "job.toml"))
    return {
        "inspect": ["inspect", source], "ls": ["ls", source], "plan": ["plan", job], "digest": ["digest", source], "verify A B": ["verify", source, target],
        "verify A": ["verify", target], "diff": ["diff", source, target], "extract": ["extract", source, "embed*", "-o", "OUT.safetensors"],
        "suspects": ["suspects", source], "check-map": ["check-map", str(MAPS / "llama.toml")], "view": ["view", source, "-o", "OUT.html"],
        "init": ["init", source, "-o", "OUT.toml"],
    }


def started(program, words, out):
    run = subprocess.run([program, *(word.replace("OUT", str(out)) for word in words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         stdin=subprocess.DEVNULL)
    return run.returncode, run.stderr


def called(function, path):
    try:
        function(path)
    except Exception as error:  # whatever it is, it is counted
        return 1, repr(error)
    return 0, ""


def count(name, starts, at_a_time, one):
    """Prints a line and gives the number of failures."""
    with ThreadPoolExecutor(at_a_time) as pool:
        ends = list(pool.map(one, range(starts)))
    failed = [end for end in ends if end[0] != 0]
    print(f"{name:<16} {starts:>6} starts, {at_a_time} at a time: {len(failed)} failed", flush=True)
    for code, text in itertools.islice(failed, 2):
        print(f"    exit code {code}: {text.strip()[:600]}")
    return len(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--module", help="the folder of the Python module: it is called in threads as well")
    parser.add_argument("--only", nargs="*", help="names of commands")
    options = parser.parse_args()
    program = str(Path(options.program).resolve())
    os.environ.setdefault("RESHARD_MAPS", str(MAPS))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="reshard-starts-") as scratch:
        place = Path(scratch)
        make_source(place / "source")
        (place / "job.toml").write_text(
            f'[source]\npath = "{place}/source"\n[target]\npath = "{place}/target"\nformat = "huggingface"\n')
        subprocess.run([program, "run", str(place / "job.toml"), "--quiet"], check=True, stderr=subprocess.DEVNULL)
        (place / "job.toml").write_text((place / "job.toml").read_text().replace("/target", "/other"))
        for name, words in commands_in(place).items():
            if options.only and name not in options.only:
                continue
            made = place / words[0]  # a folder of its own: what is extracted makes it a checkpoint
            made.mkdir(exist_ok=True)
            failed += count(name, options.starts, options.at_a_time, lambda i: started(program, words, made / str(i)))
        if options.module:
            os.environ["RESHARD_BIN"] = program
            sys.path.insert(0, options.module)
            import reshard  # noqa: PLC0415 - the module under test

            for name in ("inspect", "digest", "verify"):
                path = str(place / "target")
                failed += count(f"module: {name}", options.starts, options.at_a_time, lambda i: called(getattr(reshard, name), path))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
