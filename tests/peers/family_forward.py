"""megatron-core computes with converted weights: the model is built from the arguments that the program wrote, not from our own knowledge of it.

The same processes and the same changes for a machine without CUDA as in megatron_models.py and dcp_models.py. Layers are megatron-core's own local
ones; what they lack for Gemma, MiniMax-M2 and others is in family_stand_ins.py.
"""

import dataclasses
from types import SimpleNamespace

import torch
import torch.nn.functional as F

import megatron_models
from numpy_megatron import SHARD_FILE, iteration_folder

RENAMED = {"num_moe_experts": "num_experts", "layernorm_epsilon": "norm_epsilon"}  # field of TransformerConfig -> argument
FUSIONS = ("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion")


def logits_in_megatron(root, layout, tokens):
    """Loads every shard of a tree strictly and returns the logits."""
    results = megatron_models.run_ranks(on_rank, layout.world, str(root), layout, tokens)
    return next(result for result in results if result is not None)


def on_rank(rank, root, layout, tokens):
    from dcp_models import OnCpu

    OnCpu().__enter__()
    parallel_state = megatron_models.start_parallel_state(layout)
    name = megatron_models.my_directory(layout, parallel_state)
    content = torch.load(iteration_folder(root) / name / SHARD_FILE, weights_only=False)
    args = content["args"]
    norms_after = any("post_layernorm" in name for name in content[megatron_models.model_key(layout, 0)])
    model = build(args, layout, parallel_state, norms_after)
    megatron_models.load_strictly([model], content, layout)
    shape = SimpleNamespace(hidden=args.hidden_size, vocab=args.vocab_size, dtype="float32")
    with torch.no_grad():
        return megatron_models.forward([model], tokens, shape, layout, parallel_state)


def build(args, layout, parallel_state, norms_after):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    import family_stand_ins

    config = core_config(args, layout)
    position = "rope" if args.position_embedding_type == "mrope" else args.position_embedding_type  # the same for text alone
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    model = GPTModel(
        config, family_stand_ins.change_spec(spec, args, norms_after), vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings,
        pre_process=stage == 0, post_process=stage == layout.pp - 1, position_embedding_type=position, rotary_base=args.rotary_base,
        rotary_percent=args.rotary_percent, rope_scaling=args.use_rope_scaling, rope_scaling_factor=args.rope_scaling_factor,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights)
    if getattr(args, "xielu", False):
        family_stand_ins.change_activation(model)
    if getattr(args, "gated_linear_unit", False):
        family_stand_ins.scale_embeddings(model)
    if getattr(args, "post_norms_apart", False):
        family_stand_ins.add_norms_behind(model)
    return model.eval()


def core_config(args, layout):
    """megatron-core's configuration, as megatron.training makes it from these arguments."""
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.transformer.transformer_config import TransformerConfig

    names = [field.name for field in dataclasses.fields(TransformerConfig)]
    given = {name: getattr(args, RENAMED.get(name, name), None) for name in names}
    values = {name: value for name, value in given.items() if value is not None} | dict.fromkeys(FUSIONS, False)
    quick, tanh = getattr(args, "quick_geglu", False), getattr(args, "gated_linear_unit", False)
    plain = squared_relu if getattr(args, "squared_relu", False) else F.gelu
    values |= dict(
        gated_linear_unit=args.swiglu or quick or tanh,
        activation_func=quick_gelu if quick else tanh_gelu if tanh else F.silu if args.swiglu else plain,
        bias_activation_fusion=getattr(args, "bias_gelu_fusion", False),  # then GELU is that by tanh
        use_cpu_initialization=True, moe_grouped_gemm=False, params_dtype=torch.float32, pipeline_dtype=torch.float32, transformer_impl="local",
        moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none",
        num_layers_in_first_pipeline_stage=layout.first_stage_layers, num_layers_in_last_pipeline_stage=layout.last_stage_layers)
    config = TransformerConfig(**values)
    for name in [name for name in vars(args) if name.startswith("yarn_")]:  # read by the model, although no field of its configuration
        setattr(config, name, getattr(args, name))
    return config


def tanh_gelu(values):
    return F.gelu(values, approximate="tanh")
