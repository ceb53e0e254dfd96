"""Megatron-Bridge in processes of its own: it imports a Hugging Face folder and saves it, loads what the program wrote, and exports."""

import contextlib
import types

import torch
from megatron.core import parallel_state

import megatron_release
from gloo_ranks import run_ranks

PRELOAD = "bridge_preload"
UNSET = 77.0  # what weights are before a load: what keeps it was not loaded
# What a provider asks of the device, and neither names nor shapes depend on.
SETTINGS = {"gradient_accumulation_fusion": False, "perform_initialization": False}


def of_bridge(function, *arguments):
    return run_ranks(function, 1, arguments, PRELOAD)[0]


class OnTheCpu(torch.overrides.TorchFunctionMode):
    """Tensors that are made on a CUDA device are made on the CPU."""

    def __torch_function__(self, function, kinds, arguments=(), keywords=None):
        keywords = {name: cpu_of(value) if name == "device" else value for name, value in (keywords or {}).items()}
        return function(*[cpu_of(value) if isinstance(value, (str, torch.device)) else value for value in arguments], **keywords)


def cpu_of(device):
    on_cuda = isinstance(device, int) or isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
    return torch.device("cpu") if on_cuda else device


@contextlib.contextmanager
def one_rank():
    """The world that a trainer has, of this process alone."""
    megatron_release.write_in_this_process()
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, answering(None))
    for name in ("memory_allocated", "max_memory_allocated"):
        setattr(torch.cuda, name, answering(0))
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.nn.Module.cuda = lambda module, *_, **__: module
    from megatron.core.extensions import transformer_engine
    from megatron.core.ssm import mamba_mixer
    from megatron.core.ssm.gated_delta_net import common, gdn
    from megatron.core.tensor_parallel import random

    transformer_engine._get_cpu_offload_context = lambda *_, **__: (contextlib.nullcontext(), lambda hidden: hidden)
    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    common.HAVE_FLA = mamba_mixer.HAVE_MAMBA_SSM = True
    for module in (common, gdn):
        module.chunk_gated_delta_rule = common.torch_chunk_gated_delta_rule
    common.l2norm = common.causal_conv1d = None
    mamba_mixer.RMSNormGated = GatedNorm
    mamba_mixer.ExtendedRMSNorm = type("ExtendedRMSNorm", (GatedNorm,), {"sharded_state_dict": sharded_norm})
    parallel_state.initialize_model_parallel(1, 1, expert_model_parallel_size=1)
    with OnTheCpu():
        yield


def answering(value):
    """A function of its own for each name: torch's compiler goes by functions."""
    return lambda *_, **__: value


class GatedNorm(torch.nn.Module):
    """The norm of mamba_ssm, which is compiled for CUDA: its weight."""

    def __init__(self, hidden_size, *_, dtype=None, **__):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))


def sharded_norm(self, prefix="", sharded_offsets=(), metadata=None):
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

    group = getattr(self, "tp_group", None) or parallel_state.get_tensor_model_parallel_group()
    return make_sharded_tensors_for_checkpoint(
        self.state_dict(prefix="", keep_vars=True), prefix, {"weight": 0}, sharded_offsets, tp_group=group, dp_cp_group=metadata["dp_cp_group"])


def provider_of(bridge, load_weights):
    provider = bridge.to_megatron_provider(load_weights=load_weights)
    for name, value in SETTINGS.items():
        setattr(provider, name, value)
    if getattr(provider, "moe_token_dispatcher_type", "") == "flex":  # its dispatcher is compiled for CUDA
        provider.moe_token_dispatcher_type = "alltoall"
    provider.finalize()
    return provider


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()
            if isinstance(value, torch.Tensor) and not name.endswith("_extra_state")}


def build(folder, load_weights):
    from megatron.bridge import AutoBridge

    bridge = AutoBridge.from_hf_pretrained(str(folder))
    [model] = provider_of(bridge, load_weights).provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
    return bridge, model


def import_folder(_, folder, target):
    """Imports a Hugging Face folder and saves it as Bridge does. Gives the weights."""
    with one_rank():
        bridge, model = build(folder, True)
        bridge.save_megatron_model([model], str(target), hf_tokenizer_path=str(folder), low_memory_save=False)
        return weights_of(model)


def load_target(_, folder, save, exported=None):
    """Loads a save into a model of the folder's config, and exports it. Gives the weights."""
    from megatron.bridge.training.checkpointing import _load_model_weights_from_checkpoint

    with one_rank():
        bridge, model = build(folder, False)
        with torch.no_grad():
            for each in model.parameters():
                each.fill_(UNSET)
        _load_model_weights_from_checkpoint(str(save), [model])
        if exported is not None:
            bridge.save_hf_pretrained([model], str(exported), show_progress=False, strict=False)
        return weights_of(model)


def start_from(_, checkpoint):
    """Loads a checkpoint as Bridge does on its own, from nothing but the folder. Gives the weights."""
    from megatron.bridge.training.model_load_save import load_megatron_model

    with one_rank():
        model = load_megatron_model(str(checkpoint), use_cpu_init=True, skip_temp_dist_context=True, mp_overrides=SETTINGS)
        return weights_of(model[0] if isinstance(model, list) else model)
