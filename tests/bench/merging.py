"""Times what merging an adapter, or averaging checkpoints, costs while they are converted: merging.py RESHARD WORK [--gib 2] [--rank 16 64] [--average 4].

A Hugging Face folder of BF16 weights in the page cache becomes another one, streamed (not read back), in one process. In turn, so that all suffer the same from
other programs: as it is with 1 and 2 threads, merged with an adapter of each rank on all linear layers with 1 and 2 threads, the mean of so many such folders
with 1 and 2 threads, and `cp -r` of one folder with `sync`. Targets go to WORK, or with --target to another file system: /dev/shm leaves the disk out.
Prints for each the median and range of wall seconds, CPU seconds, bytes of the target per second, the peak of memory, seconds that each stage was busy, the CPU
seconds of the three busiest threads (no run is faster than the first, nor than all by the cores), cores that others kept busy, and the ratio of 1 thread to 2
round by round.
"""

import argparse
import glob
import json
import os
import random
import shutil
import statistics
import threading

from against_peers import timed
from peer_sources import layer_shapes, make_folder, write_file, write_json

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reshard")
    parser.add_argument("work")
    parser.add_argument("--target", help="the folder of the targets")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rank", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--average", type=int, default=0, help="the mean of so many folders")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the sources, for a next time")
    return parser.parse_args()


def make_adapter(folder, source, rank):
    if os.path.exists(folder):
        return
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    made = f"{folder}.new"
    shutil.rmtree(made, ignore_errors=True)
    os.makedirs(made)
    shapes = {}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in layer_shapes(config).items():
            if name.endswith(LINEAR):
                prefix = f"base_model.model.model.layers.{layer}.{name}.lora_"
                shapes |= {f"{prefix}A.weight": [rank, shape[1]], f"{prefix}B.weight": [shape[0], rank]}
    write_file(os.path.join(made, "adapter_model.safetensors"), shapes, random.Random(rank))
    write_json(made, "adapter_config.json", {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(LINEAR), "bias": "none", "lora_dropout": 0.0,
        "base_model_name_or_path": source})
    os.rename(made, folder)


def jobs_of(options, sources, adapters):
    jobs = {"as it is": []}
    for rank, adapter in adapters.items():
        jobs[f"rank {rank}"] = [f'source.adapter = "{adapter}"', 'model.adapter = "merge"']
    if len(sources) > 1:
        jobs[f"mean of {len(sources)}"] = [f"source.average = {json.dumps(sources[1:])}"]
    return {(name, threads): [*keys, f"run.threads = {threads}"] for name, keys in jobs.items() for threads in options.threads}


def run(options, source, target, keys):
    job, log = (os.path.join(options.work, name) for name in ("job.toml", "log.txt"))
    shutil.rmtree(target, ignore_errors=True)
    with open(job, "w") as file:
        file.write("\n".join([
            f'source.path = "{source}"', f'target.path = "{target}"', 'target.format = "huggingface"', 'run.verify = "streamed"', *keys]) + "\n")
    threads = Threads(options.reshard)
    threads.start()
    result = timed([options.reshard, "run", job, "--json"], log)
    threads.done.set()
    threads.join()
    return result | {"threads": sorted(threads.seconds.values(), reverse=True)[:3]}


class Threads(threading.Thread):
    """CPU seconds of each thread of a program that this process starts."""

    def __init__(self, program):
        super().__init__(daemon=True)
        self.program, self.seconds, self.done = os.path.realpath(program), {}, threading.Event()

    def run(self):
        while not self.done.wait(0.01):
            for path in glob.glob(f"/proc/{os.getpid()}/task/*/children"):
                try:
                    with open(path) as file:
                        children = file.read().split()
                    for child in children:
                        if os.path.realpath(f"/proc/{child}/exe") == self.program:
                            self.look(child)
                except OSError:
                    pass

    def look(self, process):
        for path in glob.glob(f"/proc/{process}/task/*/schedstat"):
            with open(path) as file:
                self.seconds[path] = int(file.read().split()[0]) / 1e9


def copied(options, source, target):
    shutil.rmtree(target, ignore_errors=True)
    return timed(["sh", "-c", 'cp -r "$0" "$1" && sync', source, target], os.path.join(options.work, "log.txt"))


def size_of(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def median(values):
    return f"{statistics.median(values):.2f}"


def line(name, runs, source_bytes):
    walls, others = ([one[key] for one in runs] for key in ("wall", "others"))
    said = [{stage["stage"]: stage["busy_seconds"] for stage in one["said"]["run"]["stages"]} for one in runs if "threads" in one]
    stages = ", ".join(f"{stage} {median(one[stage] for one in said)}" for stage in (said[0] if said else {}))
    threads = ", ".join(median(of) for of in zip(*(one.get("threads", []) for one in runs), strict=True))
    return (f"| {name} | {median(walls)} ({min(walls):.2f} to {max(walls):.2f}) | {median(one['cpu'] for one in runs)} | "
            f"{source_bytes / statistics.median(walls) / 1e9:.2f} | {max(one['largest'] for one in runs) >> 20} | {stages} | {threads} | "
            f"{min(others):.1f} to {max(others):.1f} |")


def main():
    options = parse()
    os.makedirs(options.work, exist_ok=True)
    sources = [os.path.join(options.work, f"source-{options.gib:g}{f'-{number}' if number else ''}") for number in range(max(options.average, 1))]
    make_folder(sources[0], "dense", options.gib)
    for other in sources[1:]:
        if not os.path.exists(other):
            shutil.copytree(sources[0], other)
    adapters = {rank: os.path.join(options.work, f"adapter-{options.gib:g}-{rank}") for rank in options.rank}
    for rank, adapter in adapters.items():
        make_adapter(adapter, sources[0], rank)
    target = os.path.join(options.target or options.work, "target")
    jobs, runs = jobs_of(options, sources, adapters), {}
    for number in range(options.rounds):
        names = list(jobs)
        for job in names[number % len(names):] + names[:number % len(names)]:
            runs.setdefault(job, []).append(run(options, sources[0], target, jobs[job]))
        runs.setdefault("cp", []).append(copied(options, sources[0], target))
    shutil.rmtree(target)
    print("| job | wall s | CPU s | GB/s | peak MiB | seconds of the stages | CPU of threads | other cores busy |\n|---|---|---|---|---|---|---|---|")
    bytes_of_source = size_of(sources[0])
    for (name, threads) in jobs:
        print(line(f"{name}, {threads} thread{'s' * (threads > 1)}", runs[name, threads], bytes_of_source))
    print(line("`cp -r`, `sync`", runs["cp"], bytes_of_source))
    first, *more = options.threads
    for name in dict.fromkeys(name for name, _ in jobs):
        for threads in more:
            ratios = [one["wall"] / other["wall"] for one, other in zip(runs[name, first], runs[name, threads], strict=True)]
            print(f"{name}: {first} thread takes {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times as long as {threads}")
    if not options.keep:
        for folder in (*sources, *adapters.values()):
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
