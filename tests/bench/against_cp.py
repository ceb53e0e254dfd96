"""Times `reshard run` against `cp -r && sync` of the same source, in interleaved pairs: against_cp.py RESHARD SOURCE WORK [--pairs 5] [layout words].

Both end with their data on the device. Prints each pair, the median ratio with its range, and the counters of the last run.
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
    parser.add_argument("source")
    parser.add_argument("work")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--memory", default="512 MiB")
    parser.add_argument("--layout", default="tp = 1, pp = 2, ep = 4")
    parser.add_argument("--io", nargs="+", default=["posix"], help="engines of run.io, one run of each beside each cp")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run (root)")
    return parser.parse_args()


def settle(options):
    subprocess.run(["sync"], check=True)
    if options.cold:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")


def timed(command):
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}\n{done.stderr}")
    return time.monotonic() - begin, done.stdout


def main():
    options = parse()
    copy, target, job = (os.path.join(options.work, name) for name in ("copy", "target", "job.toml"))
    os.makedirs(options.work, exist_ok=True)
    with open(job, "w") as file:
        file.write(f'[source]\npath = "{options.source}"\n[target]\npath = "{target}"\nformat = "megatron"\nlayout = {{ {options.layout} }}\n'
                   f'[run]\nmemory = "{options.memory}"\n')
    run = ["mpirun", "-n", str(options.ranks), "--bind-to", "none", options.reshard, "run", job, "--json"]
    ratios = {io: [] for io in options.io}
    reports = {}
    for pair in range(options.pairs):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        settle(options)
        cp_seconds, _ = timed(["bash", "-c", f"cp -r --reflink=never '{options.source}' '{copy}' && sync -f '{copy}'"])
        shutil.rmtree(copy)
        for io in options.io:
            settle(options)
            own_seconds, reports[io] = timed([*run, "--set", f"run.io={io}"])
            shutil.rmtree(target)
            ratios[io].append(own_seconds / cp_seconds)
            print(f"pair {pair + 1}: cp {cp_seconds:.2f} s, reshard {io} {own_seconds:.2f} s, ratio {ratios[io][-1]:.2f}", flush=True)
    for io, own in ratios.items():
        print(f"{io}: median ratio {statistics.median(own):.2f}, range {min(own):.2f} to {max(own):.2f}")
        print(json.dumps(json.loads(reports[io])["run"], indent=2))


main()
