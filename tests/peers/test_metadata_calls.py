"""What a job asks of a metadata server, file by file, as the metadata shim (tests/support/metadata_shim.cpp) counts it: two opens and one stat of each
file of the source, and three opens of each of the target, whatever the number of ranks; one open more of the weight files of a Hugging Face reference. tests/bench/metadata.py makes the jobs, and measures what the calls cost."""

import collections
import os
import sys
from pathlib import Path

import pytest

from reshard_job import BINARY

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from metadata import ON_DESCRIPTOR, Bench  # noqa: E402

SHIM = os.environ.get("RESHARD_METADATA_SHIM")
FILES = 24
MADE = {"create": 1, "truncate": 1, "fsync": 1, "open": 2, "stat": 1}  # open: read back, and its header as of a source; stat: as it is published
READ = {"open": 2, "stat": 1}  # for its header and its tensors; whether it has changed meanwhile
READ_ONCE = {"open": 1, "stat": 1}  # a small file, by whichever formats; whether it has changed meanwhile
TEXT_MADE = {"create": 1, "fsync": 1, "open": 2, "stat": 1}  # as MADE
HEADER_REPEATED = {"open": 3, "stat": 1}  # a Hugging Face target repeats the headers of its reference, here the source
FOLDER_MADE = {"mkdir": 1, "open-folder": 3, "fsync": 1, "stat": 1}  # listed, opened for its sync, and listed as of a source

pytestmark = pytest.mark.skipif(not (BINARY and SHIM), reason="needs the program and the metadata shim")


def calls(scratch, case, ranks):
    """By class and path, counts of the calls that ask a server."""
    _, _, counts = Bench(BINARY, SHIM, scratch).measure(case, FILES, ranks, 0)
    found = collections.defaultdict(collections.Counter)
    for one in counts:
        for (kind, call, path), count in one.items():
            if call not in (*ON_DESCRIPTOR, "statfs"):
                found[kind, path][call] += count
    asked = sum(count for one in counts for (kind, call, _), count in one.items() if (kind, call) == ("source", "statfs"))
    assert asked <= 2 * ranks  # of a file system, not of a file
    return found


def of_names(found, kind, part):
    """Those on paths whose last name contains this."""
    chosen = {path: dict(counts) for (of, path), counts in found.items() if of == kind and part in Path(path).name}
    assert chosen
    return chosen


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_file_is_opened_twice_and_looked_at_once(scratch, ranks):
    found = calls(scratch, "flat", ranks)
    for counts in of_names(found, "source", "-of-").values():
        assert counts == HEADER_REPEATED
    for counts in of_names(found, "target", "-of-").values():
        assert counts == MADE
    assert list(of_names(found, "source", "config.json").values()) == [READ_ONCE]


def test_files_in_folders_of_their_own(scratch):
    found = calls(scratch, "folders", 1)
    first, *others = (counts for _, counts in sorted(of_names(found, "source", "model_optim").items()))
    assert first == READ | {"open": 3}  # also for the args of the model
    for counts in others:
        assert counts == READ
    for counts in of_names(found, "target", "model_optim").values():
        assert counts == MADE
    for counts in of_names(found, "source", "mp_rank").values():
        assert counts == {"open-folder": 1, "stat": 2}
    for counts in of_names(found, "target", "mp_rank").values():
        assert counts == FOLDER_MADE
    assert list(of_names(found, "source", "latest_checkpointed").values()) == [READ_ONCE]
    assert list(of_names(found, "target", "latest_checkpointed").values()) == [TEXT_MADE]
