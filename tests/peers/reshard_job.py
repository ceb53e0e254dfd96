"""Writes a job file, runs the program on some ranks and gives back what it said."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

BINARY = os.path.abspath(os.environ["RESHARD_BIN"]) if os.environ.get("RESHARD_BIN") else None
MANIFEST = "reshard.json"
SUMS = "SHA256SUMS"  # names the hash of the manifest
RECORDS = {MANIFEST, SUMS}
TIMEOUT_SECONDS = float(os.environ.get("RESHARD_TEST_TIMEOUT", "120"))
# Takes any of these tests along another path: RESHARD_TEST_RUN="device=emulated transport=mpi"
RUN_OPTIONS = dict(pair.split("=") for pair in os.environ.get("RESHARD_TEST_RUN", "").split())


def job_text(source, target, target_format, source_options, target_options, model, run):
    lines = ["[source]", f'path = "{source}"', *settings(source_options)]
    lines += ["[target]", f'path = "{target}"', f'format = "{target_format}"', *settings(target_options)]
    lines += ["[model]", *settings(model), "[run]", *settings(run)]
    return "\n".join(lines) + "\n"


def settings(options):
    return [f"{name} = {value if name == 'layout' else shown(value)}" for name, value in options.items()]


def shown(value):
    if isinstance(value, list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, (int, bool)) else quoted(value)


def quoted(value):
    return f'"{value}"'


class Program:
    """The program under test, working below one scratch folder."""

    def __init__(self, scratch):
        self.scratch = Path(scratch)
        self.count = 0

    def attempt(self, source, target, target_format, ranks=2, source_options=None, target_options=None, model=None, memory="64 MiB",
                run=None, arguments=(), exports=None):
        self.count += 1
        job = self.scratch / f"job{self.count}.toml"
        run = {"memory": memory} | RUN_OPTIONS | (run or {})
        job.write_text(job_text(source, target, target_format, source_options or {}, target_options or {}, model or {}, run))
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks),
                   *[word for name, value in (exports or {}).items() for word in ("-x", f"{name}={value}")], BINARY, "run", str(job), *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, cwd=self.scratch, env=environment)

    def run(self, source, target, target_format, **options):
        outcome = self.attempt(source, target, target_format, **options)
        assert outcome.returncode == 0, f"exit {outcome.returncode}\n{outcome.stdout[-3000:]}\n{outcome.stderr[-3000:]}"
        return Path(target)

    def to_megatron(self, source, target, layout, form, **options):
        wanted = {"layout": layout.toml(), "transformer_impl": "transformer_engine" if form.impl == "te" else "local", "experts": form.experts}
        target_options = wanted | options.pop("target_options", {})
        return self.run(source, target, "megatron", target_options=target_options, **options)

    def to_hf(self, source, target, **options):
        return self.run(source, target, "huggingface", **options)


def command(*words):
    """What one command of the program says, on one rank."""
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def tree_hashes(root):
    """Relative path -> hash of every file below a folder but the manifest, which names the job's paths: a target must not depend on the ranks."""
    root = Path(root)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path not in (root / MANIFEST, root / SUMS)]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def manifest_of(root):
    return json.loads((Path(root) / MANIFEST).read_text())
