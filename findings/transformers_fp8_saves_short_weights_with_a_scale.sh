#!/bin/bash
# transformers 5.23.0: a model that FineGrainedFP8Config quantises while it is loaded does not survive save_pretrained where a weight has
# fewer rows than a block of 128, such as keys and values of a model with few heads.
#
# Such a weight stays BF16, which the config does not say, and the folder has a `weight_scale_inv` of it that was never set: it is whatever
# was in that memory. from_pretrained of the folder then makes FP8 codes of the BF16 weight without dividing by a scale, and keeps the number
# as the scale of these codes. Nothing is reported. Who reads such a folder should go by the dtype of the weight, and never by the scale.
#
# Quantising asks for a GPU, for its kernels; the arithmetic and the files are the same without. The script leaves out that question alone.
#
# Seen on Linux x86-64, without a GPU:
#   k_proj of 64 rows: saved as torch.bfloat16, weight_scale_inv saved True; loaded as torch.float8_e4m3fn
#   q_proj of 128 rows: saved as torch.float8_e4m3fn, weight_scale_inv saved True; loaded as torch.float8_e4m3fn
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 safetensors==0.8.0
cat >"$folder/save.py" <<'PY'
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

FineGrainedFP8HfQuantizer.validate_environment = lambda self, *_, **__: None
plain, coded = sys.argv[1] + "/plain", sys.argv[1] + "/fp8"
config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=256)
transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
load = transformers.AutoModelForCausalLM.from_pretrained
load(plain, dtype=torch.bfloat16, quantization_config=transformers.FineGrainedFP8Config()).save_pretrained(coded)
saved = load_file(coded + "/model.safetensors")
loaded = load(coded, dtype=torch.bfloat16).model.layers[0].self_attn
seen = []
for name, rows in (("k_proj", 64), ("q_proj", 128)):
    weight = saved[f"model.layers.0.self_attn.{name}.weight"]
    scale = f"model.layers.0.self_attn.{name}.weight_scale_inv" in saved
    seen.append((weight.dtype, scale, getattr(loaded, name).weight.dtype))
    print(f"{name} of {rows} rows: saved as {weight.dtype}, weight_scale_inv saved {scale}; loaded as {seen[-1][2]}")
fp8 = torch.float8_e4m3fn
sys.exit(0 if seen == [(torch.bfloat16, True, fp8), (fp8, True, fp8)] else 1)
PY
"$folder/venv/bin/python" -W ignore "$folder/save.py" "$folder" 2>/dev/null
