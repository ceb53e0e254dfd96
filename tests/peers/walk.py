"""Random walks over formats and layouts: each step converts what the last one made, and then everything that looks at a checkpoint is asked of both.

A job opens its target as a source before it publishes it (the gate), so a step that ends with 0 has passed that too. After each step

    verify A B    says "same"
    verify B      says "sound"
    digest        has the same digests of A and B, of weights and where state went along of state
    inspect B     finds nothing wrong

and nothing else is allowed. A job that is refused is no step; the sentences of the refusals that a walk may meet are in `ALLOWED`."""

import json
import os
import random
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from reshard_job import BINARY, job_text

TIMEOUT_SECONDS = 120
MASTERS = re.compile(r" \((param|fp32_param|master)\)$")  # the word for master weights differs between forms
MASTER = " (master)"
MEGATRON = ("megatron", "torch_dist", "fsdp_dtensor")
ALLOWED = {  # sentence -> where it is documented
}


@dataclass(frozen=True)
class Kind:
    """A model: its map, what layouts may cut, and what it is."""

    map: str = ""  # of a family; "": only Megatron knows the model
    tp: tuple = (1, 2)
    pp: tuple = (1, 2)
    ep: tuple = (1,)
    layers: int = 2
    hybrid: bool = False
    adapter: bool = False  # a LoRA adapter alone


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    format: str
    kind: Kind
    state: bool = False  # of the optimizer
    rng: bool = False


class Disagreement(AssertionError):
    """What a step showed: the job and what was said."""


class Walk:
    """One walk below a folder, with a generator of its own."""

    def __init__(self, folder, seed):
        self.folder, self.random, self.count = Path(folder), random.Random(seed), 0
        self.refused, self.log = {}, []

    def step(self, a):
        """The next checkpoint, or None where the job was refused as it may be."""
        self.count += 1
        target_format, source_options, target_options, model, run = self.choose(a)
        target = self.folder / f"step{self.count}"
        text = job_text(a.path, target, target_format, source_options, target_options, model, run)
        job = self.folder / f"step{self.count}.toml"
        job.write_text(text)
        self.log.append(f"{a.path.name} ({a.format}) -> {target_format} {source_options} {target_options} {model} {run}")
        outcome = said("run", job)
        if outcome.returncode in (2, 3):
            return self.refuse(a, text, outcome)
        self.expect(outcome.returncode == 0, text, outcome)
        state = a.state and source_options.get("optimizer") != "drop"
        b = Checkpoint(target, target_format, a.kind, state, a.rng and "rng" not in source_options)
        self.check(a, b, text)
        return b

    def refuse(self, a, text, outcome):
        sentence = outcome.stderr.partition("error: ")[2].strip()
        found = next((pattern for pattern in ALLOWED if re.search(pattern, sentence)), None)
        self.expect(found is not None, text, outcome)
        self.refused[found] = self.refused.get(found, 0) + 1
        return None

    def check(self, a, b, text):
        same = said("verify", a.path, b.path, *([] if b.state or not a.state else ["--weights-only"]))
        self.expect(same.returncode == 0, text, same)
        for command in ("verify", "inspect"):
            outcome = said(command, b.path)
            self.expect(outcome.returncode == 0, text, outcome)
        if "stored" in (names_of(a), names_of(b)):
            return
        options = [] if a.state and b.state else ["--weights-only"]
        of_a, of_b = alike(digests(a.path, options), digests(b.path, options))
        if not of_a.keys() & of_b.keys():
            return  # a job of one format may keep the stored names, and its record has those
        if of_a != of_b:
            different = sorted(name for name in of_a.keys() | of_b.keys() if of_a.get(name) != of_b.get(name))
            raise Disagreement(f"{self.where(text)}\ndigest: {[(name, of_a.get(name), of_b.get(name)) for name in different[:4]]} of {len(different)}")

    def expect(self, holds, text, outcome):
        if not holds:
            raise Disagreement(f"{self.where(text)}\n{outcome.args} ended with {outcome.returncode}\n{outcome.stdout[-1500:]}\n{outcome.stderr[-1500:]}")

    def where(self, text):
        return "\n".join([*self.log[-12:], text])

    # --- choices ---

    def choose(self, a):
        pick = self.random.choice
        target_format = pick(targets_of(a))
        model, source_options, target_options, run = {}, {}, {}, {"memory": pick(["1 MiB", "4 MiB", "64 MiB"])}
        dropped = target_format in ("huggingface", "dcp") or self.random.random() < 0.05
        if a.state and dropped and target_format != "deepspeed":  # which is a form of state
            source_options["optimizer"] = "drop"
        if a.rng:
            source_options["rng"] = "drop"
        if target_format in MEGATRON or target_format == "dcp" and a.format not in ("huggingface", "dcp"):
            target_options |= self.layout(a.kind, target_format)
        if a.kind.map and a.format in MEGATRON and (target_format == "huggingface" or target_format == "hdf5" and self.random.random() < 0.7):
            model["map"] = a.kind.map
        if a.format == "deepspeed" and target_format == "hdf5" and self.random.random() < 0.5:
            model["map"] = a.kind.map  # else the names are kept
        getattr(self, "to_" + target_format)(a, target_options)
        return target_format, source_options, target_options, model, run

    def layout(self, kind, target_format):
        pick = self.random.choice
        tp, pp, ep = pick(kind.tp), pick(kind.pp), pick(kind.ep)
        sizes = {"tp": tp, "pp": pp, "ep": ep}
        if ep > 1 or len(kind.ep) > 1:
            etp = pick([None, None, 1, tp])  # mostly Megatron's default: that of tp
            if etp is not None:
                sizes["etp"] = etp
        if kind.layers % (pp * 2) == 0 and pp > 1 and target_format == "megatron" and self.random.random() < 0.25:
            sizes["vpp"] = 2
        return {"layout": "{ " + ", ".join(f"{axis} = {size}" for axis, size in sizes.items()) + " }"}

    def maybe(self, options, key, values, chance=0.5):
        if self.random.random() < chance:
            options[key] = self.random.choice(values)

    def to_megatron(self, a, options):
        if not a.kind.hybrid:  # which has Transformer Engine's layers alone
            self.maybe(options, "transformer_impl", ["local", "transformer_engine"], 0.3)
        self.maybe(options, "experts", ["sequential"], 0.3)
        self.adapter_form(a, options)
        self.model_class(a, options)
        self.maybe(options, "mp_rank_style", ["full3d"], 0.1)
        if a.state:
            self.maybe(options, "optimizer", ["distributed", "inline"], 0.7)
            self.maybe(options, "bucket_size", [1000, 40000], 0.2)
            self.maybe(options, "overlap_grad_reduce", ["on", "off"], 0.2)

    def to_torch_dist(self, a, options):
        if not a.kind.hybrid:
            self.maybe(options, "transformer_impl", ["local", "transformer_engine"], 0.3)
        self.maybe(options, "layers", ["separate"], 0.3)
        self.adapter_form(a, options)
        self.model_class(a, options)
        self.maybe(options, "chunk_bytes", ["4 KiB", "64 KiB"], 0.3)

    def model_class(self, a, options):
        if not a.kind.hybrid and not a.kind.adapter:
            self.maybe(options, "model", ["gpt", "hybrid"], 0.15)

    def adapter_form(self, a, options):
        if a.kind.adapter:
            self.maybe(options, "adapter", ["canonical", "fused", "mcore-bridge"])

    def to_fsdp_dtensor(self, a, options):
        self.maybe(options, "chunk_bytes", ["4 KiB", "64 KiB"], 0.3)

    def to_huggingface(self, a, options):
        self.maybe(options, "shard_bytes", ["20 KB", "100 KB"])

    def to_hdf5(self, a, options):
        self.maybe(options, "part_bytes", ["20 KiB", "100 KiB"])

    def to_dcp(self, a, options):
        self.maybe(options, "chunks", ["whole"])

    def to_deepspeed(self, a, options):
        pass


def targets_of(a):
    if a.format == "deepspeed":
        return ["deepspeed", "torch_dist", "megatron", "hdf5", "fsdp_dtensor"]
    if a.format == "dcp":
        return ["dcp", "huggingface"]
    if a.kind.adapter:
        return ["megatron", "torch_dist", "huggingface"]
    targets = ["megatron", "megatron", "torch_dist", "torch_dist", "hdf5"]
    if not a.kind.hybrid:
        targets.append("fsdp_dtensor")
    if a.kind.map and not a.state:
        targets.append("huggingface")
    if a.format == "huggingface":
        targets += ["dcp"]
    return targets


def names_of(checkpoint):
    """Whether a digest is of logical tensors, or of stored ones."""
    return "stored" if checkpoint.format in ("dcp", "deepspeed") else "logical"


def alike(a, b):
    """Where one side has no weights but F32 masters, the masters of the other are compared with them."""
    for one, other in ((a, b), (b, a)):
        if any(name.endswith(MASTER) for name in one) and not any(name.endswith(MASTER) for name in other) and states_in(other):
            for name in [name for name in one if name.endswith(MASTER)]:
                one[name.removesuffix(MASTER)] = one.pop(name)
    return a, b


def states_in(digests):
    return any(name.endswith(")") for name in digests)


# --- the program ---


def said(*words):
    """What a command said, alone on this host, in a session folder of its own."""
    with tempfile.TemporaryDirectory(prefix="walk-") as session:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMPI_MCA_orte_tmpdir_base": session}
        return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=environment)


def digests(path, options):
    """Logical name -> what a digest says of it; master weights under one name."""
    outcome = said("digest", path, *options, "--json")
    assert outcome.returncode == 0, f"digest {path}: {outcome.returncode} {outcome.stderr}"
    tensors = json.loads(outcome.stdout)["tensors"]
    return {MASTERS.sub(MASTER, tensor["name"]): (tensor["dtype"], tensor["shape"], tensor["crc64"]) for tensor in tensors}
