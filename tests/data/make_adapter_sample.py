"""Makes moe-lora/, a LoRA adapter that peft saves for the model of moe-tp2-pp2-ep2. Run from anywhere; needs tests/peers/requirements.txt and peft.

    python make_adapter_sample.py [target folder, default: beside this script]
"""

import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
ADAPTER = "moe-lora"


def main(target):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(HERE / "moe-hf-reference"), dtype=torch.bfloat16)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], base_model_name_or_path="/models/moe")
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.02)
    adapted.peft_config["default"].base_model_name_or_path = "/models/moe"
    adapted.save_pretrained(target / ADAPTER)
    shutil.rmtree(target / ADAPTER / ".cache", ignore_errors=True)
    (target / ADAPTER / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
