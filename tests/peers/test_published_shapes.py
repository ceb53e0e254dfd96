"""Published models, with every name and in the files in which they are published, come back from every format as the same files.

Without a reference, what a checkpoint does not carry is not guessed: `verify A B --files` says of each file why it is another one.
"""

import json

import pytest

from hf_models import describe_files
from published_shapes import MODELS, published_folder
from reshard_job import RECORDS, command

FREQUENCIES = "rotary_emb.inv_freq"  # which maps list under `drop`: they follow from the config


def different_files(a, b):
    """Names of files that are not the same bytes in both folders, or are in one of them."""
    names = {path.name for folder in (a, b) for path in folder.iterdir()} - RECORDS
    return {name for name in names if not all((folder / name).exists() for folder in (a, b)) or (a / name).read_bytes() != (b / name).read_bytes()}


def why_files_differ(a, b):
    """File -> what the program says of it."""
    return {row["file"]: row["why"] for row in json.loads(command("verify", a, b, "--files", "--json").stdout)["differences"]}


def without_frequencies(folder):
    """What is said where a model stores tensors that its map drops."""
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {file for name, file in places.items() if FREQUENCIES in name}
    return dict.fromkeys(files, "hold other tensors") | ({"model.safetensors.index.json": "differ in 'metadata', 'weight_map'"} if files else {})


def expected_without_reference(folder, model, way):
    """File -> how the reason begins, of each file that nothing but a reference can give back."""
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if way == "hdf5" and len(shards) > 1:  # a container has the config, and no index
        return dict.fromkeys([*shards, "model.safetensors.index.json"], "is only in A") | {"model.safetensors": "is only in B"}
    if model.metadata is None:
        return dict.fromkeys(shards, "differ in __metadata__")
    if model.order == "model":
        return dict.fromkeys(shards, "differ in the order of their tensors")
    return {}


def checkpoints(program, folder, model, scratch):
    """Way -> the checkpoint, made of the one before, and the options of a job that reads it."""
    known = {"model": {"map": model.map}}
    megatron = program.run(folder, scratch / "megatron", "megatron", target_options={"layout": model.layout}, ranks=1, **known)
    yield "megatron", megatron, {}
    dist = program.run(megatron, scratch / "dist", "torch_dist", ranks=1)
    yield "torch_dist", dist, {}
    kept = {"model": {"map": "none"}} if model.scheme else {}  # HDF5 has no logical form of quantised weights
    yield "hdf5", program.run(folder if model.scheme else dist, scratch / "h5", "hdf5", ranks=1, **kept), kept


@pytest.mark.long_but("gpt-oss-20b")
@pytest.mark.parametrize("name", MODELS)
def test_published_files_come_back(name, program, scratch):
    model, folder = MODELS[name], scratch / "folder"
    files, tensors, size = published_folder(folder, model)
    dropped = without_frequencies(folder) if files > 1 else {}
    for way, tree, options in checkpoints(program, folder, model, scratch):
        back = program.to_hf(tree, scratch / f"{way}-reference", target_options={"reference": folder}, ranks=1, **options)
        found = why_files_differ(folder, back)
        assert set(found) == different_files(folder, back) == set(dropped), f"{way}, with a reference: {found or describe_files(back, folder)}"
        alone = program.to_hf(tree, scratch / f"{way}-alone", ranks=1, **options)
        found, expected = why_files_differ(folder, alone), dropped | expected_without_reference(folder, model, way)
        assert set(found) == different_files(folder, alone) == set(expected), f"{way}, without a reference: {found}"
        assert all(found[file].startswith(expected[file]) for file in found), f"{way}: {found}"


def test_second_copies_beside_the_weights_are_not_made_again(program, scratch):
    """What repositories hold besides: Mistral's consolidated file, a folder of other weights, attributes of git."""
    folder = scratch / "folder"
    published_folder(folder, MODELS["mistral-7b"])
    (folder / "consolidated.safetensors").write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"onnx")
    outcome = program.attempt(folder, scratch / "megatron", "megatron", target_options={"layout": MODELS["mistral-7b"].layout}, ranks=1)
    assert outcome.returncode == 0 and "onnx/: folders beside the weights are not copied" in outcome.stderr, outcome.stdout + outcome.stderr
    back = program.to_hf(scratch / "megatron", scratch / "back", target_options={"reference": folder}, ranks=1)
    assert why_files_differ(folder, back) == dict.fromkeys([".gitattributes", "consolidated.safetensors", "onnx/model.onnx"], "is only in A")
