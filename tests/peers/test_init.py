"""`reshard init`: the job file that it writes for a source is one that works."""

import json
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

import bad_sources
from bad_job import SOURCE, TARGET, TIMEOUT_SECONDS, USAGE, environment, own_words
from reshard_job import BINARY

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
DATA = Path(__file__).parents[1] / "data"
FORMATS = ["megatron", "huggingface", "torch_dist", "fsdp_dtensor", "dcp", "hdf5"]


def reshard(folder, *words, code=0):
    done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, cwd=folder, env=environment(), timeout=TIMEOUT_SECONDS)
    assert done.returncode == code, f"exit {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout if code == 0 else own_words(done.stderr)


@pytest.fixture(scope="module")
def flattened(tmp_path_factory):
    """A torch_dist checkpoint with a distributed optimizer."""
    folder = tmp_path_factory.mktemp("flattened")
    with tarfile.open(DATA / "flattened-optimizer.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return next(path.parent for path in folder.rglob(".metadata"))


@pytest.mark.long_but("moe-pp", "hf-parts")
@pytest.mark.parametrize("kind", ["sample", "dense", "moe", "moe-pp", "hf", "hf-parts"])
def test_what_is_written_can_be_planned_and_run(kind, scratch):
    source = DATA / "moe-tp2-pp2-ep2" if kind == "sample" else bad_sources.original(kind)
    reshard(scratch, "init", source, "-o", "job.toml")
    json.loads(reshard(scratch, "plan", "job.toml", "--json"))
    reshard(scratch, "run", "job.toml")
    target = tomllib.loads((scratch / "job.toml").read_text())["target"]["path"]
    reshard(scratch, "verify", source, target)


@pytest.mark.parametrize("target_format", FORMATS)
def test_every_format_that_it_says_is_possible_is(target_format, scratch):
    source = DATA / "moe-tp2-pp2-ep2"
    offered = reshard(scratch, "init", source)
    if f'"{target_format}"' not in next(line for line in offered.splitlines() if line.startswith("# Possible for this source:")):
        assert f'Not possible as it is: "{target_format}"' in offered
        assert f"--target-format {target_format}" in reshard(scratch, "init", source, "--target-format", target_format, code=USAGE)
        return
    reshard(scratch, "init", source, "--target-format", target_format, "-o", "job.toml")
    job = tomllib.loads((scratch / "job.toml").read_text())
    assert job["target"]["format"] == target_format
    reshard(scratch, "run", "job.toml")
    again = reshard(scratch, "init", job["target"]["path"])  # the result is a source, too
    assert tomllib.loads(again)["source"]["path"] == job["target"]["path"]


def test_policies_are_set_where_they_are_needed(flattened, scratch):
    kept = tomllib.loads(reshard(scratch, "init", flattened, "--target-format", "torch_dist"))
    assert "optimizer" not in kept["source"]
    dropped = reshard(scratch, "init", flattened, "--target-format", "huggingface")
    assert tomllib.loads(dropped)["source"]["optimizer"] == "drop"
    (scratch / "job.toml").write_text(dropped)
    reshard(scratch, "plan", "job.toml")


def test_the_layout_of_a_megatron_source_is_the_first_offer(scratch):
    text = reshard(scratch, "init", DATA / "moe-tp2-pp2-ep2", "--target-format", "megatron")
    assert tomllib.loads(text)["target"]["layout"] == {"tp": 2, "pp": 2, "ep": 2}
    assert "tp 2, pp 2, vpp 1, ep 2, etp 2" in text


def test_nothing_is_written_over(scratch):
    (scratch / "job.toml").write_text("precious")
    assert "exists already" in reshard(scratch, "init", DATA / "moe-tp2-pp2-ep2", "-o", "job.toml", code=TARGET)
    assert (scratch / "job.toml").read_text() == "precious"


def test_a_source_of_any_name_and_the_current_directory_inside_it(scratch):
    source = bad_sources.copy_of("flat", scratch / 'a "quoted" \\ name')
    job = tomllib.loads(reshard(source, "init", "."))
    assert job["source"]["path"] == str(source)
    assert Path(job["target"]["path"]).parent == scratch


def test_what_is_no_checkpoint_is_refused(scratch):
    assert "does not exist" in reshard(scratch, "init", scratch / "nothing", code=SOURCE)
    damaged = bad_sources.copy_of("flat", scratch / "source")
    bad_sources.cut("mp_rank_01", 0.5)(damaged)
    assert "mp_rank_01" in reshard(scratch, "init", damaged, code=SOURCE)
    assert "JPEG" in reshard(scratch, "init", damaged, "--target-format", "JPEG", code=USAGE)
