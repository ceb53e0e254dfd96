"""A real Slurm on this machine, and pretend hosts for it: brought up and down by the shell scripts beside this file."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "slurm"
# Ranks share the few cores of a test machine, and root runs the tests.
MPI = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def wait_until(true, what, seconds=60, interval=0.1):
    """The first value of `true()` that is not false. `what` is what a failure says, or makes."""
    end = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(interval)


def checked(command, **options):
    """Runs a command that must succeed; what it printed."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **({"timeout": 60} | options))
    except subprocess.TimeoutExpired as slow:
        raise AssertionError(f"{command}: still running after {slow.timeout} s\n{slow.stdout}\n{slow.stderr}") from None
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Hosts:
    """h0, h1, … and login, each with a network, processes and a host name of its own."""

    def __init__(self, folder, count):
        self.folder = Path(folder)
        self.names = [f"h{i}" for i in range(count)]
        checked([HERE / "hosts_up.sh", self.folder, count])

    def down(self):
        checked([HERE / "hosts_down.sh", self.folder])

    def on(self, host):
        """The words to put in front of a command."""
        return [str(self.folder / "on"), host]

    def first_process(self, host):
        return int((self.folder / f"{host}.pid").read_text())

    def wire(self, *command):
        checked([self.folder / "wire", *command])

    def cut(self, host):
        """Unplugs the network cable: what is sent is lost, and nobody is told."""
        self.wire("ip", "link", "set", f"v-{host}", "down")

    def join(self, host):
        self.wire("ip", "link", "set", f"v-{host}", "up")

    def pull_plug(self, host):
        """A power cut: the host's processes are gone at once, and its network does not say goodbye."""
        self.cut(host)
        os.kill(self.first_process(host), signal.SIGKILL)

    def slow_down(self, host, rate):
        """Limits what reaches the host: rate is one of tc, "1gbit"."""
        self.wire("tc", "qdisc", "add", "dev", f"v-{host}", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")


class Cluster:
    """slurmctld, slurmd and munged with all their state below one folder."""

    def __init__(self, folder, nodes=1, cpus=8, hosts=None, conf=()):
        self.folder = Path(folder)
        self.hosts = hosts
        command = [HERE / "cluster_up.sh", self.folder, "--nodes", nodes, "--cpus", cpus]
        command += ["--hosts", hosts.folder] if hosts else []
        checked(command + [word for line in conf for word in ("--conf", line)])
        marks = dict(line.removeprefix("export ").split("=", 1) for line in (self.folder / "env.sh").read_text().split("\n") if line)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))} | MPI | marks

    def down(self):
        checked([HERE / "cluster_down.sh", self.folder])

    def launcher(self):
        return self.hosts.on("login") if self.hosts else []

    def client(self, *command, cwd=None, environment=None):
        return checked(self.launcher() + list(command), cwd=cwd, env=self.environment | (environment or {}))

    def try_client(self, *command, cwd=None, environment=None, timeout=60):
        """The same for a command that may fail: the finished process."""
        return subprocess.run(self.launcher() + [str(word) for word in command], capture_output=True, text=True, timeout=timeout, cwd=cwd,
                              env=self.environment | (environment or {}))

    def daemon(self, name):
        """The process of slurmctld, munged or, with a node, slurmd.n0."""
        recorded = int((self.folder / "run" / f"{name}.recorded").read_text())
        children = Path(f"/proc/{recorded}/task/{recorded}/children").read_text().split()
        return int(children[0]) if "nsenter" in Path(f"/proc/{recorded}/cmdline").read_text() and children else recorded

    def submit(self, options, *command, cwd, environment=None):
        """A batch job of this folder; `options` are those of sbatch, and `command` is a script and its arguments."""
        out = self.client("sbatch", "--parsable", *options, *command, cwd=cwd, environment=environment)
        return Job(self, out.strip())

    def job(self, number):
        """A job by its number, or an index of an array: "5_3"."""
        return Job(self, number)

    def completions(self, number):
        """What the job completion log says of a job: one dictionary for each time it ended."""
        lines = (self.folder / "log" / "jobcomp.log").read_text().splitlines()
        return [entry for entry in map(pairs, lines) if entry.get("JobId") == str(number)]

    def explanation(self):
        """For a failure: the ends of the daemons' logs."""
        return "\n".join(f"== {log.name}\n" + log.read_text(errors="replace")[-1500:] for log in sorted((self.folder / "log").glob("*.log")))


def pairs(line):
    """name=value words, as scontrol and the completion log print them."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


class Job:
    """A submitted batch job."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number

    def facts(self):
        return pairs(self.cluster.client("scontrol", "show", "job", "-o", self.number).splitlines()[0])

    def state(self):
        return self.facts()["JobState"]

    def restarts(self):
        return int(self.facts()["Restarts"])

    def exit_code(self):
        """The batch script's; 128 and the signal's number when a signal ended it."""
        code, number = map(int, self.facts()["ExitCode"].split(":"))
        return 128 + number if number else code

    def log(self):
        path = Path(self.facts()["StdOut"])
        return path.read_text() if path.exists() else ""

    def attempts(self):
        """What the events beside the log tell: for each attempt the list of its events."""
        path = Path(self.facts()["StdOut"]).with_suffix(".events.ndjson")
        found = []
        for event in map(json.loads, path.read_text().splitlines() if path.exists() else []):
            if event["type"] == "start":
                found.append([])
            found[-1].append(event)
        return found

    def describe(self):
        return f"job {self.number}: {self.facts()}\n{self.log()[-4000:]}\n{self.cluster.explanation()}"

    def wait_for_state(self, *states, seconds=60):
        return wait_until(lambda: self.state() in states, lambda: f"{states}, {self.describe()}", seconds)

    def wait_for_end(self, seconds=90):
        """Until it has ended for good; its exit code."""
        self.wait_for_state("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "PREEMPTED", seconds=seconds)
        return self.exit_code()

    def wait_for_restart(self, seconds=60):
        """Until it is in the queue again; Slurm holds it back there for some seconds."""
        wait_until(lambda: self.restarts() and self.state() in ("PENDING", "RUNNING"), lambda: f"a restart, {self.describe()}", seconds)

    def cancel(self):
        self.cluster.try_client("scancel", self.number)

    def ranks(self):
        """Process ids of the program's ranks on this machine, seen from outside of all hosts."""
        mark = f"SLURM_JOB_ID={self.number}".encode()
        cluster = f"RESHARD_TEST_CLUSTER={self.cluster.folder.resolve()}".encode()
        return processes_with({mark, cluster})


def processes_with(marks):
    """The program's processes, wherever they run on this machine, whose environment has all these "NAME=value" bytes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = set((place / "environ").read_bytes().split(b"\0"))
            program = os.readlink(place / "exe")
        except OSError:
            continue
        if marks <= words and program == os.path.realpath(os.environ["RESHARD_BIN"]):
            found.append(int(place.name))
    return sorted(found)


def seed_of(name, default):
    """The seed of a test: RESHARD_SEED, else `default`. It is printed, and pytest shows it when the test fails."""
    seed = int(os.environ.get("RESHARD_SEED", default))
    print(f"{name}: RESHARD_SEED={seed}")
    return seed
