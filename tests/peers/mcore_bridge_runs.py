"""mcore-bridge, ms-swift's library of models, in processes of its own: it loads a Hugging Face folder, saves as ms-swift does, and loads what the program wrote."""

import argparse
import json

import torch
from megatron.core import dist_checkpointing
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from bridge_runs import SETTINGS, UNSET, one_rank, weights_of
from gloo_ranks import run_ranks

PRELOAD = "mcore_bridge_preload"
STEP = 3
MODEL_TYPES_OF_SWIFT = {"llavaonevision1_5": "llava_onevision1_5"}  # where that of config.json is another
TOWERS_OF_NAMES = ("internvl_chat", "kimi_k25", "kimi_vl", "llava_onevision1_5", "ovis2_5", "qwen3_asr")  # of code that mcore-bridge does not have
OF_OTHER_CODE = {"qwen3_asr": "thinker_config", "bailing_hybrid": "group_norm_size"}  # of the code of folders, where transformers has another model


def of_mcore_bridge(function, *arguments, tp=1):
    return run_ranks(function, tp, arguments, PRELOAD)[0]


def config_of(folder):
    """The folder's config; where its class is in code of its own, the members of config.json."""
    stated = json.loads((folder / "config.json").read_text())
    kind = stated["model_type"]
    if kind not in CONFIG_MAPPING or OF_OTHER_CODE.get(kind) in stated:
        AutoConfig.register(kind, type("OwnConfig", (PretrainedConfig,), {"model_type": kind}), exist_ok=True)
    config = with_inner_configs(AutoConfig.from_pretrained(str(folder)))
    if kind in ("gemma4", "gemma4_unified"):
        as_published(config.text_config, stated["text_config"])
        config.hidden_size = config.text_config.hidden_size  # ms-swift sets it
    return config


def as_published(config, stated):
    """Members of Gemma 4's published config.json as transformers has them until 5.10, where mcore-bridge asks for them; now it states them layer by layer."""
    config.allow_global_per_layer_attribute_access = True
    for name in {"global_head_dim", "num_global_key_value_heads"} & set(stated):
        setattr(config, name, stated[name])


def with_inner_configs(config):
    for name, members in vars(config).items():
        if name.endswith("_config") and isinstance(members, dict):
            known = members.get("model_type") in CONFIG_MAPPING
            setattr(config, name, AutoConfig.for_model(**members) if known else with_inner_configs(PretrainedConfig(**members)))
    return config


def tower_of_names(vit, hf_config):
    """A tower whose code the folder would bring: its tensors, by name and shape."""
    from mcore_bridge.utils import SafetensorLazyLoader

    with SafetensorLazyLoader(hf_config.name_or_path) as loader:
        tensors = {name: value.load() for name, value in loader.get_state_dict().items()}
    for theirs, own in vit.module_mapping.items():
        part = torch.nn.Module()
        for name, tensor in tensors.items():
            if name.startswith(theirs + "."):
                *path, last = name.removeprefix(theirs + ".").split(".")
                module = part
                for word in path:
                    if not hasattr(module, word):
                        module.add_module(word, torch.nn.Module())
                    module = getattr(module, word)
                module.register_parameter(last, torch.nn.Parameter(torch.empty_like(tensor)))
        setattr(vit, own, part)


def build(folder, arguments, tp=1):
    """A model of the folder's config.json and of arguments of ms-swift's command line, as ms-swift builds it: its weights are BF16."""
    from mcore_bridge import get_mcore_model, hf_to_mcore_config
    from mcore_bridge.model import get_mcore_model_type, get_model_meta
    from mcore_bridge.model.gpts import bailing_hybrid
    from megatron.core.transformer.module import Float16Module

    hf_config = config_of(folder)
    dtype = (getattr(hf_config, "text_config", None) or hf_config).dtype or torch.bfloat16
    settings = hf_to_mcore_config(hf_config) | SETTINGS | dict(use_cpu_initialization=True)
    settings |= dict(tensor_model_parallel_size=tp, expert_tensor_parallel_size=1)
    settings |= dict(params_dtype=dtype, bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16) | arguments
    kind = settings["hf_model_type"]
    bailing_hybrid.fused_recurrent_simple_gla = True  # a kernel that is compiled for CUDA
    meta = get_model_meta(get_mcore_model_type(MODEL_TYPES_OF_SWIFT.get(kind, kind)))
    settings["mcore_model_type"] = meta.model_type
    if meta.model_type in TOWERS_OF_NAMES:
        meta.visual_cls.prepare_model = tower_of_names
    config = meta.config_cls(**settings)
    [model] = get_mcore_model(config)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not name.endswith("_extra_state"):
                tensor.fill_(UNSET)
    return config, Float16Module(config, model).module


def metadata():
    return {"singleton_local_shards": False, "chained_optim_avoid_prefix": True, "distrib_optim_sharding_type": "dp_reshardable"}


def import_folder(_, folder, target, arguments, tp=1):
    """Loads a Hugging Face folder and saves it as ms-swift does, with the names of its files. Gives the weights."""
    with one_rank(tp):
        config, model = build(folder, arguments, tp)
        config.bridge.load_weights([model], str(folder))
        step = target / f"iter_{STEP:07d}"
        step.mkdir(parents=True, exist_ok=True)
        sizes = {f"{each}_parallel_size": 1 for each in ("pipeline_model", "expert_model", "expert_tensor", "context")} | {"tensor_model_parallel_size": tp}
        args = {"model": str(folder), "model_dir": str(folder), "tuner_type": "full", "mcore_model": None, **sizes}
        state = {"args": argparse.Namespace(**args), "checkpoint_version": 3.0, "iteration": STEP, "model": model.sharded_state_dict(metadata=metadata())}
        dist_checkpointing.save(state, str(step), content_metadata=metadata())
        (target / "latest_checkpointed_iteration.txt").write_text(str(STEP))
        (target / "args.json").write_text(json.dumps(args))
        return weights_of(model)


def load_target(_, folder, save, arguments):
    """Loads a save into a model of the folder's config, every weight of it. Gives the weights."""
    with one_rank():
        _, model = build(folder, arguments)
        wanted = {"model": model.sharded_state_dict(metadata=metadata())}
        loaded = dist_checkpointing.load(wanted, str(save), strict=dist_checkpointing.validation.StrictHandling.ASSUME_OK_UNEXPECTED)
        missing, unexpected = model.load_state_dict(loaded["model"], strict=False)
        left = [name for name in [*missing, *unexpected] if not name.endswith("_extra_state")]
        assert not left, left
        return weights_of(model)


def model_types(*_):
    from mcore_bridge.model.register import MODEL_MAPPING

    return [each for meta in MODEL_MAPPING.values() for each in meta.model_types]
