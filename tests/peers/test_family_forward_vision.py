"""megatron-core's forward pass with converted weights against that of transformers, for the families of family_models_vision.py: text alone, without towers."""

from dataclasses import replace

import pytest
import torch

from dcp_cases import names_of
from family_forward import logits_in_megatron
from family_models import MOE_A, TOKENS, logits_of, save_family
from family_models_vision import FAMILIES
from peer_types import LOCAL, Layout

pytestmark = pytest.mark.long

CASES = {  # family -> layout
    "qwen2-vl": Layout(tp=3), "qwen2.5-vl-flat": Layout(pp=2, first_stage_layers=2), "internvl-qwen3-moe": MOE_A, "qwen2-audio": Layout(tp=3),
    "qwen3-asr": Layout(tp=3), "glm4": Layout(tp=3), "glm4-tied": Layout(pp=2, first_stage_layers=2), "glm4v": Layout(tp=3), "glm4v-moe": MOE_A,
    "hy-v3": MOE_A, "solar-open": MOE_A, "nemotron": Layout(tp=3), "nemotron-biases": Layout(pp=2, first_stage_layers=2),
    "internlm3": Layout(tp=3), "exaone4.5": Layout(tp=3)}


@pytest.mark.parametrize("name", CASES)
def test_megatron_core_computes_the_same(name, program, scratch):
    family, layout = replace(FAMILIES[name], dtype=torch.float32), CASES[name]
    if family.ignored:  # layers for multi-token prediction, which this forward pass has none of
        family = replace(family, add=None)
    folder = save_family(scratch / "folder", family)
    model = {"unmapped": "drop"} if family.keeps_parts else {}
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": layout.toml()} | names_of(LOCAL), model=model)
    found, expected = logits_in_megatron(tree, layout, TOKENS), logits_of(folder, family)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
