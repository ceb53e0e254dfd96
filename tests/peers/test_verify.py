"""`reshard digest`, `reshard verify PATH` and what a job does with the record of its source: reshard.json and integrity.json."""

import hashlib
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from reshard_job import BINARY, RECORDS, SUMS, Program

DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
DROP = {"optimizer": "drop", "rng": "drop"}

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


def look(*arguments, ranks=1):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), BINARY, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def digest(path, *arguments, ranks=1):
    outcome = look("digest", path, "--json", *arguments, ranks=ranks)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("verify"))


@pytest.fixture(scope="module")
def targets(program):
    """One model in every format."""
    folder = program.scratch
    made = {"huggingface": program.run(SAMPLE, folder / "hf", "huggingface", source_options=DROP, target_options={"reference": DATA / "moe-hf-reference"})}
    made["hdf5"] = program.run(made["huggingface"], folder / "h5", "hdf5")
    made["megatron"] = program.run(made["hdf5"], folder / "megatron", "megatron", target_options={"layout": "{ tp = 2, pp = 2, ep = 2 }"})
    made["torch_dist"] = program.run(made["megatron"], folder / "dist", "torch_dist",
                                     target_options={"layout": "{ tp = 2, ep = 2 }", "integrity": "always"})
    return made


def copied(targets, name, tmp_path):
    return shutil.copytree(targets[name], tmp_path / name)


def without_records(folder):
    for name in RECORDS:
        (folder / name).unlink()


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_name_plate_is_the_same_in_every_format(targets, ranks):
    totals = {name: digest(path, ranks=ranks)["total"] for name, path in targets.items()}
    assert len(set(totals.values())) == 1, totals
    for path in targets.values():
        assert json.loads((path / "reshard.json").read_text())["total"] in totals.values()


def test_each_tensor_has_the_digest_of_the_manifest(targets):
    for path in targets.values():
        recorded = {tensor["name"]: tensor["crc64"] for tensor in json.loads((path / "reshard.json").read_text())["tensors"]}
        assert {tensor["name"]: tensor["crc64"] for tensor in digest(path)["tensors"]} == recorded


@pytest.mark.long_but("2-megatron", "1-hdf5")
@pytest.mark.parametrize("name", ["megatron", "huggingface", "torch_dist", "hdf5"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_written_is_sound(targets, name, ranks):
    outcome = look("verify", targets[name], "--replicas", ranks=ranks)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith("OK: ")


@pytest.mark.parametrize("name", ["megatron", "huggingface", "torch_dist", "hdf5"])
def test_a_changed_bit_is_found_with_its_file_and_tensor(targets, name, tmp_path):
    folder = copied(targets, name, tmp_path)
    file = largest_file(folder)
    flip(file, file.stat().st_size * 2 // 3)
    outcome = look("verify", folder, "--json", ranks=2)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    report = json.loads(outcome.stdout)
    assert not report["sound"]
    assert len(report["files"]) == 1 and str(file) in report["files"][0]
    assert len(report["tensors"]) == 1 and "has the digest" in report["tensors"][0]


def test_files_that_are_missing_cut_or_added_are_named(targets, tmp_path):
    folder = copied(targets, "huggingface", tmp_path)
    (folder / "tokenizer.json").unlink()
    config = folder / "generation_config.json"
    config.write_text(config.read_text() + " ")
    outcome = look("verify", folder)
    assert outcome.returncode == 1
    assert "tokenizer.json: is missing" in outcome.stdout and "generation_config.json: has" in outcome.stdout


def test_a_flipped_replica_is_found(targets, tmp_path):
    folder = copied(targets, "megatron", tmp_path)
    without_records(folder)
    assert look("verify", folder).returncode == 2  # nothing to compare with
    assert look("verify", folder, "--replicas").returncode == 0
    torch = pytest.importorskip("torch")
    shard = sorted(folder.rglob("model_optim_rng.pt"))[-1]
    state = torch.load(shard, weights_only=False)
    norm = next(name for name in state["model"] if name.endswith("linear_qkv.layer_norm_weight") or name.endswith("input_layernorm.weight"))
    state["model"][norm][3] += 1
    torch.save(state, shard)
    outcome = look("verify", folder, "--replicas")
    assert outcome.returncode == 1
    assert "should be the same, but differ" in outcome.stdout and shard.parent.name in outcome.stdout


def test_integrity_json_is_megatrons(targets, tmp_path):
    folder = copied(targets, "torch_dist", tmp_path)
    without_records(folder)
    (run,) = [path for path in folder.iterdir() if path.is_dir() and path.name != "huggingface"]
    recorded = json.loads((run / "integrity.json").read_text())
    assert recorded["algorithm"] == "sha256"
    assert recorded["files"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.iterdir() if path.name != "integrity.json"}
    assert look("verify", folder, ranks=2).returncode == 0
    flip(run / "__0_0.distcp", 5000)
    outcome = look("verify", folder, ranks=2)
    assert outcome.returncode == 1 and "__0_0.distcp: has the SHA-256" in outcome.stdout


# --- parts of the files ---------------------------------------------------------------------------------------------


def subset(folder, part, *arguments, ranks=1):
    outcome = look("verify", folder, "--subset", part, "--json", *arguments, ranks=ranks)
    assert outcome.returncode in (0, 1), outcome.stdout + outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["sound"] == (outcome.returncode == 0)
    return report


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("name", ["megatron", "huggingface", "torch_dist", "hdf5"])
def test_all_parts_together_read_each_file_once(targets, name, tmp_path):
    folder = copied(targets, name, tmp_path)
    listed, record = files_of(folder) - {SUMS}, tmp_path / f".{name}.verified"
    before, seen, read_bytes = {path: (folder / path).stat().st_mtime_ns for path in listed}, set(), 0
    for number in range(1, 6):
        report = subset(folder, f"{number}/5", ranks=1 + number % 2)
        noted = json.loads(record.read_text())
        new = set(noted["files"]) - seen
        assert report["sound"] and report["files"] == len(listed) and report["files_read"] == len(new) and report["files_read_so_far"] == len(noted["files"])
        assert report["bytes_read"] == sum((folder / path).stat().st_size for path in new) == noted["parts"][f"{number}/5"]["bytes"]
        assert all(noted["files"][path]["read"] == noted["parts"][f"{number}/5"]["read"] and noted["files"][path]["good"] for path in new)
        seen |= new
        read_bytes += report["bytes_read"]
    assert seen == listed and read_bytes == sum((folder / path).stat().st_size for path in listed)
    assert {path: (folder / path).stat().st_mtime_ns for path in files_of(folder) - {SUMS}} == before


def test_a_changed_bit_is_found_by_one_part_and_a_missing_file_by_each(targets, tmp_path):
    folder, record = copied(targets, "megatron", tmp_path), tmp_path / "notes"
    file = largest_file(folder)
    flip(file, file.stat().st_size // 2)
    reports = [subset(folder, f"{number}/4", "--record", record) for number in range(1, 5)]
    (damaged,) = [report for report in reports if not report["sound"]]
    assert len(damaged["faults"]) == 1 and str(file) in damaged["faults"][0]
    noted = json.loads(record.read_text())["files"]
    assert [path for path, one in noted.items() if not one["good"]] == [str(file.relative_to(folder))]
    assert reports[-1]["files_read_so_far"] == reports[-1]["files"] and not list(tmp_path.glob(".*"))
    file.unlink()
    for number in range(1, 5):
        outcome = look("verify", folder, "--subset", f"{number}/4", "--record", record)
        assert outcome.returncode == 1 and f"{file}: is missing" in outcome.stdout


def test_the_part_of_today_and_what_other_content_makes_of_the_record(targets, tmp_path):
    folder, record = copied(targets, "huggingface", tmp_path), tmp_path / ".huggingface.verified"
    days = [int(time.time()) // 86400]
    report = subset(folder, "auto/3")
    days.append(int(time.time()) // 86400)
    assert report["of"] == 3 and report["part"] - 1 in {day % 3 for day in days}
    assert subset(folder, "auto")["of"] == 30
    subset(folder, "1/1")
    assert len(json.loads(record.read_text())["parts"]) == 3
    (folder / "README").write_text("new")
    digest = hashlib.sha256(b"new").hexdigest()
    (folder / SUMS).write_text((folder / SUMS).read_text() + f"{digest}  README\n")
    assert set(json.loads(record.read_text())["parts"]) > {"1/1"}
    report = subset(folder, "2/2")
    assert report["sound"] and set(json.loads(record.read_text())["parts"]) == {"2/2"}


@pytest.mark.parametrize("words, text", [
    (["--subset", "4/3"], "3/30"), (["--subset", "some"], "3/30"), (["--record", "x"], "--subset"), (["--subset", "1/2", "--replicas"], "one checkpoint"),
    (["--subset", "1/2", "--record", "/nowhere/x"], "--record")])
def test_a_part_that_cannot_be_is_refused(words, text, targets):
    outcome = look("verify", targets["huggingface"], *words)
    assert outcome.returncode == 2 and text in outcome.stderr, outcome.stderr


def test_what_is_no_record_is_not_replaced(targets, tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("mine")
    outcome = look("verify", targets["huggingface"], "--subset", "1/2", "--record", notes)
    assert outcome.returncode == 2 and "not a record of verified files" in outcome.stderr and notes.read_text() == "mine"


# --- SHA256SUMS -----------------------------------------------------------------------------------------------------


def sha256sum(folder):
    return subprocess.run(["sha256sum", "--strict", "--check", "--quiet", SUMS], cwd=folder, capture_output=True, text=True)


def test_sha256sum_finds_every_file_as_recorded(targets, tmp_path):
    for folder in targets.values():
        assert sha256sum(folder).returncode == 0, sha256sum(folder).stderr
        names = [line.split("  ", 1)[1] for line in (folder / SUMS).read_text().splitlines()]
        # Each target was made of another one: a list that had been carried along would be a file too many, and stale.
        assert names == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    folder = copied(targets, "huggingface", tmp_path)
    flip(folder / "tokenizer.json", 20)
    assert sha256sum(folder).returncode == 1


def test_verify_checks_the_sums_alone_and_beside_the_manifest(targets, tmp_path):
    folder = copied(targets, "huggingface", tmp_path)
    outcome = look("verify", folder, ranks=2)
    assert outcome.returncode == 0 and "against reshard.json and SHA256SUMS," in outcome.stdout
    sums = (folder / SUMS).read_text()
    (folder / SUMS).write_text("".join("0" * 64 + line[64:] if line.endswith("  config.json\n") else line for line in sums.splitlines(True)))
    outcome = look("verify", folder)
    assert outcome.returncode == 1 and "config.json: has the SHA-256" in outcome.stdout and "1 fault)" in outcome.stdout
    # As anybody makes them, of a folder that we did not write.
    without_records(folder)
    made = subprocess.run("sha256sum -b ./* > SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS", shell=True, cwd=folder)
    assert made.returncode == 0 and look("verify", folder).returncode == 0
    flip(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 9)
    outcome = look("verify", folder)
    assert outcome.returncode == 1 and "model.safetensors: has the SHA-256" in outcome.stdout


@pytest.mark.long_but("huggingface")
@pytest.mark.parametrize("name", ["huggingface", "torch_dist"])
def test_sums_of_the_source_are_not_carried_along(program, targets, tmp_path, name):
    folder = copied(targets, name, tmp_path)
    for place in {folder, *(path.parent for path in folder.rglob("*.distcp"))}:
        (place / SUMS).write_text("0" * 64 + "  some/file\n")
    target = program.run(folder, tmp_path / "out", name, target_options={"sha256sums": "never"})
    assert not list(target.rglob(SUMS))
    again = program.run(folder, tmp_path / "again", name, target_options={"sha256sums": "always"})
    assert sha256sum(again).returncode == 0


def test_a_source_that_is_not_as_recorded_ends_the_job(program, targets, tmp_path):
    folder = copied(targets, "hdf5", tmp_path)
    flip(folder / "model.h5", (folder / "model.h5").stat().st_size - 5000)
    outcome = program.attempt(folder, tmp_path / "out", "huggingface")
    assert outcome.returncode == 3, outcome.stderr
    assert "model.h5" in outcome.stderr and "has the digest" in outcome.stderr and "Changed: " in outcome.stderr
    assert not (tmp_path / "out").exists()
    outcome = program.attempt(folder, tmp_path / "out", "huggingface", source_options={"verify": "files"})
    assert outcome.returncode == 3 and "has the XXH3" in outcome.stderr
    program.run(folder, tmp_path / "out", "huggingface", source_options={"verify": "off"})


def test_files_cannot_be_verified_without_a_record(program, tmp_path):
    outcome = program.attempt(SAMPLE, tmp_path / "out", "hdf5", source_options=DROP | {"verify": "files"})
    assert outcome.returncode == 2 and "no reshard.json, SHA256SUMS or integrity.json" in outcome.stderr


def test_a_record_of_other_files_is_not_looked_at(program, targets, tmp_path):
    folder = copied(targets, "huggingface", tmp_path)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "weights.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    outcome = program.attempt(folder, tmp_path / "out", "hdf5")
    assert outcome.returncode == 0, outcome.stderr
    assert "lists other files" in outcome.stderr
    assert not (tmp_path / "out" / "generation.json").exists()
    assert json.loads((tmp_path / "out" / "reshard.json").read_text())["format"] == "hdf5"


@pytest.mark.long_but("cut", "tensor", "deep")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"reshard": 1}', '{"tensors": [{"name": 3}]}', "null", '{"a": ' * 200],
                         ids=["empty", "cut", "list", "number", "tensor", "null", "deep"])
def test_a_damaged_manifest_is_an_error(program, targets, tmp_path, text):
    folder = copied(targets, "hdf5", tmp_path)
    (folder / "reshard.json").write_text(text)
    outcome = look("verify", folder)
    assert outcome.returncode == 3 and "reshard.json" in outcome.stderr, outcome.stderr


@pytest.mark.long_but("streamed")
@pytest.mark.parametrize("verify", ["off", "streamed", "written"])
def test_the_weights_are_the_same_however_they_are_verified(program, targets, tmp_path, verify):
    target = program.run(targets["megatron"], tmp_path / "out", "hdf5", run={"verify": verify})
    manifest = target / "reshard.json"
    assert manifest.exists() == (verify != "off")
    if verify == "streamed":
        assert json.loads(manifest.read_text())["files"] == []
        assert look("verify", target).returncode == 0
    if verify != "off":
        assert (target / "model.h5").read_bytes() == (program.run(targets["megatron"], tmp_path / "again", "hdf5") / "model.h5").read_bytes()


def test_the_program_that_is_asked_for_two_things_at_once_says_so(targets):
    outcome = look("verify", targets["hdf5"], targets["megatron"], "--replicas")
    assert outcome.returncode == 2 and "--replicas" in outcome.stderr
