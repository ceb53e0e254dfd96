"""Planted faults: one bit flipped in a source, on its way between ranks or in a written file; halves of a write swapped; a write dropped. The fault
shim (tests/support/fault_shim.cpp) breaks one call of one rank and says which. Every fault must end the job without a target, and be named.

RESHARD_FAULTS=500 plants so many; the normal run a few.
"""

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from reshard_job import BINARY, Program, tree_hashes

SHIM = os.environ.get("RESHARD_FAULT_SHIM")
FAULTS = int(os.environ.get("RESHARD_FAULTS", "25"))  # of the long tier; the default plants one of each kind
KINDS = 6  # a fault of each kind, two of them in writes of two formats
DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
DROP = {"optimizer": "drop", "rng": "drop"}
RANKS = 2
LAYOUT = "{ tp = 4, ep = 2 }"

pytestmark = pytest.mark.skipif(not (BINARY and SHIM), reason="needs the program and the fault shim")


class Case:
    """A kind of fault in one conversion."""

    def __init__(self, kind, target_format, source, run=None):
        self.kind = kind
        self.target_format = target_format
        self.source = source
        self.run = run or {}
        self.calls = {}
        self.whole = {}  # the files of an undisturbed run


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def recorded(program):
    """A source with a manifest."""
    return program.run(SAMPLE, program.scratch / "recorded", "megatron", source_options=DROP, target_options={"layout": LAYOUT})


def job(program, case, fault, rank, call, seed, path=None):
    log = program.scratch / "fault.log"
    log.unlink(missing_ok=True)
    target = program.scratch / "target"
    path = path or (".target.part-" if case.kind.endswith("write") else "/model_optim_rng.pt")
    settings = {"FAULT": fault, "FAULT_PATH": path, "FAULT_RANK": rank, "FAULT_CALL": call, "FAULT_SEED": seed, "FAULT_LOG": log}
    exports = {"LD_PRELOAD": SHIM} | {f"RESHARD_{name}": value for name, value in settings.items()}
    options = {"layout": LAYOUT} if case.target_format in ("megatron", "torch_dist") else {}
    if case.target_format == "huggingface":
        options = {"reference": DATA / "moe-hf-reference"}
    outcome = program.attempt(case.source, target, case.target_format, ranks=RANKS, source_options=DROP, target_options=options, memory="1 MiB",
                              run=case.run, exports=exports)
    return outcome, target, log


def count_calls(program, case, rank):
    if rank not in case.calls:
        outcome, target, log = job(program, case, "count", rank, 0, 0)
        assert outcome.returncode == 0, outcome.stderr
        case.whole = tree_hashes(target)
        shutil.rmtree(target)
        case.calls[rank] = dict(zip(("read", "write", "message"), map(int, log.read_text().split())))
    return case.calls[rank][case.kind.split("-")[1]]


def check_named(outcome, broken, case):
    place, offset = broken.rsplit(" ", 1)
    said = outcome.stderr
    if case.kind == "flip-read":
        assert outcome.returncode == 3, said
        assert ("has the digest" in said and "on their way" in said) or "should be the same" in said, said  # or it was a replica
        return
    assert outcome.returncode == 7, f"{broken}\n{outcome.stdout}\n{said}"
    if case.kind == "flip-message":
        assert re.search(r"'[a-z_.]+': digest [0-9a-f]{16} in the target|should be the same", said), said
        return
    name = place.split(".target.part-")[1].split("/", 1)[1]
    assert name in said, f"{name} at {offset} is not named: {said}"


def total(folder):
    return json.loads((folder / "reshard.json").read_text())["total"]


def fell_beside(case, outcome, target, recorded):
    """Bytes between two tensors are read along and not used."""
    return case.kind == "flip-read" and outcome.returncode == 0 and total(target) == total(recorded)


def written_over(case, outcome, target):
    """What stands around the tensors of an HDF5 file is written when it is made, and again in the end."""
    return case.kind.endswith("write") and outcome.returncode == 0 and tree_hashes(target) == case.whole


@pytest.mark.parametrize("name", ["reshard.json", "SHA256SUMS"])
def test_what_others_are_checked_by_is_read_back(name, program):
    case = Case("flip-write", "megatron", SAMPLE)
    outcome, target, log = job(program, case, case.kind, 0, 0, 12345, path=f"/{name}")
    assert log.exists() and outcome.returncode == 7 and not target.exists(), outcome.stderr
    check_named(outcome, log.read_text(), case)


@pytest.mark.parametrize("count", [KINDS, pytest.param(FAULTS, marks=pytest.mark.long)], ids=["each kind", "many"])
def test_every_planted_fault_is_caught_and_named(count, program, recorded):
    cases = [Case("flip-read", "hdf5", recorded), Case("flip-message", "megatron", SAMPLE, {"transport": "mpi"}), Case("flip-write", "hdf5", SAMPLE),
             Case("drop-write", "torch_dist", SAMPLE), Case("swap-write", "huggingface", SAMPLE), Case("flip-write", "megatron", SAMPLE)]
    if count > KINDS:
        cases += [Case(kind, target_format, SAMPLE) for kind in ("flip-write", "drop-write", "swap-write")
                  for target_format in ("hdf5", "megatron", "huggingface", "torch_dist")]
        cases += [Case("flip-read", "megatron", recorded), Case("flip-message", "hdf5", SAMPLE, {"transport": "mpi"})]
    planted = 0
    for seed in range(10 * count):
        case = cases[seed % len(cases)]
        chance = random.Random(seed)
        rank = chance.randrange(RANKS)
        calls = count_calls(program, case, rank)
        if calls == 0:
            continue
        outcome, target, log = job(program, case, case.kind, rank, chance.randrange(calls), chance.getrandbits(48))
        # Without a log nothing was broken: zeros dropped, or equal halves swapped.
        if not log.exists() or fell_beside(case, outcome, target, recorded) or written_over(case, outcome, target):
            assert outcome.returncode == 0, outcome.stderr
            shutil.rmtree(target)
            continue
        assert outcome.returncode != 0, f"seed {seed}: {case.kind} of {case.target_format} went unnoticed: {log.read_text()}"
        assert not target.exists()
        check_named(outcome, log.read_text(), case)
        planted += 1
        if planted == count:
            break
    assert planted == count
    print(f"{planted} faults planted, all caught and named")
