"""What the fork server imports before it starts ranks of the trainer."""

import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402

torch.set_num_threads(1)

import dcp_models  # noqa: E402
import megatron_release  # noqa: E402

megatron_release.with_version_of("emerging-optimizers", "0.3.0")
dcp_models.stand_in_for_emerging_optimizers()

import megatron.core.distributed  # noqa: E402,F401
import megatron.core.optimizer  # noqa: E402,F401
import megatron.training.argument_utils  # noqa: E402,F401
import megatron.training.checkpointing  # noqa: E402,F401
import megatron.training.training  # noqa: E402,F401
import megatron_trainer  # noqa: E402,F401
