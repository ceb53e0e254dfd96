"""The digests of a manifest against brute force: the CRC-64 of every logical tensor, whatever the format, the layout and the number of ranks.

RESHARD_TEST_LARGE=1 takes every row on every number of ranks.
"""

import hashlib
import json
import os
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import cases
import dcp_reading
import hf_models
from dcp_cases import names_of
from logical_tensors import WORDS, digests, logical_tensors, manifest_digests
from numpy_megatron import write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import BINARY, manifest_of
from tensor_patterns import crc64, make_globals, raw

RANKS = (1, 2, 3, 4, 7)
LARGE = bool(os.environ.get("RESHARD_TEST_LARGE"))
NOT_NULL = {"tokenizer_type": "HuggingFaceTokenizer"}  # a null tokenizer counts one token more than vocab_size says

MODELS = {
    "dense": cases.LLAMA.with_(layers=4, heads=8, groups=4), "tied": cases.LLAMA_TIED.with_(layers=4, vocab=101),
    "biases": cases.QWEN2.with_(layers=2), "moe": cases.QWEN3_MOE.with_(layers=4, moe_layers=(1, 2, 3)), "mixtral": cases.MIXTRAL.with_(layers=2)}
DENSE_LAYOUTS = [(Layout(), LOCAL), (Layout(tp=4), TE_SEQUENTIAL), (Layout(tp=8, pp=2), LOCAL), (Layout(pp=2), TE_SEQUENTIAL)]
MOE_LAYOUTS = [(Layout(tp=2, ep=2), TE_GROUPED), (Layout(pp=2, ep=4), LOCAL), (Layout(tp=2, pp=2, ep=2, etp=2), TE_SEQUENTIAL), (Layout(tp=4), TE_GROUPED)]


def layouts_of(name):
    fitting = MOE_LAYOUTS if MODELS[name].experts else DENSE_LAYOUTS
    return [(layout, form) for layout, form in fitting if layout.tp < 8 or name in ("dense", "biases")]


def rows():
    """(model, source, target, layout and form of the Megatron side or None)"""
    result = []
    for name in MODELS:
        result += [(name, "hf", target, None) for target in ("huggingface", "hdf5")]
        for number, side in enumerate(layouts_of(name)):
            result += [(name, "hf", "megatron", side), (name, "megatron", ("hdf5", "huggingface", "torch_dist", "megatron")[number % 4], side)]
            result += [(name, "hf", "torch_dist", side)] if number % 2 == 0 else []
    if LARGE:
        return [(*row, ranks) for row in result for ranks in RANKS]
    return [(*row, RANKS[number % 5]) for number, row in enumerate(row for at, row in enumerate(result) if at % 5 in (0, 2, 3))]


ROWS = rows()
OTHER = {True: Layout(tp=2, ep=4), False: Layout(tp=2, pp=2)}  # of the target where both sides are Megatron's; by whether there are experts


def row_id(row):
    name, source, target, side, ranks = row
    return f"{name}-{source}-{target}-{side[0].label() if side else ''}-np{ranks}"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A Hugging Face folder of each model, as transformers writes it."""
    root = tmp_path_factory.mktemp("digests")
    made = {}

    def source(name):
        if name not in made:
            made[name] = hf_models.save_hf(root / name, MODELS[name], make_globals(MODELS[name]), "40KB")
        return made[name]

    return source


def expected_digests(config):
    return digests(logical_tensors(config, make_globals(config)))


def source_of(row, sources, scratch):
    name, source, _, side, _ = row
    if source == "hf":
        return sources(name)
    return write_tree(scratch / "tree", MODELS[name], *side, make_globals(MODELS[name]), enums=NOT_NULL)


def target_options(row):
    name, source, target, side, _ = row
    if target not in ("megatron", "torch_dist"):
        return {}
    layout, form = side
    return {"layout": (OTHER[bool(MODELS[name].experts)] if source == "megatron" else layout).toml()} | names_of(form)


@pytest.mark.long_but(
    "tied-hf-hdf5--np4", "biases-megatron-torch_dist-*", "moe-megatron-huggingface-*-np7", "moe-megatron-megatron-*",
    "mixtral-hf-torch_dist-*-np1")
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_digests_are_those_of_the_gathered_tensors(row, sources, program, scratch):
    name, source, target, _, ranks = row
    model = {"map": MODELS[name].family} if target == "huggingface" and source == "megatron" else {}
    there = program.run(source_of(row, sources, scratch), scratch / "there", target, ranks=ranks, target_options=target_options(row), model=model,
                        memory=("64 MiB", "1 MiB")[ranks % 2])
    assert manifest_digests(manifest_of(there)) == expected_digests(MODELS[name])


def test_the_rows_cover_what_they_should():
    assert {row[4] for row in ROWS} == set(RANKS)
    assert {row[2] for row in ROWS} == {"huggingface", "hdf5", "megatron", "torch_dist"}


# --- the name-plate -----------------------------------------------------------------------------------------------


@pytest.mark.long_but("moe")
@pytest.mark.parametrize("name", ["tied", "moe"])
def test_one_model_has_one_total_everywhere(name, sources, program, scratch):
    """Every format as a target and as the source of the next; the same name-plate as the other way around."""
    config, source = MODELS[name], sources(name)
    layout = {"layout": OTHER[bool(config.experts)].toml()}
    state = hf_models.read_hf(source)
    dcp.save(dict(state), checkpoint_id=scratch / "dcp", no_dist=True)
    made = {
        "dcp with a map": program.run(scratch / "dcp", scratch / "0", "hdf5", source_options={"config": source / "config.json"}, model={"map": config.family}),
        "hdf5": program.run(source, scratch / "1", "hdf5"), "huggingface": program.run(source, scratch / "2", "huggingface")}
    made["megatron"] = program.run(made["hdf5"], scratch / "3", "megatron", target_options=layout)
    made["torch_dist"] = program.run(made["megatron"], scratch / "4", "torch_dist", target_options=layout)
    made["hdf5 again"] = program.run(made["torch_dist"], scratch / "5", "hdf5")
    made["megatron to hf"] = program.run(made["megatron"], scratch / "6", "huggingface", model={"map": config.family})
    found = {name: (manifest_of(target)["total"], manifest_digests(manifest_of(target))) for name, target in made.items()}
    assert {name: digests for name, (_, digests) in found.items()} == {name: expected_digests(config) for name in made}
    assert len({total for total, _ in found.values()}) == 1


# --- stored names -------------------------------------------------------------------------------------------------


@pytest.mark.long_but("3-dcp-options0", "1-hdf5-options3")
@pytest.mark.parametrize("target, options", [("dcp", {"chunks": "ranks", "ranks": 3}), ("dcp", {"chunks": "whole"}), ("huggingface", {}), ("hdf5", {})])
@pytest.mark.parametrize("ranks", [1, 3])
def test_stored_names_have_the_digests_of_stored_tensors(target, options, ranks, sources, program, scratch):
    source = sources("moe")
    there = program.run(source, scratch / "there", target, ranks=ranks, target_options=options, model={"map": "none"})
    state = hf_models.read_hf(source)
    assert manifest_digests(manifest_of(there)) == {
        name: (WORDS[str(tensor.dtype).removeprefix("torch.")], list(tensor.shape), crc64(raw(tensor))) for name, tensor in state.items()}


def test_objects_have_digests(program, scratch):
    dcp.save({"w": torch.arange(6.0), "step": 7, "names": ["a", "b"]}, checkpoint_id=scratch / "source", no_dist=True)
    for target, options in (("dcp", {"chunks": "whole"}), ("hdf5", {})):
        there = program.run(scratch / "source", scratch / target, target, target_options=options)
        objects = dcp_reading.object_bytes(scratch / "source")
        assert sorted(each["crc64"] for each in manifest_of(there)["objects"]) == sorted(crc64(data) for data in objects.values())


# --- what a digest sees -------------------------------------------------------------------------------------------


def test_one_changed_element_changes_one_digest(sources, program, scratch):
    source = scratch / "source"
    source.mkdir()
    state = {name: tensor.clone() for name, tensor in hf_models.read_hf(sources("dense")).items()}
    (source / "config.json").write_bytes((sources("dense") / "config.json").read_bytes())
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    before = manifest_digests(manifest_of(program.run(source, scratch / "before", "megatron", target_options={"layout": "{ tp = 2 }"})))
    state["model.layers.3.self_attn.k_proj.weight"][5, 7] += 1
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    after = manifest_digests(manifest_of(program.run(source, scratch / "after", "megatron", target_options={"layout": "{ tp = 2 }"})))
    assert {name for name in before if before[name] != after[name]} == {"attn.k"}


def test_two_rows_that_change_places_change_the_digest(sources, program, scratch):
    source = scratch / "source"
    source.mkdir()
    state = hf_models.read_hf(sources("dense"))
    swapped = state | {"model.norm.weight": state["model.norm.weight"].flip(0).contiguous()}
    (source / "config.json").write_bytes((sources("dense") / "config.json").read_bytes())
    save_file(swapped, source / "model.safetensors", metadata={"format": "pt"})
    assert set(load_file(source / "model.safetensors")) == set(state)
    found = manifest_digests(manifest_of(program.run(source, scratch / "there", "hdf5")))
    expected = expected_digests(MODELS["dense"])
    assert {name for name in found if found[name] != expected[name]} == {"final_norm"}


def sha256_of(tensor):
    return hashlib.sha256(raw(tensor)).hexdigest()


def sha256_rows(path, *words, ranks=1):
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    outcome = subprocess.run([*launcher, BINARY, "digest", path, "--sha256", "--json", *words], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


@pytest.mark.long_but("moe-megatron-3")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("form", ["huggingface", "megatron", "torch_dist", "hdf5"])
@pytest.mark.parametrize("name", ["tied", "moe"])
def test_sha256_is_that_of_the_gathered_tensors(name, form, ranks, sources, program, scratch):
    """As hashlib computes it of the row-major bytes, of all of a tensor and of each layer and expert; the digests beside it are the usual ones."""
    config = MODELS[name]
    layout, spec = layouts_of(name)[1 if name == "tied" else 2]
    path = hf_models.save_hf(scratch / "hf", config, make_globals(config))
    if form == "megatron":
        path = write_tree(scratch / "tree", config, layout, spec, make_globals(config), enums=NOT_NULL)
    elif form != "huggingface":
        path = program.run(path, scratch / form, form, target_options={"layout": layout.toml()} if form == "torch_dist" else {})
    answer = sha256_rows(path, ranks=ranks)
    expected = logical_tensors(config, make_globals(config))
    assert {row["name"]: row["sha256"] for row in answer["tensors"]} == {name: sha256_of(tensor.values) for name, tensor in expected.items()}
    for row in answer["tensors"]:
        tensor = expected[row["name"]]
        leading = len([axis for axis in tensor.axes[:2] if axis in ("layer", "expert")])
        parts = tensor.values.reshape(-1, *tensor.values.shape[leading:]) if leading else ()
        assert [part["sha256"] for part in row.get("parts", ())] == [sha256_of(part) for part in parts], row["name"]
    if name == "moe":  # layer 0 has no experts
        experts = next(row for row in answer["tensors"] if row["name"] == "experts.gate")
        assert [part["name"] for part in experts["parts"][:2]] == [f"layer.1.expert.{e}.experts.gate" for e in (0, 1)]
    usual = json.loads(subprocess.run([BINARY, "digest", path, "--json"], capture_output=True, text=True).stdout)
    assert answer["total"] == usual["total"] and answer["bytes"] == usual["bytes"]
    assert [row["crc64"] for row in answer["tensors"]] == [row["crc64"] for row in usual["tensors"]]


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.long)])
def test_sha256_of_stored_names_is_that_of_the_stored_tensors(ranks, scratch):
    """Also of a tensor that takes many rounds."""
    generator = torch.Generator().manual_seed(7)
    stored = {"large": torch.randn(5000, 4000, generator=generator), "scalar": torch.tensor(3.0), "bytes": torch.arange(201, dtype=torch.uint8),
              "empty": torch.zeros(0, 4)}
    scratch.joinpath("folder").mkdir()
    save_file(stored, scratch / "folder" / "model.safetensors")
    answer = sha256_rows(scratch / "folder", "--map", "none", ranks=ranks)
    found = {row["name"]: row["sha256"] for row in answer["tensors"]}
    assert found == {name: sha256_of(stored[name]) for name in found} and {"large", "scalar", "bytes"} <= set(found)
