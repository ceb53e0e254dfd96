"""Plans of the largest published models from headers alone: time, memory, regions and bytes of each step, as a table.

    python tests/bench/header_plans.py RESHARD HEADER_TREE WORK [MODEL…] [--forms bf16 published] [--etp 1 8] [--ranks 64]

RESHARD and HEADER_TREE are the programs (build/dev/pipeline/reshard, build/dev/tests/bench/header_tree); WORK is a folder to make. For each model a
Hugging Face folder of headers is written from its config, in BF16 and with the weights quantised much as they are published. Planned are: to Megatron
at TP 8 · PP 16 · EP 64; from there, a tree of headers too, to TP 4 · PP 8 · EP 32; and from the same tree to Hugging Face. Time and memory are
those of `reshard plan`, one process. What the busiest of some ranks reads and writes, together, beside the mean of all comes from HEADER_TREE,
which makes the same plan again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))

from header_checkpoints import config_of, header_checkpoint, quantised, stored_tensors  # noqa: E402

GIB = 2**30
PLANNED = (0, 6)  # 6: the disk has no room for the weights, and none are written


def ends_first_last(first, last):
    return f"first_stage_layers = {first}, last_stage_layers = {last}"


# Stages of PP 16 and of PP 8 where the layers do not divide: 61 = 4 * 15 + 1 = 8 * 7 + 5, 94 = 5 + 14 * 6 + 5 = 11 + 6 * 12 + 11, and so on.
STAGES = {
    "deepseek-v3": ("last_stage_layers = 1", "last_stage_layers = 5"),
    "kimi-k2": ("last_stage_layers = 1", "last_stage_layers = 5"),
    "qwen3-235b-a22b": (ends_first_last(5, 5), ends_first_last(11, 11)),
    "gpt-oss-120b": (ends_first_last(4, 4), ends_first_last(6, 6)),
    "nemotron-3-ultra-class": (ends_first_last(5, 5), ends_first_last(12, 12)),
    "deepseek-v4-flash": ('pipeline = "Ett|tt|(ttt|)*11tt|tt|ttmL"', 'pipeline = "Ettttt|ttttt|(tttttt|)*3ttttt|ttttt|tttttmL"'),
    "deepseek-v4-pro": ("last_stage_layers = 1", "last_stage_layers = 5"),
}


def deepseek_v3_fp8(name):
    projection = name.endswith("_proj.weight") and "eh_proj" not in name or "kv_a_proj_with_mqa" in name
    return "fp8_block" if projection and ".layers." in name else None


def nemotron_mixed(name):
    """Experts in NVFP4, shared experts and the output projections of every second Mamba layer in FP8, all else in BF16."""
    if not name.startswith("backbone.layers.") or not name.endswith("_proj.weight"):
        return None
    if ".experts." in name:
        return "nvfp4"
    layer = int(name.split(".")[2])
    return "fp8_tensor" if ".shared_experts." in name or name.endswith("mixer.out_proj.weight") and layer % 4 == 0 else None


def v4_mixed(name):
    """Routed experts in FP4, the large projections of attention and the shared experts in FP8."""
    if ".ffn.experts." in name:
        return "fp4_tiles"
    endings = ("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_a.weight", "wo_b.weight", "w1.weight", "w2.weight", "w3.weight")
    return "fp8_tiles" if name.endswith(endings) else None


PUBLISHED = {
    "deepseek-v3": ("FP8 128x128", deepseek_v3_fp8),
    "kimi-k2": ("FP8 128x128", deepseek_v3_fp8),
    "gpt-oss-120b": ("MXFP4", lambda name: "mxfp4" if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else None),
    "nemotron-3-ultra-class": ("NVFP4, FP8, BF16", nemotron_mixed),
    "deepseek-v4-flash": ("FP4, FP8", v4_mixed),
    "deepseek-v4-pro": ("FP4, FP8", v4_mixed),
}


MAPS = {"gpt-oss-120b": "gpt_oss"}  # which no map finds by the arguments of a Megatron checkpoint


def job_text(source, target, kind, model, option):
    lines = ["[source]", f'path = "{source}"', "[target]", f'path = "{target}"', f'format = "{kind}"', option]
    return "\n".join([*lines, "[model]", f'map = "{MAPS.get(model, "auto")}"']) + "\n"


def timed(command):
    """Wall and CPU seconds and the peak of resident memory of a program, its exit status and what it printed."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.stdout.read(), process.stderr.read()  # stderr is short: it cannot fill its pipe first
    _, status, usage = os.wait4(process.pid, 0)
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status), out, err


class Table:
    COLUMNS = ("model", "weights", "step", "files", "stored tensors", "regions", "reads GiB", "writes GiB")

    def __init__(self, programs, work, ranks):
        self.reshard, self.header_tree = programs
        self.work = work
        self.ranks = ranks
        columns = (*self.COLUMNS, *(f"busiest of {n} ranks / mean" for n in ranks), "wall s", "CPU s", "peak MiB")
        self.line(columns)
        self.line(["---"] * len(columns))

    @staticmethod
    def line(cells):
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)

    def step(self, model, weights, title, text, tree="-"):
        """One line: `reshard plan` measured, then the tree of headers made. Whether there is a plan."""
        job = self.work / "job.toml"
        job.write_text(text)
        wall, cpu, peak, code, out, err = timed([self.reshard, "plan", str(job), "--json"])
        if code not in PLANNED:
            self.line((model, weights, title, f"exit {code} in {wall:.2f} s: {err.strip()}"))
            return False
        plan = json.loads(out)["plan"]
        made = json.loads(subprocess.run([self.header_tree, job, tree, *map(str, self.ranks)], capture_output=True, text=True, check=True).stdout)
        busiest = [f"{load['both_bytes'] / (load['mean_read_bytes'] + load['mean_written_bytes']):.3f}" for load in made["busiest_rank"]]
        counts = (f"{plan['source_files']} -> {plan['target_files']}", f"{plan['source_tensors']} -> {plan['target_tensors']}", plan["regions"])
        bytes_moved = (f"{plan['payload_read_bytes'] / GIB:.1f}", f"{plan['payload_written_bytes'] / GIB:.1f}")
        times = (f"{wall:.2f}", f"{cpu:.2f}", f"{peak / 2**20:.0f}")
        self.line((model, weights, title, *counts, *bytes_moved, *busiest, *times))
        return True

    def model(self, name, weights, scheme_of, etps):
        config = config_of(name)
        if scheme_of is None:
            config.pop("quantization_config", None)
        folder, tree = self.work / "hf", self.work / "tree"
        header_checkpoint(folder, config, quantised(stored_tensors(config), scheme_of or (lambda _: None)))
        wide, narrow = STAGES[name]
        for etp in etps:
            mesh = f"TP8·PP16·EP64·ETP{etp}"
            layout = f"layout = {{ tp = 8, pp = 16, ep = 64, etp = {etp}, {wide} }}"
            if self.step(name, weights, f"HF to {mesh}", job_text(folder, self.work / "out", "megatron", name, layout), tree):
                smaller = etp if etp == 1 else etp // 2
                layout = f"layout = {{ tp = 4, pp = 8, ep = 32, etp = {smaller}, {narrow} }}"
                self.step(name, weights, f"{mesh} to TP4·PP8·EP32·ETP{smaller}", job_text(tree, self.work / "out", "megatron", name, layout))
                self.step(name, weights, f"{mesh} to HF", job_text(tree, self.work / "out", "huggingface", name, f'reference = "{folder}"'))
            shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard", type=os.path.abspath)
    parser.add_argument("header_tree", type=os.path.abspath)
    parser.add_argument("work", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--forms", nargs="+", choices=("bf16", "published"), default=("bf16", "published"))
    parser.add_argument("--etp", nargs="+", type=int, choices=(1, 8), default=(1, 8))
    parser.add_argument("--ranks", nargs="+", type=int, default=(64,))
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    table = Table((options.reshard, options.header_tree), options.work.resolve(), options.ranks)
    for name in options.models or STAGES:
        if "bf16" in options.forms:
            table.model(name, "BF16", None, options.etp)
        if "published" in options.forms and name in PUBLISHED:
            table.model(name, *PUBLISHED[name], options.etp)
    shutil.rmtree(options.work)


if __name__ == "__main__":
    main()
