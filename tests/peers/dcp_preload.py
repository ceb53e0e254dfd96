"""What the fork server imports before it starts ranks that need torch alone."""

import torch

torch.set_num_threads(1)

import torch.distributed.checkpoint  # noqa: E402,F401
import torch.distributed.fsdp  # noqa: E402,F401
import torch.distributed.tensor.parallel  # noqa: E402,F401
import dcp_worlds  # noqa: E402,F401
