"""What the ranks of DeepSpeed's tests import, once for all of them."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: F401, E402
import transformers  # noqa: F401, E402
