"""The `args` namespace and the other non-tensor entries that training leaves in model_optim_rng.pt."""

import argparse
import random
import signal

import numpy
import torch

from tensor_patterns import DTYPES


def training_args(config, layout, form, enums=None):
    """Several dozen of the attributes Megatron saves. `enums` adds values of types that only Megatron itself can make."""
    sections = [model_args(config), moe_args(config), parallel_args(config, layout), run_args(config, form), enums or {}]
    merged = {name: value for section in sections for name, value in section.items()}
    return argparse.Namespace(**merged)


def model_args(config):
    return dict(
        num_layers=config.layers, hidden_size=config.hidden, ffn_hidden_size=config.ffn, num_attention_heads=config.heads,
        kv_channels=config.head_dim, group_query_attention=config.groups != config.heads, num_query_groups=config.groups,
        max_position_embeddings=128, seq_length=64, position_embedding_type="rope", use_rotary_position_embeddings=True,
        rotary_base=config.rope_base, rotary_percent=1.0, rotary_interleaved=False, rotary_seq_len_interpolation_factor=None,
        use_rope_scaling=False, normalization="RMSNorm", norm_epsilon=config.norm_eps, apply_layernorm_1p=False, swiglu=config.gated,
        squared_relu=not config.gated, openai_gelu=False, add_bias_linear=False, add_qkv_bias=config.qkv_bias, qk_layernorm=config.qk_norm,
        untie_embeddings_and_output_weights=not config.tied, make_vocab_size_divisible_by=config.vocab_divisor, vocab_size=config.vocab,
        multi_latent_attention=False, attention_output_gate=False, mtp_num_layers=None, hybrid_layer_pattern=None,
        attention_dropout=0.0, hidden_dropout=0.0, init_method_std=0.02, bert_binary_head=True, spec=None)


def moe_args(config):
    frequency = [int(config.is_moe(layer)) for layer in range(config.layers)] if config.moe_layers is not None else 1
    return dict(
        num_experts=config.experts or None, moe_ffn_hidden_size=config.expert_ffn if config.experts else None, moe_layer_freq=frequency,
        moe_router_topk=config.top_k, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.001, moe_router_dtype="fp32",
        moe_router_pre_softmax=False, moe_router_score_function="softmax", moe_router_enable_expert_bias=False,
        moe_shared_expert_intermediate_size=None, moe_token_dispatcher_type="allgather", moe_extended_tp=False)


def parallel_args(config, layout):
    vpp = layout.vpp if layout.vpp > 1 else None
    per_chunk = config.layers // (layout.pp * layout.vpp) if vpp and not layout.pipeline else None
    return dict(
        tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp, virtual_pipeline_model_parallel_size=vpp,
        num_layers_per_virtual_pipeline_stage=per_chunk, num_virtual_stages_per_pipeline_rank=None, expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp, context_parallel_size=1, data_parallel_size=1, world_size=layout.world,
        decoder_first_pipeline_num_layers=layout.first_stage_layers, decoder_last_pipeline_num_layers=layout.last_stage_layers,
        pipeline_model_parallel_layout=layout.pipeline, account_for_embedding_in_pipeline_split=False,
        account_for_loss_in_pipeline_split=False, sequence_parallel=False, padded_vocab_size=config.padded_vocab(layout.tp))


def run_args(config, form):
    return dict(
        transformer_impl="transformer_engine" if form.impl == "te" else "local", moe_grouped_gemm=form.experts == "grouped",
        params_dtype=DTYPES[config.dtype], bf16=config.dtype == "bfloat16", fp16=config.dtype == "float16", fp8=None,
        iteration=1000, consumed_train_samples=64000, consumed_valid_samples=0, skipped_train_samples=0, micro_batch_size=1,
        global_batch_size=64, train_iters=2000, lr=3e-4, min_lr=3e-5, lr_decay_style="cosine", weight_decay=0.1, adam_beta1=0.9,
        adam_beta2=0.95, adam_eps=1e-8, clip_grad=1.0, seed=1234, optimizer="adam", use_distributed_optimizer=False, tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=None, data_path=["corpus", "0.5", "more"], split="99,1,0", save="checkpoints", load=None, ckpt_format="torch",
        use_dist_ckpt=False, exit_signal=signal.SIGTERM, log_interval=10, rank=0, local_rank=0, non_persistent_save_interval=None)


def scheduler_state():
    return dict(
        max_lr=3e-4, lr_warmup_steps=0.0, num_steps=64000, lr_decay_style="cosine", lr_decay_steps=128000, min_lr=3e-5, start_wd=0.1,
        end_wd=0.1, wd_incr_style="constant", wd_incr_steps=128000)


def random_state():
    """The rng entry of one data-parallel rank: Python tuples, a numpy array and uint8 tensors."""
    numpy_state = numpy.random.RandomState(7).get_state()
    return [dict(
        random_rng_state=random.Random(7).getstate(), np_rng_state=numpy_state, torch_rng_state=torch.Generator().manual_seed(7).get_state(),
        cuda_rng_state=torch.zeros(16, dtype=torch.uint8), rng_tracker_states={"model-parallel-rng": torch.ones(16, dtype=torch.uint8)})]


def optimizer_state():
    """A stand-in of the inline optimizer entry: enough to be recognised as optimizer state."""
    moments = {0: {"step": torch.tensor(1000.0), "exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4)}}
    groups = [{"lr": 1e-4, "params": [0]}]
    return {"optimizer": {"state": moments, "param_groups": groups}, "fp32_from_fp16_params": [[torch.ones(4)]]}


def shard_content(args, models, with_optimizer=False, with_rng=False):
    """The top-level dict of one shard; `models` maps "model" or "model0".. to state dicts."""
    content = {"args": args, "checkpoint_version": 3.0, "iteration": args.iteration, **models}
    content["num_floating_point_operations_so_far"] = 123456789.0
    content["opt_param_scheduler"] = scheduler_state()
    if with_optimizer:
        content["optimizer"] = optimizer_state()
    if with_rng:
        content["rng_state"] = random_state()
    return content
