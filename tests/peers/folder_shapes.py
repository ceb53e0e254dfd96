"""Folders as Megatron-Bridge, NeMo 2, verl, ms-swift, slime and miles leave them, made of one `torch_dist` checkpoint that megatron-core saved.

What differs between the programs is made here after their own code, independently of the program under test: Megatron-Bridge's training/checkpointing.py
and the yaml representers of megatron/training/config/yaml_utils.py (PyYAML dumps the fields of a real TransformerConfig), NeMo's lightning/io/mixin.py,
verl's utils/megatron_utils.py and megatron_checkpoint_manager.py, ms-swift's megatron/utils/megatron_lm_utils.py and trainers/base.py, slime's and miles'
rollout/data_source.py.
"""

import argparse
import dataclasses
import enum
import inspect
import json
import pickle
import shutil
from pathlib import Path

import torch
import yaml

from dcp_models import transformer_config
from megatron_release import COMMON_ITEM, read_common, write_common
from numpy_megatron import TRACKER, iteration_folder

STEP = 1000


# --- yaml -----------------------------------------------------------------------------------------------------------


class Dumper(yaml.SafeDumper):
    """With the representers of Megatron's yaml_utils."""


def represent_function(dumper, value):
    return dumper.represent_data({"_target_": f"{inspect.getmodule(value).__name__}.{value.__qualname__}", "_call_": False})


def represent_enum(dumper, value):
    target = f"{type(value).__module__}.{type(value).__qualname__}"
    return dumper.represent_data({"_target_": target, "_call_": True, "_args_": [value.value], "_name_": value.name})


def represent_object(dumper, value):
    described, call = (value, False) if hasattr(value, "__qualname__") else (type(value), True)
    return dumper.represent_data({"_target_": f"{inspect.getmodule(described).__name__}.{described.__qualname__}", "_call_": call})


Dumper.add_multi_representer(enum.Enum, represent_enum)
Dumper.add_representer(type(represent_enum), represent_function)
Dumper.add_representer(torch.dtype, lambda dumper, value: dumper.represent_data({"_target_": str(value), "_call_": False}))
Dumper.add_multi_representer(object, represent_object)


def provider(world, target):
    """The fields of a provider: those of TransformerConfig, and what GPTModelProvider adds."""
    core, config = transformer_config(world.recipe, world.layout, world.form), world.recipe.config
    fields = {field.name: getattr(core, field.name) for field in dataclasses.fields(core) if not field.name.startswith("_")}
    return {"_target_": target} | fields | dict(
        vocab_size=config.vocab, make_vocab_size_divisible_by=config.vocab_divisor, should_pad_vocab=True, seq_length=128,
        share_embeddings_and_output_weights=config.tied, position_embedding_type=world.recipe.position, rotary_base=config.rope_base,
        rotary_percent=1.0, rope_scaling=False, rope_scaling_factor=1.0, seq_len_interpolation_factor=None,
        moe_aux_loss_coeff=0.001, hf_model_id="example/model", transformer_layer_spec=provider, mtp_enabled=False)


def dump(document, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.dump(document, Dumper=Dumper))


# --- parts of a checkpoint ------------------------------------------------------------------------------------------


def edit_common(folder, edit):
    common = read_common(folder)
    edit(common)
    write_common(folder, common)


def without_args(common):
    del common["args"]


def add_args(**values):
    return lambda common: vars(common["args"]).update(values)


def with_key_prefix(folder, prefix):
    """Every key of the tensors and objects begins with the prefix, but that of the common state."""
    def prefixed(key):
        return key if key == COMMON_ITEM else prefix + key

    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.state_dict_metadata = {prefixed(key): value for key, value in metadata.state_dict_metadata.items()}
    metadata.storage_data = {dataclasses.replace(index, fqn=prefixed(index.fqn)): value for index, value in metadata.storage_data.items()}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def put_config(folder, model):
    """config.json and the words of a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, folder / name)


# --- shapes ---------------------------------------------------------------------------------------------------------


def bridge(source, world, root, nested=False):
    """`nested`: the settings of a model builder, which keeps TransformerConfig's in `transformer`."""
    shutil.copytree(source, root)
    folder = iteration_folder(root)
    edit_common(folder, without_args)
    model = provider(world, "megatron.bridge.models.gpt_provider.GPTModelProvider")
    if nested:
        inner = {field.name for field in dataclasses.fields(transformer_config(world.recipe, world.layout, world.form))}
        transformer = {key: value for key, value in model.items() if key in inner}
        model = {"_target_": "megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig", "transformer": transformer | {"activation_func": "silu"},
                 **{key: value for key, value in model.items() if key not in inner and key != "_target_"}}
    shared = [1, 2]  # PyYAML writes an anchor and aliases for it
    dump({"_target_": "megatron.bridge.training.config.ConfigContainer", "model": model, "train": {"one": shared, "two": shared},
          "checkpoint": {"save": str(root), "ckpt_format": "torch_dist", "fully_parallel_save": True}}, folder / "run_config.yaml")
    state = {"step": torch.tensor(STEP, dtype=torch.int32), "consumed_train_samples": torch.tensor(64000, dtype=torch.int32)}
    torch.save(state, folder / "train_state.pt")
    shutil.copy(folder / "train_state.pt", root / "latest_train_state.pt")
    return root


def nemo(source, world, root, with_yaml=True):
    shutil.copytree(iteration_folder(source), root / "weights")
    edit_common(root / "weights", without_args)
    with_key_prefix(root / "weights", "module.")
    if with_yaml:
        dump({"_target_": "nemo.collections.llm.gpt.model.qwen3.Qwen3Model", "config": provider(world, "nemo.collections.llm.gpt.model.qwen3.Qwen3Config"),
              "tokenizer": {"_target_": "nemo.collections.common.tokenizers.huggingface.auto_tokenizer.AutoTokenizer"}}, root / "context/model.yaml")
    (root / "context").mkdir(exist_ok=True)
    (root / "context/io.json").write_text("{}")
    return root


def verl(source, world, root, model, layout=2):
    """A run with two saves; its tracker names the second."""
    for step in (STEP - 10, STEP):
        actor = root / f"global_step_{step}" / "actor"
        weights, config = (actor / "model/dist_ckpt", actor / "model/huggingface") if layout == 2 else (actor / "dist_ckpt", actor / "huggingface")
        shutil.copytree(iteration_folder(source), weights)
        edit_common(weights, without_args)
        put_config(config, model)
        (actor / "transformer_config.json").write_text(json.dumps({"num_layers": world.recipe.config.layers}))
        if layout == 2:
            (actor / "ckpt_contents.json").write_text(json.dumps({"schema_version": 2, "framework": "megatron", "role": "actor"}))
    (root / TRACKER).write_text(str(STEP))
    return root


def swift(source, world, root, model=None):
    """Args of the trainer, which do not describe the model; config.json where weights were exported as well."""
    save = root / f"v0-20261101-120000/checkpoint-{STEP}"
    shutil.copytree(source, save)

    def edit(common):
        kept = {key: value for key, value in vars(common["args"]).items() if key.endswith("_parallel_size") or key in ("bf16", "fp16", "iteration")}
        common["args"] = argparse.Namespace(**kept, tuner_type="full", model="example/model", mcore_model=None)

    edit_common(iteration_folder(save), edit)
    (save / "args.json").write_text(json.dumps({"tuner_type": "full", "model": "example/model", "model_dir": "/models/example"}))
    shutil.copy(save / "args.json", save.parent / "args.json")
    if model is not None:
        put_config(save, model)
    return save


def slime(source, world, root, miles=False):
    shutil.copytree(source, root)
    args = dict(hf_checkpoint="/models/example", rollout_global_dataset=True, rollout_num_gpus=8)
    edit_common(iteration_folder(root), add_args(**args | ({"miles_router_timeout": None} if miles else {})))
    (root / "rollout").mkdir()
    torch.save({"sample_offset": 0}, root / f"rollout/global_dataset_state_dict_{STEP}.pt")
    return root


