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


# Models whose code is in their published folders, or came into transformers after the release that Megatron-Bridge allows: their members, and no code.
REMOTE = ("bailing_moe", "kimi_k2", "kimi_k25", "kimi_vl", "mimo", "mimo_v2_flash", "sarvam_mla", "sarvam_moe", "step3p5", "step3p7")


def with_members(config, **members):
    for name, value in members.items():
        if name.endswith("_config") and isinstance(value, dict) and name != "quantization_config":
            members[name] = config_of(dict(value))
    transformers.PretrainedConfig.__init__(config, **members)


def config_of(members):
    model_type = members.pop("model_type", "")
    if model_type in transformers.CONFIG_MAPPING:
        return transformers.AutoConfig.for_model(model_type, **members)
    return type("RemotePart", (transformers.PretrainedConfig,), {"model_type": model_type})(**members)


for model_type in REMOTE:
    kind = type("RemoteConfig", (transformers.PretrainedConfig,), {"model_type": model_type, "__init__": with_members})
    transformers.AutoConfig.register(model_type, kind, exist_ok=True)
