"""Real megatron-core models that save and load `torch_dist` checkpoints on CPU, with and without an optimizer.

Beyond what megatron_models.py changes to run without CUDA, `prepare_distributed_checkpoints`:
- sends everything that asks for a CUDA device to the CPU, and lets CPU tensors name their type as CUDA ones (optimizers compare strings);
- writes the items of a save in the rank's own process (`megatron_release.write_in_this_process`).
What is written, and every line that decides it, stays megatron-core's own.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import megatron_release
from megatron_release import MOMENTUM
from peer_types import ModelConfig
from tensor_patterns import DTYPES, pattern

# --- running without CUDA -----------------------------------------------------------------------------------------


class OnCpu(TorchFunctionMode):
    """Whatever names a CUDA device gets the CPU; tensors say that they are CUDA tensors when asked for their type."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if is_cuda(argument) else argument for argument in args)
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


def is_cuda(device):
    return str(device).startswith("cuda") if isinstance(device, (str, torch.device)) else False


def prepare_distributed_checkpoints():
    from megatron.core.transformer import multi_latent_attention

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None
    megatron_release.write_in_this_process()
    multi_latent_attention.HAVE_TE = False  # its import succeeds with mocks, which are no types to compare with
    OnCpu().__enter__()


# --- models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A model by its config and what ModelConfig cannot say: settings of megatron-core's TransformerConfig."""

    config: ModelConfig
    settings: dict = field(default_factory=dict)
    mla: bool = False
    layer_norm: bool = False  # LayerNorm with biases instead of RMSNorm
    mtp: int = 0
    position: str = "rope"


def transformer_config(recipe, layout, form):
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    config, dtype = recipe.config, DTYPES[recipe.config.dtype]
    moe = dict(
        num_moe_experts=config.experts, moe_ffn_hidden_size=config.expert_ffn, moe_router_topk=config.top_k, moe_router_dtype="fp32",
        moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none", moe_grouped_gemm=form.experts == "grouped",
        moe_layer_freq=1 if config.moe_layers is None else [int(config.is_moe(layer)) for layer in range(config.layers)],
    ) if config.experts else {}
    values = dict(
        num_layers=config.layers, hidden_size=config.hidden, num_attention_heads=config.heads, num_query_groups=config.groups,
        kv_channels=config.head_dim, ffn_hidden_size=config.ffn, use_cpu_initialization=True, tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp, virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp, pipeline_dtype=dtype, params_dtype=dtype,
        num_layers_in_first_pipeline_stage=layout.first_stage_layers, num_layers_in_last_pipeline_stage=layout.last_stage_layers,
        bf16=config.dtype == "bfloat16", add_bias_linear=recipe.layer_norm,
        add_qkv_bias=config.qkv_bias, gated_linear_unit=config.gated, activation_func=F.silu if config.gated else F.gelu,
        normalization="LayerNorm" if recipe.layer_norm else "RMSNorm", layernorm_epsilon=config.norm_eps, qk_layernorm=config.qk_norm,
        hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, mtp_num_layers=recipe.mtp or None)
    return (MLATransformerConfig if recipe.mla else TransformerConfig)(**values | moe | recipe.settings)


def block_spec(recipe, core_config, form, stage):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    if form.impl == "te":
        import dcp_stand_ins
        from te_stand_ins import norm_module

        first = get_transformer_layer_offset(core_config, stage)
        layers = range(first, first + get_num_layers_to_build(core_config, stage))
        specs = [dcp_stand_ins.layer_spec(core_config, recipe.config.is_moe(layer), form) for layer in layers]
        return TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm_module(form))
    normalization = "LayerNorm" if recipe.layer_norm else "RMSNorm"
    block = get_gpt_decoder_block_spec(core_config, use_transformer_engine=False, normalization=normalization, vp_stage=stage)
    for layer in block.layer_specs if recipe.mla else ():
        from dcp_stand_ins import LatentAttention

        layer.submodules.self_attention.submodules.core_attention = LatentAttention
    return block


def build_chunks(recipe, layout, form, parallel_state):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    config, core_config = recipe.config, transformer_config(recipe, layout, form)
    pp, models = parallel_state.get_pipeline_model_parallel_rank(), []
    for vpp in range(layout.vpp):
        stage = vpp if layout.vpp > 1 else None
        spec = block_spec(recipe, core_config, form, stage)
        mtp = get_gpt_mtp_block_spec(core_config, spec, use_transformer_engine=False, vp_stage=stage) if recipe.mtp else None
        model = GPTModel(
            core_config, spec, vocab_size=config.padded_vocab(layout.tp), max_sequence_length=128, pre_process=pp == 0 and vpp == 0,
            post_process=pp == layout.pp - 1 and vpp == layout.vpp - 1, position_embedding_type=recipe.position, rotary_base=config.rope_base,
            share_embeddings_and_output_weights=config.tied, vp_stage=stage, mtp_block_spec=mtp)
        models.append(model.to(DTYPES[config.dtype]))
    return models


def freeze(models, patterns):
    """Parameters whose names fit are not trained."""
    for model in models:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not any(fnmatchcase(name, pattern) for pattern in patterns)


# --- optimizers ---------------------------------------------------------------------------------------------------


class FusedAdam(torch.optim.Optimizer):
    """Adam with the state layout of Transformer Engine's and Apex's: the step is counted in the parameter groups.

    megatron-core 0.16 saves its distributed optimizer with torch's own AdamW too, but cannot load that again."""

    def __init__(self, params, lr, weight_decay, betas, eps, adam_w_mode=True, **_):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, bias_correction=True))
        assert adam_w_mode

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for parameter in (each for each in group["params"] if each.grad is not None):
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq") if not state else ():
                    state[name] = torch.zeros_like(parameter)
                state["exp_avg"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                mean = state["exp_avg"] / (1 - first ** group["step"])
                scale = (state["exp_avg_sq"] / (1 - second ** group["step"])).sqrt().add_(group["eps"])
                parameter.sub_(group["lr"] * (mean / scale + group["weight_decay"] * parameter))


def use_fused_adam():
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = FusedAdam, False
    distrib_optimizer.Adam, distrib_optimizer.HAVE_APEX_OR_TE, distrib_optimizer.USING_TE_OPTIMIZER = FusedAdam, True, True


class MomentumOptimizer(torch.optim.Optimizer):
    """What megatron-core's Muon takes from the package emerging_optimizers: momentum, and a step in the direction that a function makes of it."""

    def __init__(self, params, lr, momentum, scaled_orthogonalize_fn, weight_decay=0.0, **_):
        super().__init__(params, {"lr": lr, MOMENTUM: momentum, "weight_decay": weight_decay})
        self.scaled_orthogonalize_fn = scaled_orthogonalize_fn

    def _init_group(self, group, skip_non_grad_params=True):  # later releases call it
        for parameter in group["params"]:
            if not self.state[parameter] and not (skip_non_grad_params and parameter.grad is None):
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            self._init_group(group)
            for parameter in (each for each in group["params"] if each.grad is not None):
                momentum = self.state[parameter]["momentum_buffer"].lerp_(parameter.grad, 1 - group[MOMENTUM])
                parameter.sub_(group["lr"] * (self.orthogonalize(parameter, momentum) + group["weight_decay"] * parameter))


class LionOptimizer(torch.optim.Optimizer):
    """Lion of the package emerging_optimizers: one moment, and steps in the direction of its sign."""

    def __init__(self, params, lr, betas, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _init_group(self, group, skip_non_grad_params=True):
        for parameter in group["params"]:
            if not self.state[parameter] and not (skip_non_grad_params and parameter.grad is None):
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            self._init_group(group)
            first, second = group["betas"]
            for parameter in (each for each in group["params"] if each.grad is not None):
                moment = self.state[parameter]["exp_avg"]
                parameter.sub_(group["lr"] * (torch.sign(torch.lerp(parameter.grad, moment, first)) + group["weight_decay"] * parameter))
                moment.lerp_(parameter.grad, 1 - second)


def gather_of_any_sizes(outputs, tensor, group=None):
    """gloo gathers tensors of one size only."""
    import torch.distributed as dist

    for rank, output in enumerate(outputs):
        if rank == dist.get_rank(group):
            output.copy_(tensor)
        dist.broadcast(output, dist.get_global_rank(group, rank), group=group)


def stand_in_for_emerging_optimizers():
    megatron_release.stand_in_for_emerging_optimizers(MomentumOptimizer, lambda gradient, **_: torch.tanh(gradient * 50), LionOptimizer)


def muon_optimizer(config, wrapped, layer_wise):
    """megatron-core's chain of Muon and Adam. An element-wise function stands in for the orthogonalisation, so that all layouts compute the same bits."""
    torch.distributed.all_gather = gather_of_any_sizes
    stand_in_for_emerging_optimizers()
    return megatron_release.muon_optimizer(config, wrapped, layer_wise)


def wrap_with_optimizer(models, distributed, bucket_size=None, torch_adam=False, muon=None, min_lr=None):
    """The models inside megatron-core's data parallel wrapper, and its Adam: "distributed" over data parallel ranks or not. Gradients of so many
    parameters share a bucket, or all do. With `muon`, "whole" or "layer_wise", matrices have that optimizer."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    if not torch_adam:
        use_fused_adam()
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=bucket_size is not None, bucket_size=bucket_size, grad_reduce_in_fp32=True)
    wrapped = [DistributedDataParallel(model.config, ddp, model, disable_bucketing=index > 0) for index, model in enumerate(models)]
    config = OptimizerConfig(
        optimizer="adam", lr=0.01, min_lr=min_lr, weight_decay=0.1, bf16=models[0].config.bf16, params_dtype=models[0].config.params_dtype, clip_grad=0.0,
        use_distributed_optimizer=distributed)
    return wrapped, muon_optimizer(config, wrapped, muon == "layer_wise") if muon else get_megatron_optimizer(config, wrapped)


def train_step(wrapped, optimizer, step, layout):
    """One optimizer step on gradients that follow from a parameter's own values, so that any layout computes the same bits.

    Data parallel ranks average equal gradients. Expert gradients count once per expert parallel rank in that average, which is undone here.
    Gradients are not clipped: the order in which their norm is summed up depends on the layout."""
    for chunk in wrapped:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    for chunk in wrapped:
        for parameter in (each for each in chunk.module.parameters() if each.requires_grad):
            copies = 1 if getattr(parameter, "allreduce", True) else expert_copies(layout)
            parameter.main_grad.copy_(torch.sin(parameter.detach().float() * 37 + step) * 0.1 * copies)
        if chunk.ddp_config.overlap_grad_reduce:
            chunk.start_grad_sync()
        chunk.finish_grad_sync()
    assert optimizer.step()[0]


def expert_copies(layout):
    """Data parallel ranks per expert data parallel rank."""
    return layout.ep * layout.etp // layout.tp if layout.ep * layout.etp >= layout.tp else layout.ep * layout.etp / layout.tp
