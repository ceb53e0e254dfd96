"""What the fork server imports before it starts ranks."""

import torch

torch.set_num_threads(1)

import megatron.core.models.gpt  # noqa: E402,F401
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402,F401
import megatron.core.transformer.transformer_block  # noqa: E402,F401
import megatron_models  # noqa: E402,F401
