"""Times `reshard run` beside other converters that do the same job on the same source, in turn: against_peers.py RESHARD WORK --bridge PYTHON …

Sources are made in WORK: a Llama and a Qwen3-MoE Hugging Face folder of random BF16 values and --gib GiB, what the program makes of them, and a DeepSpeed
save. The source lies in the page cache, the device is idle before each run, and what other converters leave unwritten is not counted. Our job has its
defaults, so its target is digested, synced, read back from the device and has a SHA256SUMS. Prints each round, then a table: ratios are ours / theirs pair
by pair, as median (least to most). CPU is that of all processes of a run, memory the peak of its largest process and the sum over its processes.

    case            job                                                  the other converter                             aims
    bridge-import   Hugging Face -> torch_dist                           Megatron-Bridge, AutoBridge.import_ckpt         wall <= 0.25, CPU <= 0.12
    bridge-export   torch_dist -> Hugging Face                           Megatron-Bridge, AutoBridge.export_ckpt         wall <= 0.6
    torch           DCP -> Hugging Face                                  torch's dcp_to_torch_save, one .pt file
    titan           DCP with torchtitan's names -> Hugging Face          torchtitan's convert_to_hf.py
    verl            torch_dist -> Hugging Face                           verl's model_merger, backend megatron
    deepspeed       ZeRO -> universal checkpoint                         DeepSpeed's ds_to_universal
    cp              Hugging Face -> torch_dist                           cp -r && sync of the source
    raw             the same, run.io = "posix", run.verify = "streamed"  raw_copy of the source, posix                   rate >= 0.95 at 4 and 16 GiB

The ratio of `raw` is that of rates: bytes read and written in a second, ours / raw_copy. None of the converters of Python syncs or checks its target.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import peer_sources

JOBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_jobs.py")
# case: (kind of source, keys of our job, the option with the other's Python and the job of peer_jobs.py, does reshard verify compare the two targets)
CASES = {
    "bridge-import": ("hf", ['target.format="torch_dist"', 'target.program="megatron-bridge"'], ("bridge", "bridge_import"), True),
    "bridge-export": ("torch_dist", ['target.format="huggingface"'], ("bridge", "bridge_export"), True),
    "torch": ("dcp", ['target.format="huggingface"', 'model.map="none"'], ("peers", "dcp_to_torch"), False),
    "titan": ("titan", ['target.format="huggingface"', 'model.map="torchtitan_llama"'], ("titan", "titan_export"), True),
    "verl": ("verl", ['target.format="huggingface"'], ("verl", "verl_merge"), True),
    "deepspeed": ("zero", ['target.format="deepspeed"'], ("peers", "universal"), True),
    "cp": ("hf", ['target.format="torch_dist"', 'target.program="megatron-bridge"'], None, False),
    "raw": ("hf", ['target.format="torch_dist"', 'target.program="megatron-bridge"', 'run.io="posix"', 'run.verify="streamed"'], None, False),
}
NEEDS = {"bridge": "megatron.bridge", "peers": "torch, deepspeed", "titan": "torchtitan", "verl": "verl"}
STARTS = [case for case, (_, _, peer, _) in CASES.items() if peer]  # they say what starting Python and importing took
DENSE_ONLY = ("titan", "verl", "deepspeed", "torch", "raw", "cp")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reshard")
    parser.add_argument("work")
    parser.add_argument("--peers", metavar="PYTHON", help="with torch, transformers and DeepSpeed: .cache/peers/bin/python")
    parser.add_argument("--bridge", metavar="PYTHON", help="with Megatron-Bridge: .cache/peers-megatron-bridge-0.6.2/bin/python")
    parser.add_argument("--titan", metavar="PYTHON", help="with torchtitan")
    parser.add_argument("--verl", metavar="PYTHON", help="with verl and Megatron-Core")
    parser.add_argument("--raw", metavar="RAW_COPY", help="the program tests/bench/raw_copy")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--models", nargs="+", choices=["dense", "moe"], default=["dense", "moe"], help="of the cases of Megatron-Bridge; dense in the others")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3], help="of ZeRO")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="of our program; 1 starts it without mpirun")
    parser.add_argument("--keep", action="store_true", help="leave the sources, for a next time")
    return parser.parse_args()


class Watch(threading.Thread):
    """Sums the peaks of a session's processes while it runs."""

    def __init__(self, session):
        super().__init__(daemon=True)
        self.session, self.peaks, self.done = str(session), {}, threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            for process in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{process}/stat") as file:
                        if file.read().rpartition(")")[2].split()[3] != self.session:
                            continue
                    with open(f"/proc/{process}/status") as file:
                        [peak] = [line.split()[1] for line in file if line.startswith("VmHWM")]
                    self.peaks[process] = int(peak) * 1024
                except (OSError, ValueError):
                    pass


def busy_seconds():
    with open("/proc/stat") as file:
        words = file.readline().split()
    return (sum(map(int, words[1:9])) - int(words[4]) - int(words[5])) / os.sysconf("SC_CLK_TCK")


def timed(command, log):
    """Wall and CPU seconds, bytes of memory, how many cores others kept busy meanwhile, and the JSON that it prints."""
    subprocess.run(["sync"], check=True)
    before, begin = busy_seconds(), time.monotonic()
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        watch = Watch(process.pid)
        watch.start()
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    watch.done.set()
    watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        with open(log) as errors:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}\n{errors.read()[-1500:]}")
    cpu, largest = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    others = max(0.0, busy_seconds() - before - cpu) / wall
    return {"wall": wall, "cpu": cpu, "largest": largest, "sum": max(largest, sum(watch.peaks.values())), "others": others, "said": said(out)}


def said(out):
    """The first JSON document of the output."""
    at = out.find("{")
    return json.JSONDecoder().raw_decode(out[at:])[0] if at >= 0 else {}


class Bench:
    def __init__(self, options):
        self.options, self.log, self.rows = options, os.path.join(options.work, "log.txt"), []
        os.makedirs(options.work, exist_ok=True)

    def place(self, name):
        return os.path.join(self.options.work, name)

    def reshard(self, source, target, keys):
        job = self.place("job.toml")
        with open(job, "w") as file:
            file.write("\n".join([f'source.path = "{source}"', f'target.path = "{target}"', *keys]) + "\n")
        ranks = ["mpirun", "-n", str(self.options.ranks), "--bind-to", "none"] if self.options.ranks > 1 else []
        return [*ranks, self.options.reshard, "run", job, "--json"]

    def theirs(self, case, peer, source, target, folder):
        """The other converter's command, or why there is none."""
        if case == "cp":
            return ["bash", "-c", f"cp -r --reflink=never '{source}' '{target}' && sync -f '{target}'"]
        python = self.options.raw if case == "raw" else getattr(self.options, peer[0])
        if python is None or shutil.which(python) is None:
            return f"not installed: --{'raw' if case == 'raw' else peer[0]} names no program"
        if case == "raw":
            return [python, source, target, "posix"]
        modules = NEEDS[peer[0]]
        found = subprocess.run([python, "-c", f"import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in '{modules}'.split(', ')))"],
                               capture_output=True)
        return [python, JOBS, peer[1], source, target, folder] if found.returncode == 0 else f"not installed: {modules}"

    def source(self, kind, model):
        """The folder to convert, and the Hugging Face folder of its model. Made where it is not there."""
        folder = self.place(model)
        small = kind.startswith("zero")
        if small:
            folder += "-small"
        if small:
            peer_sources.make_folder(folder, model, self.options.gib / 7, vocabulary=4096)  # 14 bytes of training state for two of weights
        else:
            peer_sources.make_folder(folder, model, self.options.gib)
        if kind == "hf":
            return folder, folder
        place = f"{folder}-{kind}"
        if not os.path.exists(place) and small:
            timed([self.options.peers, JOBS, "zero", kind.removeprefix("zero"), f"{place}.new", folder], self.log)
            os.rename(f"{place}.new", place)
        elif not os.path.exists(place) and kind == "verl":
            timed(self.reshard(folder, self.place("made"), ['target.format="torch_dist"']), self.log)
            peer_sources.make_verl(self.place("made"), place, folder)
        elif not os.path.exists(place):
            timed(self.reshard(folder, place, peer_sources.KEYS[kind]), self.log)
        return place, folder

    def compare(self, mine, theirs):
        done = subprocess.run([self.options.reshard, "verify", mine, theirs], capture_output=True, text=True)
        return "the same tensors" if done.returncode == 0 else (done.stderr + done.stdout).strip()[-300:]

    def run(self, case, model, stage=""):
        kind, keys, peer, comparable = CASES[case]
        name = " ".join(filter(None, (case, "" if case in DENSE_ONLY else model, stage and f"ZeRO-{stage}")))
        mine, other = self.place("mine"), self.place("theirs")
        command = self.theirs(case, peer, "", other, "")
        if isinstance(command, str):
            print(f"{name}: skipped: {command}", flush=True)
            return
        source, folder = self.source(kind + stage, model)
        command = self.theirs(case, peer, source, other, folder)
        pairs = []
        subprocess.run(["grep", "-rq", "not in it", source])  # it lies in the page cache now
        for number in range(1, self.options.rounds + 1):
            for place in (mine, other):
                shutil.rmtree(place, ignore_errors=True)
            of_them = timed(command, self.log)
            own = timed(self.reshard(source, mine, keys), self.log)
            pairs.append((own, of_them))
            print(f"{name} {number}: " + ", ".join(f"{who} {run['wall']:.2f} s, CPU {run['cpu']:.2f} s, {run['largest'] >> 20} and {run['sum'] >> 20} MiB, "
                                                   f"others {run['others']:.1f} cores" for who, run in (("theirs", of_them), ("ours", own))), flush=True)
            if number == 1 and comparable:
                print(f"  {self.compare(mine, other)}", flush=True)
        self.rows.append(row(name, case, pairs))
        for place in (mine, other):
            shutil.rmtree(place, ignore_errors=True)


def of_start(pairs, key):
    return statistics.median(of_them["said"][f"start_{key}"] for _, of_them in pairs)


def row(name, case, pairs):
    def of(key, which):
        return statistics.median(pair[which][key] for pair in pairs)

    def spread(found):
        return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"

    def ratio(key):
        return spread([own[key] / of_them[key] for own, of_them in pairs])

    def without_start(key):
        return spread([own[key] / (of_them[key] - of_them["said"][f"start_{key}"]) for own, of_them in pairs]) if case in STARTS else ""

    if case == "raw":
        rates = [(own["said"]["run"]["bytes_read"] + own["said"]["run"]["bytes_written"]) / own["wall"] / (2 * raw["said"]["bytes"] / raw["said"]["seconds"])
                 for own, raw in pairs]
        wall = f"rate {spread(rates)}"
    else:
        wall = ratio("wall")
    start = f"{of_start(pairs, 'wall'):.1f}, {of_start(pairs, 'cpu'):.1f}" if case in STARTS else ""
    others = [run["others"] for pair in pairs for run in pair]
    return (f"| {name} | {of('wall', 1):.1f}, {of('cpu', 1):.1f} | {start} | {of('wall', 0):.1f}, {of('cpu', 0):.1f} | {wall} | {ratio('cpu')} | "
            f"{without_start('wall')} | {without_start('cpu')} | "
            f"{int(of('largest', 1)) >> 20} / {int(of('largest', 0)) >> 20} | {int(of('sum', 1)) >> 20} / {int(of('sum', 0)) >> 20} | "
            f"{min(others):.1f} to {max(others):.1f} |")


def main():
    bench = Bench(parse())
    options = bench.options
    failed = False
    for case in options.cases:
        for model in ["dense"] if case in DENSE_ONLY else options.models:
            for stage in map(str, options.stages) if case == "deepspeed" else [""]:
                try:
                    bench.run(case, model, stage)
                except RuntimeError as error:
                    failed = True
                    print(f"{case} {model} {stage}: {error}", flush=True)
    print(f"\n{options.gib:g} GiB, {options.ranks} rank(s), {len(os.sched_getaffinity(0))} cores, {options.rounds} rounds, load now {os.getloadavg()[0]:.1f}\n")
    print("| case | theirs: wall, CPU s | of these imports | ours | wall, ours / theirs | CPU | wall without their imports | CPU without | largest process, "
          "theirs / ours, MiB | all processes | cores busy with other work |\n" + 11 * "|---" + "|")
    print("\n".join(bench.rows))
    if not options.keep:
        shutil.rmtree(options.work)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
