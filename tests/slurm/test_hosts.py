"""Several hosts: the same bytes as on one, and what becomes of a job when a host or its network fails."""

import os
import random
import subprocess
import time

import pytest

from checkpoints import same_trees
from cluster import MPI, SCRIPTS, Cluster, Hosts, processes_with, seed_of, wait_until

# Open MPI asks a silent host whether it is still there after two minutes; here it asks soon.
NOTICE_SOON = ["--mca", "oob_tcp_keepalive_time", "3", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca", "oob_tcp_keepalive_probes", "2"]


@pytest.fixture
def hosts(scratch):
    three = Hosts(scratch / "hosts", 3)
    yield three
    three.down()


class Launched:
    """mpirun on the host "login", with two ranks on each of some hosts."""

    def __init__(self, hosts, place, job, names, options=()):
        self.mark = f"RESHARD_TEST_RUN={place.folder}"
        mpirun = ["mpirun", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", str(hosts.folder / "agent"), "--mca", "btl_tcp_if_include", "eth0",
                  "--mca", "oob_tcp_if_include", "eth0", *NOTICE_SOON, "--bind-to", "none", "-x", "RESHARD_TEST_RUN", "--host",
                  ",".join(f"{name}:2" for name in names), "-n", str(2 * len(names))]
        command = hosts.on("login") + mpirun + [str(place.program), "run", str(job), *options]
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, cwd=place.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=os.environ | MPI | {"RESHARD_TEST_RUN": str(place.folder)}, start_new_session=True)

    def ranks(self):
        return processes_with({self.mark.encode()})

    def wait(self, seconds=60):
        """Its exit code and what it said."""
        try:
            out, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
            raise AssertionError(f"mpirun still ran after {seconds} s\n{out[-4000:]}") from None
        return self.process.returncode, out


def at_work(hosts, place, **run):
    """A slow job on all hosts that has been at work for a moment of random length."""
    place.delay(100)
    launched = Launched(hosts, place, place.write_job("job.toml", place.target, **run), hosts.names)
    wait_until(place.has_begun, "the job has begun", 30)
    time.sleep(random.Random(seed_of("moment", time.time_ns() % 1000)).uniform(0.5, 1.5))
    assert len(launched.ranks()) == 6 and launched.process.poll() is None
    return launched


def run_again(hosts, place, names, undisturbed, transport):
    place.delay(0)
    code, out = Launched(hosts, place, place.write_job("again.toml", place.target, transport=transport), names).wait()
    assert code == 0, out
    same_trees(place.target, undisturbed)


@pytest.mark.long_but("mpi")
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_three_hosts_make_the_same_bytes_as_one_rank(hosts, scratch, place, undisturbed, transport):
    job = place.write_job("mpirun.toml", place.folder / "by-mpirun", transport=transport)
    code, out = Launched(hosts, place, job, hosts.names).wait()
    assert code == 0, out
    same_trees(place.folder / "by-mpirun", undisturbed)
    cluster = Cluster(scratch / f"cluster-{transport}", nodes=3, cpus=4, hosts=hosts)
    try:
        job = place.write_job("srun.toml", place.folder / "by-srun", transport=transport)
        batch = cluster.submit(["--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=1"], SCRIPTS / "reshard.sbatch", job, cwd=place.folder,
                               environment=place.environment)
        assert batch.wait_for_end() == 0, batch.describe()
        assert "largest of 6 ranks" in batch.log(), batch.log()
        same_trees(place.folder / "by-srun", undisturbed)
    finally:
        cluster.down()


@pytest.mark.long_but("auto")
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_a_host_loses_its_power(hosts, place, undisturbed, transport):
    launched = at_work(hosts, place, transport=transport)
    hosts.pull_plug("h2")
    code, out = launched.wait(40)
    assert code != 0, out
    assert not place.target.exists()
    wait_until(lambda: not launched.ranks(), lambda: f"ranks are left: {launched.ranks()}", 20)
    run_again(hosts, place, ["h0", "h1"], undisturbed, transport)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["h0", "h2"])
def test_a_cable_is_cut(hosts, place, undisturbed, victim):
    """Whoever notices first ends the job: the ranks after run.stall_seconds, or Open MPI's daemons. h0 has rank 0, which holds the lock."""
    launched = at_work(hosts, place, transport="mpi", stall_seconds=6)
    hosts.cut(victim)
    code, out = launched.wait(40)
    assert code != 0, out
    assert not place.target.exists()
    wait_until(lambda: not launched.ranks(), lambda: f"ranks are left: {launched.ranks()}", 20)
    hosts.join(victim)
    run_again(hosts, place, hosts.names, undisturbed, "mpi")


@pytest.mark.long
def test_ranks_alone_notice_that_nothing_arrives(hosts, place, undisturbed, monkeypatch):
    """The same when Open MPI does not look: exit code 8, and the sentence names whom it waited for."""
    monkeypatch.setattr("test_hosts.NOTICE_SOON", [])
    launched = at_work(hosts, place, transport="mpi", stall_seconds=4)
    hosts.cut("h1")
    wait_until(lambda: len(launched.ranks()) < 6, "ranks that end", 40)
    hosts.join("h1")
    code, out = launched.wait(40)
    assert code == 8 and "no message was received or sent for 4 s" in out and "from" in out, f"exit {code}\n{out}"
    assert not place.target.exists()
    run_again(hosts, place, hosts.names, undisturbed, "mpi")


@pytest.mark.long
@pytest.mark.parametrize("rate", ["1gbit", "50mbit"])
def test_a_slow_host_is_no_stalled_one(hosts, place, undisturbed, rate):
    hosts.slow_down("h1", rate)
    job = place.write_job("job.toml", place.target, transport="mpi", stall_seconds=2)
    code, out = Launched(hosts, place, job, hosts.names).wait()
    assert code == 0, out
    same_trees(place.target, undisturbed)


@pytest.mark.long
def test_slurm_goes_on_after_a_cut_cable(hosts, scratch, place, undisturbed):
    """The lost node keeps its ranks until it hears of the end; the job is queued again and runs on the two other nodes."""
    cluster = Cluster(scratch / "cut", nodes=3, cpus=4, hosts=hosts, conf=["SlurmdTimeout=6", "MessageTimeout=4"])
    try:
        place.delay(200)
        job = place.write_job("job.toml", place.target, transport="mpi", stall_seconds=5)
        batch = cluster.submit(["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1"], SCRIPTS / "reshard.sbatch", job, cwd=place.folder,
                               environment=place.environment)
        wait_until(place.has_begun, batch.describe, 30)
        facts = batch.facts()
        used = cluster.client("scontrol", "show", "hostnames", facts["NodeList"]).split()
        victim = next(name for name in used if name != facts["BatchHost"])
        hosts.cut(victim)
        batch.wait_for_restart(90)
        place.delay(0)
        assert batch.wait_for_end() == 0, batch.describe()
        assert victim not in cluster.client("scontrol", "show", "hostnames", batch.facts()["NodeList"]).split()
        same_trees(place.target, undisturbed)
        wait_until(lambda: not batch.ranks(), lambda: f"ranks are left: {batch.ranks()}", 20)
    finally:
        cluster.down()
