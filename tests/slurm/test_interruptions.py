"""Jobs that Slurm or an accident interrupts: they are queued again where they can be, the target is untouched or complete, and the end is the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpoints import same_trees
from cluster import SCRIPTS, Cluster, Hosts, seed_of, wait_until

OPTIONS = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1"]
SLOW_MILLISECONDS = 40  # before every write: the job would take half a minute


def begin(cluster, place, options=(), milliseconds=SLOW_MILLISECONDS):
    """A job that is at work, and has been for a moment of random length."""
    place.delay(milliseconds)
    job = cluster.submit([*OPTIONS, *options], SCRIPTS / "reshard.sbatch", place.job, cwd=place.folder, environment=place.environment)
    wait_until(place.has_begun, job.describe, 30)
    wait = random.Random(seed_of("moment", time.time_ns() % 1000)).uniform(1.0, 2.0)
    time.sleep(wait)
    assert job.state() == "RUNNING" and not place.target.exists(), job.describe()
    return job


def finish_after_restart(job, place, undisturbed):
    """The second attempt goes on where the first one was."""
    job.wait_for_restart()
    before = place.written()
    place.delay(0)
    assert job.wait_for_end() == 0, job.describe()
    assert job.restarts() == 1, job.describe()
    same_trees(place.target, undisturbed)
    size = sum(path.stat().st_size for path in undisturbed.iterdir())
    assert before > 0.005 * size, "the first attempt had hardly begun"
    assert place.written() <= 1.1 * size, f"{place.written()} bytes were written for {size}, {before} of them by the first attempt"
    first, second = job.attempts()
    resumed = [event for event in second if event["type"] == "resume"]
    assert resumed and resumed[0]["bytes_reused"] > 0, second
    assert second[-1]["type"] == "result" and second[-1]["exit_code"] == 0
    return first


def test_a_job_of_higher_priority_takes_its_nodes(cluster, place, undisturbed):
    """Preemption: SIGTERM first, and ten seconds of grace."""
    job = begin(cluster, place)
    urgent = cluster.submit(["--partition=urgent", "--exclusive", "--output=urgent.log", "--wrap=sleep 1"], cwd=place.folder)
    job.wait_for_restart()
    assert not place.target.exists()
    assert urgent.wait_for_end() == 0, urgent.describe()
    first = finish_after_restart(job, place, undisturbed)
    assert first[-1]["exit_code"] == 75, first[-1]


@pytest.mark.long
def test_a_requeue_by_an_administrator(cluster, place, undisturbed):
    """The batch script and the ranks get SIGTERM together, and SIGKILL after KillWait."""
    job = begin(cluster, place)
    cluster.client("scontrol", "requeue", job.number)
    finish_after_restart(job, place, undisturbed)


@pytest.mark.long
def test_a_signal_to_the_ranks(cluster, place, undisturbed):
    """As --signal=USR1 sends it, without waiting for a time limit."""
    job = begin(cluster, place)
    cluster.client("scancel", "--signal=USR1", job.number)
    first = finish_after_restart(job, place, undisturbed)
    assert first[-1]["exit_code"] == 75 and "exit code 75" in job.log(), job.log()


@pytest.mark.long
def test_a_job_that_its_user_cancels_is_not_queued_again(cluster, place, undisturbed):
    """The same job, submitted once more, resumes."""
    job = begin(cluster, place)
    cluster.client("scancel", job.number)
    job.wait_for_end(60)
    wait_until(lambda: not job.ranks(), job.describe, 60)
    time.sleep(3)  # a script that still ran would queue it again
    assert job.state() == "CANCELLED" and job.restarts() == 0 and not place.target.exists(), job.describe()
    place.delay(0)
    again = cluster.submit(OPTIONS, SCRIPTS / "reshard.sbatch", place.job, cwd=place.folder, environment=place.environment)
    assert again.wait_for_end() == 0, again.describe()
    assert [event for event in again.attempts()[-1] if event["type"] == "resume"], again.describe()
    same_trees(place.target, undisturbed)


@pytest.mark.long
def test_the_time_limit_where_slurm_requeues_by_exit_code_too(scratch, place, undisturbed):
    """One minute is the shortest limit, and Slurm may send the signal up to a minute early: here that is a few seconds after the start. With
    RequeueExit=75 in slurm.conf both Slurm and the script ask for another attempt; one is made."""
    own = Cluster(scratch / "time-limit", conf=["RequeueExit=75"])
    try:
        job = begin(own, place, ["--time=1", "--signal=USR1@50"], milliseconds=5 * SLOW_MILLISECONDS)
        began = time.monotonic()
        job.wait_for_restart(70)
        assert time.monotonic() - began < 65
        first = finish_after_restart(job, place, undisturbed)
        assert first[-1]["exit_code"] == 75 and "TIME LIMIT" not in job.log(), job.log()
    finally:
        own.down()


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_the_death_of_one_rank_ends_the_job(cluster, place, undisturbed, which):
    job = begin(cluster, place)
    ranks = job.ranks()
    assert len(ranks) == 2, job.describe()
    os.kill(ranks[which], signal.SIGKILL)
    began = time.monotonic()
    code = job.wait_for_end(30)
    assert code == 137 and time.monotonic() - began < 30, job.describe()
    assert job.state() == "FAILED" and not job.ranks()
    assert not place.target.exists()
    place.delay(0)
    again = cluster.submit(OPTIONS, SCRIPTS / "reshard.sbatch", place.job, cwd=place.folder, environment=place.environment)
    assert again.wait_for_end() == 0, again.describe()
    same_trees(place.target, undisturbed)


@pytest.fixture
def spread(scratch):
    """Three pretend hosts with a node each, where a lost node is noticed after some seconds."""
    hosts = Hosts(scratch / "hosts", 3)
    cluster = Cluster(scratch / "spread", nodes=3, cpus=4, hosts=hosts, conf=["SlurmdTimeout=6", "MessageTimeout=4"])
    yield cluster
    cluster.down()
    hosts.down()


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["slurm", "mpirun"])
def test_one_interruption_after_the_other(launcher):
    """A few of those that interruptions.py makes by the dozen."""
    script = Path(__file__).with_name("interruptions.py")
    done = subprocess.run([sys.executable, script, "--launcher", launcher, "--count", "2", "--mebibytes", "64"], capture_output=True, text=True, timeout=180)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 interruptions, all targets right" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("loss", ["slurmd", "host", "batch-host"])
def test_the_loss_of_a_node(spread, place, undisturbed, loss):
    """Slurm puts the job back into the queue by itself and starts it on the nodes that are left. Where only slurmd died it cannot end its ranks:
    they end when they have heard nothing of the others for run.stall_seconds."""
    place.job = place.write_job("job.toml", place.target, stall_seconds=15)
    job = begin(spread, place, ["--nodes=2"], milliseconds=5 * SLOW_MILLISECONDS)
    facts = job.facts()
    used = spread.client("scontrol", "show", "hostnames", facts["NodeList"]).split()
    victim = facts["BatchHost"] if loss == "batch-host" else next(name for name in used if name != facts["BatchHost"])
    if loss == "slurmd":
        os.kill(spread.daemon(f"slurmd.{victim}"), signal.SIGKILL)
    else:
        spread.hosts.pull_plug(victim)
    finish_after_restart(job, place, undisturbed)
    assert victim not in spread.client("scontrol", "show", "hostnames", job.facts()["NodeList"]).split()
    wait_until(lambda: not job.ranks(), lambda: f"ranks are left: {job.ranks()}, {job.describe()}", 30)
