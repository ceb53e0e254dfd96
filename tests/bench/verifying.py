"""Times what reading the target back costs, and what SHA256SUMS adds: verifying.py RESHARD WORK [--gib 2]. In turn, on one source in the page cache:

    written          the default: read back, compared, with a SHA256SUMS
    written-no-sums  target.sha256sums = "never"
    streamed         run.verify = "streamed": not read back

each with the processor's SHA instructions and without (OPENSSL_ia32cap), with a DCP target of one file and of eight. Prints for each the medians of wall and CPU
seconds, the ratio of wall to `streamed` round by round, and where the time of the run goes: stream reads and writes, verify reads back, commit syncs.
"""

import argparse
import os
import shutil
import statistics
import subprocess

from against_peers import timed
from peer_sources import make_folder

KEYS = {"streamed": ['run.verify = "streamed"'], "written-no-sums": ['target.sha256sums = "never"'], "written": []}
TARGETS = {f"{files} file{'s' * (files > 1)}": ['target.format = "dcp"', 'target.chunks = "ranks"', f"target.ranks = {files}"] for files in (1, 8)}
WITHOUT_SHA = ":~0x20000000"  # bit 29 of EBX of CPUID's leaf 7, of which OPENSSL_ia32cap has the bits behind its colon
PHASES = ("headers", "plan", "copy", "verify", "publish", "total")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reshard")
    parser.add_argument("work")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--keep", action="store_true", help="leave the source, for a next time")
    return parser.parse_args()


def rounds_of(options, words, sha):
    source, target, job, log = (os.path.join(options.work, name) for name in ("source", "target", "job.toml", "log.txt"))
    runs = {name: [] for name in KEYS}
    for number in range(options.rounds):
        for name in list(KEYS)[number % len(KEYS):] + list(KEYS)[:number % len(KEYS)]:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["grep", "-rq", "not in it", source])
            with open(job, "w") as file:
                file.write("\n".join([f'source.path = "{source}"', f'target.path = "{target}"', *words, *KEYS[name]]) + "\n")
            environment = [] if sha else ["env", f"OPENSSL_ia32cap={WITHOUT_SHA}"]
            runs[name].append(timed([*environment, options.reshard, "run", job, "--json"], log))
    shutil.rmtree(target)
    return runs


def line(what, name, runs):
    ratios = [run["wall"] / other["wall"] for run, other in zip(runs[name], runs["streamed"], strict=True)]
    seconds = {phase: statistics.median(run["said"]["run"]["seconds"][phase] for run in runs[name]) for phase in PHASES}
    early = statistics.median(run["said"]["run"]["bytes_verified_early"] / max(run["said"]["run"]["bytes_verified"], 1) for run in runs[name])
    others = [run["others"] for run in runs[name]]
    wall, cpu = (statistics.median(run[key] for run in runs[name]) for key in ("wall", "cpu"))
    return (f"| {what} | {name} | {wall:.2f} | {cpu:.2f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | "
            + " | ".join(f"{seconds[phase]:.2f}" for phase in PHASES) + f" | {early:.0%} | {min(others):.1f} to {max(others):.1f} |")


def main():
    options = parse()
    os.makedirs(options.work, exist_ok=True)
    make_folder(os.path.join(options.work, "source"), "dense", options.gib)
    print(f"| target | run | wall s | CPU s | wall / streamed | {' s | '.join(PHASES)} s | read back early | cores busy with other work |")
    print(13 * "|---" + "|", flush=True)
    for target in options.targets:
        for sha in (True, False):
            runs = rounds_of(options, TARGETS[target], sha)
            for name in KEYS:
                print(line(f"{target}, {'with' if sha else 'without'} SHA instructions", name, runs), flush=True)
    if not options.keep:
        shutil.rmtree(options.work)


if __name__ == "__main__":
    main()
