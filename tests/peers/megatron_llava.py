"""Megatron-Core's own LLaVA on CPU ranks: a CLIP tower and a projection of its modules beside a GPTModel, as examples/multimodal builds it."""

from pathlib import Path

import torch
import torch.nn.functional as F

import megatron_models
from megatron_models import my_directory, run_ranks, start_parallel_state, transformer_config
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import LOCAL, Layout, ModelConfig
from tensor_patterns import DTYPES

MODEL = ModelConfig(layers=5, hidden=48, heads=6, groups=2, head_dim=8, ffn=60, vocab=90, vocab_divisor=128, norm_eps=1e-6, dtype="float32")
VISION = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, image_size=28, patch_size=14)


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def encoder_config(layout, **sizes):
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype = DTYPES[MODEL.dtype]
    return TransformerConfig(
        tensor_model_parallel_size=layout.tp, use_cpu_initialization=True, params_dtype=dtype, pipeline_dtype=dtype, add_bias_linear=True, add_qkv_bias=True,
        gated_linear_unit=False, hidden_dropout=0.0, attention_dropout=0.0, normalization="LayerNorm", layernorm_epsilon=1e-5, bias_activation_fusion=False,
        bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, **sizes)


def with_own_norms():
    """CLIPViTModel takes torch's LayerNorm where Transformer Engine is absent, which knows none of its arguments: megatron-core's own wrapper does."""
    from megatron.core.models.vision.clip_vit_model import CLIPViTModel
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    defaults = CLIPViTModel.__init__.__defaults__
    CLIPViTModel.__init__.__defaults__ = tuple(WrappedTorchNorm if value is torch.nn.LayerNorm else value for value in defaults)


def build(layout, parallel_state):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.multimodal.llava_model import LLaVAModel
    from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules

    with_own_norms()
    vision = encoder_config(layout, num_layers=VISION["num_hidden_layers"], hidden_size=VISION["hidden_size"],
                            num_attention_heads=VISION["num_attention_heads"], ffn_hidden_size=VISION["intermediate_size"], activation_func=quick_gelu)
    vision.vision_model_type = "clip"
    projection = encoder_config(layout, num_layers=1, hidden_size=MODEL.hidden, num_attention_heads=2, ffn_hidden_size=MODEL.hidden, activation_func=F.gelu)
    pp = parallel_state.get_pipeline_model_parallel_rank()
    return LLaVAModel(
        transformer_config(MODEL, layout, LOCAL), get_gpt_layer_local_spec(normalization="RMSNorm"), MODEL.padded_vocab(layout.tp), 128, vision,
        get_vit_layer_with_local_spec(), True, projection, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        language_position_embedding_type="rope", pre_process=pp == 0, post_process=pp == layout.pp - 1, add_encoder=pp == 0, img_h=28, img_w=28,
        patch_dim=14).eval()


def seen(model, images):
    """What the tower makes of images (all of its layers), and the projection of that."""
    # Its layers take a causal mask from their specification: patches see everything.
    patches = (images.shape[-1] // 14) ** 2 + 1
    tower = model.vision_model(images, torch.zeros(1, 1, patches, patches, dtype=torch.bool))
    return tower, model.vision_projection(tower)


def save_on_rank(rank, root, images, values):
    from checkpoint_args import shard_content, training_args

    layout = Layout()
    model = build(layout, start_parallel_state(layout))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values(name, parameter))
        result = seen(model, images)
    args = training_args(MODEL, layout, LOCAL, megatron_models.megatron_enums())
    folder = Path(root) / f"iter_{args.iteration:07d}" / "mp_rank_00"
    folder.mkdir(parents=True)
    torch.save(shard_content(args, {"model": model.state_dict_for_save_checkpoint()}), folder / SHARD_FILE)
    (Path(root) / "latest_checkpointed_iteration.txt").write_text(str(args.iteration))
    return result


def save(root, images, values):
    """One rank's checkpoint of a model with these values, and what it makes of images."""
    return run_ranks(save_on_rank, 1, str(root), images, values)[0]


def load_on_rank(rank, root, layout, images):
    parallel_state = start_parallel_state(layout)
    model = build(layout, parallel_state)
    content = torch.load(iteration_folder(root) / my_directory(layout, parallel_state) / SHARD_FILE, weights_only=False)
    model.load_state_dict(content["model"], strict=True)
    with torch.no_grad():
        return seen(model, images) if model.add_encoder else None


def load(root, layout, images):
    """Strictly into ranks of this layout; what those with a tower make of images."""
    return [result for result in run_ranks(load_on_rank, layout.world, str(root), layout, images) if result is not None]
