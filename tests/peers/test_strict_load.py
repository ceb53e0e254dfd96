"""What a strict load into megatron-core's own GPTModel says of every family's tree is what the program said while it wrote it: mostly nothing."""

import re

import family_models
import family_models_hybrid
from dcp_cases import names_of
from family_models import MOE, ROUTED, Family, dense, save_family
from peer_types import LOCAL, Layout
from strict_load import judge

ONE = Layout()


def plain(make):
    return Family(make, ONE, ONE)


# Biases of one side: one switch of Megatron's stands for several of Hugging Face's.
BIASES = {
    "llama-attention-bias": plain(dense("Llama", attention_bias=True)), "llama-mlp-bias": plain(dense("Llama", mlp_bias=True)),
    "qwen3-attention-bias": plain(dense("Qwen3", attention_bias=True)),
    "qwen3-moe-attention-bias": plain(dense("Qwen3Moe", **MOE, num_experts=6, attention_bias=True)),
    "gpt-oss-without-attention-bias": plain(dense("GptOss", **ROUTED, attention_bias=False)),
    "qwen2-moe-without-bias": plain(dense("Qwen2Moe", **MOE, num_experts=6, shared_expert_intermediate_size=40, qkv_bias=False)),
    "glm4-moe-without-bias": plain(dense("Glm4Moe", **family_models.GLM, attention_bias=False)),
}
FAMILIES = family_models.FAMILIES | family_models_hybrid.FAMILIES | BIASES
QUICK = ("llama-tied", "gpt-oss", "glm4-moe-mtp", "deepseek-v3")

# Families whose layers megatron-core cannot build without Transformer Engine, or at all, and the words it has for that.
UNBUILT = {
    **dict.fromkeys(("deepseek-v3.2", "glm-5", "glm-5-shared-indexers"), "dsa needs Transformer Engine"),
    **dict.fromkeys(("qwen3-next", "qwen3.5", "qwen3.5-moe-text", "qwen3.5-moe"), "gated_delta_net needs Transformer Engine"),
    **dict.fromkeys(("mamba2", "mamba2-tied", "nemotron-h", "nemotron-3", "nemotron-3-latent"), "Mamba layers need Transformer Engine"),
    **dict.fromkeys(("deepseek-v4", "deepseek-v4-published"), "dsv4_hybrid needs Transformer Engine")}

SAID = {"missing": r"asks for (\d+) more", "unexpected": r"does not know (\d+)", "shapes": r"has other shapes for (a|\d+) tensor"}


def said(outcome):
    """What the program warned of, counted."""
    note = "".join(line for line in outcome.stderr.splitlines() if "Megatron-Core's own model" in line)
    counts = {kind: re.search(pattern, note) for kind, pattern in SAID.items()}
    return {kind: (1 if match[1] == "a" else int(match[1])) if match else 0 for kind, match in counts.items()}


def verdicts(families, program, scratch):
    trees, notes = {}, {}
    for name, family in families.items():
        folder = save_family(scratch / f"{name}-folder", family)
        model = {"unmapped": "drop"} if family.keeps_parts else {}
        outcome = program.attempt(
            folder, scratch / name, "megatron", ranks=1, target_options={"layout": ONE.toml()} | names_of(LOCAL), model=model)
        assert outcome.returncode == 0, f"{name}: {outcome.stderr[-1500:]}"
        trees[name], notes[name] = scratch / name, said(outcome)
    return {name: (found, notes[name]) for name, found in judge(trees).items()}


def check(names, program, scratch):
    found = verdicts({name: FAMILIES[name] for name in names}, program, scratch)
    unbuilt = {name: verdict["cannot be built"] for name, (verdict, _) in found.items() if "cannot be built" in verdict}
    assert {name: UNBUILT.get(name, "") in why for name, why in unbuilt.items()} == {name: True for name in names if name in UNBUILT}, unbuilt
    judged = {name: pair for name, pair in found.items() if name not in unbuilt}
    wrong = {name: pair for name, pair in judged.items() if {kind: len(keys) for kind, keys in pair[0].items()} != pair[1]}
    assert not wrong, wrong


def test_some_families(program, scratch):
    check(QUICK, program, scratch)
