"""What a job asks of a file system's metadata server, and what that costs: metadata.py RESHARD SHIM [--files 1024] [--ranks 1 2 4 16] [--cases flat folders]
[--delay-us 1000] [--run verify=streamed …]. SHIM is tests/support/metadata_shim.cpp, built: libmetadata_shim.so.

Cases: `flat`, a Hugging Face folder of so many small files becomes another one; `folders`, a Megatron checkpoint TP2 becomes one of TP4, each file in a
folder of its own on both sides. Prints, for each number of ranks, the calls for each file of the source and of the target, and those that the busiest
rank made in all; then the seconds of the job without and with the delay before each call (interleaved), beside files × delay / ranks.
"""

import argparse
import collections
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = ("create", "open", "open-folder", "stat", "statfs", "fstat", "mkdir", "name", "remove", "truncate", "fsync", "times")
ON_DESCRIPTOR = ("fstat",)  # no server is asked
HIDDEN, HEADS = 32, 4


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard")
    parser.add_argument("shim")
    parser.add_argument("--files", type=int, default=1024)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--cases", nargs="+", default=["flat", "folders"])
    parser.add_argument("--delay-us", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3, help="of runs without and with the delay; 0: only counts")
    parser.add_argument("--run", nargs="*", default=[], help="settings of [run], such as verify=streamed")
    parser.add_argument("--show", help="prints the calls on paths that contain this")
    return parser.parse_args()


def model(layers):
    """The config and the shapes of a Llama."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": layers,
              "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "intermediate_size": HIDDEN, "vocab_size": 128,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}
    tensors = {"model.embed_tokens.weight": (128, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (128, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {at + f"{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")}
        tensors |= {at + f"self_attn.{matrix}_proj.weight": (HIDDEN, HIDDEN) for matrix in "qkvo"}
        tensors |= {at + f"mlp.{matrix}_proj.weight": (HIDDEN, HIDDEN) for matrix in ("gate", "up", "down")}
    return config, tensors


def make_huggingface(folder, layers, files):
    """Of about so many files, each with neighbouring tensors; two bytes an element, random numbers from 0.5 to 2."""
    config, tensors = model(layers)
    per_file = -(-len(tensors) // files)
    names = list(tensors)
    groups = [names[i:i + per_file] for i in range(0, len(names), per_file)]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weight_map, total = {}, 0
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        header, data = {}, b""
        for place, name in enumerate(group):
            size = 2 * tensors[name][0] * (tensors[name] + (1,))[1]
            header[name] = {"dtype": "BF16", "shape": tensors[name], "data_offsets": [len(data), len(data) + size]}
            values = bytearray(b"\0\x3f" * (size // 2))
            values[::2] = random.Random(number * per_file + place).randbytes(size // 2)
            data += values
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
        total += len(data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


class Bench:
    def __init__(self, reshard, shim, work, settings=()):
        self.reshard, self.shim, self.work = os.path.abspath(reshard), os.path.abspath(shim), work
        self.settings = "".join(f'{key} = "{value}"\n' for key, value in (word.split("=") for word in settings))
        self.jobs = 0

    def prepare(self, case, files):
        """The words of [source] and [target] of a case, and the folder of its source."""
        if case == "flat":
            source = self.work / "flat"
            if not source.exists():
                make_huggingface(source, max(1, (files - 3) // 9), files)
            return source, 'format = "huggingface"\nshard_bytes = "1 KB"\n'
        source = self.work / "folders"
        if not source.exists():
            make_huggingface(self.work / "model", files // 2, 16)
            done = self.run(self.work / "model", f'format = "megatron"\nlayout = {{ tp = 2, pp = {files // 2} }}\n', source, 1)
            shutil.rmtree(self.work / "model")
            assert done is not None
        return source, f'format = "megatron"\nlayout = {{ tp = 4, pp = {files // 4} }}\n'

    def run(self, source, words, target, ranks, shim=()):
        """Its seconds."""
        self.jobs += 1
        job = self.work / f"job{self.jobs}.toml"
        job.write_text(f'[source]\npath = "{source}"\n[target]\npath = "{target}"\n{words}[run]\nmemory = "32 MiB"\n{self.settings}')
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 or shim else []
        environment = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMP_NUM_THREADS": "1",
                                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        start = time.monotonic()
        done = subprocess.run([*command, *shim, self.reshard, "run", job], capture_output=True, text=True, env=environment, cwd=self.work)
        seconds = time.monotonic() - start
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, [*command, *shim, self.reshard, 'run', job]))} ended with {done.returncode}\n{done.stderr[-2000:]}")
        return seconds

    def measure(self, case, files, ranks, delay_us):
        """Seconds of the job; of the rank that waited longest, those in which a call was held up; what each rank called: (class, call, path) to count."""
        source, words = self.prepare(case, files)
        target, logs = self.work / "out" / "target", self.work / "logs"
        shutil.rmtree(target.parent, ignore_errors=True)
        for folder in (target.parent, logs):
            folder.mkdir()
        shim = ["env", f"LD_PRELOAD={self.shim}", f"RESHARD_METADATA_FOLDERS=source={source}:target={target.parent}", f"RESHARD_METADATA_LOG={logs}",
                f"RESHARD_METADATA_DELAY_US={delay_us}"]
        seconds = self.run(source, words, target, ranks, shim)
        counts, waited = [], 0
        for log in logs.iterdir():
            counts.append(collections.Counter())
            first, *lines = log.read_text().splitlines()
            waited = max(waited, int(first.split()[1]) / 1e6)
            for line in lines:
                kind, call, count, path = line.split(" ", 3)
                counts[-1][kind, call, path] += int(count)
        shutil.rmtree(logs)
        return seconds, waited, counts


def per_file(counts, kind, files):
    """The calls of all ranks on a class, each by the number of files."""
    sums = collections.Counter()
    for one in counts:
        for (of, call, _), count in one.items():
            if of == kind:
                sums[call] += count
    return {call: sums[call] / files for call in CALLS}


def busiest(counts):
    """Of the calls that ask a server."""
    return max(sum(count for (_, call, _), count in one.items() if call not in ON_DESCRIPTOR) for one in counts)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="metadata-") as folder:
        bench = Bench(options.reshard, options.shim, Path(folder), options.run)
        print(f"{options.files} files on each side; calls for each file\n{'case':>8} {'ranks':>5} {'of':>7} " +
              " ".join(f"{call:>11}" for call in CALLS) + "  busiest rank")
        for case in options.cases:
            for ranks in options.ranks:
                _, _, counts = bench.measure(case, options.files, ranks, 0)
                for kind in ("source", "target"):
                    print(f"{case:>8} {ranks:>5} {kind:>7} " + " ".join(f"{of:>11.3f}" for of in per_file(counts, kind, options.files).values()) +
                          f"  {busiest(counts)}", flush=True)
                for rank, one in enumerate(counts if options.show else ()):
                    for (kind, call, path), count in sorted(one.items()):
                        if options.show in path:
                            print(f"  rank {rank}: {count} {kind} {call} {path}")
        if options.pairs == 0:
            return
        print(f"\nseconds of the job without and with {options.delay_us} us before each call; of its rank that waited longest, those in which a call was "
              f"held up\n(medians, and the range of {options.pairs} pairs)\n"
              f"{'case':>8} {'ranks':>5} {'without':>8} {'with':>8} {'difference':>20} {'waited':>20} {'files x delay / ranks':>22}")
        for case in options.cases:
            for ranks in options.ranks:
                fast, slow, waits = [], [], []
                for _ in range(options.pairs):
                    fast.append(bench.measure(case, options.files, ranks, 0)[0])
                    seconds, waited, _ = bench.measure(case, options.files, ranks, options.delay_us)
                    slow.append(seconds)
                    waits.append(waited)
                print(f"{case:>8} {ranks:>5} {statistics.median(fast):>8.2f} {statistics.median(slow):>8.2f} "
                      f"{spread([s - f for f, s in zip(fast, slow)]):>20} {spread(waits):>20} {options.files * options.delay_us / 1e6 / ranks:>22.3f}",
                      flush=True)


if __name__ == "__main__":
    main()
