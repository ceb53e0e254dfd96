"""HDF5 to every format and layout and back: the same digests, and the same bytes of model.h5.

A container with Megatron's args is compared with what comes back from Megatron's formats, one with config.json with what comes back from Hugging Face,
and one of stored names with what comes back from DCP. The normal run takes 42 of the rows, RESHARD_TEST_LARGE=1 all of them.
"""

import os

import pytest

import cases
import hf_models
import random_layouts
from dcp_worlds import Mesh
from hdf5_reading import SINGLE, check_root
from logical_tensors import digests, logical_tensors, manifest_digests
from numpy_megatron import write_tree
from peer_types import LOCAL, TE_GROUPED, Layout
from reshard_job import BINARY, Program, manifest_of
from tensor_patterns import make_globals

pytestmark = pytest.mark.long

RANKS = (1, 2, 3, 4, 7)
LARGE = bool(os.environ.get("RESHARD_TEST_LARGE"))
NORMAL = 42
MODELS = {
    "dense": cases.LLAMA.with_(layers=4, heads=8, groups=4, vocab=90), "tied": cases.LLAMA_TIED.with_(layers=4, heads=8, groups=2),
    "moe": cases.QWEN3_MOE.with_(layers=4, moe_layers=(1, 2, 3), vocab=77), "mixtral": cases.MIXTRAL.with_(layers=4, dtype="bfloat16")}
DENSE = [Layout(tp=tp, pp=pp, vpp=vpp) for tp in (1, 2, 4, 8) for pp, vpp in ((1, 1), (2, 1), (2, 2), (4, 1))]
UNEVEN = [Layout(pp=3, first_stage_layers=1, last_stage_layers=1), Layout(tp=2, pp=2, vpp=2, pipeline="Et|t*2|t|L")]
EXPERTS = [Layout(tp=tp, pp=pp, vpp=vpp, ep=ep, etp=etp) for tp, etp in ((1, 1), (2, 1), (2, 2), (4, 2), (1, 2)) for ep in (1, 2, 4)
           for pp, vpp in ((1, 1), (2, 2))]
GRIDS = {
    "whole": {"chunks": "whole"}, "ranks": {"chunks": "ranks", "ranks": 3},
    "mesh": Mesh((("dp", 2), ("tp", 2)), (("*norm*", "S0 R"), ("*", "S0 S1"))).target_options()}


def rows():
    """(model, format, layout or the name of a grid)"""
    result = []
    for name, config in MODELS.items():
        layouts = [layout for layout in (EXPERTS if config.experts else DENSE) + UNEVEN if random_layouts.is_valid(config, layout)]
        result += [(name, form, layout) for layout in layouts for form in ("megatron", "torch_dist")]
        result += [(name, "huggingface", None)] + [(name, "dcp", grid) for grid in GRIDS]
    return result


def spread(every, count):
    """So many rows, evenly over all of them."""
    return [every[number * len(every) // count] for number in range(count)]


ALL = rows()
ROWS = ALL if LARGE else spread(ALL, NORMAL)


def row_id(row):
    name, form, where = row
    return f"{name}-{form}-{where.label() if isinstance(where, Layout) else where or ''}"


def test_the_rows_cover_every_format_and_axis():
    assert len(ALL) >= 150 and len(ROWS) >= 40 and {row[1] for row in ROWS} == {"megatron", "torch_dist", "huggingface", "dcp"}
    layouts = [row[2] for row in ROWS if isinstance(row[2], Layout)]
    assert all(any(getattr(layout, axis) > 1 for layout in layouts) for axis in ("tp", "pp", "vpp", "ep", "etp"))


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The container of each model and kind, made once: with args, with config.json, or of stored names."""
    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    root = tmp_path_factory.mktemp("containers")
    program, made = Program(root), {}

    def base(name, kind):
        if (name, kind) not in made:
            source = source_of(root / f"{name}-{kind}-source", name, kind)
            if kind == "stored":
                source = program.run(source, root / f"{name}-dcp", "dcp", target_options={"chunks": "whole"})
            elif kind == "args":  # Megatron's formats made of a container state what the made source leaves to Megatron's defaults
                source = program.run(source, root / f"{name}-first", "hdf5")
                source = program.run(source, root / f"{name}-megatron", "megatron", target_options=options_of("megatron", Layout()))
            made[name, kind] = program.run(source, root / f"{name}-{kind}", "hdf5")
        return made[name, kind]

    return base


def source_of(folder, name, kind):
    config = MODELS[name]
    if kind != "args":
        return hf_models.save_hf(folder, config, make_globals(config))
    form = TE_GROUPED if config.experts else LOCAL
    return write_tree(folder, config, Layout(), form, make_globals(config), enums={"tokenizer_type": "HuggingFaceTokenizer"})


def kind_of(form):
    return {"huggingface": "config", "dcp": "stored"}.get(form, "args")


def options_of(form, where):
    if form == "dcp":
        return GRIDS[where]
    return {} if where is None else {"layout": where.toml(), "transformer_impl": "auto", "experts": "auto"}


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row_id(row) for row in ROWS])
def test_there_and_back(number, bases, program, scratch):
    name, form, where = ROWS[number]
    base = bases(name, kind_of(form))
    there = program.run(base, scratch / "there", form, ranks=RANKS[number % 5], target_options=options_of(form, where))
    back = program.run(there, scratch / "back", "hdf5", ranks=RANKS[(number + 2) % 5], memory=("64 MiB", "1 MiB")[number % 2])
    assert manifest_digests(manifest_of(back)) == manifest_digests(manifest_of(base)) == manifest_digests(manifest_of(there))
    assert manifest_of(back)["total"] == manifest_of(base)["total"]
    assert (back / SINGLE).read_bytes() == (base / SINGLE).read_bytes(), differences(back, base)


def differences(found, expected):
    """What of two files h5py sees differ: for the message alone."""
    import h5py

    with h5py.File(found / SINGLE) as left, h5py.File(expected / SINGLE) as right:
        check_root(left)
        names = {}
        for file, side in ((left, 0), (right, 1)):
            file.visititems(lambda name, item, side=side: names.setdefault(name, [None, None]).__setitem__(side, described(item)))
            names.setdefault("/", [None, None])[side] = {key: str(value) for key, value in file.attrs.items()}
        return {name: pair for name, pair in names.items() if pair[0] != pair[1]} or "only bytes between the datasets"


def described(item):
    return {key: str(value) for key, value in item.attrs.items()} | ({"shape": item.shape} if hasattr(item, "shape") else {})


@pytest.mark.parametrize("name", MODELS)
def test_every_lineage_has_the_digests_of_the_gathered_tensors(name, bases):
    expected = digests(logical_tensors(MODELS[name], make_globals(MODELS[name])))
    assert manifest_digests(manifest_of(bases(name, "args"))) == expected == manifest_digests(manifest_of(bases(name, "config")))
    assert manifest_of(bases(name, "args"))["total"] == manifest_of(bases(name, "config"))["total"]


@pytest.mark.parametrize("name", ["tied", "moe"])
def test_a_way_through_every_format(name, bases, program, scratch):
    """args -> Hugging Face -> torch_dist -> HDF5 -> Megatron -> HDF5: still the name-plate of the first one."""
    config, base = MODELS[name], bases(name, "args")
    layout = {"layout": Layout(tp=2, ep=2 if config.experts else 1).toml()}
    at = program.to_hf(base, scratch / "1", model={"map": config.family})
    for number, (form, options) in enumerate((("torch_dist", layout), ("hdf5", {}), ("megatron", layout), ("hdf5", {}), ("huggingface", {})), 2):
        at = program.run(at, scratch / str(number), form, target_options=options, model={"map": config.family} if form == "huggingface" else {})
        assert manifest_of(at)["total"] == manifest_of(base)["total"], form
