"""A Hugging Face folder that comes back from Megatron has the same files, however their headers are spelled, and `reshard verify A B --files` says why files differ."""

import json
import subprocess
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from family_models import FAMILIES, save_family
from hf_models import assert_same_files, read_hf
from reshard_job import BINARY
from tensor_patterns import assert_same_tensors

pytestmark = pytest.mark.skipif(not BINARY, reason="needs the program")


def compare(a, b, *options, ranks=1):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), BINARY, "verify", a, b, "--files", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def split(path):
    """A safetensors file as (header, data); the header a dict in the order of its text."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8:8 + length]), content[8 + length:]


def join(path, header, data, *, pad=8, **spelling):
    text = json.dumps(header, **{"separators": (",", ":"), **spelling}).encode()
    text += b" " * (-(8 + len(text)) % pad)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def in_other_order(header, data):
    """Tensors by name alone, and entries of the header backwards."""
    entries, moved = {}, b""
    for name in sorted(name for name in header if name != "__metadata__"):
        begin, end = header[name]["data_offsets"]
        entries[name] = header[name] | {"data_offsets": [len(moved), len(moved) + end - begin]}
        moved += data[begin:end]
    return dict(reversed([("__metadata__", header["__metadata__"]), *entries.items()])), moved


def respell(path, how):
    header, data = split(path)
    if how == "padded to 512":
        join(path, header, data, pad=512)
    elif how == "not padded":
        join(path, header, data, pad=1)
    elif how == "with spaces":
        join(path, header, data, separators=(", ", ": "))
    elif how == "more metadata":
        join(path, header | {"__metadata__": {"by": "someone", "format": "pt", "ü": "\n"}}, data)
    elif how == "no metadata":
        join(path, {name: entry for name, entry in header.items() if name != "__metadata__"}, data)
    elif how == "another order":
        join(path, *in_other_order(header, data))
    else:
        assert how == "as saved"


SPELLINGS = ["as saved", "padded to 512", "not padded", "with spaces", "more metadata", "no metadata", "another order"]


@pytest.mark.long_but("another order")
@pytest.mark.parametrize("how", SPELLINGS)
def test_headers_of_the_reference_are_repeated(how, program, scratch):
    family = FAMILIES["llama-tied"]
    folder = save_family(scratch / "folder", family)
    for path in folder.glob("*.safetensors"):
        respell(path, how)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder})
    assert_same_files(back, folder)
    assert compare(folder, back, ranks=2).returncode == 0


def sharded(folder, **index):
    """One file for each layer, named in an order of its own, and an index with other members and no final newline."""
    header, _ = split(folder / "model.safetensors")
    metadata = header.pop("__metadata__")
    state = read_hf(folder)
    (folder / "model.safetensors").unlink()
    groups = {}
    for name in state:
        groups.setdefault(f"model-{name.split('.')[2] if 'layers' in name else 'rest'}.safetensors", {})[name] = state[name]
    for file, tensors in groups.items():
        save_file(tensors, folder / file, metadata=metadata)
    places = {name: file for file, tensors in groups.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places, **index}))


@pytest.mark.parametrize("given", ["reference", "carried"])
def test_an_index_is_repeated(given, program, scratch):
    family = FAMILIES["llama-tied"]
    folder = save_family(scratch / "folder", family)
    size = sum(tensor.numel() * tensor.element_size() for tensor in read_hf(folder).values())
    sharded(folder, metadata={"by": "someone", "total_size": float(size)})
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder} if given == "reference" else {})
    assert_same_files(back, folder)


def test_a_reference_without_weights_gives_the_usual_files(program, scratch):
    """A clone without its large files has pointers in their place."""
    family = FAMILIES["llama-tied"]
    folder = save_family(scratch / "folder", family)
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    reference = scratch / "reference"
    reference.mkdir()
    for path in folder.iterdir():
        (reference / path.name).write_bytes(path.read_bytes())
    (reference / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 17\n")
    back = program.to_hf(tree, scratch / "back", target_options={"reference": reference})
    assert_same_files(back, folder)


def test_another_dtype_keeps_what_can_be_kept(program, scratch):
    family = FAMILIES["llama-tied"]
    folder = save_family(scratch / "folder", family)
    respell(folder / "model.safetensors", "more metadata")
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    state = read_hf(folder)
    cut = scratch / "reference"
    cut.mkdir()
    for path in folder.iterdir():
        (cut / path.name).write_bytes(path.read_bytes())
    save_file({name: tensor.double() for name, tensor in state.items()}, cut / "model.safetensors", metadata={"by": "x", "format": "pt"})
    back = program.to_hf(tree, scratch / "back", target_options={"reference": cut})
    assert split(back / "model.safetensors")[0]["__metadata__"] == {"by": "x", "format": "pt", "ü": "\n"}  # the reference's, and what only the source has
    assert_same_tensors(read_hf(back), state)


@pytest.mark.parametrize("ranks", [1, 3])
def test_why_files_differ(ranks, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir(), b.mkdir()
    tensors = {"w": torch.ones(4, 4), "v": torch.zeros(3)}
    pt = {"format": "pt"}
    pairs = {
        "same": (tensors, tensors, pt), "metadata": (tensors, tensors, None), "value": (tensors, tensors | {"w": tensors["w"] * 2}, pt),
        "set": (tensors, {"w": tensors["w"], "z": tensors["v"]}, pt), "form": (tensors, tensors | {"w": tensors["w"].half()}, pt)}
    for name, (left, right, metadata) in pairs.items():
        save_file(left, a / f"{name}.safetensors", metadata=pt)
        save_file(right, b / f"{name}.safetensors", metadata=metadata)
    narrow = {"w": torch.ones(4), "n": torch.ones(4).half()}
    for name, how, state in (("padding", "padded to 512", tensors), ("spelling", "with spaces", tensors), ("order", "another order", narrow)):
        save_file(state, a / f"{name}.safetensors", metadata=pt)
        save_file(state, b / f"{name}.safetensors", metadata=pt)
        respell(b / f"{name}.safetensors", how)
    (a / "config.json").write_text('{"a": 1, "b": [1]}')
    (b / "config.json").write_text('{"a": 1, "b": [2], "c": 0}')
    (a / "spelled.json").write_text('{"a": 1}')
    (b / "spelled.json").write_text('{\n"a": 1}')
    for folder, text in ((a, "abc"), (b, "abd")):
        (folder / "more").mkdir()
        (folder / "more" / "text").write_text(text)
        (folder / "broken.safetensors").write_text(text + folder.name)
        (folder / "reshard.json").write_text(folder.name)
    (a / "alone").write_text("")
    outcome = compare(a, b, "--json", ranks=ranks)
    found = json.loads(outcome.stdout)
    assert outcome.returncode == 1 and not found["same"]
    assert (found["files"], found["equal"]) == (12, 1)
    why = {row["file"]: row["why"] for row in found["differences"]}
    assert why == {
        "alone": "is only in A",
        "broken.safetensors": "differ from byte 2 on",
        "config.json": "differ in 'b', 'c'",
        "form.safetensors": "differ in dtype or shape of 'w'",
        "metadata.safetensors": "differ in __metadata__",
        "more/text": "differ from byte 2 on",
        "order.safetensors": "differ in the order of their tensors",
        "padding.safetensors": "differ only in the padding of the header (152 and 512 bytes)",
        "set.safetensors": "hold other tensors: 'v' only in A, 'z' only in B",
        "spelled.json": "differ only in how the same values are written or ordered",
        "spelling.safetensors": "differ only in how the header is written",
        "value.safetensors": "differ in the bytes of 1 of 2 tensors: 'w'",
    }
    assert compare(a, a, ranks=ranks).returncode == 0
    assert compare(a, b / "config.json").returncode == 2
    assert "does not exist" in compare(a, tmp_path / "nothing").stderr


def test_an_index_of_another_dtype_has_the_size_of_the_target(program, scratch):
    """Megatron-Bridge makes F32 of a folder whose config gives the dtype of the text model alone; the files and places are the reference's."""
    family = FAMILIES["llama-tied"]
    folder = save_family(scratch / "folder", family)
    size = sum(tensor.numel() * tensor.element_size() for tensor in read_hf(folder).values())
    sharded(folder, metadata={"total_size": size})
    wide = save_family(scratch / "wide", replace(family, dtype=torch.float32))
    tree = program.run(wide, scratch / "tree", "megatron", target_options={"layout": family.a.toml()})
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder})
    index = json.loads((back / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * size
