"""Plans of DeepSeek-V3, or another model, with Adam's state from headers alone: time, memory and bytes of each step, as a table.

    python tests/bench/state_plans.py RESHARD HEADER_TREE WORK [--ranks 64] [--model kimi-k2] [--etp 8]

RESHARD and HEADER_TREE are as in header_plans.py; the Python needs torch. The first checkpoint is a DeepSpeed one (ZeRO stage 2) of as many ranks, whose
files have their full size and nothing but headers in them. From there: to torch_dist, to `mp_rank` folders of TP 8 · PP 16 · EP 64 with `distrib_optim.pt`,
and from those folders to another layout and to torch_dist. Time and memory are those of `reshard plan`, one process.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from math import prod
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))

from header_checkpoints import config_of, stored_tensors  # noqa: E402
from header_plans import GIB, PLANNED, timed  # noqa: E402

WIDE = "layout = {{ tp = 8, pp = 16, ep = 64, etp = {}, last_stage_layers = 1 }}"
OTHER = "layout = {{ tp = 4, pp = 8, ep = 32, etp = {}, last_stage_layers = 5 }}"
GROUP = {"lr": 1e-4, "initial_lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}


def deepspeed_checkpoint(root, config, ranks):
    """A root of DeepSpeed with one group of parameters. Biases of routers are buffers."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def save(content, path):
        with torch.serialization.skip_data(materialize_fake_tensors=True):
            torch.save(content, path)

    folder = root / "global_step7"
    folder.mkdir(parents=True)
    (root / "latest").write_text(folder.name)
    (root / "config.json").write_text(json.dumps(config))
    tensors = list(stored_tensors(config))
    trained = {name: torch.Size(shape) for name, shape, _ in tensors if not name.endswith("e_score_correction_bias")}
    part = -(-sum(map(prod, trained.values())) // (2 * ranks)) * 2
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    with FakeTensorMode():
        module = {name: torch.empty(shape, dtype=dtypes[dtype]) for name, shape, dtype in tensors}
        vectors = [torch.empty(part) for _ in range(3)]
    save({"module": module, "param_shapes": [trained], "dp_world_size": ranks, "mp_world_size": 1, "global_steps": 7, "global_samples": 7, "ds_version": "0.19.8"},
         folder / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        state = {"state": {0: {"step": 7, "exp_avg": vectors[1], "exp_avg_sq": vectors[2]}}, "param_groups": [GROUP]}
        save({"optimizer_state_dict": {"base_optimizer_state": state, "single_partition_of_fp32_groups": [vectors[0]], "zero_stage": 2, "partition_count": [ranks]},
              "ds_version": "0.19.8"}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


class Table:
    def __init__(self, reshard, header_tree, work):
        self.reshard, self.header_tree, self.work = reshard, header_tree, work
        columns = ("step", "files", "tensors", "regions", "reads GiB", "writes GiB", "wall s", "CPU s", "peak MiB")
        self.line(columns)
        self.line(["---"] * len(columns))

    @staticmethod
    def line(cells):
        print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)

    def step(self, title, source, kind, option, tree=None):
        job = self.work / "job.toml"
        job.write_text("\n".join(["[source]", f'path = "{source}"', "[target]", f'path = "{self.work / "out"}"', f'format = "{kind}"', option, ""]))
        wall, cpu, peak, code, out, err = timed([self.reshard, "plan", str(job), "--json"])
        if code not in PLANNED:
            sys.exit(f"{title}: exit {code} in {wall:.2f} s: {err.strip()}")
        plan = json.loads(out)["plan"]
        self.line((title, f"{plan['source_files']} -> {plan['target_files']}", f"{plan['source_tensors']} -> {plan['target_tensors']}", plan["regions"],
                   f"{plan['payload_read_bytes'] / GIB:.0f}", f"{plan['payload_written_bytes'] / GIB:.0f}", f"{wall:.2f}", f"{cpu:.2f}", f"{peak / 2**20:.0f}"))
        if tree:
            subprocess.run([self.header_tree, job, tree], stdout=subprocess.DEVNULL, check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reshard", type=os.path.abspath)
    parser.add_argument("header_tree", type=os.path.abspath)
    parser.add_argument("work", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--model", default="deepseek-v3", help="of header_checkpoints.py, with 61 layers and 64 or more experts")
    parser.add_argument("--etp", type=int, choices=(1, 8), default=1, help="8: folders of 8,192 ranks to 1,024")
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    work = options.work.resolve()
    config = config_of(options.model)
    config.pop("quantization_config", None)
    table = Table(options.reshard, options.header_tree, work)
    # In a process of its own: a child's peak of memory is at least what its parent had.
    maker = get_context("spawn").Process(target=deepspeed_checkpoint, args=(work / "deepspeed", config, options.ranks))
    maker.start()
    maker.join()
    wide, other = WIDE.format(options.etp), OTHER.format(max(options.etp // 2, 1))
    mesh = f"TP8·PP16·EP64·ETP{options.etp}"
    table.step(f"ZeRO 2 on {options.ranks} ranks to torch_dist", work / "deepspeed", "torch_dist", wide, work / "dist")
    table.step(f"torch_dist to {mesh}", work / "dist", "megatron", f'optimizer = "distributed"\n{wide}', work / "folders")
    table.step(f"{mesh} to TP4·PP8·EP32·ETP{max(options.etp // 2, 1)}", work / "folders", "megatron", other)
    table.step(f"{mesh} to torch_dist", work / "folders", "torch_dist", other)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
