"""Deterministic pairs of valid layouts for one model each."""

import random

import cases
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout, ModelConfig
from pipeline_stages import chunks

DENSE = ModelConfig(layers=8, hidden=32, heads=8, groups=4, head_dim=8, ffn=48, vocab=90)
MODELS = {
    "dense": DENSE, "dense-tied": DENSE.with_(tied=True, qkv_bias=True, dtype="float32"),
    "dense-few-groups": DENSE.with_(groups=2, qk_norm=True),  # TP 8 cuts inside a group
    "dense-three": DENSE.with_(heads=6, groups=3, hidden=48, vocab=101),  # TP 3 and 6
    "moe": cases.QWEN3_MOE, "moe-mixed": cases.QWEN3_MOE_MIXED.with_(tied=True), "moe-f32": cases.QWEN3_MOE.with_(dtype="float32", vocab=77),
}
MAX_SHARDS = 64


def pairs(count, seed):
    """(id, config, form A, layout A, form B, layout B)"""
    generator = random.Random(seed)
    result = []
    for number in range(count):
        name = generator.choice(sorted(MODELS))
        config = MODELS[name]
        a, b = random_layout(generator, config), random_layout(generator, config)
        forms = [LOCAL, TE_SEQUENTIAL, TE_GROUPED] if config.experts else [LOCAL, TE_SEQUENTIAL]
        source, target = generator.choice(forms), generator.choice(forms)
        result.append((f"{number:02d}-{name}-{source.label()}-{a.label()}-{target.label()}-{b.label()}", config, source, a, target, b))
    return result


def random_layout(generator, config):
    while True:
        tp, pp = generator.choice([1, 2, 3, 4, 6, 8]), generator.choice([1, 2, 3, 4])
        etp = generator.choice([1, 2])
        ep = generator.choice([1, 2, 4, 8]) if config.experts else 1
        vpp = generator.choice([1, 2]) if pp > 1 else 1
        layout = Layout(tp, pp, vpp, ep, etp, **random_stages(generator, config, pp, vpp))
        if is_valid(config, layout):
            return layout


def random_stages(generator, config, pp, vpp):
    """Even stages, an own count for the first or last one, or an arbitrary layout string with empty stages."""
    kind = generator.choice(["even", "uneven", "string"]) if pp > 1 else "even"
    if kind == "uneven":
        return dict(first_stage_layers=generator.choice([None, 1, 2, 3, 4]), last_stage_layers=generator.choice([None, 1, 2, 3, 4]))
    if kind == "string":
        cuts = sorted(generator.randint(0, config.layers) for _ in range(pp * vpp - 1))
        counts = [end - start for start, end in zip([0, *cuts], [*cuts, config.layers])]
        return dict(pipeline="E" + "|".join("t" * count for count in counts) + "L")
    return {}


def is_valid(config, layout):
    """What Megatron itself would start with, and the format can express."""
    groups_fit = config.groups % layout.tp == 0 or layout.tp % config.groups == 0
    fits = config.heads % layout.tp == 0 and groups_fit and config.ffn % layout.tp == 0 and config.qkv_rows % layout.tp == 0
    grid = layout.tp % layout.etp == 0 and layout.world <= MAX_SHARDS
    try:
        chunks(config, layout)
    except AssertionError:
        return False
    return fits and grid
