"""How a job scales with hosts, on one machine: pretend hosts with links of a set speed, two ranks on each, and a store that gives each rank a set rate.

    python3 tests/bench/hosts.py RESHARD DELAY_SHIM METADATA_SHIM WORK [--hosts 1 2 4 8] [--transport auto|mpi] [--read 10] [--write 5] [--link 100] …

The shims are tests/support/delay_shim.cpp and metadata_shim.cpp, built. Hosts are those of tests/slurm/hosts_up.sh, so it needs root, iproute2 and Open
MPI. WORK is a folder to make; source and target take 2.2 GiB there. A mixture of experts, TP8·PP2·EP8, becomes TP2·PP4·EP16: no file of the target has the
cut of one of the source. Rates are low because all ranks share the cores of this machine: what was set must be what limits a run. Prints what was counted,
then the seconds that were measured beside those that the model of docs/scaling.md gives (predicted_seconds() below).
"""

import argparse
import collections
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "peers"), str(TESTS / "slurm")]

from cluster import MPI, Hosts  # noqa: E402
from header_checkpoints import config_of, header_checkpoint, stored_tensors  # noqa: E402

MIB = 2**20
SOURCE = "tp = 8, pp = 2, ep = 8, etp = 1"
TARGET = "tp = 2, pp = 4, ep = 16, etp = 1"
RANKS = 2  # on each host
SHAPE = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "num_experts": 32, "moe_intermediate_size": 512,
         "intermediate_size": 2048, "vocab_size": 4096}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reshard", type=os.path.abspath)
    parser.add_argument("delay_shim", type=os.path.abspath)
    parser.add_argument("metadata_shim", type=os.path.abspath)
    parser.add_argument("work", type=Path)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--transport", default="auto", choices=("auto", "mpi"),
                        help="mpi: each file of the source is read by one rank, and bytes cross the network")
    parser.add_argument("--layers", type=int, default=8, help="of 102 MiB each")
    parser.add_argument("--read", type=float, default=10, help="MiB that a rank may read in a second")
    parser.add_argument("--write", type=float, default=5, help="MiB that a rank may write in a second")
    parser.add_argument("--link", type=float, default=100, help="MB that a host may send, and receive, in a second")
    parser.add_argument("--delay-us", type=int, default=2000, help="before each call to the metadata server")
    parser.add_argument("--set", nargs="*", default=['run.memory="32 MiB"', 'run.io="posix"'], metavar="KEY=VALUE", help="keys of the job")
    parser.add_argument("--trace", action="store_true", help="keeps a timeline of each run in WORK")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    missing = [tool for tool in ("mpirun", "ip", "tc", "nsenter", "unshare") if not shutil.which(tool)]
    if os.geteuid() != 0:
        sys.exit("hosts.py: pretend hosts need root: network namespaces, and tc to shape their links")
    if missing:
        sys.exit(f"hosts.py: not installed: {', '.join(missing)} (Debian: iproute2, util-linux, openmpi-bin)")
    options.work.mkdir(parents=True)
    options.work = options.work.resolve()
    return options


def environment():
    return {"RESHARD_MAPS": str(TESTS.parent / "configs" / "models")} | os.environ | MPI


def make_source(options):
    """A Megatron checkpoint of random bytes; its model came from headers."""
    config = config_of("qwen3-235b-a22b") | SHAPE | {"num_hidden_layers": options.layers}
    folder = options.work / "model"
    header_checkpoint(folder, config, stored_tensors(config), 512 * MIB)
    for file in folder.glob("*.safetensors"):
        with open(file, "r+b") as out:
            out.seek(8 + int.from_bytes(out.read(8), "little"))
            while left := file.stat().st_size - out.tell():
                out.write(os.urandom(min(left, 16 * MIB)))
    source = options.work / "store" / "source"
    job = options.work / "make.toml"
    job.write_text(f'[source]\npath = "{folder}"\n[target]\npath = "{source}"\nformat = "megatron"\nlayout = {{ {SOURCE} }}\n[run]\nverify = "off"\n')
    subprocess.run([options.reshard, "run", job, "--quiet"], check=True, env=environment())
    shutil.rmtree(folder)
    return source


def program(options, source, limited):
    """A script that runs the program with the store in front of it. Hosts have processes of their own, so each has a folder for its logs."""
    work = options.work
    (work / "rates").write_text(f"0 {options.write} {options.read}\n" if limited else "0\n")
    path = work / "reshard.sh"
    path.write_text(f"""#!/bin/sh
logs={work}/logs/$(hostname)
mkdir -p $logs/calls
exec env LD_PRELOAD={options.delay_shim}:{options.metadata_shim} RESHARD_DELAY_PATH={work}/store RESHARD_DELAY_FILE={work}/rates \\
  RESHARD_DELAY_LOG=$logs/written%r RESHARD_DELAY_READS=$logs/read%r RESHARD_METADATA_LOG=$logs/calls \\
  RESHARD_METADATA_DELAY_US={options.delay_us if limited else 0} RESHARD_METADATA_FOLDERS=source={source}:target={work}/store/out {options.reshard} "$@"
""")
    path.chmod(0o755)


def shape_links(hosts, megabytes):
    """What a host receives is shaped at the bridge, what it sends at its own end."""
    rate = f"{megabytes * 8}mbit"
    for host in hosts.names:
        hosts.slow_down(host, rate)
        subprocess.run([*hosts.on(host), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)


def sent(hosts):
    """Bytes that each host has sent and received."""
    found = []
    for host in hosts.names:
        lines = subprocess.run([*hosts.on(host), "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout.splitlines()
        fields = next(line for line in lines if "eth0" in line).split(":")[1].split()
        found.append((int(fields[8]), int(fields[0])))
    return found


def run(options, source, count, limited=True):
    """The report of a job on so many hosts, with what was counted beside it."""
    out, logs = options.work / "store" / "out", options.work / "logs"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(logs, ignore_errors=True)
    out.mkdir()
    program(options, source, limited)
    job = options.work / "job.toml"
    job.write_text(f'[source]\npath = "{source}"\n[target]\npath = "{out}/target"\nformat = "megatron"\nlayout = {{ {TARGET} }}\n')
    sets = [word for setting in (*options.set, f'run.transport="{options.transport}"') for word in ("--set", setting)]
    hosts = Hosts(options.work / "hosts", count)
    try:
        shape_links(hosts, options.link)
        mpirun = ["mpirun", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", hosts.folder / "agent", "--mca", "btl_tcp_if_include", "eth0",
                  "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1", "--bind-to", "none", "-x", "RESHARD_MAPS",
                  "--host", ",".join(f"{name}:{RANKS}" for name in hosts.names), "-n", RANKS * count]
        command = [*hosts.on("login"), *mpirun, options.work / "reshard.sh", "run", job, *sets, "--json", "--quiet",
                   *(["--trace", options.work / f"{count}.trace.json"] if options.trace else [])]
        subprocess.run(["sync"], check=True)
        before = sent(hosts)
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=options.work, env=environment())
        if done.returncode != 0:
            sys.exit(f"{count} hosts: exit {done.returncode}\n{done.stderr[-3000:]}")
        report = json.loads(done.stdout)
        report["network"] = [[b - a for a, b in zip(*pair)] for pair in zip(before, sent(hosts))]
    finally:
        hosts.down()
    report["moved"], report["calls"], report["waited"] = read_logs(logs)
    return report


def read_logs(logs):
    """By rank the bytes that it read and wrote; of the process that asked the server most, its calls and the seconds in which one was held up."""
    moved = collections.defaultdict(collections.Counter)
    for kind in ("read", "written"):
        for file in logs.glob(f"*/{kind}*"):
            moved[int(file.name.removeprefix(kind))][kind] += sum(map(int, file.read_text().split()))
    busiest = (0, 0.0)
    for log in logs.glob("*/calls/*"):
        first, *lines = log.read_text().splitlines()
        calls = sum(int(line.split(" ", 3)[2]) for line in lines if line.split(" ")[1] != "fstat")
        busiest = max(busiest, (calls, int(first.split()[1]) / 1e6))
    return moved, *busiest


def busiest_and_mean(report, kind):
    """MiB of a rank."""
    of = [rank[kind] / MIB for rank in report["moved"].values()]
    return max(of), sum(of) / len(of)


def predicted_seconds(options, report, computing):
    """The terms of the model, from what was set (rates, delay) and what was counted. `computing` are the seconds for headers, plan and commit
    on one host without any limit. Each rank plans the complete job: on hosts of their own side by side, here on the same cores."""
    computing *= max(1, report["ranks"] / max(RANKS, os.cpu_count()))
    ranks, counts = report["ranks"], report["run"]
    written, _ = busiest_and_mean(report, "written")
    read = counts["bytes_read"] / MIB / ranks
    crossing = max(map(max, report["network"])) / 1e6
    late = counts["bytes_verified"] - counts["bytes_verified_early"]
    mean_file = counts["bytes_verified"] / report["plan"]["target_files"]
    files_of_a_rank = math.ceil(late / mean_file / ranks)  # a file is read back by one rank, from its first byte to its last
    return {"calls": report["calls"] * options.delay_us / 1e6, "computing": computing,
            "first round": read * ranks / report["plan"]["rounds"] / options.read,
            "stream": max(read / options.read, written / options.write, crossing / options.link),
            "read back": files_of_a_rank * mean_file / MIB / options.read}


def main():
    options = parse()
    (options.work / "store").mkdir()
    source = make_source(options)
    seconds = run(options, source, 1, limited=False)["run"]["seconds"]
    computing = seconds["headers"] + seconds["plan"] + seconds["publish"]
    print(f"transport {options.transport}; a rank reads {options.read:g} and writes {options.write:g} MiB/s, a link has {options.link:g} MB/s, a call takes "
          f"{options.delay_us} us; without limits the job takes {seconds['total']:.1f} s, {computing:.2f} of them for headers, plan and commit\n\n"
          "| hosts | MiB read, written | busiest rank / mean, written | read back early | rounds | calls of the busiest rank, held up | "
          "MB that the busiest host sent, received | handed out |\n" + "| --- " * 8 + "|", flush=True)
    reports = [(count, run(options, source, count)) for count in options.hosts for _ in range(options.repeat)]
    for count, r in reports:
        counts, (most, mean) = r["run"], busiest_and_mean(r, "written")
        print(f"| {count} | {counts['bytes_read'] / MIB:.0f}, {counts['bytes_written'] / MIB:.0f} | {most / mean:.3f} | "
              f"{counts['bytes_verified_early'] / counts['bytes_verified']:.0%} | {r['plan']['rounds']} | {r['calls']}, {r['waited']:.1f} s | "
              f"{max(n[0] for n in r['network']) / 1e6:.0f}, {max(n[1] for n in r['network']) / 1e6:.0f} | {counts['bytes_handed_out'] / MIB:.0f} MiB |")
    print("\n| hosts | calls | computing | first round | stream | read back | predicted | measured | error | "
          "of it headers, plan, stream, read back, commit | efficiency, counted | efficiency, measured |\n" + "| --- " * 12 + "|")
    base_count, base = reports[0]
    for count, r in reports:
        terms, seconds = predicted_seconds(options, r, computing), r["run"]["seconds"]
        predicted, measured = sum(terms.values()), seconds["total"]
        counted = busiest_and_mean(base, "written")[0] * base_count / busiest_and_mean(r, "written")[0] / count
        print(f"| {count} | " + " | ".join(f"{term:.1f}" for term in terms.values()) + f" | {predicted:.1f} s | {measured:.1f} s | "
              f"{predicted / measured - 1:+.0%} | " + ", ".join(f"{seconds[phase]:.1f}" for phase in ("headers", "plan", "copy", "verify", "publish")) +
              f" | {counted:.2f} | {base['run']['seconds']['total'] * base_count / measured / count:.2f} |")
    (options.work / "reports.json").write_text(json.dumps([r for _, r in reports]))


if __name__ == "__main__":
    main()
