#!/bin/bash
# ModelOpt 0.47.0 (transformers 5.14.0): FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG stores scales that are not those of their blocks where an expert's
# rows are no multiple of 128.
#
# transformers 5 has gate and up of an expert in one matrix, and ModelOpt takes the largest value of each block of 128 x 128 of that one: where gate
# does not end with a block, a block has rows of both. export_hf_checkpoint gives gate the first half of these maxima and up the second. So
# scales of gate can be larger than needed. Those of up are of blocks that begin later than its own: where a block's largest value lies before, the
# scale is too small, and values above 448 times the scale are cut off. down is right. Nothing is reported. Where the halves have another number of
# blocks than the weights, the export ends with an error instead.
#
# The values that were cut off cannot be recovered from the folder. Whoever quantises such a model must leave out its experts, with
# {"quantizer_name": "*mlp.experts*", "enable": False} at the end of the config's `quant_cfg`: they stay BF16.
#
# Seen on Linux x86-64, without a GPU, with a Qwen3-MoE model of 16 experts (the error is the worst one of up, relative to its largest value):
#   128 rows: scales of the joined matrix True, none too large or small; error 3.6 %
#   256 rows: scales of the joined matrix True, none too large or small; error 3.6 %
#   96 rows: scales of the joined matrix True, gate too large 6, up too small 7; error 17.3 %
#   224 rows: scales of the joined matrix True, gate too large 7, up too large 8, up too small 19; error 16.4 %
#   64 rows: RuntimeError: Changing shape when setting amax is not allowed.
#   192 rows: AssertionError: Mismatch in expected scale shape: torch.Size([2]) vs (2, 2)
#   96 rows, experts left out: as they were True
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet nvidia-modelopt==0.47.0 transformers==5.14.0 accelerate==1.15.0 safetensors==0.8.0 requests==2.34.2
cat >"$folder/run.py" <<'PY'
import copy
import sys

import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from safetensors.torch import load_file

EXPERTS, HIDDEN = 16, 256


def largest(weight):
    """The largest value of each block of 128 x 128."""
    rows, columns = (-(-size // 128) for size in weight.shape)
    padded = torch.zeros(rows * 128, columns * 128)
    padded[:weight.shape[0], :weight.shape[1]] = weight
    return padded.view(rows, 128, columns, 128).abs().amax((1, 3))


def exported(rows, quantised_experts=True):
    """Tensors of a model whose experts have so many rows, and those of its export."""
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(hidden_size=HIDDEN, intermediate_size=256, moe_intermediate_size=rows, num_hidden_layers=1, num_attention_heads=4,
                                         num_key_value_heads=2, head_dim=64, num_experts=EXPERTS, num_experts_per_tok=2, vocab_size=256)
    transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(f"plain{rows}")
    choice = copy.deepcopy(mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG)
    if not quantised_experts:
        choice["quant_cfg"].append({"quantizer_name": "*mlp.experts*", "enable": False})
    model = transformers.AutoModelForCausalLM.from_pretrained(f"plain{rows}", dtype=torch.bfloat16)
    target = f"coded{rows}{quantised_experts}"
    export_hf_checkpoint(mtq.quantize(model, choice, None), export_dir=target)
    return load_file(f"plain{rows}/model.safetensors"), load_file(f"{target}/model.safetensors")


def look(rows):
    """What the scales of the experts are, and the words of the error if there are none."""
    try:
        plain, coded = exported(rows)
    except (AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    halves, others, worst = True, {}, 0.0
    for expert in range(EXPERTS):
        names = {part: f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight" for part in ("gate", "up", "down")}
        weights = {part: plain[name].float() for part, name in names.items()}
        scales = {part: coded[name + "_scale"][:, 0, :, 0] for part, name in names.items()}
        joined = largest(torch.cat([weights["gate"], weights["up"]])) / 448
        halves &= torch.equal(torch.cat([scales["gate"], scales["up"]]), joined)
        for part, weight in weights.items():
            own = largest(weight) / 448
            for word, wrong in (("large", scales[part] > own), ("small", scales[part] < own)):
                others[f"{part} too {word}"] = others.get(f"{part} too {word}", 0) + int(wrong.sum())
        decoded = coded[names["up"]].float() * scales["up"].repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :HIDDEN]
        worst = max(worst, ((decoded - weights["up"]).abs().nan_to_num(torch.inf).max() / weights["up"].abs().max()).item())
    counts = ", ".join(f"{what} {count}" for what, count in others.items() if count)
    return halves, others, worst, f"scales of the joined matrix {halves}, {counts or 'none too large or small'}; error {100 * worst:.1f} %"


fails = []


def check(what, words, as_before):
    print("SEEN", f"{what}: {words}", flush=True)
    if not as_before:
        fails.append(what)


for rows in (128, 256, 96, 224):
    found = look(rows)
    if isinstance(found, str):
        check(f"{rows} rows", found, False)
        continue
    halves, others, worst, words = found
    odd = rows % 128 != 0
    wrong = {what for what, count in others.items() if count}
    check(f"{rows} rows", words, halves and (worst > 0.08 and {"gate too large", "up too small"} <= wrong if odd else worst < 0.04 and not wrong)
          and not {"down too large", "down too small"} & wrong)
for rows, error in ((64, "RuntimeError: Changing shape when setting amax is not allowed."), (192, "AssertionError: Mismatch in expected scale shape")):
    found = look(rows)
    check(f"{rows} rows", found if isinstance(found, str) else found[3], str(found).startswith(error))
plain, coded = exported(96, quantised_experts=False)
kept = all(torch.equal(coded[name], tensor) for name, tensor in plain.items() if ".mlp.experts." in name)
check("96 rows, experts left out", f"as they were {kept}", kept)
sys.exit(1 if fails else 0)
PY
cd "$folder"
venv/bin/python -W ignore run.py 2>&1 | sed -n 's/^SEEN //p; t; /Error/p'
