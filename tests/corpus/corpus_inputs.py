"""The inputs of the corpus: name -> maker. Weights follow from names and seeds; torch, transformers, megatron-core and h5py write them."""

import os
import re
import shutil
import sys
import tarfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MAPS = TESTS.parent / "configs" / "models"
sys.path.insert(0, str(TESTS / "peers"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import bad_sources  # noqa: E402
import cases  # noqa: E402
import config_cases  # noqa: E402
import dcp_cases  # noqa: E402
import dcp_checkpoints  # noqa: E402
import dcp_fsdp  # noqa: E402
import dcp_worlds  # noqa: E402
import family_models  # noqa: E402
import family_models_hybrid  # noqa: E402
import hdf5_files  # noqa: E402
import hf_models  # noqa: E402
import mlite_checkpoints  # noqa: E402
import quantised_folders  # noqa: E402
import random_layouts  # noqa: E402
import test_bad_input  # noqa: E402
import test_carried  # noqa: E402
import test_dcp_reshard  # noqa: E402
import test_hdf5  # noqa: E402
import test_mlite  # noqa: E402
import test_quantised  # noqa: E402
from numpy_megatron import write_tree  # noqa: E402
from peer_types import LOCAL, TE_GROUPED, Layout  # noqa: E402
from tensor_patterns import make_globals  # noqa: E402

FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES
LONG_AGO = (1_600_000_000, 1_600_000_000)  # a stamp in reshard.json follows from it
RANDOM_PAIRS = random_layouts.pairs(20, seed=20)
CHANGES = cases.megatron_changes()
TORCH_DIST = ["dense", "dense-te", "tied-bf16", "biases", "moe", "moe-grouped", "mixed", "mla-moe-shared", "mtp"]
TRAINED = {"plain-f32": ("dense-f32", "plain"), "plain-moe": ("moe", "plain"), "reshardable": ("dense", "fully_reshardable"),
           "reshardable-moe": ("moe", "fully_reshardable"), "dp-reshardable": ("dense", "dp_reshardable")}
MESHES = {"grid": test_dcp_reshard.GRID, "strided": test_dcp_reshard.FSDP_TP, "three": test_dcp_reshard.THREE, "columns": test_dcp_reshard.COLUMNS}
EXPERT_MESH = dcp_worlds.Mesh((("pp", 1), ("edp", 1), ("ep", 2), ("etp", 2)), (("*.fc1.*", "R R S0 S0"), ("*.fc2.*", "R R S0 S1"), ("*", "R R R R")))
MLITE = {"one": 0, "ep2": 1, "tp2-ep4": 2, "etp2": 4, "pp2-ep2": 6}
TORCH_TYPES = [name for name in dcp_worlds.DTYPES if name not in ("complex64", "complex128", "uint16", "uint32", "uint64", "float8_e8m0fnu")]
MAKERS = {}


def maker(name):
    def keep(function):
        MAKERS[name] = function
        return function

    return keep


def add(name, function, *arguments, **keywords):
    MAKERS[name] = lambda folder: function(folder, *arguments, **keywords)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def save_config_case(folder, name):
    family_models.save_family(folder, config_cases.family_of(config_cases.SETTINGS[name]))


def save_shards(folder, name, size):
    config = cases.FAMILIES[name]
    hf_models.save_hf(folder, config, make_globals(config), size)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}\n')
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}\n')


def save_quantised(folder, model, scheme):
    test_quantised.saved(model, folder)
    quantised_folders.quantise_folder(folder, lambda name: None if quantised_folders.layer_of(name) == 1 else scheme)


def save_mixed_precision(folder):
    schemes = {0: "nvfp4", 1: "fp8_tensor", 2: None}
    test_quantised.saved("qwen3_moe", folder)
    quantised_folders.quantise_folder(folder, lambda name: schemes[quantised_folders.layer_of(name)])


def save_strange_names(folder):
    folder.mkdir(parents=True)
    save_file(test_hdf5.strange_names(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "none of ours"}\n')


def slug(name):
    return re.sub("[^a-z0-9_.]+", "-", name.lower()).strip("-")


for name in FAMILIES:
    add(f"hf/{name}", family_models.save_family, FAMILIES[name])
for name in config_cases.SETTINGS:
    add(f"settings/{slug(name)}", save_config_case, name)
for name in ("llama", "llama-tied-f32", "qwen3-moe-mixed", "mixtral-bf16"):
    add(f"shards/{name}", save_shards, name, "40KB")
for model, scheme in test_quantised.CASES:
    add(f"quantised/{model}-{scheme}", save_quantised, model, scheme)
MAKERS["quantised/mixed"] = save_mixed_precision
MAKERS["hf/strange-names"] = save_strange_names

# --- Megatron ---------------------------------------------------------------------------------------------------------


def copy_data(folder, name):
    shutil.copytree(TESTS / "data" / name, folder)


def save_maps(folder):
    """A map file at a path of its own, beside those that it inherits from, and a broken one."""
    shutil.copytree(MAPS, folder)
    (folder / "broken.toml").write_text((folder / "llama.toml").read_text().replace("=", "==", 1))


def save_tree(folder, config, form, layout, **content):
    write_tree(folder, config, layout, form, make_globals(config), **content)


def save_core_legacy(folder, name):
    dcp_checkpoints.save_legacy(dcp_cases.worlds(name)[0], folder)


for number, (name, config, form, layout, *_) in enumerate(CHANGES):
    add(f"megatron/{number:02d}-{name}", save_tree, config, form, layout)
for number, (_, config, form, layout, *_) in enumerate(RANDOM_PAIRS):
    add(f"megatron/random-{number:02d}", save_tree, config, form, layout)
for name, (config, layout, form) in test_hdf5.MODELS.items():
    add(f"megatron/{name}", save_tree, config, form, layout, enums=test_hdf5.NOT_NULL)
add("megatron/optimizer", save_tree, cases.LLAMA, LOCAL, Layout(tp=2), with_optimizer=True, with_rng=True)
add("megatron/optimizer-moe", save_tree, cases.QWEN3_MOE, TE_GROUPED, Layout(tp=2, ep=2, etp=2), with_optimizer=True, with_rng=True)
add("megatron/core-mla-moe-shared", save_core_legacy, "mla-moe-shared")
add("megatron/sample", copy_data, "moe-tp2-pp2-ep2")
add("sample-reference", copy_data, "moe-hf-reference")
MAKERS["maps"] = save_maps

# --- torch_dist, by megatron-core -------------------------------------------------------------------------------------


def save_torch_dist(folder, name):
    dcp_checkpoints.save(dcp_cases.worlds(name)[0], folder, with_run_state=name == "dense")


def save_trained(folder, world, kind):
    dcp_checkpoints.train_and_save(dcp_cases.optimizer_worlds(world)[0], folder, kind)


def save_flattened(folder, name):
    with tarfile.open(TESTS / "data" / "flattened-optimizer.tar.xz") as archive:
        archive.extractall(folder.parent, members=[each for each in archive if each.name.split("/")[0] == name], filter="data")
    (folder.parent / name).rename(folder)
    (folder / "after_step_2.pt").unlink()


for name in TORCH_DIST:
    add(f"torch_dist/{name}", save_torch_dist, name)
for name, (world, kind) in TRAINED.items():
    add(f"torch_dist/trained-{name}", save_trained, world, kind)
for name in ("dense", "moe"):
    add(f"torch_dist/flattened-{name}", save_flattened, name)

# --- DCP and Megatron Lite --------------------------------------------------------------------------------------------


def save_mesh(folder, name):
    dcp_worlds.save([(MESHES[name], folder, dcp_worlds.tensor_names(), name != "columns")])


def save_fsdp(folder, dp, tp):
    dcp_fsdp.save(dp, tp, folder)


def save_safetensors_container(folder):
    mesh = dcp_worlds.Mesh((("dp", 3),), (("*.scalar", "R"), ("*", "S0")))
    dcp_worlds.save_safetensors(mesh, folder, dcp_worlds.tensor_names(TORCH_TYPES))


def save_experts(folder):
    shapes = {"fc1": (24, 8), "fc2": (16, 6)}
    tensors = {f"model.layers.3.mlp.experts.{name}.weight{index}": (shape, "bfloat16") for index in range(2) for name, shape in shapes.items()}
    dcp_worlds.save_flat(EXPERT_MESH, folder, tensors | {"model.head.weight": ((24, 8), "float32")})


def save_objects(folder):
    dcp.save(test_carried.state(), checkpoint_id=folder, no_dist=True)


def save_model_names(folder, name):
    """A state dict with the names of Hugging Face, as FSDP2 programs save it."""
    config = cases.FAMILIES[name]
    state = hf_models.globals_to_hf(config, make_globals(config))
    dcp.save({"model": state, "step": 7}, checkpoint_id=folder, no_dist=True)
    hf_models.hf_config(config).save_pretrained(folder)


def save_lite(folder, number, sidecars=False):
    mlite_checkpoints.save(test_mlite.CONFIG, test_mlite.TENSORS, test_mlite.LAYOUTS[number], folder, sidecars=sidecars)


def save_lite_config(folder):
    hf_models.hf_config(test_mlite.CONFIG).save_pretrained(folder)


for name in MESHES:
    add(f"dcp/{name}", save_mesh, name)
add("dcp/fsdp2", save_fsdp, 2, 1)
add("dcp/fsdp2-tp", save_fsdp, 2, 2)
MAKERS |= {"dcp/safetensors": save_safetensors_container, "dcp/experts": save_experts, "dcp/objects": save_objects}
for name in ("llama", "qwen3-moe"):
    add(f"dcp/{name}", save_model_names, name)
for name, number in MLITE.items():
    add(f"lite/{name}", save_lite, number)
add("lite/sidecars", save_lite, 1, sidecars=True)
MAKERS["lite/config"] = save_lite_config

# --- HDF5, by h5py ----------------------------------------------------------------------------------------------------


def save_plain_hdf5(folder):
    config = cases.FAMILIES["llama"]
    state = list(hf_models.globals_to_hf(config, make_globals(config)).items())
    for number, half in enumerate((state[:20], state[20:])):
        test_hdf5.write_plain(folder / f"weights{number}.h5", dict(half), libver=[hdf5_files.OLD, hdf5_files.NEW][number])
    hf_models.hf_config(config).save_pretrained(folder.parent / "plain-config")


def save_nested_hdf5(folder):
    tensors = {f"model.layers.{layer}.w": torch.arange(layer + 6.0) for layer in range(3)} | {"bf": torch.ones(2, 3).bfloat16()}
    test_hdf5.write_plain(folder / "weights.h5", tensors, nested=True)


def save_typed_hdf5(folder):
    import h5py

    arrays = {"flags": np.array([[True, False]]), "c8": np.array([1 + 2j, -0.0j], "c8"), "scalar": np.float64(2.5), "hollow": np.zeros((0, 3), "i8")}
    folder.mkdir(parents=True)
    with h5py.File(folder / "any.hdf5", "w", userblock_size=512) as file:
        for name, array in arrays.items():
            file[f"deep/er/{name}"] = array


MAKERS |= {"hdf5/plain": save_plain_hdf5, "hdf5/nested": save_nested_hdf5, "hdf5/typed": save_typed_hdf5}

# --- what is refused --------------------------------------------------------------------------------------------------


def save_original(folder, kind):
    shutil.copytree(bad_sources.original(kind), folder)


def save_damaged(folder, case):
    save_original(folder, case.kind)
    case.damage(folder)


def save_bad_hdf5(folder, make):
    folder.mkdir(parents=True)
    make(folder / "weights.h5")


def save_damaged_dcp(folder, edit):
    scratch = folder.parent / f"{folder.name}-scratch"
    mesh = test_dcp_reshard.PAIR
    dcp_worlds.save([(mesh, scratch / "saved", dcp_worlds.tensor_names(["float32", "int8"]), True)])
    test_dcp_reshard.edited(scratch / "saved", scratch, edit).rename(folder)
    shutil.rmtree(scratch)


def save_foreign(folder):
    test_carried.planted(folder, test_carried.FOREIGN)


def cut_tail(folder, count):
    save_original(folder, "hf2")
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:count])


def save_odd_header(folder, change):
    save_original(folder, "hf")
    path = folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))


HEADERS = {
    "length": lambda data: (2**62).to_bytes(8, "little") + data[8:], "braces": lambda data: data[:8] + data[8:].replace(b"{", b"[", 1),
    "dtype": lambda data: data.replace(b'"BF16"', b'"BF61"', 1), "shape": lambda data: data.replace(b"[32,", b"[33,", 1),
    "names": lambda data: data.replace(b"layers.1.", b"layers.0.", 1), "family": lambda data: data.replace(b"q_proj", b"x_proj", 1)}
DAMAGED = {slug(case.name): case for case in test_bad_input.TREE_CASES}
DCP_DAMAGE = ["leave_a_hole", "let_chunks_overlap", "point_behind_the_file", "claim_another_type", "forget_an_item", "remove_a_file"]
for kind in (*bad_sources.TREES, "hf", "hf2"):
    add(f"sound/{kind}", save_original, kind)
for name, case in DAMAGED.items():
    add(f"damaged/{name}", save_damaged, case)
for name, make, _ in hdf5_files.REFUSED:
    add(f"damaged/hdf5-{slug(name)}", save_bad_hdf5, make)
for name in DCP_DAMAGE:
    add(f"damaged/dcp-{slug(name)}", save_damaged_dcp, getattr(test_dcp_reshard, name))
for count in (0, 5, 100, 3000, -1):
    add(f"damaged/hf-cut-{count}", cut_tail, count)
for name, change in HEADERS.items():
    add(f"damaged/hf-{name}", save_odd_header, change)
MAKERS["damaged/foreign-class"] = save_foreign

# --- making -----------------------------------------------------------------------------------------------------------

RANDOM_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def make_one(inputs, name):
    """Appears under its name when it is complete, so that `make` can go on after an interruption."""
    part, final = inputs / ".part" / name, inputs / name
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    MAKERS[name](part)
    for path in part.rglob(".metadata"):  # torch gives each save a random id
        path.write_bytes(RANDOM_ID.sub(b"0" * 8 + b"-0000-4000-8000-" + b"0" * 12, path.read_bytes()))
    final.parent.mkdir(parents=True, exist_ok=True)
    part.rename(final)
    for beside in part.parent.iterdir() if part.name == "plain" else ():
        shutil.rmtree(final.parent / beside.name, ignore_errors=True)
        beside.rename(final.parent / beside.name)


def make_all(inputs):
    """What is not there yet, two at a time; the names of those that failed."""
    missing = [name for name in MAKERS if not (inputs / name).exists()]
    failed = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(make_one, inputs, name): name for name in missing}
        for done in as_completed(running):
            if done.exception():
                failed.append(running[done])
                print(f"{running[done]}: {done.exception()}", file=sys.stderr)
    shutil.rmtree(inputs / ".part", ignore_errors=True)
    age(inputs)
    return failed


def age(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, LONG_AGO, follow_symlinks=False)
    os.utime(folder, LONG_AGO)
