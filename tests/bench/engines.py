"""Times `reshard run` with the default run.io = "auto" beside "posix", "direct" and "uring", in turn: engines.py RESHARD NAME=FOLDER… [--gib 0.5 4.3]

A mixture of experts in Megatron's files, EP 4, becomes EP 2, in each folder: name them after their file systems, such as ext4=/data/work tmpfs=/dev/shm/work.
Nothing is cloned (target.reflink = "never"), except in a folder whose name ends in "+clones". Run by run another engine is the first. "cold" drops the
source's files from the page cache first; a loop device needs `losetup --direct-io=on` for that. "busy" starts a process that spins for each core.

Aim: within 1.05 of the median of the best engine in 95 % of the runs, and never above 1.25. Beside it is how often the best engine keeps to its own median.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter

from against_peers import timed
from peer_sources import make_folder

ENGINES = ("posix", "direct", "uring")
WITHIN, WORST = 1.05, 1.25


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reshard")
    parser.add_argument("places", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--gib", type=float, nargs="+", default=[0.5, 4.3], help='of the source: below and above the 16 GiB from which "auto" tries engines')
    parser.add_argument("--caches", nargs="+", choices=["hot", "cold"], default=["hot", "cold"])
    parser.add_argument("--cores", nargs="+", choices=["idle", "busy"], default=["idle", "busy"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--verify", default="written", help="run.verify")
    parser.add_argument("--keep", action="store_true", help="leave the sources, for a next time")
    return parser.parse_args()


def write_job(path, source, target, *keys):
    with open(path, "w") as file:
        file.write("\n".join([f'source.path = "{source}"', f'target.path = "{target}"', 'target.format = "megatron"', *keys]) + "\n")


def make_source(options, folder, gib):
    """Its tensors begin at whole blocks, so that they can be cloned."""
    source = os.path.join(folder, f"source-{gib:g}")
    if not os.path.exists(source):
        made, job = os.path.join(folder, "huggingface"), os.path.join(folder, "job.toml")
        make_folder(made, "moe", gib, vocabulary=4096)
        write_job(job, made, source, "target.layout.ep = 4", 'target.reflink = "always"')
        subprocess.run([options.reshard, "run", job, "--quiet"], check=True)
        shutil.rmtree(made)
    return source


def files_of(folder):
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def set_cache(source, cache):
    subprocess.run(["sync"], check=True)
    if cache == "hot":
        subprocess.run(["grep", "-rq", "not in it", source])
        return
    for path in files_of(source):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def spinning(processes):
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_case(options, folder, name, source, ranks, cache):
    """Engine -> the seconds of its runs; what auto chose in each of its own; how many cores other work kept busy in each."""
    target, job, log = (os.path.join(folder, each) for each in ("target", "job.toml", "log.txt"))
    write_job(job, source, target, "target.layout.ep = 2", f'run.verify = "{options.verify}"',
              *([] if name.endswith("+clones") else ['target.reflink = "never"']))
    start = ["mpirun", "-n", str(ranks), "--bind-to", "none"] if ranks > 1 else []
    engines = ("auto", *ENGINES)
    seconds, chosen, others = {engine: [] for engine in engines}, [], []
    for number in range(options.rounds):
        for engine in engines[number % len(engines):] + engines[:number % len(engines)]:
            shutil.rmtree(target, ignore_errors=True)
            set_cache(source, cache)
            run = timed([*start, options.reshard, "run", job, "--json", "--set", f"run.io={engine}"], log)
            seconds[engine].append(run["wall"])
            others.append(run["others"])
            if engine == "auto":
                io = run["said"]["run"]["io"]
                chosen.append(io["read"] if io["read"] == io["write"] else f"{io['read']} / {io['write']}")
    shutil.rmtree(target)
    return seconds, chosen, others


def share_within(seconds, median):
    return f"{sum(each <= WITHIN * median for each in seconds) / len(seconds):.0%}"


def line(name, seconds, chosen, others):
    medians = {engine: statistics.median(found) for engine, found in seconds.items()}
    best = min(ENGINES, key=medians.get)
    auto = seconds["auto"]
    worst = max(auto)
    return (f"| {name} | " + " | ".join(f"{medians[engine]:.2f}" for engine in (*ENGINES, "auto")) + f" | {medians['auto'] / medians[best]:.2f} | "
            f"{share_within(auto, medians[best])} | {share_within(seconds[best], medians[best])} | {worst / medians[best]:.2f} "
            f"({chosen[auto.index(worst)]}) | {max(seconds[best]) / medians[best]:.2f} | "
            f"{', '.join(f'{what}: {count}' for what, count in Counter(chosen).items())} | "
            f"{min(others):.1f} to {max(others):.1f} |")


def main():
    options = parse()
    cores = len(os.sched_getaffinity(0))
    print(f"| case | {' s | '.join((*ENGINES, 'auto'))} s | auto / best | auto within {WITHIN} | best within {WITHIN} of itself | auto, worst | best, worst | "
          "auto chose (read / write) | cores busy with other work |\n" + 12 * "|---" + "|", flush=True)
    for name, folder in (place.split("=", 1) for place in options.places):
        os.makedirs(folder, exist_ok=True)
        for gib in options.gib:
            source = make_source(options, folder, gib)
            for load in options.cores:
                for cache in options.caches:
                    for ranks in options.ranks:
                        with spinning(cores if load == "busy" else 0):
                            case = run_case(options, folder, name, source, ranks, cache)
                        print(line(f"{name}, {gib:g} GiB, {cache}, {load} cores, {ranks} rank{'s' * (ranks > 1)}", *case), flush=True)
            if not options.keep:
                shutil.rmtree(source)


if __name__ == "__main__":
    main()
