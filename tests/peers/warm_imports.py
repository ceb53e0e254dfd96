"""What the warm Python of the tests imports (warm.py): libraries alone, none of our own modules, so that it never has an older state of them."""

import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

torch.set_num_threads(1)

import _pytest.assertion.rewrite  # noqa: E402,F401
import h5py  # noqa: E402,F401
import megatron.core.dist_checkpointing  # noqa: E402,F401
import megatron.core.distributed  # noqa: E402,F401
import megatron.core.models.gpt  # noqa: E402,F401
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402,F401
import megatron.core.models.mamba  # noqa: E402,F401
import megatron.core.optimizer  # noqa: E402,F401
import megatron.core.transformer.transformer_block  # noqa: E402,F401
import peft  # noqa: E402,F401
import pytest  # noqa: E402,F401
import safetensors.torch  # noqa: E402,F401
import torch.distributed.checkpoint  # noqa: E402,F401
import torch.distributed.checkpoint.format_utils  # noqa: E402,F401
import torch.distributed.checkpoint.state_dict  # noqa: E402,F401
import torch.distributed.fsdp  # noqa: E402,F401
import torch.distributed.tensor.parallel  # noqa: E402,F401
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM  # noqa: E402,F401
