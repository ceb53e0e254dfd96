"""Folders of the programs that train with Megatron: `inspect` says whose they are, and jobs convert them without keys about the model."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import dcp_checkpoints
import folder_shapes
from dcp_cases import MOE, Recipe, World
from numpy_megatron import TRACKER, iteration_folder
from peer_types import TE_GROUPED, Layout
from reshard_job import BINARY, RECORDS, Program, command, tree_hashes

WORLD = World(Recipe(MOE.with_(dtype="bfloat16")), Layout(), TE_GROUPED)


@pytest.fixture(scope="module")
def made():
    """A checkpoint that megatron-core saved, and the model folder that the program makes of it and of its args."""
    if not BINARY:
        pytest.skip("RESHARD_BIN is not set: there is no program to run")
    folder = Path(tempfile.mkdtemp(prefix="reshard-peers-"))
    source = dcp_checkpoints.save(WORLD, folder / "source")
    model = Program(folder).run(source, folder / "model", "huggingface", ranks=1)
    yield source, model
    shutil.rmtree(folder, ignore_errors=True)


SHAPES = {
    "Megatron-Bridge": lambda source, model, root: folder_shapes.bridge(source, WORLD, root),
    "NeMo 2": lambda source, model, root: folder_shapes.nemo(source, WORLD, root),
    "verl": lambda source, model, root: folder_shapes.verl(source, WORLD, root, model),
    "ms-swift": lambda source, model, root: folder_shapes.swift(source, WORLD, root, model),
    "slime": lambda source, model, root: folder_shapes.slime(source, WORLD, root),
    "miles": lambda source, model, root: folder_shapes.slime(source, WORLD, root, miles=True),
}
EVIDENCE = {"Megatron-Bridge": "run_config.yaml", "NeMo 2": "context", "verl": "ckpt_contents.json", "ms-swift": "args.json",
            "slime": "rollout/global_dataset_state_dict", "miles": "args.miles_router_timeout"}
MODEL = {"Megatron-Bridge": "run_config.yaml", "NeMo 2": "context/model.yaml", "verl": "model/huggingface/config.json", "ms-swift": "config.json",
         "slime": "args", "miles": "args"}


def weights_and_config(folder):
    return {name: digest for name, digest in tree_hashes(folder).items() if name not in RECORDS}


@pytest.mark.parametrize("name", SHAPES)
def test_a_folder_of_each_program_becomes_the_same_model(name, made, program, scratch):
    source, model = made
    root = SHAPES[name](source, model, scratch / "run")
    shape = json.loads(command("inspect", "--json", root).stdout)["shape"]
    assert shape["program"] == name
    assert shape["evidence"].startswith(EVIDENCE[name])
    assert shape["model"].endswith(MODEL[name])
    there = program.run(root, scratch / "hf", "huggingface", ranks=1)
    assert weights_and_config(there) == weights_and_config(model)


@pytest.mark.parametrize("of_transformers", [True, False])
def test_a_tokenizer_in_the_save_comes_along(of_transformers, made, program, scratch):
    """Megatron-Bridge 0.6.2 saves a folder of save_pretrained(), or the files of one of Megatron's own tokenizers, which transformers cannot load."""
    source, model = made
    root = folder_shapes.bridge(source, WORLD, scratch / "run")
    words = iteration_folder(root) / "tokenizer"
    words.mkdir()
    names = ["tokenizer.json", *(["tokenizer_config.json", "special_tokens_map.json"] if of_transformers else [])]
    for name in names:
        (words / name).write_text(f'{{"file": "{name}"}}')
    outcome = program.attempt(root, scratch / "hf", "huggingface", ranks=1)
    assert outcome.returncode == 0 and ("gets no tokenizer" in outcome.stderr) is not of_transformers, outcome.stderr
    for name in names:
        there = scratch / "hf" / name
        assert there.exists() is of_transformers
        if of_transformers:
            assert there.read_bytes() == (words / name).read_bytes()
    assert command("verify", scratch / "hf").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_its_megatron_targets_say_how_large_the_model_is(name, made, program, scratch):
    """mp_rank folders have complete args, so a later job needs neither settings nor config.json."""
    source, model = made
    root = SHAPES[name](source, model, scratch / "run")
    tree = program.run(root, scratch / "tree", "megatron", target_options={"layout": Layout(tp=2, ep=2).toml()}, ranks=1)
    assert (tree / TRACKER).read_text().strip() == ("release" if name == "NeMo 2" else "1000")  # no name in NeMo's folder has the step
    args = torch.load(next(iteration_folder(tree).glob("mp_rank_*")) / "model_optim_rng.pt", weights_only=False)["args"]
    assert args.num_layers == WORLD.recipe.config.layers and args.tensor_model_parallel_size == 2
    assert command("verify", tree, source).returncode == 0
    shutil.rmtree(tree / "huggingface", ignore_errors=True)
    there = program.run(tree, scratch / "hf", "huggingface", ranks=1)
    assert command("verify", there, model).returncode == 0
    init = command("init", root)
    assert init.returncode == 0 and 'format = ' in init.stdout


@pytest.mark.long
@pytest.mark.parametrize("variant", ["Megatron-Bridge, builder", "verl, layout 1", "verl, one save", "NeMo 2, weights named", "iteration named"])
def test_variants(variant, made, program, scratch):
    source, model = made
    run = scratch / "run"
    root = {
        "Megatron-Bridge, builder": lambda: folder_shapes.bridge(source, WORLD, run, nested=True),
        "verl, layout 1": lambda: folder_shapes.verl(source, WORLD, run, model, layout=1),
        "verl, one save": lambda: folder_shapes.verl(source, WORLD, run, model) / "global_step_1000",
        "NeMo 2, weights named": lambda: folder_shapes.nemo(source, WORLD, run) / "weights",
        "iteration named": lambda: iteration_folder(folder_shapes.bridge(source, WORLD, run)),
    }[variant]()
    there = program.run(root, scratch / "hf", "huggingface", ranks=1)
    assert weights_and_config(there) == weights_and_config(model)


@pytest.mark.long
def test_where_the_folder_does_not_say_enough_one_key_does(made, program, scratch):
    source, model = made
    for root in (folder_shapes.swift(source, WORLD, scratch / "swift"), folder_shapes.nemo(source, WORLD, scratch / "nemo", with_yaml=False)):
        refused = program.attempt(root, scratch / "none", "megatron")
        assert refused.returncode == 3
        assert "Set source.config to the config.json of the same model" in refused.stderr
        there = program.run(root, scratch / f"{root.name}-tree", "megatron", source_options={"config": model / "config.json"}, ranks=1)
        assert command("verify", there, source).returncode in (0, 1)
        assert command("verify", program.run(there, scratch / f"{root.name}-hf", "huggingface", ranks=1), model).returncode == 0
    assert "args.json: model_dir = /models/example" in program.attempt(scratch / "swift/v0-20261101-120000/checkpoint-1000", scratch / "none",
                                                                       "megatron").stderr


@pytest.mark.long
def test_state_apart_from_the_weights_is_not_lost_in_silence(made, program, scratch):
    source, model = made
    root = folder_shapes.verl(source, WORLD, scratch / "run", model)
    actor = root / "global_step_1000/actor"
    shutil.copytree(actor / "model/dist_ckpt", actor / "optimizer/dist_ckpt")
    refused = program.attempt(root, scratch / "none", "huggingface")
    assert refused.returncode == 3 and "optimizer/dist_ckpt" in refused.stderr
    program.run(root, scratch / "hf", "huggingface", source_options={"optimizer": "drop"}, ranks=1)
    (root / TRACKER).unlink()
    several = program.attempt(root, scratch / "none", "huggingface")
    assert several.returncode == 3 and "optimizer/dist_ckpt" in several.stderr  # the newest complete one
