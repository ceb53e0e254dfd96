"""Every argument of the trainer has a meaning in configs/models/args.toml: a new release adds some, and what they do to a model has to be looked up."""

import argparse
import importlib.metadata
import importlib.util
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import args_page

MAPS = Path(__file__).resolve().parents[2] / "configs" / "models"
# Arguments that patterns of training take, though their names have a word of models: looked up in the trainer's source, a model computes the same.
LOOKED_UP = set("""
    activation_offload_fraction apply_rope_fusion apply_wd_to_qk_layernorm attention_dropout dino_norm_last_layer dsa_indexer_loss_coeff
    dsa_indexer_use_sparse_loss embedding_init_method_std fused_residual_rmsnorm log_max_attention_logit log_params_norm logits_load_decode_threads
    logits_load_dir logits_load_ignore_errors logits_load_kd_loss_alpha logits_load_msc_prefetch_depth logits_load_prefetch_factor logits_save_dir
    logits_save_dtype logits_save_top_k logits_save_top_p logits_save_top_p_min_k loss_scale mamba_inference_conv_states_dtype
    mamba_inference_ssm_states_dtype mamba_training_ssm_states_dtype moe_deepep_num_sms moe_enable_deepep moe_enable_routing_replay
    moe_flex_dispatcher_backend moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute moe_hybridep_num_sms
    moe_hybridep_num_sms_preprocessing moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_static_shape moe_ncclep_zero_copy
    moe_pad_experts_for_cuda_graph_inference moe_paged_stash moe_paged_stash_buffer_size_factor_cpu moe_paged_stash_buffer_size_factor_cuda
    moe_paged_stash_page_size moe_per_layer_logging moe_permute_fusion moe_permute_fusion_into_hybridep moe_router_force_biased
    moe_router_force_load_balancing moe_router_padding_for_fp8 moe_router_padding_for_quantization moe_router_quantile_balancing_ema
    moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits moe_routing_trace_dump_weights moe_routing_trace_max_training_iters
    moe_routing_trace_path moe_token_dispatcher_type moe_upcycling_granularity moe_use_upcycling mtp_detach_heads mtp_loss_scaling_factor
    no_persist_layer_norm qk_clip qk_clip_alpha qk_clip_threshold
""".split())
LISTS = ("function_args", "layout_args", "structure_args", "training_args")


@pytest.mark.skipif(importlib.util.find_spec("megatron.training") is None, reason="this release of megatron-core has no megatron.training")
def test_the_table_has_every_argument_of_the_trainer():
    import megatron_release

    megatron_release.stand_in_for_cuda()
    from megatron.training.arguments import add_megatron_arguments

    table = tomllib.loads((MAPS / "args.toml").read_text())
    patterns = [pattern for name in LISTS for pattern in table[name]]
    arguments = {action.dest for action in add_megatron_arguments(argparse.ArgumentParser())._actions} - {"help"}
    assert len(arguments) > 600
    assert not sorted(name for name in arguments if not any(fnmatchcase(name, pattern) for pattern in patterns)), "in no list of args.toml"
    named = {pattern for pattern in patterns if "*" not in pattern}
    by_pattern = {name for name in arguments - named if any(fnmatchcase(name, word) for word in table["model_words"])}
    assert not by_pattern - LOOKED_UP, "look up what they do to a model, then add them to a list of args.toml, or here"


@pytest.mark.skipif(importlib.util.find_spec("megatron.training") is None, reason="this release of megatron-core has no megatron.training")
def test_the_page_of_arguments_says_which_this_release_has():
    import megatron_release

    megatron_release.stand_in_for_cuda()
    from megatron.training.arguments import add_megatron_arguments

    release = ".".join(importlib.metadata.version("megatron-core").split(".")[:2])
    arguments = {action.dest for action in add_megatron_arguments(argparse.ArgumentParser())._actions}
    stated = args_page.releases_by_argument()
    assert len(stated) > 100
    assert {name for name, releases in stated.items() if release in releases} == arguments & stated.keys(), "run tests/peers/args_page.py"
