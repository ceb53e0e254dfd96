"""HDF5 as a target and as a source: h5py reads what is written, and what h5py, safetensors and torch wrote becomes anything else."""

import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import cases
import dcp_reading
import dcp_worlds
import hdf5_files
import hf_models
from dcp_cases import names_of
from family_models import FAMILIES as PLAIN_FAMILIES
from family_models import save_family
from family_models_hybrid import FAMILIES as HYBRID_FAMILIES
from hdf5_reading import INDEX, SINGLE, files_of, read_container, root_attributes
from logical_tensors import digests, logical_tensors, manifest_digests
from numpy_megatron import write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import BINARY, RECORDS, manifest_of, tree_hashes
from tensor_patterns import assert_same_tensors, make_globals, raw
from tree_checks import check_tree, with_written_divisor, with_written_norms

FAMILIES = PLAIN_FAMILIES | HYBRID_FAMILIES
GROUPED = cases.LLAMA.with_(layers=4, heads=8, groups=2)
FIRST_DENSE = cases.QWEN3_MOE.with_(layers=4, moe_layers=(1, 2, 3))
NOT_NULL = {"tokenizer_type": "HuggingFaceTokenizer"}  # a null tokenizer counts one token more than vocab_size says

MODELS = {
    "grouped": (GROUPED, Layout(tp=2, pp=2), LOCAL), "virtual": (cases.LLAMA, Layout(tp=4, pp=2, vpp=2), TE_SEQUENTIAL),
    "tied": (cases.LLAMA_TIED, Layout(tp=2), LOCAL), "biases": (cases.QWEN2, Layout(tp=8), LOCAL), "norms": (cases.QWEN3, Layout(pp=2), TE_SEQUENTIAL),
    "first-dense": (FIRST_DENSE, Layout(tp=2, pp=2, ep=2), TE_GROUPED), "mixed": (cases.QWEN3_MOE_MIXED, Layout(tp=2, ep=4, etp=2), LOCAL),
    "mixtral": (cases.MIXTRAL, Layout(tp=2, ep=2), TE_GROUPED)}


def assert_holds(target, expected):
    """Bits, axes and domains of every logical tensor, and nothing else."""
    found, _ = read_container(target)
    assert_same_tensors({name: values for name, (values, _, _) in found.items()}, {name: each.values for name, each in expected.items()})
    assert {name: rest for name, (_, *rest) in found.items()} == {name: [each.axes, each.domain] for name, each in expected.items()}


def tree_of(scratch, name, enums=NOT_NULL):
    config, layout, form = MODELS[name]
    return write_tree(scratch / "tree", config, layout, form, make_globals(config), enums=enums)


# --- a target -----------------------------------------------------------------------------------------------------


@pytest.mark.long_but("first-dense")
@pytest.mark.parametrize("name", MODELS)
def test_a_megatron_tree_becomes_one_dataset_per_logical_tensor(name, program, scratch):
    config = MODELS[name][0]
    there = program.run(tree_of(scratch, name), scratch / "there", "hdf5", model={"map": config.family}, ranks=3)
    expected = logical_tensors(config, make_globals(config))
    assert_holds(there, expected)
    assert sorted(path.name for path in there.iterdir()) == sorted([SINGLE, *RECORDS, "config.json"])
    assert manifest_digests(manifest_of(there)) == digests(expected)
    attributes = root_attributes(there / SINGLE)
    assert {key: attributes[key] for key in ("names", "part", "parts", "vocab", "prediction_layers")} == {
        "names": "logical", "part": "1", "parts": "1", "vocab": str(config.vocab), "prediction_layers": "0"}
    assert attributes["map"] == f"{config.family}.toml"
    _, objects = read_container(there)
    assert objects["config.json"] == (there / "config.json").read_bytes()
    assert json.loads(objects["args.json"])["num_layers"] == config.layers


@pytest.mark.long_but("qwen3-moe-mixed")
@pytest.mark.parametrize("name", ["llama", "qwen3-moe-mixed", "mixtral-bf16"])
def test_a_hugging_face_folder_becomes_the_same_container_and_comes_back(name, program, scratch):
    config = cases.FAMILIES[name]
    source = hf_models.save_hf(scratch / "source", config, make_globals(config), "40KB")
    (source / "tokenizer.json").write_text("{}\n")
    there = program.run(source, scratch / "there", "hdf5", ranks=2)
    assert_holds(there, logical_tensors(config, make_globals(config)))
    assert (there / "config.json").read_bytes() == (source / "config.json").read_bytes() == read_container(there)[1]["config.json"]
    assert (there / "tokenizer.json").read_text() == "{}\n"
    back = program.to_hf(there, scratch / "back", target_options={"reference": source})
    assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(source))
    assert all((back / name).read_bytes() == (source / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"))
    (scratch / "alone").mkdir()
    alone = shutil.copy(there / SINGLE, scratch / "alone" / "any-name.h5")  # the file says all there is to say
    assert_same_tensors(hf_models.read_hf(program.to_hf(alone, scratch / "from-alone")), hf_models.read_hf(source))


@pytest.mark.long_but("grouped")
@pytest.mark.parametrize("name", ["grouped", "first-dense", "tied"])
def test_a_container_becomes_a_megatron_tree(name, program, scratch):
    config, layout, form = MODELS[name]
    there = program.run(tree_of(scratch, name), scratch / "there", "hdf5")
    other = Layout(tp=2, pp=4) if not config.experts else Layout(tp=4, ep=2, etp=2)
    back = program.to_megatron(there, scratch / "back", other, form, ranks=3)
    check_tree(back, with_written_divisor(config, back), other, with_written_norms(form, back), make_globals(config))


def test_without_a_map_the_args_describe_the_model(program, scratch):
    there = program.run(tree_of(scratch, "mixed"), scratch / "there", "hdf5")
    assert_holds(there, logical_tensors(cases.QWEN3_MOE_MIXED, make_globals(cases.QWEN3_MOE_MIXED)))
    assert root_attributes(there / SINGLE)["map"] == "" and set(read_container(there)[1]) == {"args.json"}


def test_the_container_has_the_same_bytes_on_any_number_of_ranks(program, scratch):
    tree, hashes = tree_of(scratch, "first-dense"), []
    for ranks, memory, options in ((1, "64 MiB", {}), (2, "1 MiB", {}), (3, "64 MiB", {"transport": "mpi"}), (4, "64 MiB", {}), (7, "1 MiB", {})):
        hashes.append(tree_hashes(program.run(tree, scratch / f"on{ranks}", "hdf5", ranks=ranks, memory=memory, run=options)))
    assert all(each == hashes[0] for each in hashes[1:])


@pytest.mark.long
@pytest.mark.parametrize("check", ["streamed", "off"])
def test_other_ways_of_checking_write_the_same_bytes(check, program, scratch):
    tree = tree_of(scratch, "grouped")
    usual = program.run(tree, scratch / "usual", "hdf5")
    other = program.run(tree, scratch / "other", "hdf5", run={"verify": check})
    if check == "streamed":
        assert tree_hashes(other) == tree_hashes(usual)
    else:
        with h5py.File(other / SINGLE) as file:
            assert file.attrs["complete"] == 1


# --- other families -----------------------------------------------------------------------------------------------


@pytest.mark.long_but("deepseek-v3")
@pytest.mark.parametrize("name", ["glm4-moe-mtp", "deepseek-v3", "qwen3-next"])
def test_a_family_goes_through_containers_of_both_lineages(name, program, scratch):
    """Prediction layers, latent attention, norms that one side stores without their one: Hugging Face -> HDF5 -> Megatron -> HDF5 -> Hugging Face."""
    family = FAMILIES[name]
    folder = save_family(scratch / "folder", family)
    first = program.run(folder, scratch / "first", "hdf5")
    tree = program.run(first, scratch / "tree", "megatron", target_options={"layout": family.a.toml()} | names_of(family.form))
    second = program.run(tree, scratch / "second", "hdf5")
    assert manifest_digests(manifest_of(first)) == manifest_digests(manifest_of(tree)) == manifest_digests(manifest_of(second))
    for number, container in enumerate((first, second)):
        back = program.to_hf(container, scratch / f"back{number}", target_options={"reference": folder})
        assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(folder))


@pytest.mark.long
def test_quantised_parts_are_refused_by_name_and_kept_without_a_map(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["gpt-oss-mxfp4"])
    outcome = program.attempt(folder, scratch / "refused", "hdf5")
    assert outcome.returncode == 2 and "quantised" in outcome.stderr and 'model.map = "none"' in outcome.stderr
    there = program.run(folder, scratch / "there", "hdf5", model={"map": "none"})
    back = program.to_hf(there, scratch / "back", model={"map": "none"})
    assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(folder))


def test_tensors_outside_of_the_map_are_dropped_or_refused(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["gemma3"])
    for unmapped in ("refuse", "keep"):
        outcome = program.attempt(folder, scratch / unmapped, "hdf5", model={"unmapped": unmapped})
        assert outcome.returncode == 2 and '"drop"' in outcome.stderr
    there = program.run(folder, scratch / "there", "hdf5", model={"unmapped": "drop"})
    tree = program.run(there, scratch / "tree", "megatron", target_options={"layout": "{ tp = 2 }"})
    assert manifest_of(tree)["total"] == manifest_of(there)["total"]
    # A record of all tensors does not speak against a job that leaves some out.
    whole = program.run(folder, scratch / "whole", "torch_dist", model={"unmapped": "keep"})
    again = program.run(whole, scratch / "again", "hdf5", model={"unmapped": "drop"})
    inside = program.run(whole, scratch / "inside", "torch_dist", source_options={"prefix": "language_model."}, model={"unmapped": "drop"})
    assert manifest_of(again)["total"] == manifest_of(inside)["total"] == manifest_of(there)["total"]


# --- files of others ----------------------------------------------------------------------------------------------


def write_plain(path, tensors, nested=False, **options):
    """A file as anybody would write it: a dataset per tensor, bf16 as its 16-bit words with the attribute dtype."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", **options) as file:
        for name, tensor in tensors.items():
            place = name.replace(".", "/") if nested else name
            if tensor.dtype == torch.bfloat16:
                file[place] = tensor.view(torch.int16).numpy().view("u2")
                file[place].attrs["dtype"] = "BF16"
            else:
                file[place] = tensor.numpy()
    return path


@pytest.fixture
def plain_llama(scratch):
    config = cases.FAMILIES["llama"]
    reference = hf_models.save_hf(scratch / "reference", config, make_globals(config))
    state = hf_models.read_hf(reference)
    halves = dict(list(state.items())[:20]), dict(list(state.items())[20:])
    for number, half in enumerate(halves):
        write_plain(scratch / "plain" / f"weights{number}.h5", half, libver=[hdf5_files.OLD, hdf5_files.NEW][number])
    return config, reference, state, scratch / "plain"


def test_a_plain_file_becomes_a_hugging_face_folder(plain_llama, program, scratch):
    _, reference, state, plain = plain_llama
    there = program.to_hf(plain, scratch / "there", target_options={"reference": reference})
    assert_same_tensors(hf_models.read_hf(there), state)
    hf_models.load_hf(there)


@pytest.mark.long
def test_a_plain_file_becomes_a_dcp_folder(plain_llama, program, scratch):
    _, _, state, plain = plain_llama
    there = program.run(plain, scratch / "there", "dcp", target_options={"chunks": "ranks", "ranks": 3})
    dcp_reading.check_catalogue(there)
    assert_same_tensors(dcp_reading.whole_tensors(there), state)


def test_a_plain_file_with_a_config_becomes_a_megatron_tree(plain_llama, program, scratch):
    config, reference, _, plain = plain_llama
    layout = Layout(tp=2, pp=2, vpp=2)
    there = program.to_megatron(plain, scratch / "there", layout, LOCAL, source_options={"config": reference / "config.json"})
    check_tree(there, with_written_divisor(config, there), layout, LOCAL, make_globals(config))


@pytest.mark.long
def test_a_plain_file_with_a_config_becomes_a_container(plain_llama, program, scratch):
    config, reference, _, plain = plain_llama
    there = program.run(plain, scratch / "there", "hdf5", source_options={"config": reference / "config.json"}, model={"map": config.family})
    assert_holds(there, logical_tensors(config, make_globals(config)))
    assert read_container(there)[1]["config.json"] == (reference / "config.json").read_bytes()


@pytest.mark.long
def test_nested_groups_are_names_with_slashes(program, scratch):
    tensors = {f"model.layers.{layer}.w": torch.arange(layer + 6.0) for layer in range(3)} | {"bf": torch.ones(2, 3).bfloat16()}
    plain = write_plain(scratch / "plain" / "weights.h5", tensors, nested=True)
    there = program.to_hf(plain, scratch / "there", model={"map": "none"})
    assert_same_tensors(load_file(there / "model.safetensors"), {name.replace(".", "/"): tensor for name, tensor in tensors.items()})
    again = program.run(plain, scratch / "again", "hdf5")
    assert_same_tensors({name: each[0] for name, each in read_container(again)[0].items()}, {
        name.replace(".", "/"): tensor for name, tensor in tensors.items()})


@pytest.mark.long
def test_a_prefix_of_a_plain_file_picks_keys(program, scratch):
    plain = write_plain(scratch / "plain" / "weights.h5", {"model.a": torch.arange(4), "model.b": torch.arange(3.0), "optimizer.a": torch.zeros(4)})
    there = program.run(plain, scratch / "there", "dcp", source_options={"prefix": "model."}, target_options={"prefix": "app."})
    assert_same_tensors(dcp_reading.whole_tensors(there), {"app.a": torch.arange(4), "app.b": torch.arange(3.0)})


# --- stored tensors as they are -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dcp_source(tmp_path_factory):
    """Every dtype and shape torch can save, with plain objects, over a mesh of two dims."""
    folder = tmp_path_factory.mktemp("hdf5") / "source"
    mesh = dcp_worlds.Mesh((("dp", 2), ("tp", 2)), (("*.scalar", "R R"), ("*.vector", "S0 R"), ("*", "S0 S1")))
    dcp_worlds.save([(mesh, folder, dcp_worlds.tensor_names(), True)])
    return folder


@pytest.mark.long
def test_dcp_to_a_container_and_back(dcp_source, program, scratch):
    there = program.run(dcp_source, scratch / "there", "hdf5", ranks=3)
    tensors, objects = read_container(there)
    assert_same_tensors({name: each[0] for name, each in tensors.items()}, dcp_reading.whole_tensors(dcp_source))
    assert objects == dcp_reading.object_bytes(dcp_source) and root_attributes(there / SINGLE)["names"] == "stored"
    back = program.run(there, scratch / "back", "dcp", ranks=2, target_options={"chunks": "ranks", "ranks": 3})
    dcp_reading.check_catalogue(back)
    dcp_reading.assert_same_content(back, dcp_source)
    again = program.run(back, scratch / "again", "hdf5")  # in another order, since a container keeps no nesting
    assert_same_container(read_container(again), read_container(there))


def assert_same_container(found, expected):
    assert_same_tensors({name: each[0] for name, each in found[0].items()}, {name: each[0] for name, each in expected[0].items()})
    assert found[1] == expected[1]


def strange_names():
    tensors = {"a/b": 0, "a%b": 1, "a%2Fb": 2, "größe.ω/重み": 3, "with space": 4, "..dots..": 5, "%": 6}
    made = {name: torch.full((3, 4), float(value)) for name, value in tensors.items()}
    made |= {"flags": torch.tensor([[True, False], [False, True]]), "scalar": torch.tensor(2.5), "hollow": torch.empty(0, 5), "int": torch.arange(-3, 4)}
    made |= {"double": torch.tensor([1.0, -0.0, float("nan")], dtype=torch.float64), "half": torch.arange(5).half(), "bytes": torch.arange(7, dtype=torch.uint8)}
    made |= {f"f8.{dtype}": torch.arange(256).to(torch.uint8).view(getattr(torch, dtype)) for dtype in ("float8_e4m3fn", "float8_e5m2")}
    return made


@pytest.mark.long
def test_a_hugging_face_folder_keeps_any_names_through_a_container(program, scratch):
    source = scratch / "source"
    source.mkdir()
    save_file(strange_names(), source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text('{"model_type": "none of ours"}\n')
    there = program.run(source, scratch / "there", "hdf5", model={"map": "none"}, ranks=2)
    tensors, objects = read_container(there)
    assert_same_tensors({name: each[0] for name, each in tensors.items()}, strange_names())
    assert objects["config.json"] == (source / "config.json").read_bytes() == (there / "config.json").read_bytes()
    back = program.to_hf(there, scratch / "back", model={"map": "none"})
    assert_same_tensors(load_file(back / "model.safetensors"), strange_names())


def test_bits_that_are_no_numbers_survive(program, scratch):
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    tensors = {"bf16": words.view(torch.bfloat16), "f16": words.view(torch.float16)}
    dcp.save(dict(tensors), checkpoint_id=scratch / "source", no_dist=True)
    there = program.run(scratch / "source", scratch / "there", "hdf5")
    assert_same_tensors({name: each[0] for name, each in read_container(there)[0].items()}, tensors)
    back = program.run(there, scratch / "back", "dcp", target_options={"chunks": "whole"})
    assert_same_tensors(dcp_reading.whole_tensors(back), tensors)


@pytest.mark.long
def test_a_prefix_picks_keys_on_the_way_in_and_out(dcp_source, program, scratch):
    there = program.run(dcp_source, scratch / "there", "hdf5", source_options={"prefix": "model."})
    names = {name.removeprefix("model.") for name in dcp_worlds.tensor_names()}
    assert set(read_container(there)[0]) == names and read_container(there)[1] == {}
    back = program.run(there, scratch / "back", "dcp", source_options={"prefix": "int8."}, target_options={"prefix": "app."})
    assert set(dcp_reading.whole_tensors(back)) == {name.replace("int8.", "app.") for name in names if name.startswith("int8.")}


def test_h5pys_own_types_arrive(program, scratch):
    """Its boolean enumeration, its complex numbers, a scalar, an empty dataset, a file with a user block."""
    arrays = {
        "flags": np.array([[True, False], [False, True]]), "c8": np.array([1 + 2j, -0.0j], "c8"), "c16": np.array([[3 - 4j]], "c16"),
        "scalar": np.float64(2.5), "hollow": np.zeros((0, 3), "i8"), "u2": np.arange(5, dtype="u2")}
    plain = scratch / "plain" / "any.hdf5"
    plain.parent.mkdir()
    with h5py.File(plain, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file[f"deep/er/{name}"] = array
    there = program.run(plain, scratch / "there", "dcp", target_options={"chunks": "whole"})
    found = dcp_reading.whole_tensors(there)
    assert {name: raw(tensor) if tensor.numel() else b"" for name, tensor in found.items()} == {
        f"deep/er/{name}": array.tobytes() for name, array in arrays.items()}
    assert found["deep/er/flags"].dtype == torch.bool and found["deep/er/c16"].dtype == torch.complex128


# --- parts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(program, scratch):
    return program.run(tree_of(scratch, "first-dense"), scratch / "there", "hdf5", ranks=3, target_options={"part_bytes": "64 KiB"},
                       model={"map": "qwen3_moe"})


def test_a_small_part_size_gives_many_parts(parts, program, scratch):
    names = [path.name for path in files_of(parts)]
    assert len(names) > 3 and names == [f"part-{number:05d}-of-{len(names):05d}.h5" for number in range(1, len(names) + 1)]
    expected = logical_tensors(FIRST_DENSE, make_globals(FIRST_DENSE))
    assert_holds(parts, expected)
    index = json.loads((parts / INDEX).read_text())
    places = {}
    for path in files_of(parts):
        with h5py.File(path) as file:
            places |= {link.replace("%2F", "/"): path.name for link in file["tensors"]}
            sizes = [dataset.id.get_storage_size() for dataset in file["tensors"].values()]
            assert len(sizes) == 1 or sum(sizes) <= 1 << 16
    assert index["weight_map"] == places
    assert index["metadata"]["total_size"] == sum(each.values.numel() * each.values.element_size() for each in expected.values())
    assert [root_attributes(path)["part"] for path in files_of(parts)] == [str(number) for number in range(1, len(names) + 1)]
    whole = program.run(parts, scratch / "whole", "hdf5")
    assert_holds(whole, expected)
    assert manifest_of(whole)["total"] == manifest_of(parts)["total"]


def missing(folder):
    files_of(folder)[1].unlink()


def duplicate(folder):
    shutil.copy(files_of(folder)[0], folder / "zz.h5")


def twice_in_the_place_of_another(folder):
    shutil.copy(files_of(folder)[0], files_of(folder)[1])


def foreign(folder):
    with h5py.File(folder / "zz.h5", "w") as file:
        file["a"] = np.arange(4)


def foreign_first(folder):
    with h5py.File(folder / "aa.h5", "w") as file:
        file["a"] = np.arange(4)


def of_another_map(folder):
    replace_attribute(files_of(folder)[2], "map", "llama.toml")


def of_another_number(folder):
    replace_attribute(files_of(folder)[2], "part", "1")


def replace_attribute(path, name, value):
    with h5py.File(path, "r+") as file:
        file.attrs[name] = np.bytes_(value)


@pytest.mark.long_but("missing-*", "foreign-*")
@pytest.mark.parametrize("damage, says, ranks", [
    (missing, "part 2 (part-00002-of-", 1), (duplicate, "and so is", 3), (twice_in_the_place_of_another, "is part 1", 1),
    (foreign, "not a container", 3), (foreign_first, "not a container", 1), (foreign_first, "not a container", 3), (of_another_map, "several checkpoints", 2),
    (of_another_number, "is part 1", 1)], ids=lambda each: getattr(each, "__name__", None))
def test_parts_that_do_not_fit_together_are_refused(damage, says, ranks, parts, program, scratch):
    damage(parts)
    outcome = program.attempt(parts, scratch / "again", "hdf5", ranks=ranks)
    assert outcome.returncode == 3 and says in outcome.stderr, outcome.stderr
    assert not (scratch / "again").exists()


def test_the_index_is_not_needed_but_the_sizes_are(parts, program, scratch):
    (parts / INDEX).unlink()
    assert manifest_of(program.run(parts, scratch / "again", "hdf5"))["total"] == manifest_of(parts)["total"]
    with h5py.File(files_of(parts)[0], "r+") as file:
        file.attrs["vocab"] = np.bytes_("91")
    outcome = program.attempt(parts, scratch / "refused", "hdf5")
    assert outcome.returncode == 3 and "embed" in outcome.stderr


# --- words --------------------------------------------------------------------------------------------------------


def test_inspect_and_ls_name_what_is_there(program, scratch):
    there = program.run(tree_of(scratch, "grouped"), scratch / "there", "hdf5")
    said = subprocess.run([BINARY, "inspect", there], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and "hdf5" in said.stdout.lower(), said
    listed = subprocess.run([BINARY, "ls", there], capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0 and all(name in listed.stdout for name in ("embed", "attn.q", "ffn.down")), listed
