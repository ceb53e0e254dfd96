"""docs/adding-a-model.md, done: its files are written, its commands run, and what they say is what the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hf_models import read_hf
from reshard_job import BINARY, TIMEOUT_SECONDS

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"
FENCE = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TILE = 16


# --- the page ------------------------------------------------------------------------------------------------------


def sections():
    """Heading -> the fenced blocks below it, as (kind, file, text)."""
    parts = re.split(r"^## (.*)$", GUIDE.read_text(), flags=re.MULTILINE)
    titles = ["Without a map", *parts[1::2]]
    return {title: [match.groups() for match in FENCE.finditer(body)] for title, body in zip(titles, parts[::2])}


def mistakes():
    """The last section: each diff with the commands behind it."""
    blocks = sections()["Common mistakes"]
    return [(text, commands) for (kind, _, text), (_, _, commands) in zip(blocks, blocks[1:]) if kind == "diff"]


def steps():
    return [block for title, blocks in sections().items() if title != "Common mistakes" for block in blocks]


def changed(text, diff):
    """The file after a diff without context: lines that go are replaced by those that come behind them, or these stand at the end."""
    hunks = re.findall(r"((?:^-.*\n)*)((?:^\+.*\n)*)", diff, flags=re.MULTILINE)
    for old, new in hunks:
        old, new = ("".join(line[1:] + "\n" for line in part.splitlines()) for part in (old, new))
        assert not old or text.count(old) == 1, f"{old!r} is not in the map once"
        text = text.replace(old, new) if old else text + new
    return text


def fits(wanted, line):
    """"…" stands for anything, and how far columns are apart does not matter."""
    wanted, line = (" ".join(text.split()) for text in (wanted, line))
    return re.fullmatch(".*".join(re.escape(part.strip()) for part in wanted.split("…")), line) is not None


def check_output(command, wanted, got):
    """Lines in the order of the page; where it has a line with only dots, others may stand between."""
    lines, at, skip = got.splitlines(), 0, False
    for line in wanted:
        if line == "…":
            skip = True
            continue
        while skip and at < len(lines) and not fits(line, lines[at]):
            at += 1
        assert at < len(lines) and fits(line, lines[at]), f"{command}\nthe page: {line}\nsaid:\n{got[-6000:]}"
        at, skip = at + 1, False
    assert skip or at == len(lines), f"{command}\nsays more than the page:\n{got[-6000:]}"


class Reader:
    """Somebody who does what the page says, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name, command in {"reshard": BINARY, "python": sys.executable}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def follow(self, block):
        kind, file, text = block
        if kind != "console":
            (self.folder / file).write_text(text)
            return
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *wanted = part.splitlines()
            self.say(command, wanted)

    def say(self, command, wanted):
        done = subprocess.run(command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        refused = any(line.startswith("error:") for line in wanted)
        assert refused or done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert not refused or done.returncode in (2, 3), f"{command}: exit {done.returncode}"
        said = done.stdout + "".join(line + "\n" for line in done.stderr.splitlines() if line.startswith("error:"))
        check_output(command, wanted, said)


# --- the invented family -------------------------------------------------------------------------------------------


def as_marlin(tensors):
    """Llama's tensors under Marlin's names."""
    result = {}
    for name, tensor in tensors.items():
        name = name.replace("model.layers.", "transformer.blocks.").replace("model.", "transformer.")
        if name.endswith("up_proj.weight"):
            continue
        if name.endswith("gate_proj.weight"):
            up = next(other for key, other in tensors.items() if key == f"model.layers.{name.split('.')[2]}.mlp.up_proj.weight")
            name, tensor = name.replace("gate_proj", "gate_up"), torch.cat([tensor, up])
        result[name] = tensor.contiguous()
    return result | {"transformer.rope.cos": torch.rand(16, 4)}


def in_fp8(tensors):
    """Matrices of the blocks as FP8, with a scale for every tile."""
    result = dict(tensors)
    for name, tensor in tensors.items():
        if "blocks" not in name or tensor.dim() != 2:
            continue
        result[name] = tensor.to(torch.float8_e4m3fn)
        result[name.replace("weight", "weight_scale_inv")] = torch.rand(*(-(-size // TILE) for size in tensor.shape)) + 0.5
    return result


def save_folder(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_folders(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64)
    torch.manual_seed(3)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "llama")
    facts = json.loads((folder / "llama" / "config.json").read_text()) | {"model_type": "marlin", "architectures": ["MarlinForCausalLM"]}
    facts["num_blocks"] = facts.pop("num_hidden_layers")
    tensors = as_marlin(read_hf(folder / "llama"))
    save_folder(folder / "marlin", facts, tensors)
    quantised = {"quant_method": "fp8", "weight_block_size": [TILE, TILE], "activation_scheme": "dynamic"}
    save_folder(folder / "marlin-fp8", facts | {"quantization_config": quantised}, in_fp8(tensors))


@pytest.fixture
def reader(scratch):
    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    make_folders(scratch)
    return Reader(scratch)


def test_the_page_does_what_it_says(reader):
    for block in steps():
        reader.follow(block)


@pytest.mark.long
def test_every_mistake_has_its_sentence(reader):
    for kind, file, text in steps():
        if kind != "console":
            reader.follow((kind, file, text))
    sound = (reader.folder / "marlin.toml").read_text()
    assert len(mistakes()) >= 8
    for diff, commands in mistakes():
        (reader.folder / "marlin.toml").write_text(changed(sound, diff))
        reader.follow(("console", "", commands))


def test_the_table_is_there_as_json(reader):
    for kind, file, text in steps():
        if kind == "toml":
            (reader.folder / file).write_text(text)
    command = "reshard check-map marlin.toml --config marlin --json"
    done = subprocess.run(command, shell=True, cwd=reader.folder, env=reader.environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["proved"] and found["errors"] == [] and found["parameters"] == 104896
    gate = next(tensor for tensor in found["tensors"] if tensor["name"] == "ffn.gate")
    assert gate["huggingface"] == ["transformer.blocks.{layer}.mlp.gate_up.weight"] and gate["elements"] == 3 * 96 * 64
    assert gate["axes"][0] == {"axis": "layer", "size": 3, "runs": [[0, 3]]}
    stored = {pattern["name"]: pattern for pattern in found["huggingface"] + found["megatron"] + found["torch_dist"]}
    assert stored["transformer.blocks.{layer}.mlp.gate_up.weight"]["count"] == 3
    assert stored["decoder.layers.{layer}.mlp.linear_fc1.weight"]["cuts"] == ["tp inter", "pp layer"]
    assert stored["decoder.layers.mlp.linear_fc1.weight"]["shape"] == [3, 192, 64]
    assert found["args"]["num_layers"] == 3 and found["config"]["num_blocks"] == 3
    assert all(form["proved"] for form in found["forms"])
