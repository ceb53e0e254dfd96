"""What the ranks of DeepSpeed's tests import, once for all of them."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import transformers  # noqa: F401, E402

# DeepSpeed would compile its shared-memory collectives at the first use, under a lock file in the user's cache: the lock of a run that was killed stops every
# later run for good. gloo's collectives give the same checkpoints.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
