"""Times `reshard run` against `cp -r && sync` of the same source, in interleaved pairs: against_cp.py RESHARD SOURCE WORK [--pairs 5] [layout words].

Both end with their data on the device. Prints each pair, the median ratio with its range, and the counters of the last run. With --raw RAW_COPY (the
program build/dev/tests/bench/raw_copy) the source is also copied by the same engine and nothing else, and the ratio of the rates to that is printed: 1 is
as fast as bytes can be moved. --without-cp leaves cp out then.
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
    parser.add_argument("--memory", default="128 MiB")
    parser.add_argument("--layout", default="tp = 1, pp = 2, ep = 4", help="of a Megatron target")
    parser.add_argument("--format", default="megatron", help="target.format")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the job, as reshard takes them")
    parser.add_argument("--io", nargs="+", default=["posix"], help="engines of run.io, one run of each beside each cp")
    parser.add_argument("--raw", help="raw_copy, the physical limit")
    parser.add_argument("--threads", type=int, default=0, help="run.threads")
    parser.add_argument("--verify", default="written", help="run.verify")
    parser.add_argument("--without-cp", action="store_true", help="put runs beside raw_copy only")
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


def raw_rate_ratio(options, io, copy, own_seconds, report):
    """The rate of reshard's reading and writing through that of raw_copy's, which reads and writes every byte of the source once."""
    settle(options)
    _, out = timed([options.raw, options.source, copy, io])
    shutil.rmtree(copy)
    raw = json.loads(out)
    own_bytes = report["bytes_read"] + report["bytes_written"]
    ratio = (own_bytes / own_seconds) / (2 * raw["bytes"] / raw["seconds"])
    print(f"  raw_copy {io} {raw['seconds']:.2f} s, {raw['gib_per_second']:.2f} GiB/s; rate of reshard beside it {ratio:.2f}", flush=True)
    return ratio


def main():
    options = parse()
    copy, target, job = (os.path.join(options.work, name) for name in ("copy", "target", "job.toml"))
    os.makedirs(options.work, exist_ok=True)
    with open(job, "w") as file:
        layout = f"layout = {{ {options.layout} }}\n" if options.format == "megatron" else ""
        file.write(f'[source]\npath = "{options.source}"\n[target]\npath = "{target}"\nformat = "{options.format}"\n{layout}'
                   f'[run]\nmemory = "{options.memory}"\nthreads = {options.threads}\nverify = "{options.verify}"\n')
    run = ["mpirun", "-n", str(options.ranks), "--bind-to", "none", options.reshard, "run", job, "--json", *(word for key in options.set for word in ("--set", key))]
    ratios = {io: [] for io in options.io}
    of_raw = {io: [] for io in options.io}
    reports = {}
    for pair in range(options.pairs):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        settle(options)
        cp_seconds = float("nan")
        if not options.without_cp:
            cp_seconds, _ = timed(["bash", "-c", f"cp -r --reflink=never '{options.source}' '{copy}' && sync -f '{copy}'"])
            shutil.rmtree(copy)
        for io in options.io:
            settle(options)
            own_seconds, reports[io] = timed([*run, "--set", f"run.io={io}"])
            shutil.rmtree(target)
            if options.raw:
                of_raw[io].append(raw_rate_ratio(options, io, copy, own_seconds, json.loads(reports[io])["run"]))
            ratios[io].append(own_seconds / cp_seconds)
            print(f"pair {pair + 1}: cp {cp_seconds:.2f} s, reshard {io} {own_seconds:.2f} s, ratio {ratios[io][-1]:.2f}", flush=True)
    for io, own in ratios.items():
        print(f"{io}: median ratio {statistics.median(own):.2f}, range {min(own):.2f} to {max(own):.2f}")
        if options.raw:
            print(f"{io}: rate beside raw_copy, median {statistics.median(of_raw[io]):.2f}, range {min(of_raw[io]):.2f} to {max(of_raw[io]):.2f}")
        print(json.dumps(json.loads(reports[io])["run"], indent=2))


main()
