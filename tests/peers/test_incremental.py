"""What is unchanged since a previous target is taken over from it: the files are those of a complete run.

Sources are real safetensors and torch.save files of two days; on the second some tensors have other values.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reshard_job import BINARY, MANIFEST, Program, command, manifest_of, tree_hashes
from test_clones import MAKE
from test_clones import program as xfs  # noqa: F401, an image with reflink=1

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from metadata import make_huggingface  # noqa: E402

pytestmark = pytest.mark.skipif(not BINARY, reason="RESHARD_BIN is not set: there is no program to run")
SHIM = os.environ.get("RESHARD_CALL_SHIM")
JOB = dict(target_options={"shard_bytes": 3_000_000}, model={"map": "none"})
LAYERS, WIDTH = 8, 768
MODEL = dict(layers=2, hidden=2048, heads=8, groups=4, experts=2, inter=2048, vocab=512, tp=1, pp=2, ep=2)  # matrices of 8 and 16 MiB


def tensors_of(day):
    """Layer 5 is trained on day 2, and one element of layer 7."""
    generator = torch.Generator().manual_seed(1)
    tensors = {f"layers.{i}.{name}.weight": torch.randn(rows, WIDTH, generator=generator).bfloat16() for i in range(LAYERS)
               for name, rows in (("up", 1500), ("down", 777), ("norm", 3))}
    if day == 2:
        tensors["layers.5.up.weight"] += 1
        tensors["layers.7.down.weight"][3, 4] += 1
    return tensors


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    folders = {}
    for day in (1, 2):
        folders[day] = tmp_path_factory.mktemp(f"day{day}")
        save(tensors_of(day), folders[day])
    return folders


def save(tensors, folder):
    """A file for each layer, and their index."""
    index = {name: f"model-{int(name.split('.')[1]) + 1:05}-of-{LAYERS:05}.safetensors" for name in tensors}
    for file in set(index.values()):
        save_file({name: tensor for name, tensor in tensors.items() if index[name] == file}, folder / file, metadata={"format": "pt"})
    size = sum(tensor.nbytes for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": index}))


def convert(program, source, name, since=None, links=True, options=JOB, **more):
    wanted = dict(options["target_options"]) | ({"incremental_from": since} if since else {}) | ({"incremental_links": True} if links and since else {})
    outcome = program.attempt(source, program.scratch / name, options.get("format", "huggingface"), target_options=wanted,
                              model=options.get("model"), arguments=["--json"], **more)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.rglob("*.safetensors")}


@pytest.fixture
def nights(scratch, days):
    """A program, yesterday's target, and what a complete run makes of today's source."""
    program = Program(scratch)
    convert(program, days[1], "yesterday", "none")
    convert(program, days[2], "full")
    return program, scratch / "yesterday", tree_hashes(scratch / "full")


def test_unchanged_files_are_links_and_all_files_those_of_a_complete_run(nights, days):
    program, yesterday, full = nights
    before = tree_hashes(yesterday)
    report = convert(program, days[2], "today", yesterday)
    today = program.scratch / "today"
    assert tree_hashes(today) == full and tree_hashes(yesterday) == before
    same = {name for name, inode in inodes(today).items() if inodes(yesterday).get(name) == inode}
    assert same == {Path(name).name for name in full if name.endswith(".safetensors") and before[name] == full[name]}
    size = sum(file.stat().st_size for file in today.glob("*.safetensors"))
    did = report["run"]["since"]
    assert 0 < did["files_reused"] == len(same) < len(inodes(today)) and report["since"]["refused"] == ""
    assert did["tensors_changed"] == 2 and did["changed"] == ["layers.5.up.weight", "layers.7.down.weight"]
    assert did["bytes_kept"] > 0.3 * size and report["run"]["bytes_written"] + did["bytes_kept"] <= size < 1.1 * report["run"]["bytes_read"]
    assert report["run"]["bytes_verified"] < size and did["oldest_verified"]
    assert {file["path"] for file in manifest_of(today)["files"]} == full.keys()
    verdict = command("verify", today)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=today, check=True)
    # the third night takes over from the second, and the first may go: removing a link changes the times of the file
    shutil.rmtree(yesterday)
    third = convert(program, days[2], "third", today)
    assert third["run"]["since"]["files_reused"] == len(inodes(today)) and third["run"]["bytes_verified"] == 0
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=program.scratch / "third", check=True)
    assert tree_hashes(program.scratch / "third") == full and third["run"]["since"]["tensors_changed"] == 0


REFUSALS = {
    "missing": ("no reshard.json", lambda yesterday: shutil.rmtree(yesterday)),
    "damaged record": ("cannot be used", lambda yesterday: (yesterday / MANIFEST).write_text("{")),
    "copied": ("may be a copy", lambda yesterday: (shutil.copytree(yesterday, yesterday.with_name("copy")), shutil.rmtree(yesterday),
                                                  yesterday.with_name("copy").rename(yesterday))),
    "touched": ("have changed", lambda yesterday: [os.utime(file) for file in yesterday.glob("*.safetensors")]),
    "unrecorded": ("made without target.incremental_from", lambda yesterday: forget(yesterday, "blocks", "block_bytes")),
    "without stamps": ("does not list", lambda yesterday: forget(yesterday, "stamps")),
}


def forget(folder, *members):
    manifest = {key: value for key, value in manifest_of(folder).items() if key not in members}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.long_but("copied")
@pytest.mark.parametrize("kind", REFUSALS)
def test_an_unusable_previous_target_is_no_reason_to_fail(kind, nights, days):
    program, yesterday, full = nights
    word, spoil = REFUSALS[kind]
    spoil(yesterday)
    report = convert(program, days[2], "today", yesterday)
    assert word in report["since"]["refused"] and any(word in warning for warning in report["warnings"])
    assert tree_hashes(program.scratch / "today") == full and "since" not in report["run"]


@pytest.mark.long
def test_another_layout_shares_nothing_and_is_said_so(nights, days):
    program, yesterday, _ = nights
    other = dict(format="dcp", target_options={}, model={"map": "none"})
    report = convert(program, days[2], "today", yesterday, options=other)
    convert(program, days[2], "plain", options=other)
    assert tree_hashes(program.scratch / "today") == tree_hashes(program.scratch / "plain")
    assert "it has another format, layout or dtypes" in report["since"]["refused"]


@pytest.mark.long
def test_without_links_everything_is_written_here(nights, days):
    program, yesterday, full = nights
    report = convert(program, days[2], "today", yesterday, links=False)
    if report["since"]["refused"]:
        assert "incremental_links" in report["since"]["refused"]
    assert tree_hashes(program.scratch / "today") == full
    assert not set(inodes(program.scratch / "today").values()) & set(inodes(yesterday).values())


def spoil(file, back):
    """Changes a byte so far from the end, and nothing that a stamp shows but the time of the change of the inode."""
    status = file.stat()
    data = bytearray(file.read_bytes())
    data[-back] ^= 1
    with open(file, "r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.long
def test_bytes_that_rotted_unseen_do_not_matter_where_nothing_is_taken_over(nights, days):
    """The previous target lost a byte of a file that has changed today: all of that file is compared with the source alone."""
    program, yesterday, full = nights
    changed = {yesterday / name for name in full if name.endswith(".safetensors") and tree_hashes(yesterday)[name] != full[name]}
    spoil(sorted(changed)[0], 4)
    report = convert(program, days[2], "today", yesterday)
    assert report["run"]["bytes_verified"] == sum(file.stat().st_size for file in changed)
    assert tree_hashes(program.scratch / "today") == full


@pytest.mark.long
@pytest.mark.parametrize("rotted", [False, True])
def test_bytes_that_rotted_unseen_are_found_where_they_are_compared(rotted, scratch):
    """The tensors of a model have all layers in them, so the previous target's file of a changed layer is what the proof of the others takes away."""
    make_huggingface(scratch / "day1", layers=8, files=8)
    shutil.copytree(scratch / "day1", scratch / "day2")
    spoil(scratch / "day2" / "model-00004-of-00008.safetensors", 100)
    program, options = Program(scratch), dict(target_options={})
    convert(program, scratch / "day1", "yesterday", "none", options=options)
    convert(program, scratch / "day2", "full", options=options)
    size = (scratch / "full" / "model-00004-of-00008.safetensors").stat().st_size
    if rotted:
        spoil(scratch / "yesterday" / "model-00004-of-00008.safetensors", 4)
    report = convert(program, scratch / "day2", "today", scratch / "yesterday", options=options)
    assert report["run"]["since"]["files_reused"] == 7
    if rotted:
        assert report["run"]["bytes_verified"] >= sum(file.stat().st_size for file in (scratch / "today").glob("*.safetensors"))
        assert report["run"]["since"]["oldest_verified"] == ""
    else:
        assert size < report["run"]["bytes_verified"] < 3 * size  # reads are of complete pages
    assert tree_hashes(scratch / "today") == tree_hashes(scratch / "full")


@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: no run is killed")
@pytest.mark.long_but("write")
@pytest.mark.parametrize("call", ["write", "link"])
def test_a_killed_night_is_resumed(call, nights, days):
    program, yesterday, full = nights
    exports = {"LD_PRELOAD": SHIM, "RESHARD_CALLS": {"write": "write:.today.resume:kill:20:1", "link": "rename:safetensors:kill:2:1"}[call]}
    killed = program.attempt(days[2], program.scratch / "today", "huggingface", memory="4 MiB", ranks=1, exports=exports,
                             target_options=JOB["target_options"] | {"incremental_from": yesterday, "incremental_links": True}, model=JOB["model"])
    assert killed.returncode != 0 and list(program.scratch.glob(".today.resume-*")), killed.stderr
    report = convert(program, days[2], "today", yesterday, memory="4 MiB", ranks=1)
    assert report["run"]["earlier_runs"] == (1 if call == "write" else 0), report["warnings"]
    assert report["run"]["since"]["files_reused"] > 0
    assert tree_hashes(program.scratch / "today") == full and tree_hashes(yesterday)
    assert command("verify", yesterday).returncode == 0


def recorded_source(program, days):
    """Day 2 as a target of the program, with stamps of its files."""
    convert(program, days[2], "recorded", "none")
    return program.scratch / "recorded"


RECORDED = {
    "fresh": lambda source, yesterday: None,
    "touched": lambda source, yesterday: os.utime(next(source.glob("*.safetensors"))),
    "unknown layout": lambda source, yesterday: (yesterday / MANIFEST).write_text(re.sub(r'"layout": ?"[0-9a-f]{16}", ?', "", (yesterday / MANIFEST).read_text())),
}


@pytest.mark.long_but("fresh")
@pytest.mark.parametrize("kind", RECORDED)
def test_what_source_and_previous_target_have_recorded_alike_is_not_read(kind, nights, days):
    program, yesterday, full = nights
    source = recorded_source(program, days)
    RECORDED[kind](source, yesterday)
    report = convert(program, source, "today", yesterday, ranks=2)
    today = program.scratch / "today"
    assert tree_hashes(today) == full
    size = sum(tensor.nbytes for tensor in tensors_of(2).values())
    changed = sum(tensors_of(2)[name].nbytes for name in ("layers.5.up.weight", "layers.7.down.weight"))
    unread = size - changed if kind == "fresh" else 0
    assert report["since"]["unread_bytes"] == unread and size - unread <= report["run"]["bytes_read"] < 1.1 * (size - unread)
    assert report["run"]["since"]["tensors_changed"] == 2 and report["run"]["since"]["files_reused"] > 0
    assert report["run"]["digests_compared"] == (2 if kind == "fresh" else len(tensors_of(2)))
    verdict = command("verify", today)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    if kind == "unknown layout":  # the edited record of yesterday vouches for no sums
        assert manifest_of(today)["files"] == [] and not (today / "SHA256SUMS").exists()
    else:
        subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=today, check=True)
    third = convert(program, source, "third", today)
    assert third["run"]["since"]["files_reused"] == len(inodes(today)) and third["run"]["bytes_read"] == (size if kind == "touched" else 0)
    assert tree_hashes(program.scratch / "third") == full


def believe(folder, other):
    """Edits the record of a folder so that its tensors are those of another one."""
    own, others = (json.loads((one / MANIFEST).read_text()) for one in (folder, other))
    own |= {name: others[name] for name in ("tensors", "total") if name in others}
    (folder / MANIFEST).write_text(json.dumps(own))


def test_an_edited_record_is_not_believed(nights, days):
    program, yesterday, full = nights
    source = recorded_source(program, days)
    believe(yesterday, source)
    report = convert(program, source, "today", yesterday)
    assert tree_hashes(program.scratch / "today") == full and report["since"]["unread_bytes"] == 0
    assert command("verify", program.scratch / "today").returncode == 0

    convert(program, days[1], "before", "none")
    believe(source, program.scratch / "before")
    outcome = program.attempt(source, program.scratch / "again", "huggingface", model=JOB["model"],
                              target_options=JOB["target_options"] | {"incremental_from": program.scratch / "before", "incremental_links": True})
    assert outcome.returncode == 3 and not (program.scratch / "again").exists(), outcome.stderr


def test_files_of_the_source_are_not_linked(nights, days):
    """A link would change the inode that the run watches."""
    program, yesterday, full = nights
    convert(program, days[2], "source", yesterday)
    source = program.scratch / "source"
    shared = set(inodes(source).values()) & set(inodes(yesterday).values())
    report = convert(program, source, "today", yesterday)
    assert shared and tree_hashes(program.scratch / "today") == full
    assert not shared & set(inodes(program.scratch / "today").values()), report["warnings"]
    report = convert(program, source, "again", source)
    assert tree_hashes(program.scratch / "again") == full and "are those of the source" in " ".join(report["warnings"])


@pytest.mark.long
@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: no run is killed")
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_killed_night_of_a_recorded_source_is_resumed(call, nights, days):
    program, yesterday, full = nights
    source = recorded_source(program, days)
    exports = {"LD_PRELOAD": SHIM, "RESHARD_CALLS": f"write:.today.resume:kill:{call + 5}:1"}
    killed = program.attempt(source, program.scratch / "today", "huggingface", memory="4 MiB", ranks=1, exports=exports,
                             target_options=JOB["target_options"] | {"incremental_from": yesterday, "incremental_links": True}, model=JOB["model"])
    assert killed.returncode != 0 and list(program.scratch.glob(".today.resume-*")), killed.stderr
    report = convert(program, source, "today", yesterday, memory="4 MiB", ranks=1)
    assert report["run"]["earlier_runs"] == 1, report["warnings"]
    assert report["run"]["since"]["files_reused"] > 0 and report["since"]["unread_bytes"] > 0
    assert tree_hashes(program.scratch / "today") == full


def test_nights_take_over_from_the_newest_target(scratch, days):
    train, serving = scratch / "train", scratch / "serving"
    job = scratch / "nightly.toml"
    job.write_text(f'[source]\npath = "{train}"\n[target]\npath = "{serving}"\nformat = "huggingface"\nshard_bytes = 3000000\n'
                   'incremental_links = true\n[model]\nmap = "none"\n[nightly]\nkeep = 1\nsettle_seconds = 0\nsince = true\n')
    reports = []
    for day in (1, 2):
        shutil.copytree(days[day], train / f"step_{day}")
        outcome = subprocess.run([BINARY, "nightly", job, "--json"], capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stderr
        reports.append(json.loads(outcome.stdout))
    assert reports[0]["report"]["since"] == {"path": "none", "usable_files": 0, "usable_bytes": 0, "unread_bytes": 0, "refused": ""}
    assert reports[1]["report"]["run"]["since"]["files_reused"] > 0
    assert reports[1]["removed"] == [str(serving / "step_1")] and command("verify", serving / "step_2").returncode == 0
    again = subprocess.run([BINARY, "nightly", job, "--json"], capture_output=True, text=True)
    assert json.loads(again.stdout)["action"] == "up_to_date"


@pytest.mark.long_but("xfs-2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blocks_are_cloned_on_a_file_system_that_shares_extents(ranks, xfs, days):  # noqa: F811
    for name in ("yesterday", "full", "today"):
        shutil.rmtree(xfs.scratch / name, ignore_errors=True)
    convert(xfs, days[1], "yesterday", "none")
    convert(xfs, days[2], "full")
    report = convert(xfs, days[2], "today", xfs.scratch / "yesterday", links=False, ranks=ranks)
    today = xfs.scratch / "today"
    assert tree_hashes(today) == tree_hashes(xfs.scratch / "full")
    assert not set(inodes(today).values()) & set(inodes(xfs.scratch / "yesterday").values())
    size = sum(file.stat().st_size for file in today.glob("*.safetensors"))
    did = report["run"]["since"]
    assert did["files_reused"] > 0 and did["bytes_kept"] > 0.3 * size and did["bytes_filled"] < 0.2 * size
    # changed in place: the file system says so by the time of the last change of any kind
    os.chmod(next((xfs.scratch / "yesterday").glob("*.safetensors")), 0o600)
    shutil.rmtree(today)
    report = convert(xfs, days[2], "today", xfs.scratch / "yesterday", links=False)
    assert report["since"]["usable_files"] == len(inodes(today)) - 1
    assert tree_hashes(today) == tree_hashes(xfs.scratch / "full")


@pytest.fixture(scope="module")
def iterations(tmp_path_factory):
    """Files of torch.save with the iteration beside the tensors, which are the same on both days but for the last element of one."""
    folder = tmp_path_factory.mktemp("iterations")
    words = [word for name, value in MODEL.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, MAKE, folder / "day1", *words], check=True)
    shutil.copytree(folder / "day1", folder / "day2")
    for file in (folder / "day2").rglob("*.pt"):
        state = torch.load(file, weights_only=False)
        state["iteration"] = state.get("iteration", 1) + 1
        if "mp_rank_00_001_001" in str(file):
            state["model"]["decoder.layers.0.mlp.experts.linear_fc2.weight0"][-1, -1] += 1
        torch.save(state, file)
    return folder


MEGATRON = dict(format="megatron", target_options={"layout": "{ pp = 2 }"})


@pytest.mark.long
def test_files_of_another_iteration_cannot_be_links(iterations, scratch):
    program = Program(scratch)
    convert(program, iterations / "day1", "yesterday", "none", options=MEGATRON)
    convert(program, iterations / "day2", "full", options=MEGATRON)
    report = convert(program, iterations / "day2", "today", scratch / "yesterday", options=MEGATRON)
    assert "iteration" in report["since"]["refused"]
    assert tree_hashes(scratch / "today") == tree_hashes(scratch / "full")


@pytest.mark.long
@pytest.mark.skipif(not SHIM, reason="RESHARD_CALL_SHIM is not set: no clone is refused")
@pytest.mark.parametrize("call", [None, "clone::EXDEV:2", "clone::kill:2:1"])
def test_blocks_of_files_of_another_iteration_are_clones(call, iterations, xfs):  # noqa: F811
    for name in ("yesterday", "full", "today"):
        shutil.rmtree(xfs.scratch / name, ignore_errors=True)
    convert(xfs, iterations / "day1", "yesterday", "none", options=MEGATRON)
    convert(xfs, iterations / "day2", "full", options=MEGATRON)
    exports = {"LD_PRELOAD": SHIM, "RESHARD_CALLS": call} if call else {}
    if call and "kill" in call:
        killed = xfs.attempt(iterations / "day2", xfs.scratch / "today", "megatron", target_options=MEGATRON["target_options"] | {"incremental_from": xfs.scratch / "yesterday"},
                             exports=exports)
        assert killed.returncode != 0
        exports = {}
    report = convert(xfs, iterations / "day2", "today", xfs.scratch / "yesterday", links=False, options=MEGATRON, exports=exports)
    today = xfs.scratch / "today"
    size = sum(file.stat().st_size for file in today.rglob("*.pt"))
    assert tree_hashes(today) == tree_hashes(xfs.scratch / "full")
    did = report["run"]["since"]
    assert did["files_reused"] == 0 and did["bytes_kept"] > 0.7 * size and did["tensors_changed"] == 1
    if call is None:
        # of both targets, what is not in complete blocks
        assert report["run"]["bytes_verified"] < 0.6 * size and did["oldest_verified"] and manifest_of(today)["files"] == []
    elif "EXDEV" in call:
        assert did["bytes_filled"] > 0 and report["run"]["bytes_verified"] > 0.5 * size
    verdict = command("verify", today)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
