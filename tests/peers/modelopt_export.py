"""python modelopt_export.py FOLDER TARGET CONFIG...: ModelOpt's own export of a folder without calibration, TARGET-CONFIG for each of its configurations.

In a process of its own, because ModelOpt changes classes of transformers.
"""

import sys
import types

sys.modules.setdefault("requests", types.ModuleType("requests"))  # only what downloads data sets uses it

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM

folder, target, *configs = sys.argv[1:]
for config in configs:
    model = mtq.quantize(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), getattr(mtq, config), None)
    export_hf_checkpoint(model, export_dir=f"{target}-{config}")
