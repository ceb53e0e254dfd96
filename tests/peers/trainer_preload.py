"""What the fork server imports before it starts ranks of the trainer."""

import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402

torch.set_num_threads(1)

import megatron.core.distributed  # noqa: E402,F401
import megatron.core.optimizer  # noqa: E402,F401
import megatron.training.argument_utils  # noqa: E402,F401
import megatron.training.checkpointing  # noqa: E402,F401
import megatron.training.training  # noqa: E402,F401
import megatron_trainer  # noqa: E402,F401
