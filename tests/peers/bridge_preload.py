"""Imports Megatron-Bridge on a machine without CUDA and Transformer Engine: what the fork server imports before it starts ranks."""

import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import te_package  # noqa: E402
import transformers  # noqa: E402,F401  # before the stand-ins: it asks which packages there are

te_package.install("datasets", "requests", "megatron.energon", "qwen_vl_utils", "wandb", "hydra", "torchvision", "PIL", "torch.utils.tensorboard")

import megatron_release  # noqa: E402

megatron_release.stand_in_for_cuda()

import megatron.bridge  # noqa: E402,F401
import megatron.bridge.training.checkpointing  # noqa: E402,F401
import megatron.bridge.training.model_load_save  # noqa: E402,F401

import bridge_runs  # noqa: E402,F401
