#!/bin/bash
# llm-compressor 0.14.0.1 (transformers 5.17.0): of Llama 4, model_free_ptq stores parts of other matrices under the names of the experts' weights.
#
# Llama 4 has the experts of a layer in two stacks, with the input before the output: `gate_up_proj` [experts, hidden, 2 * intermediate] and `down_proj`
# [experts, intermediate, hidden]. model_free_ptq takes every stack to be the other way round: it cuts the first one in halves along `hidden`,
# and stores the second as it is. So `gate_proj` has the rows of gate and up of half of the inputs, and `down_proj` is transposed. No warning is
# given. The stacks are cut before `ignore` is looked at: experts that are to stay BF16 are cut in the same way.
#
# transformers loads such a folder without a message, and its first forward pass ends with an error, because shapes differ. Whoever reads it can put
# the stack together again: the rows of `gate_proj`, then those of `up_proj`. Whoever makes one should use oneshot, which has a class for Llama 4. It
# takes the model with its vision tower; on the text part by itself (Llama4ForCausalLM) it ends with an error.
#
# Seen on Linux x86-64, without a GPU, hidden 256, intermediate 192:
#   model_free_ptq: gate_proj (128, 384) cut, up_proj (128, 384) cut, down_proj (192, 256) cut; forward pass: RuntimeError
#   model_free_ptq, experts ignored: gate_proj (128, 384) cut, up_proj (128, 384) cut, down_proj (192, 256) cut; forward pass: RuntimeError
#   oneshot: gate_proj (192, 256) right, up_proj (192, 256) right, down_proj (256, 192) right; forward pass: no error
#   oneshot, text part: AttributeError: 'Llama4TextConfig' object has no attribute 'text_config'
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet llmcompressor==0.14.0.1 compressed-tensors==0.19.0 transformers==5.17.0 accelerate==1.15.0 safetensors==0.8.0
cat >"$folder/run.py" <<'PY'
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from llmcompressor import model_free_ptq, oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file

folder = Path(sys.argv[1])
HIDDEN, INTERMEDIATE = 256, 192
OTHER = ["lm_head", "re:.*router.*", "re:.*embed.*", "re:.*vision.*", "re:.*multi_modal.*"]
EXPERTS = "language_model.model.layers.0.feed_forward.experts."
text = dict(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, intermediate_size_mlp=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            head_dim=64, vocab_size=256, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0)
vision = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14, vision_output_dim=64,
              projector_input_dim=64, projector_output_dim=64)
torch.manual_seed(1)
config = transformers.Llama4Config(text_config=text, vision_config=vision)
transformers.Llama4ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder / "plain")
transformers.Llama4ForCausalLM(config.text_config).to(torch.bfloat16).save_pretrained(folder / "text")
plain = load_file(folder / "plain/model.safetensors")
gate_up, down = plain[EXPERTS + "gate_up_proj"][0].float(), plain[EXPERTS + "down_proj"][0].float()
right = {"gate_proj": gate_up[:, :INTERMEDIATE].T, "up_proj": gate_up[:, INTERMEDIATE:].T, "down_proj": down.T}
cut = {"gate_proj": gate_up[:HIDDEN // 2], "up_proj": gate_up[HIDDEN // 2:], "down_proj": down}


def free(target, ignore):
    model_free_ptq(folder / "plain", folder / target, scheme="FP8_DYNAMIC", ignore=ignore, device="cpu")


def in_one_shot(source, target, load):
    model = load.from_pretrained(folder / source, dtype=torch.bfloat16)
    oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=OTHER), pipeline="datafree")
    model.save_pretrained(folder / target, save_compressed=True)


def equal(weight, other):
    return weight.shape == other.shape and torch.allclose(weight, other, rtol=1 / 16, atol=1e-3)


def seen(target):
    """What the weights of the first expert are, and whether transformers computes with the folder."""
    tensors, words = load_file(folder / target / "model.safetensors"), []
    for name in right:
        stored = f"{EXPERTS}0.{name}.weight"
        weight = tensors[stored].float() * tensors.get(stored + "_scale", torch.ones(1)).float()
        words.append(f"{name} {tuple(weight.shape)} {'right' if equal(weight, right[name]) else 'cut' if equal(weight, cut[name]) else 'neither'}")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder / target, dtype=torch.bfloat16)
    try:
        model(input_ids=torch.arange(1, 9)[None])
        end = "no error"
    except RuntimeError:
        end = "RuntimeError"
    return f"{', '.join(words)}; forward pass: {end}"


def seen_of_text():
    try:
        in_one_shot("text", "text-oneshot", transformers.AutoModelForCausalLM)
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "no error"


free("free", OTHER)
free("free-ignored", [*OTHER, "re:.*experts.*"])
in_one_shot("plain", "oneshot", transformers.AutoModelForImageTextToText)
wrong = "gate_proj (128, 384) cut, up_proj (128, 384) cut, down_proj (192, 256) cut; forward pass: RuntimeError"
rows = [("model_free_ptq", seen("free"), wrong), ("model_free_ptq, experts ignored", seen("free-ignored"), wrong),
        ("oneshot", seen("oneshot"), "gate_proj (192, 256) right, up_proj (192, 256) right, down_proj (256, 192) right; forward pass: no error"),
        ("oneshot, text part", seen_of_text(), "AttributeError: 'Llama4TextConfig' object has no attribute 'text_config'")]
for what, found, _ in rows:
    print("SEEN", f"{what}: {found}")
sys.exit(0 if all(found == expected for _, found, expected in rows) else 1)
PY
cd "$folder"
venv/bin/python -W ignore run.py "$folder" 2>&1 | sed -n 's/^SEEN //p; t; /Error/p'
