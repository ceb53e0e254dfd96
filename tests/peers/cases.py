"""The models and the table of layout changes used by the end-to-end tests."""

from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Form, Layout, ModelConfig

LLAMA = ModelConfig(layers=8)
LLAMA_TIED = LLAMA.with_(tied=True, dtype="float32")
LLAMA_SQUARE = LLAMA.with_(heads=4, groups=4, ffn=32, vocab=32)  # every matrix square: orientation mistakes keep the shape
QWEN2 = LLAMA.with_(family="qwen2", qkv_bias=True, heads=8, groups=2, head_dim=8, hidden=64)
QWEN3 = LLAMA.with_(family="qwen3", qk_norm=True, heads=8, groups=4, head_dim=24, hidden=40, vocab=77)  # heads*head_dim != hidden
QWEN3_MOE = LLAMA.with_(family="qwen3_moe", qk_norm=True, experts=8, heads=8, groups=4, head_dim=8, hidden=32)
QWEN3_MOE_MIXED = QWEN3_MOE.with_(moe_layers=(1, 2, 5, 7))
MIXTRAL = LLAMA.with_(family="mixtral", experts=4, dtype="float32")
PLAIN_MLP = LLAMA.with_(gated=False)

FAMILIES = {
    "llama": LLAMA, "llama-tied-f32": LLAMA_TIED, "llama-square": LLAMA_SQUARE, "llama-f32": LLAMA.with_(dtype="float32"), "qwen2": QWEN2,
    "qwen3": QWEN3, "qwen3-moe": QWEN3_MOE, "qwen3-moe-mixed": QWEN3_MOE_MIXED, "qwen3-moe-f32": QWEN3_MOE.with_(dtype="float32"),
    "mixtral": MIXTRAL, "mixtral-bf16": MIXTRAL.with_(dtype="bfloat16"),
}

TE_NORMS = Form("te", "grouped", norm_extra_state=True)
TE_BYTES = Form("te", "sequential", extra_state="bytes")

DENSE_CHANGES = [
    (Layout(tp=2, pp=2), Layout(tp=4)),
    (Layout(tp=1), Layout(tp=2, pp=4, vpp=2)),
    (Layout(pp=2, vpp=4), Layout(pp=4, first_stage_layers=1, last_stage_layers=3)),
    (Layout(tp=4, pp=3, first_stage_layers=4), Layout(pp=2, vpp=2, pipeline="Et|t*3|tt|ttL")),
]
MOE_CHANGES = [
    (Layout(tp=2, pp=2, ep=2, etp=2), Layout(tp=1, ep=8)),
    (Layout(tp=2, ep=4), Layout(tp=4, pp=2, ep=2, etp=2)),  # holes in the (tp, ep) grid on both sides
    (Layout(tp=4, ep=2, etp=1), Layout(pp=4, vpp=2, ep=4)),
    (Layout(pp=3, ep=2, first_stage_layers=3, last_stage_layers=3), Layout(tp=2, pp=4, ep=8, etp=2, pipeline="Et*3||t*5|L")),
]


def change_id(change):
    name, _, source_form, source, target_form, target = change
    return f"{name}-{source_form.label()}-{source.label()}-to-{target_form.label()}-{target.label()}"


def megatron_changes():
    """(name, config, source form, source layout, target form, target layout)."""
    rows = [("llama", LLAMA, LOCAL, a, LOCAL, b) for a, b in DENSE_CHANGES]
    rows += [("moe", QWEN3_MOE, TE_GROUPED, a, TE_GROUPED, b) for a, b in MOE_CHANGES]
    rows += [("mixed", QWEN3_MOE_MIXED, LOCAL, a, LOCAL, b) for a, b in MOE_CHANGES[:3]]
    plain = Layout(tp=2, pp=2), Layout(tp=4, pp=4)
    moe = Layout(tp=2, ep=2, etp=2), Layout(tp=4, pp=2, ep=4, etp=1)
    return rows + [
        ("tied", LLAMA_TIED, LOCAL, Layout(tp=2), LOCAL, Layout(pp=4)),
        ("tied", LLAMA_TIED, TE_SEQUENTIAL, Layout(pp=2), TE_SEQUENTIAL, Layout(tp=4)),
        ("square", LLAMA_SQUARE, TE_SEQUENTIAL, plain[0], LOCAL, plain[1]),
        ("qwen2", QWEN2, LOCAL, plain[0], TE_SEQUENTIAL, Layout(tp=8)),
        ("qwen3", QWEN3, TE_SEQUENTIAL, *[plain[0]], TE_SEQUENTIAL, plain[1]),
        ("plain-mlp", PLAIN_MLP, LOCAL, plain[0], LOCAL, plain[1]),
        ("mixtral", MIXTRAL, LOCAL, moe[0], TE_GROUPED, moe[1]),
        ("mixed", QWEN3_MOE_MIXED, TE_GROUPED, moe[0], LOCAL, moe[1]),
        ("mixed", QWEN3_MOE_MIXED, TE_SEQUENTIAL, moe[0], TE_GROUPED, moe[1]),
        ("norm-extras", QWEN3_MOE, TE_NORMS, moe[0], TE_NORMS, moe[1]),
        ("bytes-extras", QWEN3_MOE, TE_BYTES, moe[0], TE_BYTES, moe[1]),
    ]
