"""Models and layout changes of the `torch_dist` tests, and what holds for every one of them."""

import torch

import cases
from dcp_checkpoints import World, key_values
from dcp_models import Recipe
from megatron_release import read_common
from numpy_megatron import iteration_folder
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from tensor_patterns import same_bits

TOKENS = (torch.arange(24).reshape(2, 12) * 7) % 32
DENSE = cases.QWEN3.with_(layers=4, dtype="float32")
MOE = cases.QWEN3_MOE.with_(layers=2, dtype="float32")
MIXED = cases.QWEN3_MOE_MIXED.with_(layers=3, moe_layers=(1, 2), experts=4, dtype="float32")
UNGATED = cases.PLAIN_MLP.with_(layers=2, dtype="float32")
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_head_dim=8, qk_pos_emb_head_dim=8, v_head_dim=8, rope_type="rope")
SHARED = dict(moe_shared_expert_intermediate_size=48, moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid")
MLA = cases.LLAMA.with_(layers=2, groups=4, qk_norm=True, dtype="float32")
LATENT_MOE = cases.LLAMA.with_(layers=3, groups=4, qk_norm=True, experts=4, moe_layers=(1, 2), dtype="float32")

CHANGES = {  # name -> (recipe, form, source layout, target layout)
    "dense": (Recipe(DENSE), LOCAL, Layout(tp=2, pp=2), Layout(tp=4)),
    "dense-virtual": (Recipe(DENSE), LOCAL, Layout(), Layout(tp=2, pp=2, vpp=2)),
    "dense-te": (Recipe(DENSE), TE_SEQUENTIAL, Layout(tp=2), Layout(pp=4)),
    "tied-bf16": (Recipe(cases.LLAMA_TIED.with_(layers=4, dtype="bfloat16")), LOCAL, Layout(tp=2), Layout(pp=2)),
    "biases": (Recipe(cases.LLAMA.with_(layers=2, dtype="float32"), layer_norm=True), LOCAL, Layout(tp=2), Layout(pp=2)),
    "no-gate": (Recipe(UNGATED, layer_norm=True, position="learned_absolute"), LOCAL, Layout(pp=2), Layout(tp=4)),
    "more-ranks-than-groups": (Recipe(cases.QWEN2.with_(layers=2, dtype="float32")), LOCAL, Layout(tp=2), Layout(tp=8)),
    "moe": (Recipe(MOE), LOCAL, Layout(tp=2, ep=2), Layout(ep=4)),
    "moe-etp": (Recipe(MOE), LOCAL, Layout(tp=2, ep=2, etp=2), Layout(tp=2, pp=2, ep=2)),
    "moe-grouped": (Recipe(MOE), TE_GROUPED, Layout(ep=8), Layout(tp=2, ep=2, etp=2)),
    "mixed": (Recipe(MIXED), LOCAL, Layout(ep=2), Layout(tp=2, pp=1, ep=4)),
    "mla": (Recipe(MLA, LATENT, mla=True), LOCAL, Layout(tp=2), Layout(tp=1, pp=2)),
    "mla-moe-shared": (Recipe(LATENT_MOE, LATENT | SHARED, mla=True), LOCAL, Layout(tp=2, ep=2), Layout(tp=2, ep=4)),
    "mtp": (Recipe(DENSE.with_(layers=2), mtp=1), LOCAL, Layout(tp=2, pp=2), Layout(tp=1)),
}


def worlds(name):
    recipe, form, source, target = CHANGES[name]
    return World(recipe, source, form), World(recipe, target, form)


def tokens_of(world):
    """Multi token prediction computes only with labels."""
    return None if world.recipe.mtp else TOKENS


def assert_holds_its_values(tensors, world):
    wrong = [key for key, tensor in tensors.items() if not same_bits(tensor, key_values(key, tensor.shape, tensor.dtype, world.recipe.config))]
    assert not wrong, f"{len(wrong)} of {len(tensors)} tensors differ, first {wrong[:4]}"


def assert_close(found, expected):
    if found is not None:
        tolerance = 1e-4 if found.dtype == torch.float32 else 0.3
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def to_torch_dist(program, source, target, layout, target_options=None, **options):
    return program.run(source, target, "torch_dist", target_options={"layout": layout.toml()} | (target_options or {}), **options)


def names_of(form):
    """The target options that ask for a form's names."""
    return {"transformer_impl": "transformer_engine" if form.impl == "te" else "local", "experts": form.experts}


def common_of(root):
    return read_common(iteration_folder(root))


def comparable_common(common):
    """What training leaves beside tensors; a namespace equals another by its attributes."""
    return {key: vars(value) if key == "args" else value for key, value in common.items()}


def vocabulary_of(world):
    """Rows behind the vocabulary are padding to a number that depends on TP."""
    return lambda key, tensor: tensor[: world.recipe.config.vocab] if "word_embeddings" in key or "output_layer" in key else tensor


def optimizer_worlds(name):
    """Two data parallel replicas of a dense model, or of the dense part of one with experts, in two layouts."""
    configs = {"dense": DENSE.with_(layers=2, dtype="bfloat16"), "dense-f32": DENSE.with_(layers=2), "moe": MOE.with_(experts=4, dtype="bfloat16")}
    config = configs[name]
    layouts = (Layout(tp=2, ep=2), Layout(ep=4)) if config.experts else (Layout(tp=2), Layout(pp=2))
    return [World(Recipe(config), layout, replicas=1 if config.experts else 2) for layout in layouts]
