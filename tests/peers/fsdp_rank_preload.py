"""What the fork server imports before it starts ranks that save FSDP models of transformers."""

import torch

torch.set_num_threads(1)

import torch.distributed.checkpoint  # noqa: E402,F401
import torch.distributed.fsdp  # noqa: E402,F401
import torch.distributed.tensor.parallel  # noqa: E402,F401
from transformers import LlamaForCausalLM, Qwen3MoeForCausalLM  # noqa: E402,F401
import fsdp_rank_saves  # noqa: E402,F401
