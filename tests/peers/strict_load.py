"""megatron-core's GPTModel, made from the args of a converted tree and from its own local layers, judges the tree by a load without tolerance.

One process for all trees: megatron-core is imported once.
"""

import dataclasses

import torch

import megatron_models
from family_forward import core_config
from megatron_models import SHARD_FILE, iteration_folder
from megatron_release import with_own_names
from peer_types import Layout

ONE = Layout()


def judge(trees):
    """Name -> what a strict load says: missing, unexpected and other shapes; or why the model cannot be built here."""
    return megatron_models.run_ranks(on_rank, 1, {name: str(root) for name, root in trees.items()})[0]


def on_rank(rank, trees):
    from dcp_models import OnCpu

    OnCpu().__enter__()
    parallel_state = megatron_models.start_parallel_state(ONE)
    return {name: verdict(root, parallel_state) for name, root in trees.items()}


def verdict(root, parallel_state):
    content = torch.load(iteration_folder(root) / megatron_models.my_directory(ONE, parallel_state) / SHARD_FILE, weights_only=False)
    try:
        model = build(content["args"])
    except Exception as error:  # noqa: BLE001: what cannot be built is said, and expected by name
        return {"cannot be built": f"{type(error).__name__}: {error}"}
    stored, own = with_own_names(content["model"]), {key: value for key, value in model.state_dict().items() if torch.is_tensor(value)}
    tensors = {key: value for key, value in stored.items() if torch.is_tensor(value)}
    found = dict(
        missing=sorted(own.keys() - tensors.keys()), unexpected=sorted(tensors.keys() - own.keys()),
        shapes=sorted(key for key in own.keys() & tensors.keys() if own[key].shape != tensors[key].shape))
    if not any(found.values()):
        model.load_state_dict(stored, strict=True)
    return found


def build(args):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec

    if getattr(args, "hybrid_layer_pattern", None):
        raise NotImplementedError("Mamba layers need Transformer Engine's linears")
    if getattr(args, "experimental_attention_variant", None):
        raise NotImplementedError(f"{args.experimental_attention_variant} needs Transformer Engine's linears")
    config = latent_config(args) if getattr(args, "multi_latent_attention", False) else core_config(args, ONE)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization)
    if getattr(args, "multi_latent_attention", False):
        with_plain_attention(spec)
    depths = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False) if getattr(args, "mtp_num_layers", None) else None
    position = "rope" if args.position_embedding_type == "mrope" else args.position_embedding_type
    return GPTModel(
        config, spec, vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings, position_embedding_type=position,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights, mtp_block_spec=depths)


def latent_config(args):
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    plain = core_config(args, ONE)
    values = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain) if field.init}
    latent = {field.name: getattr(args, field.name) for field in dataclasses.fields(MLATransformerConfig) if getattr(args, field.name, None) is not None}
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")
    return MLATransformerConfig(**values | {name: latent.get(name) for name in names if name in latent or name == "q_lora_rank"})


def with_plain_attention(block):
    """megatron-core's attention without Transformer Engine knows one size of heads; names and shapes of weights do not depend on it."""
    from megatron.core.transformer import multi_latent_attention

    from megatron_hybrid import CausalAttention

    multi_latent_attention.TELinear = type("Absent", (), {})  # asked for with isinstance, and None without Transformer Engine
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = CausalAttention
