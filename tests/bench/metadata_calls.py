"""Counts what a job asks of a file system's metadata server: metadata_calls.py RESHARD [--files 1024] [--ranks 1 4 16] [--run device=host …].

A Hugging Face folder of so many small files becomes another one of so many; each rank runs below `strace -f -c`. Prints a table: of all ranks, and of
the busiest one, how often they opened, looked at, read and synced files; calls on /proc, /sys and libraries included, which the row "nothing" shows
for a run that only says its version.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

GROUPS = {
    "open": ("open", "openat", "openat2", "creat"),
    "stat": ("stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"),
    "list": ("getdents", "getdents64"),
    "read": ("read", "pread64", "readv", "preadv", "preadv2"),
    "write": ("write", "pwrite64", "writev", "pwritev", "pwritev2"),
    "fsync": ("fsync", "fdatasync", "sync_file_range"),
    "name": ("rename", "renameat", "renameat2", "mkdir", "mkdirat", "unlink", "unlinkat", "rmdir"),
}
HIDDEN = 64


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard")
    parser.add_argument("--files", type=int, default=1024)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--run", nargs="*", default=[], help="settings of [run], such as transport=mpi")
    return parser.parse_args()


def make_source(folder, files):
    """A Llama of one file per tensor, about: two bytes an element, all zero but for the place."""
    layers = max(1, (files - 3) // 9)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": layers,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 2 * HIDDEN, "vocab_size": 128,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}
    tensors = {"model.embed_tokens.weight": (128, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (128, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,),
                    at + "self_attn.q_proj.weight": (HIDDEN, HIDDEN), at + "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
                    at + "self_attn.k_proj.weight": (32, HIDDEN), at + "self_attn.v_proj.weight": (32, HIDDEN),
                    at + "mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN), at + "mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
                    at + "mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weight_map, total = {}, 0
    for number, (name, shape) in enumerate(tensors.items(), 1):
        file = f"model-{number:05}-of-{len(tensors):05}.safetensors"
        size = 2
        for dim in shape:
            size *= dim
        header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
        header += b" " * (-len(header) % 8)
        (folder / file).write_bytes(struct.pack("<Q", len(header)) + header + number.to_bytes(2, "little") * (size // 2))
        weight_map[name] = file
        total += size
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return len(tensors)


def counts_of(log):
    """Calls by name of one `strace -c` table: the columns are time, seconds, usecs/call, calls, perhaps errors, name."""
    counts = {}
    for line in log.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch(r"[\d.]+", words[0]) and words[3].isdigit() and words[-1] != "total":
            counts[words[-1]] = int(words[3])
    return {group: sum(counts.get(name, 0) for name in names) for group, names in GROUPS.items()}


def measured(options, work, ranks, words):
    """What each rank has called."""
    logs = work / f"logs{ranks}"
    logs.mkdir()
    each = f'exec strace -f -c -o {logs}/$OMPI_COMM_WORLD_RANK {os.path.abspath(options.reshard)} "$@"'
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "sh", "-c", each, "sh", *map(str, words)]
    environment = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=work)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr[-2000:]}")
    found = [counts_of(log) for log in sorted(logs.iterdir())]
    for log in logs.iterdir():
        log.unlink()
    logs.rmdir()
    return found


def print_row(label, which, counts):
    print(f"{label:>10} {which:>8} " + " ".join(f"{counts[group]:>9}" for group in GROUPS), flush=True)


def report(label, found):
    print_row(label, "all", {group: sum(one[group] for one in found) for group in GROUPS})
    print_row("", "busiest", {group: max(one[group] for one in found) for group in GROUPS})


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="metadata-calls-") as folder:
        work = Path(folder)
        files = make_source(work / "source", options.files)
        settings = "".join(f'{key} = "{value}"\n' for key, value in (word.split("=") for word in options.run))
        print(f"{files} source files, about as many target files; calls of\n{'ranks':>10} {'':>8} " + " ".join(f"{group:>9}" for group in GROUPS))
        report("nothing", measured(options, work, 1, ["--version"]))
        for ranks in options.ranks:
            target = work / f"target{ranks}"
            job = work / f"job{ranks}.toml"
            job.write_text(f'[source]\npath = "{work}/source"\n[target]\npath = "{target}"\nformat = "huggingface"\nshard_bytes = "1 KB"\n'
                           f'[run]\nmemory = "64 MiB"\n{settings}')
            report(ranks, measured(options, work, ranks, ["run", job]))


if __name__ == "__main__":
    main()
