"""Shared fixtures: the program under test and its scratch folder."""

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the machine's few cores are shared
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)
warnings.filterwarnings("ignore")


@pytest.fixture
def scratch():
    """A folder that goes away at once: kept temporary trees of hundreds of cases would fill a small disk."""
    folder = Path(tempfile.mkdtemp(prefix="reshard-peers-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def program(scratch):
    from reshard_job import BINARY, Program

    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    return Program(scratch)


@pytest.fixture
def bad_jobs(scratch):
    from bad_job import BINARY, BadJobs

    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    return BadJobs(scratch)
