"""Megatron-Bridge in processes of its own: it imports a Hugging Face folder and saves it, loads what the program wrote, and exports."""

import contextlib
import functools
import types

import torch
from megatron.core import parallel_state

import dcp_checkpoints
import dcp_models
import megatron_release
from gloo_ranks import run_ranks
from peer_types import Layout

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
def one_rank(tp=1):
    """The world that a trainer has, of this process alone; with tp of as many."""
    megatron_release.write_in_this_process()
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, answering(None))
    for name in ("memory_allocated", "max_memory_allocated"):
        setattr(torch.cuda, name, answering(0))
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.nn.Module.cuda = lambda module, *_, **__: module
    build_without_kernels()
    parallel_state.initialize_model_parallel(tp, 1, expert_model_parallel_size=1, expert_tensor_parallel_size=1)
    with OnTheCpu():
        yield


def build_without_kernels():
    """Modules whose kernels are compiled for CUDA: they are built, saved and loaded without them."""
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


def save_adapter(_, folder, target, exported, kind):
    """Saves an adapter of random values as Bridge's training does, and as its export for peft does."""
    import megatron.bridge.training.model_load_save as model_load_save
    from megatron.bridge import AutoBridge
    from megatron.bridge.peft.canonical_lora import CanonicalLoRA
    from megatron.bridge.peft.lora import LoRA
    from megatron.bridge.training.config import ConfigContainer

    with one_rank():
        bridge = AutoBridge.from_hf_pretrained(str(folder))
        provider, adapter = provider_of(bridge, True), {"fused": LoRA, "canonical": CanonicalLoRA}[kind](dim=6, alpha=12)
        provider.register_pre_wrap_hook(lambda model: adapter(model, training=True))
        models = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in models[0].named_parameters():
                if ".adapter." in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        model_load_save.ConfigContainer = functools.partial(ConfigContainer, peft=adapter)  # which save_megatron_model leaves out
        model_load_save.save_megatron_model(models, str(target))
        bridge.save_hf_adapter(models, str(exported), peft_config=adapter)


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


def resume_from(_, checkpoint, batch):
    """Goes on from a checkpoint as a training job of Bridge does, with the settings of the folder and the optimizer of megatron_trainer.BASE. Gives the weights
    before and after the next step, and how far the run is."""
    from megatron.bridge.training.checkpointing import load_checkpoint
    from megatron.bridge.training.config import CheckpointConfig, DistributedDataParallelConfig, LoggerConfig, OptimizerConfig, RNGConfig, SchedulerConfig
    from megatron.bridge.training.model_load_save import load_model_config
    from megatron.bridge.training.optim import setup_optimizer
    from megatron.bridge.training.state import GlobalState
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from megatron.core.rerun_state_machine import initialize_rerun_state_machine
    from megatron.core.utils import unwrap_model

    with one_rank():
        dcp_models.prepare_distributed_checkpoints()
        dcp_models.use_fused_adam()
        initialize_rerun_state_machine()
        init_num_microbatches_calculator(0, None, batch, 1, 1)
        [folder] = checkpoint.glob("iter_*")
        provider, _ = load_model_config(str(folder))
        for name, value in SETTINGS.items():
            setattr(provider, name, value)
        provider.finalize()
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False, overlap_param_gather=False, grad_reduce_in_fp32=True)
        chunks = provider.provide_distributed_model(ddp_config=ddp, use_cpu_initialization=True)
        settings = OptimizerConfig(optimizer="adam", lr=0.01, min_lr=0.001, weight_decay=0.1, clip_grad=0.0, bf16=True, params_dtype=torch.bfloat16,
                                   use_distributed_optimizer=True)
        settings.finalize()
        schedule = SchedulerConfig(lr_decay_style="cosine", start_weight_decay=0.1, end_weight_decay=0.1, weight_decay_incr_style="constant")
        schedule.lr_decay_steps = schedule.wd_incr_steps = 100 * batch
        schedule.lr_warmup_steps, schedule.wsd_decay_steps = 0, None
        optimizer, scheduler = setup_optimizer(settings, schedule, chunks)
        with torch.no_grad():
            for each in (parameter for chunk in chunks for parameter in chunk.parameters()):
                each.fill_(UNSET)
        state = GlobalState()
        state.cfg = types.SimpleNamespace(
            checkpoint=CheckpointConfig(load=str(checkpoint), save=f"{checkpoint}-next", ckpt_format="torch_dist", fully_parallel_load=False), model=provider,
            optimizer=settings, ddp=ddp, peft=None, rng=RNGConfig(), dist=None, logger=LoggerConfig(), ft=None, train=None)
        progress = load_checkpoint(state, chunks, optimizer, scheduler)
        models = unwrap_model(chunks)
        loaded = dcp_checkpoints.pieces(models, parallel_state)
        dcp_models.train_step(chunks, optimizer, 2, Layout())
        return loaded, dcp_checkpoints.pieces(models, parallel_state), progress
