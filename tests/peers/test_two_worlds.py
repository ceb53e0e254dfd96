"""Ranks that do not see the same: other files under the same names, other listings, another job, program or map, a source that is replaced while it is
read. Such a job must be refused before the target exists, or make the target that ranks with one view make; it must never hang."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bad_sources
from bad_job import IO, SOURCE, USAGE, environment
from reshard_job import BINARY, Program, job_text, tree_hashes

SHIM = os.environ.get("RESHARD_SWEEP_SHIM")
DATA = Path(__file__).parents[1] / "data"
MAPS = Path(__file__).parents[2] / "configs" / "models"
LIMIT_SECONDS = float(os.environ.get("RESHARD_TEST_TIMEOUT", "60"))  # none of these jobs lasts for two
HANGS = "hangs"
AS_STORED = {"map": "none"}
DROP = {"optimizer": "drop", "rng": "drop"}
TENSORS = {name: torch.arange(64 * 48, dtype=torch.float32).reshape(64, 48) + 10_000 * number for number, name in enumerate("abcd")}

pytestmark = pytest.mark.skipif(not (BINARY and SHIM), reason="needs the program and the sweep shim")


class Outcome:
    def __init__(self, code, said):
        self.code = code
        self.said = said


def own_group(command, folder):
    process = subprocess.Popen(list(map(str, command)), cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        said = process.communicate(timeout=LIMIT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)  # mpirun ends its ranks
        return Outcome(HANGS, process.communicate()[0])
    return Outcome(process.returncode, said)


class Worlds:
    """A job whose ranks are started each in its own way."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.parent = scratch / "results"
        self.target = self.parent / "target"
        self.clear()

    def clear(self):
        shutil.rmtree(self.parent, ignore_errors=True)
        self.parent.mkdir()

    def write_job(self, source, target_format="huggingface", source_options=None, target_options=None, model=None, name="job.toml"):
        run = {"memory": "1 MiB", "stall_seconds": 20}
        text = job_text(source, self.target, target_format, source_options or {}, target_options or {}, model or {}, run)
        (self.scratch / name).write_text(text)

    def run(self, *ranks):
        """Each rank is a command; a word that is None is the program."""
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        for number, rank in enumerate(ranks):
            words += [":"] * (number > 0) + ["-n", "1", *rank]
        return own_group(words, self.scratch)

    def rank(self, *prefix, options=(), binary=BINARY):
        return [*prefix, binary, "run", "job.toml", *options]

    def shimmed(self, options=(), **settings):
        return self.rank("env", f"LD_PRELOAD={SHIM}", *[f"RESHARD_SWEEP_{name.upper()}={value}" for name, value in settings.items()], options=options)

    def expect_refused(self, outcome, code, *says):
        assert outcome.code == code, f"exit {outcome.code}: {outcome.said[-3000:]}"
        missing = [part for part in says if part not in outcome.said]
        assert not missing, f"{missing} not said: {outcome.said[-3000:]}"
        assert not list(self.parent.iterdir()), "it had begun to write"


@pytest.fixture
def worlds(scratch):
    return Worlds(scratch)


# --- other bytes under the same names -------------------------------------------------------------------------------------


def boxed(folder, tensors):
    """What HuggingFaceStorageWriter leaves without consolidation: one box of each tensor, or none, in each file; no catalogue."""
    folder.mkdir(parents=True)
    for number, name in enumerate(tensors, start=1):
        places = {name: {"saved_offsets": [0, 0]}}
        save_file({name: tensors[name]}, folder / f"shard-{number:05d}-model-00001-of-00001.safetensors", metadata={"DCP_SHARDING_INFO": json.dumps(places)})
    return folder


def one_file(path, names, tensors):
    """Tensors in this order: their offsets follow from it."""
    header, data = {}, b""
    for name in names:
        raw = tensors[name].numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def made_source(kind, program, folder):
    """A source of several files in each of the formats that list a folder."""
    if kind == "boxed":
        return boxed(folder, TENSORS)
    if kind == "huggingface":
        return program.run(boxed(folder.with_name("boxed"), TENSORS), folder, "huggingface", ranks=1, target_options={"shard_bytes": "15 KB"})
    if kind == "dcp":
        options = {"chunks": "ranks", "ranks": 4}
        return program.run(boxed(folder.with_name("boxed"), TENSORS), folder, "dcp", ranks=1, target_options=options)
    if kind == "hdf5":
        return program.run(DATA / "moe-tp2-pp2-ep2", folder, "hdf5", ranks=1, source_options=DROP, target_options={"part_bytes": "100 KB"})
    return Path(shutil.copytree(DATA / "moe-tp2-pp2-ep2", folder))


def forget_record(source):
    """As other programs leave it."""
    (source / "reshard.json").unlink(missing_ok=True)
    return source


JOBS = {
    "boxed": ("huggingface", {}, {}, {}),
    "huggingface": ("dcp", {}, {}, AS_STORED),
    "dcp": ("huggingface", {}, {}, {}),
    "megatron": ("megatron", DROP, {"layout": "{ tp = 1 }"}, {}),
    "hdf5": ("megatron", {}, {"layout": "{ tp = 1 }"}, {}),
}


def change_a_weight(source):
    """Nothing but values: the last row of a tensor of ours, or what lies far behind the headers of the sample's largest file."""
    row = TENSORS["d"][-1].numpy().tobytes()
    files = sorted((path for path in source.rglob("*") if path.is_file()), key=lambda path: (path.stat().st_size, str(path)))
    weights = next((path for path in files if row in path.read_bytes()), files[-1])
    at = weights.read_bytes().find(row)
    with weights.open("r+b") as file:
        file.seek(at if at >= 0 else weights.stat().st_size * 3 // 4)
        file.write(b"\x00\x3f" * 8)


def write_job_of(worlds, kind, source):
    worlds.write_job(source, *JOBS[kind])


def can_have_own_mounts():
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.long_but("megatron")
@pytest.mark.skipif(not can_have_own_mounts(), reason="needs the right to mount")
@pytest.mark.parametrize("kind", JOBS)
def test_a_copy_with_other_bytes_on_one_node_is_refused(kind, worlds, program, scratch):
    """The stale copy of another step: the same names and sizes."""
    source = forget_record(made_source(kind, program, scratch / "source"))
    other = Path(shutil.copytree(source, scratch / "other"))
    change_a_weight(other)
    write_job_of(worlds, kind, source)
    elsewhere = f"mount --make-rprivate / && mount --bind {other} {source} && exec {BINARY} run job.toml"
    outcome = worlds.run(worlds.rank(), ["unshare", "-m", "sh", "-c", elsewhere])
    worlds.expect_refused(outcome, SOURCE, str(source), "rank 0", "rank 1")


# --- other listings -------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("huggingface-1")
@pytest.mark.parametrize("hiding", [0, 1])
@pytest.mark.parametrize("kind", JOBS)
def test_a_name_that_one_rank_is_not_shown_makes_no_wrong_target(kind, hiding, worlds, program, scratch):
    source = forget_record(made_source(kind, program, scratch / "source"))
    write_job_of(worlds, kind, source)
    whole = worlds.run(worlds.rank(), worlds.rank())
    assert whole.code == 0, whole.said
    expected = tree_hashes(worlds.target)
    names = sorted({path.relative_to(source).parts[0] if kind != "megatron" else path.parent.name for path in source.rglob("*") if path.is_file()})
    for name in names:
        worlds.clear()
        outcome = worlds.run(*(worlds.shimmed(rank=hiding, hide=name, folders=source) for _ in range(2)))
        assert outcome.code != HANGS, f"{name} hidden from rank {hiding}: {outcome.said[-2000:]}"
        if outcome.code != 0:
            assert outcome.code in (USAGE, SOURCE, IO), f"{name} hidden from rank {hiding}: exit {outcome.code}: {outcome.said[-2000:]}"
            assert not worlds.target.exists()
        elif tree_hashes(worlds.target) != expected:
            check_is_the_rest(kind, worlds, source, name, tree_hashes(worlds.target))


def check_is_the_rest(kind, worlds, source, name, found):
    """What both ranks make of the source without the file; of boxed safetensors nothing says how many files there are."""
    assert kind == "boxed", f"{name} hidden: the target is another one"
    worlds.clear()
    aside = source.with_name("aside")
    (source / name).rename(aside)
    outcome = worlds.run(worlds.rank(), worlds.rank())
    aside.rename(source / name)
    assert outcome.code == 0, outcome.said
    assert found == tree_hashes(worlds.target), f"{name} hidden: neither the whole nor the rest"


# --- other words ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(worlds, scratch):
    boxed(scratch / "source", TENSORS)
    worlds.write_job(scratch / "source")
    return worlds


@pytest.mark.long_but("run.verify=off-run.verify=written")
@pytest.mark.parametrize("one, other", [("run.memory=1MiB", "run.memory=2MiB"), ("target.shard_bytes=15KB", "target.shard_bytes=30KB"),
                                        ("run.verify=off", "run.verify=written")])
def test_other_settings_on_one_rank_are_refused(one, other, small):
    outcome = small.run(small.rank(options=["--set", one]), small.rank(options=["--set", other]))
    small.expect_refused(outcome, USAGE, one.split("=")[1], other.split("=")[1], "rank 0", "rank 1")


@pytest.mark.long
def test_a_setting_of_one_rank_only_is_refused(small):
    outcome = small.run(small.rank(), small.rank(options=["--fresh"]))
    small.expect_refused(outcome, USAGE, "--fresh", "rank 0", "rank 1")


@pytest.mark.long_but("other0")
@pytest.mark.parametrize("other", [["verify", DATA / "moe-tp2-pp2-ep2"], ["clean", "nothing"], ["inspect", DATA / "moe-tp2-pp2-ep2"]])
def test_another_command_on_one_rank_is_refused(other, small):
    outcome = small.run(small.rank(), [BINARY, *other])
    small.expect_refused(outcome, USAGE, "the command", other[0], "rank 1")


@pytest.mark.long
def test_another_folder_for_relative_paths_is_refused(small, scratch):
    (scratch / "elsewhere").mkdir()
    job = scratch / "relative.toml"
    job.write_text((scratch / "job.toml").read_text().replace(str(small.target), "results/target"))
    for source in (None, "sources"):  # with a relative source, too
        if source:
            job.write_text(re.sub(r'(?<=\[source\]\npath = ")[^"]*', source, job.read_text()))
        outcome = small.run([BINARY, "run", job], ["env", "-C", scratch / "elsewhere", BINARY, "run", job])
        small.expect_refused(outcome, USAGE, "current folder", "elsewhere", "absolute paths")


def test_an_edited_job_file_on_one_rank_is_refused(small, scratch):
    text = (scratch / "job.toml").read_text()
    (scratch / "job2.toml").write_text(text.replace("stall_seconds = 20", "stall_seconds = 21"))
    if not can_have_own_mounts():
        pytest.skip("needs the right to mount")
    elsewhere = f"mount --make-rprivate / && mount --bind job2.toml job.toml && exec {BINARY} run job.toml"
    outcome = small.run(small.rank(), ["unshare", "-m", "sh", "-c", elsewhere])
    # Either rank 0 reads it for all, or the difference is told.
    assert outcome.code in (0, USAGE), outcome.said
    if outcome.code != 0:
        small.expect_refused(outcome, USAGE, "rank 0", "rank 1")


def test_another_folder_of_maps_on_one_rank_is_refused(small, scratch):
    shutil.copytree(MAPS, scratch / "maps")
    outcome = small.run(small.rank("env", f"RESHARD_MAPS={MAPS}"), small.rank("env", f"RESHARD_MAPS={scratch}/maps"))
    small.expect_refused(outcome, USAGE, "RESHARD_MAPS", str(MAPS), f"{scratch}/maps", "rank 0", "rank 1")


def test_another_build_on_one_rank_is_refused(small, scratch):
    changed = scratch / "bin" / "reshard"
    changed.parent.mkdir()
    shutil.copy(BINARY, changed)
    with changed.open("ab") as file:
        file.write(b"\n")
    maps = ("env", f"RESHARD_MAPS={MAPS}")
    outcome = small.run(small.rank(*maps), small.rank(*maps, binary=changed))
    small.expect_refused(outcome, USAGE, "program", "rank 0", "rank 1")


@pytest.mark.long_but("self_attn.k_proj-self_attn.v_proj")
@pytest.mark.skipif(not can_have_own_mounts(), reason="needs the right to mount")
@pytest.mark.parametrize("before, after", [("self_attn.q_proj", "self_attn.query"), ("self_attn.k_proj", "self_attn.v_proj"), ("", "# a comment\n")])
def test_a_map_that_was_edited_for_one_rank_is_refused_or_not_seen(before, after, worlds, scratch):
    """Of a map in a folder that all ranks name alike: the plans differ, or one rank reads it for all."""
    file = "decoder.toml"
    shutil.copytree(MAPS, scratch / "maps")
    edited = scratch / "edited.toml"
    text = (scratch / "maps" / file).read_text()
    assert before in text
    edited.write_text(text.replace(before, after, 1))
    worlds.write_job(bad_sources.original("hf"), "megatron", target_options={"layout": "{ tp = 1 }"}, model={"map": "llama"})
    maps = ("env", f"RESHARD_MAPS={scratch}/maps")
    whole = worlds.run(worlds.rank(*maps), worlds.rank(*maps))
    assert whole.code == 0, whole.said
    expected = tree_hashes(worlds.target)
    worlds.clear()
    elsewhere = f"mount --make-rprivate / && mount --bind {edited} {scratch}/maps/{file} && exec env RESHARD_MAPS={scratch}/maps {BINARY} run job.toml"
    outcome = worlds.run(worlds.rank(*maps), ["unshare", "-m", "sh", "-c", elsewhere])
    assert outcome.code in (0, USAGE), outcome.said
    if outcome.code == 0:
        assert tree_hashes(worlds.target) == expected
    else:
        worlds.expect_refused(outcome, USAGE, "rank 0", "rank 1")


# --- a source that is replaced while it is read ---------------------------------------------------------------------------


def source_calls(log, source):
    return [line.split(" ", 2)[:2] for line in log.read_text().splitlines() if str(source) in line]


def check_values(target, when):
    found = {name: value for path in target.glob("*.safetensors") for name, value in load_file(path).items()}
    wrong = sorted(name for name in TENSORS if name not in found or not torch.equal(found[name], TENSORS[name]))
    assert not wrong, f"{when}: wrong values in {wrong}"


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["renamed over", "in place with the old time"])
def test_a_source_replaced_at_any_call_gives_no_mixture(way, ranks, worlds, scratch):
    """The same tensors and sizes, but in another order: who reads the new file by the old header exchanges two tensors."""
    source, other = scratch / "source", scratch / "other"
    source.mkdir()
    path = source / "model.safetensors"
    one_file(path, "abcd", TENSORS)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    kept = scratch / "kept"
    one_file(other, "dcba", TENSORS)
    shutil.copy2(path, kept)
    worlds.write_job(source, target_options={"shard_bytes": "15 KB"}, model=AS_STORED)
    log = scratch / "calls"
    whole = worlds.run(*(worlds.shimmed(fault="none", folders=source, log=log) for _ in range(ranks)))
    assert whole.code == 0, whole.said
    calls = source_calls(log, source)
    replace = {"renamed over": f"cp -p {other} {other}2 && touch -r {kept} {other}2 && mv -f {other}2 {path}",
               "in place with the old time": f"cat {other} > {path} && touch -r {kept} {path}"}[way]
    reads = [int(number) for number, function in calls if function in ("open", "fstat", "pread", "preadv", "close", "posix_fadvise")]
    refused = 0
    for call in reads[:: 1 if ranks == 1 else 3]:
        worlds.clear()
        shutil.copy2(kept, f"{kept}2")
        os.replace(f"{kept}2", path)
        outcome = worlds.run(*(worlds.shimmed(fault="command", command=replace, call=call, rank=0, folders=source) for _ in range(ranks)))
        assert outcome.code in (0, SOURCE, IO), f"call {call}: exit {outcome.code}: {outcome.said[-2000:]}"
        if outcome.code == 0:
            check_values(worlds.target, f"replaced at call {call}")
            continue
        refused += 1
        assert not worlds.target.exists()
    assert refused > 0, "no call fell between the header and the bytes"


def test_the_tensors_of_the_sources_are_what_they_are_meant_to_be(scratch):
    one_file(scratch / "model.safetensors", "dcba", TENSORS)
    assert all(torch.equal(value, TENSORS[name]) for name, value in load_file(scratch / "model.safetensors").items())
