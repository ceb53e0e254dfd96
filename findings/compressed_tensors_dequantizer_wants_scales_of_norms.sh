#!/bin/bash
# compressed-tensors 0.20.1: CompressedTensorsDequantizer, its converter to full precision, does not take a folder that llm-compressor 0.14.0.1
# has quantised to FP8 or INT8 with the preset's own settings (targets "Linear", ignore "lm_head").
#
# The converter knows weights by name alone: for "Linear" it takes every `weight` of a folder whose form keeps that name, embeddings and norms
# included, and asks for its scale. convert_checkpoint ends with a ValueError (process() with a KeyError), and naming the embedding in `ignore`
# brings the same for the first norm. Packed forms (W4A16) have names of their own and go through.
#
# Seen on Linux x86-64, without a GPU:
#   FP8_DYNAMIC: ValueError: Dependency weight model.embed_tokens.weight_scale not found in weight map
#   FP8_DYNAMIC, ignore=['model.embed_tokens']: ValueError: Dependency weight model.layers.0.input_layernorm.weight_scale not found in weight map
#   W4A16: converted
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet llmcompressor==0.14.0.1
"$folder/venv/bin/pip" install --quiet --no-deps compressed-tensors==0.20.1
cat >"$folder/convert.py" <<'PY'
import sys

import torch
import transformers
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer, convert_checkpoint
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from tokenizers import Tokenizer, models

seen = []


def converted(form, folder, **more):
    try:
        convert_checkpoint(model_stub=folder, save_directory=f"{folder}-{len(seen)}", converter=CompressedTensorsDequantizer(folder, **more), max_workers=1)
        seen.append("converted")
    except Exception as error:
        seen.append(f"{type(error).__name__}: {error}")
    print(f"{form}{''.join(f', {key}={value}' for key, value in more.items())}: {seen[-1]}")


for form in ("FP8_DYNAMIC", "W4A16"):
    folder = f"{sys.argv[1]}/{form}"
    config = transformers.Qwen3Config(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                      vocab_size=256, tie_word_embeddings=False)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(f"{folder}-plain")
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"w0": 0}, "w0")), unk_token="w0")
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}-plain", dtype=torch.bfloat16)
    oneshot(model=model, processor=words, pipeline="datafree", recipe=QuantizationModifier(targets="Linear", scheme=form, ignore=["lm_head"]))
    model.save_pretrained(folder, save_compressed=True)
    converted(form, folder)
    if form == "FP8_DYNAMIC":
        converted(form, folder, ignore=["model.embed_tokens"])
missing = "ValueError: Dependency weight model.{}.weight_scale not found in weight map"
wanted = [missing.format("embed_tokens"), missing.format("layers.0.input_layernorm"), "converted"]
sys.exit(0 if seen == wanted else 1)
PY
"$folder/venv/bin/python" -W ignore "$folder/convert.py" "$folder" 2>"$folder/errors" | grep -E '^(FP8_DYNAMIC|W4A16)' || { tail -5 "$folder/errors"; exit 1; }
