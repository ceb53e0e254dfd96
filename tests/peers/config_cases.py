"""Settings of config.json that random models usually leave out, and what the program is expected to do with each: the tables of test_model_config.py
and test_model_config_families.py.

`key` is None where Megatron's args hold the setting: then a Hugging Face folder that is made of args alone computes the same. Else it is the member of
config.json that must stand in a warning on the way into Megatron.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from family_models import DENSE_A, MOE, ROUTED, Family, dense


@dataclass(frozen=True)
class Setting:
    make: Callable[[], torch.nn.Module]
    key: str = None
    quick: bool = False


def rope(kind, **changes):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0) | changes)


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LONG = dict(short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 2.1, 2.2, 2.3], original_max_position_embeddings=16, factor=4.0)
LAYERS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
QWEN_MOE = MOE | dict(num_experts=6)
QWEN2_MOE = QWEN_MOE | dict(shared_expert_intermediate_size=40)

SETTINGS = {
    "mistral, plain": Setting(dense("Mistral", sliding_window=None)),
    "mistral, sliding_window": Setting(dense("Mistral", sliding_window=9), quick=True),
    "mixtral, sliding_window": Setting(dense("Mixtral", **ROUTED, sliding_window=9)),
    "qwen2, max_window_layers": Setting(dense("Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=2), quick=True),
    "qwen2, sliding_window without use": Setting(dense("Qwen2", use_sliding_window=False, sliding_window=9)),
    "qwen3, layer_types": Setting(dense("Qwen3", use_sliding_window=True, sliding_window=9, layer_types=LAYERS), quick=True),
    "qwen2-moe, layer_types": Setting(dense("Qwen2Moe", **QWEN2_MOE, use_sliding_window=True, sliding_window=9, layer_types=LAYERS)),
    "qwen3-moe, sliding_window": Setting(dense("Qwen3Moe", **QWEN_MOE, use_sliding_window=True, sliding_window=9)),
    "llama, rope default": Setting(dense("Llama", **rope("default", rope_theta=7000.0))),
    "llama, rope linear": Setting(dense("Llama", **rope("linear", factor=4.0)), "rope_parameters.rope_type", quick=True),
    "llama, rope dynamic": Setting(
        dense("Llama", max_position_embeddings=16, **rope("dynamic", factor=4.0)), "rope_parameters.rope_type"),
    "llama, rope llama3": Setting(dense("Llama", **rope("llama3", **LLAMA3, original_max_position_embeddings=8192))),
    "llama, rope llama3 odd": Setting(
        dense("Llama", **rope("llama3", **LLAMA3, original_max_position_embeddings=16)), "rope_parameters.rope_type", quick=True),
    "llama, rope longrope": Setting(dense("Llama", **rope("longrope", **LONG)), "rope_parameters.rope_type"),
    "qwen3, rope yarn": Setting(dense("Qwen3", **rope("yarn", factor=4.0, original_max_position_embeddings=16)), quick=True),
    "qwen3, rope yarn mscale": Setting(dense("Qwen3", **rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=16.0, mscale=1.0, mscale_all_dim=0.7))),
    "qwen3, rope yarn attention_factor": Setting(
        dense("Qwen3", **rope("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.3)), "rope_parameters.attention_factor"),
    "llama, rms_norm_eps": Setting(dense("Llama", rms_norm_eps=0.03)),
    "llama, hidden_act": Setting(dense("Llama", hidden_act="gelu"), "hidden_act", quick=True),
    "llama, tied": Setting(dense("Llama", tie_word_embeddings=True)),
    "qwen3-moe, norm_topk_prob": Setting(dense("Qwen3Moe", **QWEN_MOE, norm_topk_prob=True)),
    "qwen3-moe, no norm_topk_prob": Setting(dense("Qwen3Moe", **QWEN_MOE, norm_topk_prob=False)),
    "gpt-oss, sliding_window": Setting(dense("GptOss", **ROUTED, sliding_window=9), quick=True),
    "nemotron, norm_eps": Setting(dense("Nemotron", norm_eps=0.03), quick=True),
}


def family_of(setting):
    return Family(setting.make, DENSE_A, DENSE_A, dtype=torch.float32)
