#!/usr/bin/env python3
"""Interrupts a large job many times, at random moments and in random ways, under Slurm and under mpirun, and checks that nothing is lost:

    RESHARD_BIN=… RESHARD_DELAY_SHIM=… python tests/slurm/interruptions.py [--count 50] [--mebibytes 2048] [--launcher slurm|mpirun|both] [--seed N]

A job is interrupted ten times on its way through the target, then it finishes, and the next one begins. After each interruption the next attempt must
reuse all that was written but for 2 % of the target and two rounds of each rank, and at the end the target must be the bytes of an undisturbed run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkpoints import job_text, same_trees, write_source
from cluster import MPI, SCRIPTS, Cluster, processes_with, wait_until
from place import Place

RANKS = 2
CHAIN = 10  # interruptions of one job
LATEST = 0.85  # of the target: an interruption must come before the job has ended
TARGET_LOCKED, STOPPED = 4, 75


class ByMpirun:
    """Attempts as processes of mpirun."""

    ways = ("USR1 to mpirun", "TERM to mpirun", "KILL of mpirun", "KILL of a rank")

    def __init__(self, place):
        self.place = place
        self.process = None
        self.number = 0

    def down(self):
        if self.process and self.process.poll() is None:
            self.process.kill()

    def ranks(self):
        return processes_with({f"RESHARD_TEST_RUN={self.place.folder}".encode()})

    def start(self):
        self.number += 1
        self.events_file = self.place.folder / f"attempt-{self.number}.ndjson"
        command = ["mpirun", "--bind-to", "none", "-n", str(RANKS), self.place.program, "run", self.place.job, "--quiet", "--events", self.events_file]
        with (self.place.folder / "mpirun.log").open("a") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            env=os.environ | MPI | {"RESHARD_TEST_RUN": str(self.place.folder)})

    def interrupt(self, way, chance):
        number = {"USR1": signal.SIGUSR1, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}[way.split()[0]]
        os.kill(chance.choice(self.ranks()) if way.endswith("rank") else self.process.pid, number)
        return self.end()

    def end(self):
        return self.process.wait(timeout=300)

    def events(self):
        return [json.loads(line) for line in self.events_file.read_text().splitlines()] if self.events_file.exists() else []


class BySlurm:
    """Attempts of batch jobs: most are requeued by themselves, after the loss of a rank another one is submitted."""

    ways = ("USR1 to the steps", "scontrol requeue", "a more urgent job", "KILL of a rank")

    def __init__(self, place):
        self.place = place
        self.cluster = Cluster(place.folder / "cluster")
        self.job = None

    def down(self):
        self.cluster.down()

    def ranks(self):
        return self.job.ranks()

    def start(self):
        if self.job is None or self.job.state() not in ("PENDING", "RUNNING"):
            self.job = self.cluster.submit(["--nodes=1", f"--ntasks-per-node={RANKS}", "--cpus-per-task=1"], SCRIPTS / "reshard.sbatch", self.place.job,
                                           cwd=self.place.folder, environment=self.place.environment)

    def interrupt(self, way, chance):
        before = self.job.restarts()
        if way == "USR1 to the steps":
            self.cluster.client("scancel", "--signal=USR1", self.job.number)
        elif way == "scontrol requeue":
            self.cluster.client("scontrol", "requeue", self.job.number)
        elif way == "a more urgent job":
            self.cluster.submit(["--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true"], cwd=self.place.folder)
        else:
            os.kill(chance.choice(self.job.ranks()), signal.SIGKILL)
            return self.job.wait_for_end()
        wait_until(lambda: self.job.restarts() > before and self.job.state() == "PENDING", self.job.describe, 60)
        return STOPPED

    def end(self):
        return self.job.wait_for_end(300)

    def events(self):
        """Of the attempt after the ones that were interrupted."""
        attempts = self.job.attempts()
        return attempts[-1] if len(attempts) > self.job.restarts() else []


def memory_for(size):
    """run.memory such that a job of this size has some hundred rounds; a round has a quarter of it."""
    return max(1 << 20, size // 32)


def seconds_for(size):
    """How long an undisturbed job is made to take."""
    return 20 if size >= 1 << 30 else 10


def reused(events):
    """Bytes that an attempt takes over from the ones before; None when it has not said so yet."""
    for event in events:
        if event["type"] == "resume":
            return event["bytes_reused"]
    return None


class Chain:
    """One job with its interruptions."""

    def __init__(self, launcher, place, size, chance):
        self.launcher = launcher
        self.place = place
        self.size = size
        self.chance = chance
        self.log = place.folder / "writes"
        self.lost = []

    def written(self):
        return self.place.written() if self.log.exists() else 0

    def run(self, interruptions, milliseconds):
        """Returns the bytes that were lost at each interruption."""
        places = sorted(self.chance.uniform(0.02, LATEST) for _ in range(interruptions))
        begun, sure = 0, 0  # written and reused at the beginning of an attempt
        self.place.delay(milliseconds)
        self.launcher.start()
        for share in places:
            wanted = max(int(share * self.size) - sure, 1)  # of this attempt
            wait_until(lambda: self.written() - begun >= wanted, "the job goes on", 300, interval=0.02)
            way = self.chance.choice(self.launcher.ways)
            code = self.launcher.interrupt(way, self.chance)
            wait_until(lambda: not self.launcher.ranks(), "ranks of this attempt are left", 30)
            assert code != 0 and not self.place.target.exists(), f"{way}: exit {code}"
            done = sure + self.written() - begun
            begun = self.written()
            self.launcher.start()
            sure = wait_until(lambda: reused(self.launcher.events()), f"nothing is reused after {way}", 60)
            self.note(way, done, sure)
        self.place.delay(0)
        code = self.launcher.end()
        assert code == 0, f"the last attempt ended with {code}"
        return self.lost

    def note(self, way, done, sure):
        lost = max(0, done - sure)
        self.lost.append(lost)
        allowed = self.size // 50 + 2 * RANKS * memory_for(self.size) // 4
        print(f"  {way:<18} at {100 * done / self.size:5.1f} %: {lost / (1 << 20):6.1f} MiB to do again, {allowed / (1 << 20):.1f} allowed", flush=True)
        assert lost <= allowed, f"{way}: {lost} bytes are to be done again"


def calibrated(place, size):
    """The delay of a write that makes an undisturbed job slow; its target is what the others are compared with."""
    place.delay(0)
    job = place.folder / "undisturbed.toml"
    job.write_text(job_text(place.source, place.folder / "undisturbed", memory=memory_for(size)))
    subprocess.run(["mpirun", "--bind-to", "none", "-n", str(RANKS), place.program, "run", job, "--quiet"], check=True, env=os.environ | MPI)
    writes = place.folder / "writes"
    count = len(writes.read_text().split())
    writes.unlink()
    return max(1, 1000 * seconds_for(size) * RANKS // count)


def interrupt_many(folder, launcher_of, source, count, chance):
    """Makes `count` interruptions; returns the bytes lost at each."""
    place = Place(folder, source)
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    place.job = place.write_job("job.toml", place.target, memory=memory_for(size))
    milliseconds = calibrated(place, size)
    lost = []
    launcher = launcher_of(place)
    try:
        while len(lost) < count:
            chain = Chain(launcher, place, size, chance)
            lost += chain.run(min(CHAIN, count - len(lost)), milliseconds)
            same_trees(place.target, place.folder / "undisturbed")
            assert not list(folder.glob(".target.*")), "something hidden is left"
            print(f"  {len(lost)} interruptions: the target is that of an undisturbed run", flush=True)
            shutil.rmtree(place.target)
            chain.log.unlink()
    finally:
        launcher.down()
    return lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--launcher", choices=["slurm", "mpirun", "both"], default="both")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100000)
    options = parser.parse_args()
    for name in ("RESHARD_BIN", "RESHARD_DELAY_SHIM"):
        if not os.environ.get(name):
            parser.error(f"{name} is not set: it names the program, or build/dev/tests/pipeline/libdelay_shim.so")
        os.environ[name] = os.path.abspath(os.environ[name])
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that daemons and files are cleared away
    folder = Path(tempfile.mkdtemp(prefix="reshard-interruptions-"))
    try:
        source = write_source(folder / "source", options.mebibytes, options.seed, files=4)
        for name, launcher in (("slurm", BySlurm), ("mpirun", ByMpirun)):
            if options.launcher not in (name, "both"):
                continue
            print(f"{name}: seed {options.seed}, {options.mebibytes} MiB, {RANKS} ranks", flush=True)
            (folder / name).mkdir()
            lost = interrupt_many(folder / name, launcher, source, options.count, random.Random(f"{options.seed} {name}"))
            print(f"{name}: {len(lost)} interruptions, all targets right; to do again: {sum(lost) / len(lost) / (1 << 20):.1f} MiB on average, "
                  f"{max(lost) / (1 << 20):.1f} MiB at most of {options.mebibytes}", flush=True)
            shutil.rmtree(folder / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
