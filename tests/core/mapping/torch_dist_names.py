"""Writes torch_dist_names.json: what megatron-core saves in the torch_dist format, as its sharded_state_dict() says it.

Run with the peers environment (tests/peers/README.md): python tests/core/mapping/torch_dist_names.py
Small models are built on CPU as tests/peers/megatron_models.py does. Beyond that, so that two kinds of layers can be built at all:
- latent attention: DotProductAttention ignores the head sizes that only Transformer Engine's attention takes;
- Mamba: its kernels are stubs, its layers are those that megatron-core offers without Transformer Engine.
"""

import json
import os
import sys
import tempfile
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "peers"))
from megatron_models import prepare_cpu  # noqa: E402

BASE = dict(
    num_layers=3, hidden_size=24, num_attention_heads=4, num_query_groups=2, kv_channels=6, ffn_hidden_size=40, vocab_size=61,
    make_vocab_size_divisible_by=8, max_position_embeddings=32, swiglu=True, untie_embeddings_and_output_weights=True)
MOE = dict(num_experts=4, moe_ffn_hidden_size=16, moe_shared_expert_intermediate_size=20)
LATENT = dict(
    multi_latent_attention=True, q_lora_rank=12, kv_lora_rank=8, qk_head_dim=6, qk_pos_emb_head_dim=4, v_head_dim=6, qk_layernorm=True)
MAMBA = dict(hybrid_override_pattern="M*-ME", mamba_num_heads=4, mamba_head_dim=6, mamba_num_groups=2, mamba_state_dim=5)

# name: (args, options of the map, mesh tp ep etp). The vocabulary is padded as training would.
CASES = {
    "dense": (dict(add_bias_linear=True, add_qkv_bias=True, qk_layernorm=True, position_embedding_type="learned_absolute",
                   untie_embeddings_and_output_weights=False), dict(stacked=1, spec="local"), (1, 1, 1)),
    "dense te": (dict(qk_layernorm=True), dict(stacked=1, spec="te"), (1, 1, 1)),
    "dense per layer": (dict(swiglu=False), dict(stacked=0, spec="local"), (1, 1, 1)),
    "dense tp 2": ({}, dict(stacked=1, spec="local"), (2, 1, 2)),
    "dense, tp above groups": (dict(add_bias_linear=True, add_qkv_bias=True), dict(stacked=1, spec="local"), (4, 1, 4)),
    "dense singleton": (dict(add_bias_linear=True), dict(form="singleton", halves=1, spec="local"), (1, 1, 1)),
    "experts": (dict(moe_router_enable_expert_bias=True, moe_shared_expert_gate=True, **MOE), dict(stacked=1, spec="local"), (1, 1, 1)),
    "experts te": (MOE, dict(stacked=1, spec="te"), (1, 1, 1)),
    "experts with biases": (dict(add_bias_linear=True, **{**MOE, "moe_shared_expert_intermediate_size": None}), dict(stacked=1, spec="local"), (1, 1, 1)),
    "experts in some layers": (dict(moe_layer_freq=[0, 1, 1], **MOE), dict(stacked=0, spec="local"), (1, 1, 1)),
    "experts in some layers, te, ep 2": (dict(moe_layer_freq=[0, 1, 1], **MOE), dict(stacked=0, spec="te"), (1, 2, 1)),
    "experts tp 2 ep 2 etp 1": (MOE, dict(stacked=1, spec="local"), (2, 2, 1)),
    "experts tp 2 ep 2 etp 2": (MOE, dict(stacked=1, spec="local"), (2, 2, 2)),
    "experts tp 1 ep 4": (MOE, dict(stacked=1, spec="local"), (1, 4, 1)),
    "experts singleton, ep 2": (dict(mtp_num_layers=1, **MOE), dict(form="singleton", halves=1, spec="local"), (1, 2, 1)),
    "prediction layers": (dict(mtp_num_layers=2), dict(stacked=1, spec="local"), (2, 1, 2)),
    "prediction layers with experts": (dict(mtp_num_layers=1, **MOE), dict(stacked=1, spec="local"), (1, 1, 1)),
    "latent attention": (LATENT, dict(stacked=1, spec="local"), (1, 1, 1)),
    "latent attention with experts": (dict(moe_layer_freq=[0, 1, 1], mtp_num_layers=1, **MOE, **{**LATENT, "q_lora_rank": None}),
                                      dict(stacked=0, spec="local"), (1, 1, 1)),
    "latent attention without norms": ({**LATENT, "qk_layernorm": False}, dict(stacked=1, spec="local"), (1, 1, 1)),
    "mamba": (dict(num_layers=5, **MAMBA, **MOE), dict(parts=1, spec="local"), (1, 1, 1)),
    "mamba tp 2": (dict(num_layers=5, **MAMBA, **MOE), dict(parts=1, spec="local"), (2, 1, 2)),
}


def stub_kernels():
    """Modules that megatron-core's Mamba layers import, with nothing in them but the shape of a norm's weight."""

    class GatedNorm(torch.nn.Module):
        def __init__(self, size, **_):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size))

    members = {
        "mamba_ssm": {}, "mamba_ssm.ops": {}, "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": None},
        "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedNorm},
        "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": None, "mamba_split_conv1d_scan_combined": None},
    }
    for name, content in members.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module


def transformer_config(args, mesh):
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    tp, ep, etp = mesh
    known = TransformerConfig.__dataclass_fields__ | MLATransformerConfig.__dataclass_fields__
    values = {key: value for key, value in args.items() if key in known and value is not None}
    values["num_moe_experts"] = args.get("num_experts")
    if args.get("num_experts"):
        values |= dict(moe_router_topk=2, moe_router_dtype="fp32", moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none")
    if args.get("moe_router_enable_expert_bias"):
        values["moe_router_score_function"] = "sigmoid"
    latent = bool(args.get("multi_latent_attention"))
    if latent:
        values = {key: value for key, value in values.items() if key not in ("num_query_groups", "kv_channels")}
        values |= dict(q_lora_rank=args.get("q_lora_rank"), rope_type="rope")
    values.setdefault("add_bias_linear", False)
    return (MLATransformerConfig if latent else TransformerConfig)(
        **values, use_cpu_initialization=True, tensor_model_parallel_size=tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
        gated_linear_unit=args["swiglu"], activation_func=F.silu, normalization="LayerNorm" if values["add_bias_linear"] else "RMSNorm",
        hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, bf16=False)


def layer_specs(config, args, options):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec

    if options["spec"] == "te":
        import te_stand_ins
        from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

        form = types.SimpleNamespace(norm_extra_state=False, experts="sequential", impl="te")
        freq = args.get("moe_layer_freq", [1] * config.num_layers)
        layers = [te_stand_ins.layer_spec(config, bool(args.get("num_experts") and freq[layer]), form) for layer in range(config.num_layers)]
        return TransformerBlockSubmodules(layer_specs=layers, layer_norm=te_stand_ins.norm_module(form)), None
    if args.get("num_experts"):
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)
        return block, block
    one = get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm, multi_latent_attention=bool(args.get("multi_latent_attention")), normalization=config.normalization)
    return one, one


def gpt_model(config, args, options, padded_vocab):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    spec, last = layer_specs(config, args, options)
    prediction = get_gpt_mtp_block_spec(config, last, use_transformer_engine=False) if args.get("mtp_num_layers") else None
    return GPTModel(
        config, spec, vocab_size=padded_vocab, max_sequence_length=args["max_position_embeddings"],
        position_embedding_type=args.get("position_embedding_type", "rope"), mtp_block_spec=prediction,
        share_embeddings_and_output_weights=not args["untie_embeddings_and_output_weights"])


def mamba_stack(config, args):
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.post_training.modelopt.mamba import model_specs
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm import mamba_block, mamba_context_parallel, mamba_mixer
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    mamba_mixer.HAVE_EINOPS = mamba_context_parallel.HAVE_EINOPS = True  # only the forward pass needs the package
    model_specs.Norm = mamba_block.TENorm = WrappedTorchNorm
    spec = model_specs.get_mamba_stack_modelopt_spec(local_core_attention=True, remap_te_layernorm=True)
    spec.submodules.moe_layer.submodules.mlp = get_moe_module_spec(use_te=False, num_experts=args["num_experts"], moe_grouped_gemm=False)
    return mamba_block.MambaStack(
        config, spec.submodules, hybrid_override_pattern=args["hybrid_override_pattern"],
        pg_collection=ProcessGroupCollection.use_mpu_process_groups())


def sharded_tensors(tree):
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    if isinstance(tree, ShardedTensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from sharded_tensors(item)


def describe(rank, case, folder):
    """One rank's chunks by key: [global shape, [begin, size], …]."""
    args, options, mesh = case
    prepare_cpu()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=max(mesh[0], mesh[1] * mesh[2]))
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import apply_factories
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    tp, ep, etp = mesh
    parallel_state.initialize_model_parallel(tp, 1, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    plain = DotProductAttention.__init__
    DotProductAttention.__init__ = lambda self, *some, k_channels=None, v_channels=None, **more: plain(self, *some, **more)
    multi_latent_attention.TELinear = type("Absent", (), {})
    multiple = args["make_vocab_size_divisible_by"] * tp
    config = transformer_config(args, mesh)
    metadata = {"singleton_local_shards": True} if options.get("form") == "singleton" else {}
    if not options.get("stacked") and not metadata:
        metadata["non_homogeneous_layers"] = True
    if "hybrid_override_pattern" in args:
        state = mamba_stack(config, args).sharded_state_dict("decoder.", (), metadata)
    else:
        model = gpt_model(config, args, options, -(-args["vocab_size"] // multiple) * multiple)
        state = model.sharded_state_dict(metadata=metadata)
    apply_factories(state)
    chunks = {}
    for tensor in sharded_tensors(state):
        size = [1] * tensor.prepend_axis_num + list(tensor.local_shape)
        chunks.setdefault(tensor.key, [list(tensor.global_shape)]).append([list(tensor.global_offset), size])
    place = dict(
        tp=parallel_state.get_tensor_model_parallel_rank(), ep=parallel_state.get_expert_model_parallel_rank(),
        etp=parallel_state.get_expert_tensor_parallel_rank(), chunks=chunks)
    Path(folder, f"rank{rank}").write_text(json.dumps(place))
    dist.barrier()


def run_case(case):
    world = max(case[2][0], case[2][1] * case[2][2])
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(describe, (case, folder), nprocs=world, start_method="fork")
        return [json.loads(Path(folder, f"rank{rank}").read_text()) for rank in range(world)]


def main():
    stub_kernels()
    lines = []
    for name, (own, options, mesh) in CASES.items():
        args = {key: value for key, value in {**BASE, **own}.items() if value is not None}
        options = {"form": "dist", "stacked": 0, "halves": 0, "parts": 0, **options}
        ranks = run_case((args, options, mesh))
        tensors = {key: value[0] for rank in ranks for key, value in rank["chunks"].items()}
        case = dict(name=name, args=args, options=options, mesh=mesh, tensors=tensors)
        if len(ranks) > 1:
            for rank in ranks:
                rank["chunks"] = {key: value[1:] for key, value in rank["chunks"].items()}
            case["ranks"] = ranks
        lines.append(json.dumps(case))
        print(name, len(tensors), "tensors")
    (HERE / "torch_dist_names.json").write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main()
