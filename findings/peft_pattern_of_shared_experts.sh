#!/bin/bash
# peft 0.21.2 with transformers 5.23.0: a pattern in target_modules that names the shared experts adapts the routed ones.
#
# For models whose experts transformers 5 holds in one tensor, peft turns the pattern into the last words of the names that
# it matches, and those of experts into parameters of the experts. The pattern below names the shared experts and no routed
# expert. The adapter has matrices of all routed experts and none of the shared ones, and no warning says so: the one that
# comes is about a key of alpha_pattern that peft itself has made.
#
# Seen:
#   shared experts 0, routed experts 4, target_modules ['kv_b_proj'], target_parameters ['down_proj', 'gate_up_proj']
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.1
cat >"$folder/adapt.py" <<'PY'
import sys

import peft
import transformers

config = transformers.DeepseekV3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=8,
    q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8)
wanted = r".*(shared_experts\.(gate|up|down)_proj|kv_b_proj)"
model = peft.get_peft_model(transformers.DeepseekV3ForCausalLM(config), peft.LoraConfig(r=4, target_modules=wanted))
names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
shared = sum("shared_experts" in name for name in names)
routed = sum(".experts." in name for name in names)
found = model.peft_config["default"]
modules, parameters = sorted(found.target_modules), sorted(found.target_parameters or [])
print(f"shared experts {shared}, routed experts {routed}, target_modules {modules}, target_parameters {parameters}")
sys.exit(0 if shared == 0 and routed == 4 else 1)
PY
"$folder/venv/bin/python" "$folder/adapt.py"
