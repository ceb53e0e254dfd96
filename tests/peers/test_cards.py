"""scripts/make_card.sh: a tiny model goes through every format and comes back, and its card says so; a card of files that did not come back says that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from family_models import FAMILIES, save_family
from hf_models import read_hf
from reshard_job import BINARY

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


def save_in_shards(folder):
    """Several files and an index, as larger models have them."""
    state = read_hf(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    parts = {f"model-{number + 1:05d}-of-00003.safetensors": names[number::3] for number in range(3)}
    for file, chosen in parts.items():
        save_file({name: state[name] for name in chosen}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, chosen in parts.items() for name in chosen}
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2) + "\n")
    return len(parts)


def make(folder, *words):
    command = [ROOT / "scripts" / "make_card.sh", folder, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"RESHARD_BIN": BINARY})


@pytest.mark.parametrize("name", ["qwen3-moe", pytest.param("llama-tied", marks=pytest.mark.long)])
def test_a_model_goes_through_every_format(name, scratch):
    folder = save_family(scratch / "tiny", FAMILIES[name])
    shards = save_in_shards(folder)
    noted = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"  # as `hf download --local-dir` leaves it
    noted.parent.mkdir(parents=True)
    noted.write_text("0123456789" * 4 + "\nabc\n1.5\n")
    outcome = make(folder, "--name", "tiny", "--out", scratch / "cards", "--scratch", scratch / "work")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    card = (scratch / "cards" / "tiny.md").read_text()
    count = len([path for path in folder.iterdir() if path.is_file()])
    assert count > 3 and shards > 1
    assert f"{count} of {count} files came back as the same bytes." in card
    assert f"| revision | {'0123456789' * 4} |" in card and "| weights | released |" in card
    steps = [line.split("|")[2].strip() for line in card.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert steps == ["`megatron`", "`torch_dist`", "`hdf5`", "`megatron`", "`huggingface`"] and "refused" not in card
    total = next(line.split("`")[1] for line in card.splitlines() if line.startswith("| digest |"))
    assert card.count(f"`{total}`") == 6
    assert list((scratch / "work").iterdir()) == [] and (folder / "config.json").exists()


def test_a_model_that_was_made_for_a_card_is_removed(scratch):
    folder = save_family(scratch / "folder", FAMILIES["qwen3-moe"])
    outcome = make(folder, "--out", scratch / "cards", "--scratch", scratch / "work", "--consume", "--weights", "random")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert not folder.exists() and "| weights | random |" in (scratch / "cards" / "folder.md").read_text()


@pytest.mark.parametrize("words, said", [((), "Hugging Face folder"), (("--rank", "2"), "no option --rank"), (("--ranks",), "needs a value")])
def test_what_cannot_be_meant_is_refused(words, said, scratch):
    outcome = make(scratch, *words)
    assert outcome.returncode == 1 and said in outcome.stderr


@pytest.mark.parametrize("change", ["file", "digest", None])
def test_a_card_says_what_did_not_come_back(change, scratch):
    records = scratch / "records"
    records.mkdir()
    texts = {
        "facts": ["tiny", "r1", "random", "2", "2026-01-01", "MODEL_FOLDER", ""], "hardware": ["reshard 1", "Linux 6", "a processor", "2", "8", "ext4"],
        "before": ["aa  config.json", "bb  model.safetensors"], "after": ["aa  config.json", "cc  model.safetensors" if change == "file" else "bb  model.safetensors"],
        "1.step": ["megatron", "target.layout.tp=2", "0", "1.5", "1000"], "2.step": ["hdf5", "", "3", "0.5"]}
    for name, lines in texts.items():
        (records / name).write_text("\n".join(lines) + "\n")
    (records / "digest.json").write_text(json.dumps({"total": "t1", "map": "llama", "tensors": [{}], "bytes": 1000}))
    run = {"total_digest": "t2" if change == "digest" else "t1", "peak_memory_bytes": 1 << 20}
    (records / "1.json").write_text(json.dumps({"run": run}))
    (records / "2.json").write_text(json.dumps({"error": "no quantised weights"}))
    outcome = subprocess.run([sys.executable, ROOT / "scripts" / "write_card.py", records, scratch / "card.md"], capture_output=True, text=True)
    card = (scratch / "card.md").read_text()
    assert outcome.returncode == (1 if change else 0), outcome.stderr
    assert "refused: no quantised weights" in card
    assert ("1 of 2 files came back as the same bytes, and not all are" in card and "`cc`" in card) == (change == "file")
    assert ("**differs**" in card) == (change == "digest")
