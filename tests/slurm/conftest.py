"""Fixtures of the tests under Slurm. Without root, Slurm or namespaces all of them are skipped, and the first line says why."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest  # noqa: E402

from checkpoints import job_text, write_source  # noqa: E402
from cluster import Cluster, Hosts  # noqa: E402
from place import Place  # noqa: E402

SKIPPED = 77  # what CTest takes for a skipped test
PROGRAMS = ("sbatch", "srun", "slurmctld", "slurmd", "munged", "ip", "tc", "shellcheck", "mpirun")


def obstacle():
    """Why these tests cannot run here; nothing when they can."""
    if not os.environ.get("RESHARD_BIN"):
        return "RESHARD_BIN is not set: there is no program to run"
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return f"not installed: {', '.join(missing)} (scripts/install_packages.sh test installs them)"
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        return "this root may not make namespaces"
    return None


def pytest_configure(config):
    reason = obstacle()
    if reason:
        pytest.exit(f"skipped: {reason}", returncode=SKIPPED)
    os.environ["PATH"] += ":/usr/sbin:/sbin"


@pytest.fixture(scope="session")
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="reshard-slurm-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(scratch):
    """One node. Ranks on it share memory as on any host; several nodes need pretend hosts, or those segments would collide."""
    one = Cluster(scratch / "cluster")
    yield one
    one.down()


@pytest.fixture(scope="module")
def hosts(scratch):
    """Three pretend hosts."""
    three = Hosts(scratch / "hosts", 3)
    yield three
    three.down()


@pytest.fixture(scope="session")
def source(scratch):
    return write_source(scratch / "source", mebibytes=32, seed=20261122)


@pytest.fixture(scope="session")
def undisturbed(scratch, source):
    """What one rank makes of the source when nothing happens."""
    target = scratch / "undisturbed"
    job = scratch / "undisturbed.toml"
    job.write_text(job_text(source, target))
    subprocess.run([os.environ["RESHARD_BIN"], "run", job], check=True, capture_output=True, timeout=60)
    return target


@pytest.fixture
def place(scratch, source, request):
    folder = scratch / request.node.name.replace("[", "-").replace("]", "")
    folder.mkdir()
    yield Place(folder, source)
    shutil.rmtree(folder, ignore_errors=True)
