"""Makes tests/data/torchao.tar.xz: a small Llama quantised by torchao 0.18 in two ways, saved by torch.distributed.checkpoint.

    python tests/data/make_torchao_sample.py made
    tar -C made --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cJf tests/data/torchao.tar.xz .
"""

import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torchao.quantization import Float8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

CONFIGS = {"int8": Int8DynamicActivationInt8WeightConfig, "float8": Float8WeightOnlyConfig}


def quantised(name):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=40, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(config).bfloat16()
    quantize_(model, CONFIGS[name]())
    return model


def main(there):
    shutil.rmtree(there, ignore_errors=True)
    for name in CONFIGS:
        model = quantised(name)
        dcp.save(model.state_dict(), checkpoint_id=there / name, no_dist=True)
        model.config.save_pretrained(there / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
