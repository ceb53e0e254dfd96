"""HDF5 targets that libhdf5 writes over MPI-IO (target.io) are those that are written without it, whatever the number of ranks."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")
from reshard_job import BINARY, RECORDS, TIMEOUT_SECONDS, job_text, tree_hashes  # noqa: E402

if not os.environ.get("RESHARD_HDF5"):
    pytest.skip("RESHARD_HDF5 is not set: this build has no HDF5", allow_module_level=True)

DATA = Path(__file__).resolve().parent.parent / "data"
SOURCE = DATA / "moe-tp2-pp2-ep2"
DROP = {"optimizer": "drop", "rng": "drop"}


def to_hdf5(program, target, io, ranks, **options):
    target_options = {"io": io} | options.pop("target_options", {})
    return program.run(SOURCE, target, "hdf5", ranks=ranks, source_options=DROP, target_options=target_options, memory=options.pop("memory", "1 MiB"))


def hashes(folder):
    return {path: value for path, value in tree_hashes(folder).items() if path not in RECORDS}


def values(folder):
    """Every dataset of a folder's containers, bit by bit."""
    found = {}
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            assert file.attrs["complete"] == 1
            for group in ("tensors", "objects"):
                for name, dataset in file[group].items():
                    found[name] = (dataset.shape, np.asarray(dataset[()]).tobytes())
    return found


@pytest.fixture
def direct(program, scratch):
    return to_hdf5(program, scratch / "direct", "direct", 1)


@pytest.mark.long_but("independent-1", "independent-3", "collective-4")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("io", ["independent", "collective"])
def test_the_way_of_writing_changes_no_byte(io, ranks, direct, program, scratch):
    there = to_hdf5(program, scratch / "there", io, ranks)
    assert hashes(there) == hashes(direct)
    assert values(there) == values(direct) and len(values(there)) > 10


@pytest.mark.long_but("collective")
@pytest.mark.parametrize("io", ["independent", "collective"])
def test_several_files(io, program, scratch):
    parts = {"part_bytes": "100 KiB"}
    direct = to_hdf5(program, scratch / "direct", "auto", 2, target_options=parts)
    there = to_hdf5(program, scratch / "there", io, 3, target_options=parts, memory="64 MiB")
    assert hashes(there) == hashes(direct) and len(list(there.glob("*.h5"))) > 2


def test_the_report_says_how_it_was_written(program, scratch):
    for io, words in (("direct", "dontcache|window|buffered|automatic"), ("independent", "HDF5 independent"), ("collective", "HDF5 collective")):
        done = program.attempt(SOURCE, scratch / io, "hdf5", source_options=DROP, target_options={"io": io}, arguments=["--json"])
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(words, find(json.loads(done.stdout), "write_mode")), done.stdout


def find(report, key):
    if key in report:
        return report[key]
    return next((value for part in report.values() if isinstance(part, dict) and (value := find(part, key)) is not None), None)


@pytest.mark.long_but("independent")
@pytest.mark.parametrize("io", ["independent", "collective"])
def test_ranks_that_exchange_bytes_do_not_write_by_the_library(io, program, scratch):
    done = program.attempt(SOURCE, scratch / "there", "hdf5", source_options=DROP, target_options={"io": io}, run={"transport": "mpi"})
    assert done.returncode == 2 and f'[target] io = "{io}"' in done.stderr and "transport" in done.stderr, done.stderr
    assert not (scratch / "there").exists()
    alone = program.attempt(SOURCE, scratch / "there", "hdf5", ranks=1, source_options=DROP, target_options={"io": io}, run={"transport": "mpi"})
    assert alone.returncode == 0, alone.stderr


def test_collective_writes_are_read_back(program, scratch):
    done = program.attempt(SOURCE, scratch / "there", "hdf5", source_options=DROP, target_options={"io": "collective"}, run={"verify": "streamed"})
    assert done.returncode == 2 and 'run.verify = "streamed"' in done.stderr, done.stderr


def test_other_formats_have_no_such_key(program, scratch):
    done = program.attempt(SOURCE, scratch / "there", "huggingface", ranks=1, source_options=DROP, target_options={"io": "collective"})
    assert done.returncode == 2 and "does not apply" in done.stderr, done.stderr


def test_a_write_inside_of_the_library_that_never_ends_is_a_stall(scratch):
    job = scratch / "job.toml"
    job.write_text(job_text(SOURCE, scratch / "there", "hdf5", DROP, {"io": "collective"}, {}, {"memory": "1 MiB", "stall_seconds": 1}))
    environment = os.environ | {"LD_PRELOAD": os.environ["RESHARD_CALL_SHIM"], "RESHARD_CALLS": f"write:/.there.part-:hold={scratch}/held:2"}
    done = subprocess.run([BINARY, "run", str(job)], capture_output=True, text=True, timeout=60, cwd=scratch, env=environment)
    assert done.returncode == 8 and "libhdf5 has been " in done.stderr, (done.returncode, done.stderr)
    assert not (scratch / "there").exists()


@pytest.mark.long_but("independent-2", "collective-0")
@pytest.mark.parametrize("io, failing", [("independent", 0), ("independent", 2), ("collective", 0)])  # rank 0 writes for all on one host
def test_a_rank_whose_write_fails_ends_the_job(io, failing, scratch):
    job = scratch / "job.toml"
    target = scratch / "there"
    job.write_text(job_text(SOURCE, target, "hdf5", DROP, {"io": io}, {}, {"memory": "1 MiB"}))
    words = [BINARY, "run", str(job)]
    failure = ["env", f"LD_PRELOAD={os.environ['RESHARD_CALL_SHIM']}", "RESHARD_CALLS=write:/.there.part-:EIO:2"]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    for rank in range(3):
        command += ([":"] if rank else []) + ["-n", "1", *(failure if rank == failing else []), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=min(60, TIMEOUT_SECONDS), cwd=scratch)
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert not target.exists() and "model.h5" in done.stderr, done.stderr
