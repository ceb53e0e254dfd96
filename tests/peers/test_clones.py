"""Clones on a file system that shares extents: an XFS image on a loop device, in the long tier a Btrfs one too. The targets have the same bytes as those that were copied.

Sources are real torch.save and safetensors files; a job of ours first lays them out so that their blocks can be shared.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from reshard_job import BINARY, MANIFEST, SUMS, Program, command, manifest_of, tree_hashes

SHIM = os.environ.get("RESHARD_CALL_SHIM")
MAKE = Path(__file__).parents[1] / "bench" / "make_megatron.py"
MODEL = dict(layers=4, hidden=256, heads=8, groups=4, experts=8, inter=512, vocab=1024, tp=1, pp=2, ep=4)
FILE = "iter_0000001/mp_rank_00_000/model_optim_rng.pt"  # of the target
NARROW = {"layout": "{ ep = 2 }"}  # of pp 2, ep 4
SOURCE_FAULT = 3


MAKE_FILE_SYSTEM = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
PACKAGE = {"xfs": "xfsprogs", "btrfs": "btrfs-progs"}


def reason_against(kind):
    if not BINARY:
        return "RESHARD_BIN is not set: there is no program to run"
    if os.geteuid() != 0:
        return "an image is mounted: that needs root"
    missing = [tool for tool in (MAKE_FILE_SYSTEM[kind][0], "mount", "umount", "filefrag") if shutil.which(tool, path=os.environ["PATH"] + ":/sbin:/usr/sbin") is None]
    return f"{', '.join(missing)} is missing (packages {PACKAGE[kind]}, mount, e2fsprogs)" if missing else ""


@pytest.fixture(scope="module", params=["xfs", pytest.param("btrfs", marks=pytest.mark.long)])
def program(request, tmp_path_factory):
    """Works on an image of its own; programs and images go when the tests have ended."""
    if reason := reason_against(request.param):
        pytest.skip(reason)
    image = tmp_path_factory.mktemp(request.param) / "image"
    folder = image.parent / "mnt"
    folder.mkdir()
    image.touch()
    os.truncate(image, 1 << 30)
    subprocess.run([*MAKE_FILE_SYSTEM[request.param], image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"an image cannot be mounted here: {mounted.stderr.strip()}")
    yield Program(folder)
    subprocess.run(["umount", folder], check=True)
    image.unlink()


@pytest.fixture(scope="module")
def source(program):
    """As torch.save wrote it, and taken over by a job: recorded, its tensors at whole blocks."""
    words = [word for name, value in MODEL.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, MAKE, program.scratch / "saved", *words], check=True)
    program.run(program.scratch / "saved", program.scratch / "source", "megatron", target_options={"layout": "{ pp = 2, ep = 4 }"})
    os.sync()
    return program.scratch / "source"


@pytest.fixture(scope="module")
def copied(program, source, tmp_path_factory):
    """What every target must be: laid out alike, every byte read and written, on another file system."""
    target = tmp_path_factory.mktemp("copied") / "target"
    program.run(source, target, "megatron", target_options=NARROW | {"reflink": "always"})
    return tree_hashes(target)


@pytest.fixture(autouse=True)
def tidy(program):
    yield
    for path in [program.scratch / "target", *program.scratch.glob(".target.*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def change(program, source, **options):
    """What a change of EP and PP says of itself."""
    outcome = program.attempt(source, program.scratch / "target", "megatron", target_options=NARROW | options.pop("target_options", {}),
                              arguments=["--json"], **options)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["run"]


def contents(file, **options):
    """The bytes of each tensor: their names count from 0 in every file."""
    return [tensor.view(torch.int16).numpy().tobytes() for tensor in torch.load(file, weights_only=False, **options)["model"].values()]


def alignment_in(file):
    with zipfile.ZipFile(file) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("/.storage_alignment"))


def used(program):
    os.sync()
    return shutil.disk_usage(program.scratch).used


def payload(path):
    return sum(file.stat().st_size for file in path.rglob("*.pt"))


@pytest.fixture
def stale(source, program):
    """A copy that shares the source's blocks; its record is of other files."""
    shutil.rmtree(program.scratch / "stale", ignore_errors=True)
    subprocess.run(["cp", "-r", "--reflink=always", source, program.scratch / "stale"], check=True)
    return program.scratch / "stale"


def test_what_is_recorded_is_neither_read_nor_written(program, source, copied):
    before = used(program)
    did = change(program, source)
    target = program.scratch / "target"
    size = payload(target)
    assert tree_hashes(target) == copied
    assert did["bytes_cloned"] == did["bytes_shared"] > 0.95 * size
    assert did["bytes_read"] + did["bytes_written"] + did["bytes_verified"] < 0.1 * size
    assert used(program) - before < 0.1 * size
    frags = subprocess.run(["filefrag", "-v", target / FILE], capture_output=True, text=True, check=True).stdout
    assert "shared" in frags
    saved = {content for file in (program.scratch / "saved").rglob("*.pt") for content in contents(file)}
    for mapped in (False, True):
        assert len(set(contents(target / FILE, mmap=mapped)) & saved) == len(contents(target / FILE)) > 20
    verdict = command("verify", target)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_a_clone_of_a_clone_is_recorded_too(program, source, copied):
    change(program, source)
    manifest = manifest_of(program.scratch / "target")
    assert manifest["files"] == [] and all(file["path"].endswith(".pt") and "ctime_ns" in file for file in manifest["stamps"])
    options = {"layout": "{ pp = 2, ep = 4 }"}
    outcome = program.attempt(program.scratch / "target", program.scratch / "back", "megatron", target_options=options, arguments=["--json"])
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["run"]["bytes_shared"] > 0.9 * payload(program.scratch / "back")
    back = tree_hashes(program.scratch / "back")
    shutil.rmtree(program.scratch / "back")
    assert back == tree_hashes(source)


@pytest.mark.long_but("xfs-3")
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_the_number_of_ranks_does_not_matter(ranks, program, source, copied):
    did = change(program, source, ranks=ranks)
    assert did["bytes_shared"] > 0
    assert tree_hashes(program.scratch / "target") == copied


def test_without_a_fresh_record_bytes_are_read_and_not_written(program, stale, copied):
    did = change(program, stale)
    size = payload(program.scratch / "target")
    assert did["bytes_shared"] == 0 and did["bytes_verified"] > 0.9 * size
    assert did["bytes_cloned"] > 0.9 * size and did["bytes_written"] < 0.1 * size
    assert did["digests_compared"] > 0
    assert tree_hashes(program.scratch / "target") == copied


def test_a_changed_source_is_not_believed(program, stale):
    file = next(stale.rglob("mp_rank_00_001_003/*.pt"))
    place = file.stat().st_size // 2
    with open(file, "r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))
    outcome = program.attempt(stale, program.scratch / "target", "megatron", target_options=NARROW)
    assert outcome.returncode == SOURCE_FAULT, outcome.stderr
    assert "mp_rank_00_001_003" in outcome.stderr


@pytest.mark.long_but("xfs-EXDEV")
@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: no clone is refused")
@pytest.mark.parametrize("error", ["EXDEV", "EOPNOTSUPP", "EINVAL"])
def test_what_is_refused_is_copied_and_read_back(error, program, source, copied):
    exports = {"LD_PRELOAD": SHIM, "RESHARD_CALLS": f"clone::{error}:2"}  # the first two of each rank succeed
    did = change(program, source, exports=exports)
    assert did["bytes_cloned"] > 0 and did["bytes_written"] > 0
    assert did["bytes_shared"] == 0 and did["bytes_verified"] >= payload(program.scratch / "target")
    assert tree_hashes(program.scratch / "target") == copied


@pytest.mark.long_but("xfs-recorded")
@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: no run is killed")
@pytest.mark.parametrize("kind", ["recorded", "stale"])
def test_a_killed_run_goes_on(kind, program, source, stale, copied):
    named = {"recorded": source, "stale": stale}[kind]
    exports = {"LD_PRELOAD": SHIM, "RESHARD_CALLS": "clone::kill:8:1"}
    killed = program.attempt(named, program.scratch / "target", "megatron", target_options=NARROW, memory="4 MiB", exports=exports)
    assert killed.returncode != 0 and list(program.scratch.glob(".target.resume-*"))
    did = change(program, named, memory="4 MiB", ranks=1)
    assert did["earlier_runs"] == 1
    assert did["bytes_verified"] >= payload(program.scratch / "target")
    assert tree_hashes(program.scratch / "target") == copied


def test_never_shares_nothing_and_keeps_the_usual_layout(program, source):
    did = change(program, source, target_options={"reflink": "never"})
    assert did["bytes_cloned"] == 0 and did["bytes_verified"] > 0
    assert "stamps" not in (program.scratch / "target" / MANIFEST).read_text()
    assert alignment_in(program.scratch / "target" / FILE) == b"64" and alignment_in(source / "iter_0000001/mp_rank_00_000_000/model_optim_rng.pt") == b"4096"


def test_sums_need_what_is_shared_to_be_read_back(program, source):
    target = program.scratch / "target"
    change(program, source)
    assert not (target / SUMS).exists()
    shutil.rmtree(target)
    did = change(program, source, target_options={"sha256sums": "always"})
    assert did["bytes_cloned"] > 0.95 * payload(target) and did["bytes_verified"] >= payload(target)
    assert subprocess.run(["sha256sum", "-c", "--quiet", SUMS], cwd=target).returncode == 0


def test_safetensors_are_shared(program, scratch):
    from safetensors.torch import load_file, save_file

    tensors = {f"layers.{i}.{name}.weight": torch.randn(*shape, dtype=torch.bfloat16) for i in range(6)
               for name, shape in (("a", (256, 512)), ("b", (100, 300)), ("norm", (33,)))}
    folder = program.scratch / "hf"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    program.run(folder, program.scratch / "laid", "huggingface", target_options={"reflink": "always"}, model={"map": "none"})
    job = dict(target_options={"shard_bytes": 900_000, "reflink": "always"}, model={"map": "none"})
    outcome = program.attempt(program.scratch / "laid", program.scratch / "target", "huggingface", arguments=["--json"], **job)
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["run"]["bytes_shared"] >= 6 * 256 * 512 * 2
    program.run(program.scratch / "laid", scratch / "copied", "huggingface", **job)
    assert tree_hashes(program.scratch / "target") == tree_hashes(scratch / "copied")
    found = {}
    for file in (program.scratch / "target").glob("*.safetensors"):
        found |= load_file(file)
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
