"""Imports mcore-bridge, ms-swift's library of models, on a machine without CUDA and Transformer Engine: what the fork server imports before it starts ranks."""

import contextlib
import os
import tempfile

import torch

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import te_package  # noqa: E402
import transformers  # noqa: E402,F401  # before the stand-ins: it asks which packages there are

te_package.install("datasets", "modelscope", "torchvision", "PIL")

import megatron_release  # noqa: E402

megatron_release.stand_in_for_cuda()

import modelscope.hub.utils.utils  # noqa: E402

modelscope.hub.utils.utils.get_cache_dir = tempfile.gettempdir
import datasets.utils.filelock  # noqa: E402

datasets.utils.filelock.FileLock = contextlib.nullcontext

import mcore_bridge.model  # noqa: E402,F401

import mcore_bridge_runs  # noqa: E402,F401
