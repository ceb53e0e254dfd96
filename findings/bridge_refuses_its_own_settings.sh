#!/bin/bash
# megatron-bridge 0.6.2: what it saves of ERNIE 4.5 MoE and EXAONE MoE it cannot start from again.
#
# A checkpoint of Megatron-Bridge has the model's provider in run_config.yaml, every value that is a function by its name.
# load_megatron_model and export_ckpt build the model from it. The reader refuses names with a part that begins with an
# underscore, and the layers of these two families are made by functions that are called _ernie45_decoder_block_spec and
# _build_exaone_moe_layer_spec: the settings are written without a word, and refused when they are read. Without the member
# transformer_layer_spec EXAONE MoE starts, because its provider has the same function by default; ERNIE does not.
#
# Seen on Linux x86-64, with packages that the import asks for and settings do not need (Transformer Engine, …) replaced by
# empty ones:
#   Qwen3ForCausalLM: its settings are read again as GPTModelProvider
#   Ernie4_5_MoeForCausalLM: refused, private target path segments are not supported
#   ExaoneMoeForCausalLM: refused, private target path segments are not supported
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet)
"${pip[@]}" torch==2.13.0 triton==3.9.0 numpy==2.4.1 packaging==26.0 einops==0.8.2 regex==2026.11.19 transformers==5.12.1 omegaconf==2.3.0 rich==14.2.0 accelerate==1.12.0 peft==0.21.2
"${pip[@]}" --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target "$folder/megatron" megatron-core==0.19.2 megatron-bridge==0.6.2
cat >"$folder/run.py" <<'PY'
import importlib.abc
import importlib.machinery
import logging
import sys
import typing
import warnings
from unittest.mock import MagicMock

if not hasattr(typing, "override"):
    typing.override = lambda method: method
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: F401
import transformers
import yaml

ABSENT = ("transformer_engine", "datasets", "requests", "megatron.energon", "qwen_vl_utils", "wandb", "torchvision", "PIL", "torch.utils.tensorboard",
          "modelopt", "nvidia_resiliency_ext", "flash_attn", "hydra")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"moe_intermediate_size": 16}
CONFIGS = {
    "Qwen3ForCausalLM": transformers.Qwen3Config(**SIZES, head_dim=8),
    "Ernie4_5_MoeForCausalLM": transformers.Ernie4_5_MoeConfig(
        **SIZES, **EXPERTS, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1),
    "ExaoneMoeForCausalLM": transformers.ExaoneMoeConfig(**SIZES, **EXPERTS, head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=1),
}
REASON = "private target path segments are not supported"


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(ABSENT) else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__, module.__version__ = spec.name, [], spec, "2.8.0"
        return module

    def exec_module(self, module):
        pass


def read_again(name, config):
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.config import ConfigContainer
    from megatron.bridge.utils.instantiate_utils import instantiate
    from megatron.bridge.utils.yaml_utils import safe_yaml_representers

    config.architectures = [name]
    provider = AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)
    with safe_yaml_representers():
        settings = yaml.safe_dump(ConfigContainer._convert_value_to_dict(provider))
    try:
        made = type(instantiate(yaml.safe_load(settings))).__name__
    except Exception as error:
        print(f"{name}: refused, {REASON if REASON in str(error) else error}")
        return REASON not in str(error)
    print(f"{name}: its settings are read again as {made}")
    return True


if __name__ == "__main__":
    sys.meta_path.insert(0, Empty())
    sys.exit(0 if [read_again(name, config) for name, config in CONFIGS.items()] == [True, False, False] else 1)
PY
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH="$folder/megatron" "$folder/venv/bin/python" "$folder/run.py"
