"""Times jobs in which ranks do cells of slower ones (run.work_stealing) against the same jobs without, in interleaved pairs:
work_stealing.py RESHARD SHIM SOURCE WORK [--rates 200 100] [--pairs 5] [layout words].

SHIM is tests/support/delay_shim.cpp, built: libdelay_shim.so. `--rates` are MiB that each rank may write in a second, as a node does whose path to the
file system is slower than those of others; without them no rank is slowed. Prints each pair, the median ratio with its range, and what was handed out.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard")
    parser.add_argument("shim")
    parser.add_argument("source")
    parser.add_argument("work", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--ranks", type=int, default=2, help="without --rates")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--layout", default="tp = 1, pp = 2, ep = 4", help="of a Megatron target")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the job, as reshard takes them")
    return parser.parse_args()


def convert(options, hand_out):
    """Its seconds while bytes stream and in all, and the report."""
    target, job = options.work / "target", options.work / "job.toml"
    shutil.rmtree(target, ignore_errors=True)
    job.write_text(f'[source]\npath = "{options.source}"\n[target]\npath = "{target}"\nformat = "megatron"\nlayout = {{ {options.layout} }}\n'
                   f'[run]\nwork_stealing = "{hand_out}"\n')
    subprocess.run(["sync"], check=True)
    shim = ["env", f"LD_PRELOAD={options.shim}", "RESHARD_DELAY_PATH=.part-", f"RESHARD_DELAY_FILE={options.work}/delay%r"] if options.rates else []
    sets = [word for setting in options.set for word in ("--set", setting)]
    command = ["mpirun", "-n", str(len(options.rates) or options.ranks), "--bind-to", "none", *shim, options.reshard, "run", job, *sets, "--json"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMPI_MCA_pml": "ob1"})
    if done.returncode != 0:
        raise SystemExit(f"{done.returncode}\n{done.stderr}")
    run = json.loads(done.stdout)["run"]
    return run["seconds"]["copy"], time.monotonic() - begin, run


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    for rank, rate in enumerate(options.rates):
        (options.work / f"delay{rank}").write_text(f"0 {rate}\n")
    ratios = {"stream": [], "all": []}
    for pair in range(options.pairs):
        found = {}
        for choice in ("auto", "never") if pair % 2 == 0 else ("never", "auto"):
            found[choice] = convert(options, choice)
        for number, name in enumerate(ratios):
            ratios[name].append(found["auto"][number] / found["never"][number])
        stream, whole, run = found["auto"]
        print(f"pair {pair + 1}: stream {stream:.2f} s against {found['never'][0]:.2f} s, all {whole:.2f} s against {found['never'][1]:.2f} s; "
              f"handed out {run['cells_handed_out']} cells, {run['bytes_handed_out'] / (1 << 20):.0f} of {run['bytes_written'] / (1 << 20):.0f} MiB", flush=True)
    for name, values in ratios.items():
        print(f"{name}: handed out / not {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    shutil.rmtree(options.work / "target", ignore_errors=True)


if __name__ == "__main__":
    main()
