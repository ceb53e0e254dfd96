"""Real megatron-core models on CPU: one gloo process per rank builds its stage, loads its shard strictly and takes part in a forward pass.

What is changed so that megatron-core runs without CUDA (see `prepare_cpu`):
- `torch.cuda.current_device` names the CPU, because megatron-core allocates buffers and moves router weights to that device;
- `torch.Tensor.cuda` returns the tensor, because tied embeddings call it before their all-reduce between stages (both, and more for later releases,
  in `megatron_release.stand_in_for_cuda`);
- `moe_utils.te_general_gemm` is set to None: its import guard leaves the name undefined when Transformer Engine is absent;
- the RNG tracker is megatron-core's own inference tracker, whose fork does nothing (the training one reads CUDA generator state).
The attention mask is passed explicitly, because the default one is created on the CUDA device. Tokens go through the all-gather
dispatcher: the all-to-all one creates a CUDA stream. The legacy GroupedMLP (`weight1`, `weight2`) needs a CUDA-only package and is left out.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import gloo_ranks
import megatron_release
from numpy_megatron import SHARD_FILE, iteration_folder, model_key, shard_directory, write_tree
from tensor_patterns import DTYPES

torch.set_num_threads(1)


# --- running a function on every rank -----------------------------------------------------------------------------


def run_ranks(function, world, *arguments, preload="megatron_preload"):
    """Calls function(rank, *arguments) in `world` processes joined by gloo and returns the results by rank."""
    return gloo_ranks.run_ranks(on_cpu, world, (function, arguments), preload)


def on_cpu(rank, function, arguments):
    prepare_cpu()
    return function(rank, *arguments)


def prepare_cpu():
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer.moe import moe_utils

    megatron_release.stand_in_for_cuda()
    moe_utils.te_general_gemm = None
    initialize_rng_tracker(inference_rng_tracker=True)


# --- building -----------------------------------------------------------------------------------------------------


def start_parallel_state(layout):
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, layout.vpp if layout.vpp > 1 else None, expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp)
    return parallel_state


def transformer_config(config, layout, form):
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = DTYPES[config.dtype]
    moe = dict(
        num_moe_experts=config.experts, moe_ffn_hidden_size=config.expert_ffn, moe_router_topk=config.top_k, moe_router_dtype="fp32",
        moe_layer_freq=[int(config.is_moe(layer)) for layer in range(config.layers)], moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none", moe_grouped_gemm=form.experts == "grouped") if config.experts else {}
    return TransformerConfig(
        num_layers=config.layers, hidden_size=config.hidden, num_attention_heads=config.heads, num_query_groups=config.groups,
        kv_channels=config.head_dim, ffn_hidden_size=config.ffn, use_cpu_initialization=True, tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp, virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp, pipeline_dtype=dtype, params_dtype=dtype,
        num_layers_in_first_pipeline_stage=layout.first_stage_layers, num_layers_in_last_pipeline_stage=layout.last_stage_layers,
        pipeline_model_parallel_layout=layout.pipeline, bf16=config.dtype == "bfloat16", add_bias_linear=False,
        add_qkv_bias=config.qkv_bias, gated_linear_unit=config.gated, activation_func=F.silu, normalization="RMSNorm",
        layernorm_epsilon=config.norm_eps, qk_layernorm=config.qk_norm, hidden_dropout=0.0, attention_dropout=0.0,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, **moe)


def block_spec(config, core_config, form, vpp_stage):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    if form.impl == "local" and config.experts:
        return get_gpt_decoder_block_spec(core_config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vpp_stage)
    if form.impl == "local":
        return get_gpt_layer_local_spec(qk_layernorm=config.qk_norm, normalization="RMSNorm")
    from te_stand_ins import layer_spec, norm_module

    first = get_transformer_layer_offset(core_config, vpp_stage)
    layers = range(first, first + get_num_layers_to_build(core_config, vpp_stage))
    specs = [layer_spec(core_config, config.is_moe(layer), form) for layer in layers]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm_module(form))


def build_chunks(config, layout, form, parallel_state):
    """This rank's model chunks, one per virtual stage, as megatron-core builds them."""
    from megatron.core.models.gpt import GPTModel

    core_config = transformer_config(config, layout, form)
    pp = parallel_state.get_pipeline_model_parallel_rank()
    models = []
    for vpp in range(layout.vpp):
        stage = vpp if layout.vpp > 1 else None
        model = GPTModel(
            core_config, block_spec(config, core_config, form, stage), vocab_size=config.padded_vocab(layout.tp), max_sequence_length=128,
            pre_process=pp == 0 and vpp == 0, post_process=pp == layout.pp - 1 and vpp == layout.vpp - 1, position_embedding_type="rope",
            rotary_base=config.rope_base, share_embeddings_and_output_weights=config.tied, vp_stage=stage)
        # Training wraps the model in Float16Module, which casts every parameter: torch's own norms would stay float32 otherwise.
        models.append(model.to(DTYPES[config.dtype]).eval())
    return models


# --- loading, running, saving -------------------------------------------------------------------------------------


def my_directory(layout, parallel_state):
    return shard_directory(
        layout, parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_rank())


def load_strictly(models, content, layout):
    for vpp, model in enumerate(models):
        model.load_state_dict(content[model_key(layout, vpp)], strict=True)


def forward(models, tokens, config, layout, parallel_state):
    """Runs the chunks in model order, passing activations between pipeline ranks; the last stage returns full-vocabulary logits."""
    pp, group = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_group()
    length = tokens.shape[1]
    positions = torch.arange(length)[None].expand_as(tokens)
    mask = torch.triu(torch.ones(length, length), diagonal=1).bool()[None, None]
    hidden = torch.empty(length, tokens.shape[0], config.hidden, dtype=DTYPES[config.dtype])
    for stage in range(layout.pp * layout.vpp):
        owner = stage % layout.pp
        if owner != pp:
            continue
        if stage > 0 and layout.pp > 1:
            dist.recv(hidden, group_src=(owner - 1) % layout.pp, group=group)
        models[stage // layout.pp].set_input_tensor(hidden if stage > 0 else None)
        hidden = models[stage // layout.pp](tokens, positions, mask)
        if stage < layout.pp * layout.vpp - 1 and layout.pp > 1:
            dist.send(hidden.contiguous(), group_dst=(owner + 1) % layout.pp, group=group)
    if pp != layout.pp - 1:
        return None
    parts = [torch.empty_like(hidden) for _ in range(layout.tp)]
    dist.all_gather(parts, hidden.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=-1)[..., : config.vocab]


def logits_on_rank(rank, root, config, layout, form, tokens):
    parallel_state = start_parallel_state(layout)
    models = build_chunks(config, layout, form, parallel_state)
    content = torch.load(iteration_folder(root) / my_directory(layout, parallel_state) / SHARD_FILE, weights_only=False)
    load_strictly(models, content, layout)
    with torch.no_grad():
        return forward(models, tokens, config, layout, parallel_state)


def load_and_logits(root, config, layout, form, tokens):
    """Strictly loads every shard into megatron-core ranks of this layout and returns the logits, close on all ranks that have them.

    Replicas are not bit-equal: gloo's reduce-scatter adds in an order that depends on the rank."""
    results = run_ranks(logits_on_rank, layout.world, str(root), config, layout, form, tokens)
    logits = [result for result in results if result is not None]
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-5, atol=1e-5 if config.dtype == "float32" else 0.1)
    return logits[0]


def save_on_rank(rank, root, config, layout, form, source):
    """Each rank saves what its own models hold after a strict load of `source`, under the name its own coordinates give."""
    from checkpoint_args import shard_content, training_args

    parallel_state = start_parallel_state(layout)
    models = build_chunks(config, layout, form, parallel_state)
    name = my_directory(layout, parallel_state)
    load_strictly(models, torch.load(iteration_folder(source) / name / SHARD_FILE, weights_only=False), layout)
    states = {model_key(layout, vpp): model.state_dict_for_save_checkpoint() for vpp, model in enumerate(models)}
    args = megatron_release.args_of_release(training_args(config, layout, form, megatron_enums()))
    folder = Path(root) / f"iter_{args.iteration:07d}" / name
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(shard_content(args, states), folder / SHARD_FILE)


def megatron_enums():
    """Attributes of real args whose values are instances of megatron-core's own enums."""
    from megatron.core.enums import ModelType
    from megatron.core.transformer.enums import AttnBackend

    return dict(attention_backend=AttnBackend.auto, model_type=ModelType.encoder_or_decoder)


def save_megatron(root, config, layout, form, global_tensors):
    """Writes a checkpoint with megatron-core itself; the weights are the given global tensors, whatever the layout."""
    with tempfile.TemporaryDirectory() as source:
        write_tree(source, config, layout, form, global_tensors)
        run_ranks(save_on_rank, layout.world, str(root), config, layout, form, source)
    (Path(root) / "latest_checkpointed_iteration.txt").write_text("1000")
    return Path(root)
