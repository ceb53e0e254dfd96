"""Times a night that takes over what is unchanged (target.incremental_from) against one that writes everything, in interleaved pairs: nights.py RESHARD WORK [--pairs 5].

The source is a Hugging Face folder of random BF16 tensors in files of 64 MiB, of two days between which a share of the tensors has changed. Prints each pair, the median
ratio with its range, and the counters of the last run. WORK on XFS or Btrfs shows clones, on other file systems hard links. --source may be a folder on
another file system. With --recorded the days are targets of reshard, which have recorded their tensors.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard")
    parser.add_argument("work")
    parser.add_argument("--source", help="where the two days are kept; by default in WORK")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--changed", type=float, default=0.03, help="share of the bytes, in neighbouring tensors")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--recorded", action="store_true", help="the source has a fresh record of its tensors")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run (root)")
    return parser.parse_args()


def make_days(folder, options):
    import torch
    from safetensors.torch import save_file

    rows, width = 4096, 2048  # 16 MiB
    count = round(options.gib * 64)
    changed = range(count // 2, count // 2 + max(1, round(options.changed * count)))
    for day in (1, 2):
        place = os.path.join(folder, f"day{day}")
        if os.path.exists(place):
            continue
        os.makedirs(place)
        index = {}
        for first in range(0, count, 4):
            name = f"model-{first // 4 + 1:05}-of-{-(-count // 4):05}.safetensors"
            tensors = {f"layers.{i:04}.weight": torch.randint(-32768, 32767, (rows, width), dtype=torch.int16, generator=torch.Generator().manual_seed(
                i + (10000 if day == 2 and i in changed else 0))).view(torch.bfloat16) for i in range(first, min(first + 4, count))}
            save_file(tensors, os.path.join(place, name), metadata={"format": "pt"})
            index |= dict.fromkeys(tensors, name)
        with open(os.path.join(place, "model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": count * rows * width * 2}, "weight_map": index}, file)
    return [os.path.join(folder, f"day{day}") for day in (1, 2)]


def settle(options):
    subprocess.run(["sync"], check=True)
    if options.cold:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")


def convert(options, source, target, since):
    job = os.path.join(options.work, "job.toml")
    with open(job, "w") as file:
        file.write(f'[source]\npath = "{source}"\n[target]\npath = "{target}"\nformat = "huggingface"\n'
                   f'incremental_from = "{since}"\nincremental_links = true\n[model]\nmap = "none"\n')
    shutil.rmtree(target, ignore_errors=True)
    settle(options)
    begin = time.monotonic()
    done = subprocess.run(["mpirun", "-n", str(options.ranks), "--bind-to", "none", options.reshard, "run", job, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.returncode}\n{done.stderr}")
    return time.monotonic() - begin, json.loads(done.stdout)


def main():
    options = parse()
    os.makedirs(options.work, exist_ok=True)
    first, second = make_days(options.source or options.work, options)
    if options.recorded:
        for name, day in (("recorded1", first), ("recorded2", second)):
            convert(options, day, os.path.join(options.work, name), "none")
        first, second = (os.path.join(options.work, name) for name in ("recorded1", "recorded2"))
    yesterday, today = (os.path.join(options.work, name) for name in ("yesterday", "today"))
    convert(options, first, yesterday, "none")
    ratios, own, report = [], [], {}
    for pair in range(options.pairs):
        full, complete = convert(options, second, today, "none")
        night, report = convert(options, second, today, yesterday)
        ratios.append(night / full)
        own.append(report["run"]["seconds"]["total"] / complete["run"]["seconds"]["total"])
        print(f"pair {pair + 1}: complete {full:.2f} s, since {night:.2f} s, ratio {ratios[-1]:.2f}, without the start of MPI {own[-1]:.2f}", flush=True)
    for name, found in (("ratio", ratios), ("without the start of MPI", own)):
        print(f"{name}: median {statistics.median(found):.2f}, range {min(found):.2f} to {max(found):.2f}")
    print(json.dumps(report["run"], indent=2))


main()
