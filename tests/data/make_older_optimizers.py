"""Makes tests/data/older-optimizers.tar.xz: `mp_rank` folders with the distributed optimizer's state, as older releases of Megatron-Core save them.

Each release is put in front of the path:

    for release in 0.7.0 0.9.0 0.13.0; do
      pip install --no-deps --target old-$release megatron-core==$release
      PYTHONPATH=old-$release python tests/data/make_older_optimizers.py $release made
    done
    tar -C made --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cJf tests/data/older-optimizers.tar.xz .

A folder holds a checkpoint after one training step, and what the weights of all ranks are after a second step (`after_step_2.pt`).
"""

import inspect
import sys
import types
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import numpy as np

np.product = np.prod  # releases up to 0.14 use the name that NumPy 2 removed

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

import packaging.version  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import gloo_ranks  # noqa: E402
from checkpoint_args import shard_content, training_args  # noqa: E402
from dcp_models import FusedAdam, OnCpu  # noqa: E402
from numpy_megatron import SHARD_FILE, TRACKER, shard_directory  # noqa: E402
from peer_types import LOCAL, Layout, ModelConfig  # noqa: E402
from tensor_patterns import pattern  # noqa: E402

# No size is a multiple of 64, so the gaps of a release and the ends of its buckets show.
DENSE = ModelConfig(layers=2, hidden=24, head_dim=6, ffn=44, vocab=83, vocab_divisor=1, dtype="bfloat16")
MOE = DENSE.with_(family="qwen3_moe", experts=4, expert_ffn=36, ffn=36)
WORLDS = {  # name -> (model, layout, data parallel copies, bucket size)
    "dense": (DENSE, Layout(tp=2), 1, None),
    "buckets": (DENSE, Layout(tp=1), 3, 1500),
    "stages": (DENSE, Layout(tp=1, pp=2), 2, None),
    "moe": (MOE, Layout(tp=1, ep=2), 1, None),
}
ITERATION = 1


def known(function, **values):
    """Those of the values that the release knows."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in names})


class Norm(torch.nn.LayerNorm):
    """Their own needs Apex."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps)


class Absent(types.ModuleType):
    """A module of a release that cannot be imported without Transformer Engine; nothing of it is used."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def scaled_copies(operation, _, lists, scale):
    assert operation == "scale"
    for source, target in zip(*lists):
        target.copy_(source * scale)


def prepare():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    apex = types.ModuleType("apex.optimizers")
    apex.FusedAdam, apex.FusedSGD = FusedAdam, None
    resources = types.ModuleType("pkg_resources")  # gone from setuptools; up to 0.8 it is asked for this one package
    resources.packaging = packaging
    sys.modules["pkg_resources"] = resources
    sys.modules["apex"], sys.modules["apex.optimizers"] = types.ModuleType("apex"), apex
    if version("megatron-core").startswith("0.7."):  # later ones do without
        amp, applier = types.ModuleType("amp_C"), types.ModuleType("apex.multi_tensor_apply")
        amp.multi_tensor_scale, applier.multi_tensor_applier = "scale", scaled_copies
        sys.modules["amp_C"], sys.modules["apex.multi_tensor_apply"] = amp, applier
        name = "megatron.core.transformer.custom_layers.transformer_engine"
        sys.modules[name] = Absent(name)
        sys.modules[name].get_cpu_offload_context = lambda *_: (nullcontext(), None)
    OnCpu().__enter__()


def build(config, layout, parallel_state):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.transformer_config import TransformerConfig

    for name in ("FusedLayerNorm", "LayerNormImpl", "TENorm"):  # of the last norm
        if hasattr(transformer_block, name):
            setattr(transformer_block, name, Norm)
    random.CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()
    moe = dict(num_moe_experts=config.experts, moe_ffn_hidden_size=config.expert_ffn, moe_router_topk=config.top_k, moe_router_load_balancing_type="none") if config.experts else {}
    core = known(
        TransformerConfig, num_layers=config.layers, hidden_size=config.hidden, num_attention_heads=config.heads, num_query_groups=config.groups,
        kv_channels=config.head_dim, ffn_hidden_size=config.ffn, use_cpu_initialization=True, tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp, expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp, pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16, bf16=True, add_bias_linear=False, gated_linear_unit=True, activation_func=F.silu, normalization="LayerNorm",
        hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, sequence_parallel=False, **moe)
    spec = known(gpt_layer_specs.get_gpt_layer_local_spec, num_experts=config.experts or None, moe_grouped_gemm=False, qk_layernorm=config.qk_norm)
    spec.submodules.input_layernorm = Norm
    spec.submodules.pre_mlp_layernorm = Norm
    pp = parallel_state.get_pipeline_model_parallel_rank()
    model = known(
        GPTModel, config=core, transformer_layer_spec=spec, vocab_size=config.padded_vocab(layout.tp), max_sequence_length=128, pre_process=pp == 0,
        post_process=pp == layout.pp - 1, position_embedding_type="rope", rotary_base=10000, share_embeddings_and_output_weights=False)
    return model.to(torch.bfloat16)


def wrap(model, bucket_size):
    from megatron.core import optimizer, parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    ddp = known(DistributedDataParallelConfig, use_distributed_optimizer=True, overlap_grad_reduce=bucket_size is not None, bucket_size=bucket_size, grad_reduce_in_fp32=True)
    wrapped = known(
        DistributedDataParallel, config=model.config, ddp_config=ddp, module=model, data_parallel_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        expert_data_parallel_group=parallel_state.get_data_modulo_expert_parallel_group() if "0.7." in version("megatron-core") else None)
    config = known(
        OptimizerConfig, optimizer="adam", lr=0.01, weight_decay=0.1, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0, use_distributed_optimizer=True)
    assert optimizer.Adam is FusedAdam, optimizer.Adam
    return wrapped, get_megatron_optimizer(config, [wrapped])


def train_step(wrapped, optimizer, step, copies):
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    for parameter in wrapped.module.parameters():
        factor = 1 if getattr(parameter, "allreduce", True) else copies
        parameter.main_grad.copy_(torch.sin(parameter.detach().float() * 37 + step) * 0.1 * factor)
    if wrapped.ddp_config.overlap_grad_reduce:
        wrapped.start_grad_sync()
    wrapped.finish_grad_sync()
    assert optimizer.step()[0]


def fill(model, layout, parallel_state):
    """Weights by name and place: equal on replicas, different elsewhere."""
    tp, pp, ep = (getattr(parallel_state, f"get_{kind}_rank")() for kind in ("tensor_model_parallel", "pipeline_model_parallel", "expert_model_parallel"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            cut = getattr(parameter, "tensor_model_parallel", False)
            place = f"{name} {pp} {tp if cut else 0} {ep if '.experts.' in name else 0}"
            parameter.copy_(pattern(place, tuple(parameter.shape), torch.bfloat16))


def make(rank, config, layout, replicas, bucket_size, root):
    prepare()
    from megatron.core import parallel_state

    known(parallel_state.initialize_model_parallel, tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp,
          expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp)  # fmt: skip
    model = build(config, layout, parallel_state)
    fill(model, layout, parallel_state)
    wrapped, optimizer = wrap(model, bucket_size)
    if hasattr(optimizer, "reload_model_params"):
        optimizer.reload_model_params()
    train_step(wrapped, optimizer, 1, layout.ep)
    folder = Path(root) / f"iter_{ITERATION:07d}" / shard_directory(
        layout, parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_expert_model_parallel_rank())
    folder.mkdir(parents=True, exist_ok=True)
    optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
    first = parallel_state.get_data_parallel_rank() == 0 or parallel_state.get_expert_model_parallel_rank() == parallel_state.get_data_parallel_rank()
    if first:
        args = training_args(config, layout, LOCAL)
        vars(args).update(
            iteration=ITERATION, use_distributed_optimizer=True, overlap_grad_reduce=bucket_size is not None, ddp_bucket_size=bucket_size,
            accumulate_allreduce_grads_in_fp32=True, normalization="LayerNorm", data_parallel_size=dist.get_world_size() // (layout.tp * layout.pp),
            ckpt_format="torch", use_dist_ckpt=False)
        content = shard_content(args, {"model": model.state_dict_for_save_checkpoint()})
        content["optimizer"] = optimizer.state_dict()
        torch.save(content, folder / SHARD_FILE)
    train_step(wrapped, optimizer, 2, layout.ep)
    return str(folder.name) if first else None, {name: value.detach().clone() for name, value in model.named_parameters()}


def main(release, root):
    for name, (config, layout, replicas, bucket_size) in WORLDS.items():
        folder = Path(root) / release / name
        results = gloo_ranks.run_ranks(make, layout.world * replicas, (config, layout, replicas, bucket_size, str(folder)), "tensor_patterns")
        (folder / TRACKER).write_text(str(ITERATION))
        torch.save({shard: weights for shard, weights in results if shard}, folder / "after_step_2.pt")
        print(release, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
