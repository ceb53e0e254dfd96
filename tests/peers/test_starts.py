"""Commands that are started without a launcher: many at a time, where MPI could not start, and in a shell that a launcher has started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
BENCH = Path(__file__).resolve().parents[1] / "bench" / "starts.py"
RESOURCES = 6
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_NODELIST": "n1"}
SHELLS = {
    "of no launcher": {},
    "where /tmp cannot be written": {"TMPDIR": "/proc"},
    "of srun --mpi=none": STEP,
    "of srun --mpi=pmix": STEP | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_SERVER_URI2": "pmix-server.1;tcp4://127.0.0.1:9"},
    "of srun --mpi=pmi2": STEP | {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "11"},
    "of mpirun -n 1": {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMIX_NAMESPACE": "3200:1"},
}


def starts(count, *options, exports=None):
    return subprocess.run([sys.executable, BENCH, BINARY, "--starts", str(count), *options], env=os.environ | (exports or {}), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_that_read_start_at_the_same_time(shell):
    run = starts(4, exports=SHELLS[shell])
    assert run.returncode == 0, run.stdout
    assert run.stdout.count(": 0 failed") == 12, run.stdout


@pytest.mark.long
def test_a_thousand_starts_of_each_command_succeed():
    run = starts(1000, "--module", str(BENCH.parents[2] / "packaging" / "python"))
    assert run.returncode == 0, run.stdout


def test_ranks_whose_mpi_cannot_start_end_with_our_code(tmp_path):
    """Two tasks of a step without PMI: Open MPI 4 gives up with its own text and exit code 1, which means "different" here."""
    (tmp_path / "empty").mkdir()
    two = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    run = subprocess.run([BINARY, "verify", "empty", "empty"], cwd=tmp_path, env=os.environ | two, text=True, capture_output=True, check=False)
    if "Open MPI v4" not in subprocess.run([BINARY, "--version"], text=True, capture_output=True, check=False).stdout:
        pytest.skip("another MPI: it may start")
    assert run.returncode == RESOURCES, run.stderr
    assert run.stderr.count("error: MPI could not start") == 1, run.stderr
