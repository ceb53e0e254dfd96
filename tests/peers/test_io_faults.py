"""What network and parallel file systems answer and local ones hardly ever do: an error that comes only with close(), calls that a signal has
interrupted, a write that takes nothing. The fault shim (tests/support/fault_shim.cpp) lets one call of one rank fail so.
"""

import os
import shutil
from pathlib import Path

import pytest

from reshard_job import BINARY, Program, tree_hashes

SHIM = os.environ.get("RESHARD_FAULT_SHIM")
DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
IO, RESOURCES = 5, 6
OPTIONS = {"megatron": {"layout": "{ tp = 4, ep = 2 }"}, "huggingface": {"reference": DATA / "moe-hf-reference"}}
OWN_FILES = 4  # of the eight of the Megatron target, each rank makes so many before anything is written

pytestmark = pytest.mark.skipif(not (BINARY and SHIM), reason="needs the program and the fault shim")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("io_faults"))


@pytest.fixture(autouse=True)
def tidy(program):
    """Each test begins with no target, and leaves none to the others when it fails."""
    yield
    for path in [program.scratch / "target", *program.scratch.glob(".target.part*"), *program.scratch.glob(".target.resume*")]:
        shutil.rmtree(path, ignore_errors=True)


def attempt(program, target_format="megatron", fault=None, call=0, path=".target.part-"):
    """The outcome, and whether the fault has come about."""
    log = program.scratch / "fault.log"
    log.unlink(missing_ok=True)
    settings = {"FAULT": fault, "FAULT_PATH": path, "FAULT_RANK": 0, "FAULT_CALL": call, "FAULT_LOG": log}
    exports = {"LD_PRELOAD": SHIM} | {f"RESHARD_{name}": value for name, value in settings.items()} if fault else {}
    outcome = program.attempt(SAMPLE, program.scratch / "target", target_format, source_options={"optimizer": "drop", "rng": "drop"},
                              target_options=OPTIONS[target_format], memory="1 MiB", exports=exports)
    return outcome, log.exists()


@pytest.fixture(scope="module")
def whole(program):
    """The files of a run that nothing disturbs."""
    outcome, _ = attempt(program)
    assert outcome.returncode == 0, outcome.stderr
    return taken(program)


def taken(program):
    target = program.scratch / "target"
    hashes = tree_hashes(target)
    shutil.rmtree(target)
    return hashes


@pytest.mark.long_but("6")
@pytest.mark.parametrize("call", [0, OWN_FILES + 2, 3 * OWN_FILES + 2])
def test_a_quota_that_close_tells_of_is_no_success(call, program, whole):
    """When a file is made, after it was streamed, and when the record is written. What is closed in between was read back."""
    outcome, broken = attempt(program, fault="quota-close", call=call)
    assert broken
    assert outcome.returncode == RESOURCES, outcome.stderr
    assert "close failed: Disk quota exceeded" in outcome.stderr and "Free space or raise the limit, then run again" in outcome.stderr
    assert not (program.scratch / "target").exists()
    if call >= OWN_FILES:  # kept, but what may be lost is not believed
        assert list(program.scratch.glob(".target.part-*")) and list(program.scratch.glob(".target.resume-*/job.lost"))
    outcome, _ = attempt(program)
    assert outcome.returncode == 0, outcome.stderr
    assert taken(program) == whole


@pytest.mark.long_but("interrupt-open-9-.target.resume")
@pytest.mark.parametrize("path", [".target.part", ".target.resume"])
@pytest.mark.parametrize("fault, calls", [("interrupt-fsync", 3), ("interrupt-open", 9), ("interrupt-ftruncate", 2), ("interrupt-close", 6)])
def test_an_interrupted_call_is_made_again(fault, calls, path, program, whole):
    happened = 0
    for call in range(calls):
        outcome, broken = attempt(program, fault=fault, call=call, path=path)
        assert outcome.returncode == 0, f"{fault} {call}: {outcome.stderr}"
        assert taken(program) == whole
        happened += broken
    assert happened or (fault, path) == ("interrupt-ftruncate", ".target.resume")  # a journal only grows


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("target_format", OPTIONS)  # pwritev2 in the stream; pwrite of the header
def test_a_device_that_takes_nothing_ends_the_job(target_format, program):
    outcome, broken = attempt(program, target_format, fault="zero-write")
    assert broken
    assert outcome.returncode == IO, outcome.stderr
    assert "write" in outcome.stderr and "Input/output error" in outcome.stderr
    assert not (program.scratch / "target").exists()
