"""test_family_forward.py for the families of family_models_more.py and family_models_recent.py.

Megatron-Core has no multipliers but that of attention, no caps of scores and logits and one rotation for all layers: the models here have none of
these.
"""

from dataclasses import replace

import pytest
import torch

from dcp_cases import names_of
from family_forward import logits_in_megatron
from family_models import MOE_A, TOKENS, Family, logits_of, save_family
from family_models_more import FAMILIES, MULTIPLIERS, ROUTED, awkward, plain
from family_models_recent import FAMILIES as RECENT
from peer_types import LOCAL, Layout

pytestmark = pytest.mark.long

ATTENTION_ALONE = dict.fromkeys(MULTIPLIERS, 1.0) | dict(attention_multiplier=0.0625)
FAR_CAPS = dict(attn_logit_softcapping=1e6, final_logit_softcapping=1e6)
TP_2 = Layout(tp=2)


def with_constants(tensors):
    """The constants of xIELU as every published folder has them."""
    constants = {"beta": 0.5, "eps": -1e-6}
    return {name: torch.full_like(tensor, constants.get(name.split(".")[-1], 0)) if name.endswith(tuple(constants)) else tensor
            for name, tensor in tensors.items()}


CASES = {  # family -> layout
    "olmo2": (FAMILIES["olmo2"], Layout(pp=2, first_stage_layers=2)), "olmo3": (FAMILIES["olmo3"], Layout(pp=2, first_stage_layers=3)),
    "exaone4": (FAMILIES["exaone4"], Layout(tp=5)), "exaone4-full": (FAMILIES["exaone4-full"], TP_2), "gemma": (FAMILIES["gemma"], Layout(tp=3)),
    "gemma2": (Family(awkward("Gemma2", sliding_window=9, query_pre_attn_scalar=10, **FAR_CAPS), TP_2, TP_2), TP_2),
    "olmoe": (FAMILIES["olmoe"], Layout(pp=2, ep=2, first_stage_layers=3)), "olmoe-normed": (FAMILIES["olmoe-normed"], Layout(ep=2)),
    "dots1": (FAMILIES["dots1"], MOE_A),
    "granite-moe": (Family(plain("GraniteMoe", **ROUTED, **ATTENTION_ALONE, num_local_experts=6), MOE_A, MOE_A), MOE_A),
    "granite": (Family(plain("Granite", **ATTENTION_ALONE, attention_bias=True, mlp_bias=True), TP_2, TP_2), TP_2),
    "ernie-4.5": (FAMILIES["ernie-4.5"], Layout(tp=5)), "ernie-4.5-biases": (FAMILIES["ernie-4.5-biases"], TP_2),
    "seed-oss": (FAMILIES["seed-oss"], TP_2), "smollm3-windows": (FAMILIES["smollm3-windows"], TP_2), "phi3": (FAMILIES["phi3"], Layout(tp=3)),
    "ministral": (FAMILIES["ministral"], Layout(tp=3)),
    "arcee": (FAMILIES["arcee"], TP_2), "arcee-biases": (FAMILIES["arcee-biases"], TP_2),
    "starcoder2": (FAMILIES["starcoder2"], TP_2), "flex-olmo": (FAMILIES["flex-olmo"], Layout(pp=2, ep=2, first_stage_layers=3)),
    "trinity": (RECENT["trinity"], Layout(pp=2, ep=2, first_stage_layers=3)),
    "apertus": (replace(FAMILIES["apertus"], add=with_constants), TP_2),
}


@pytest.mark.parametrize("name", CASES)
def test_megatron_core_computes_the_same(name, program, scratch):
    family, layout = replace(CASES[name][0], dtype=torch.float32), CASES[name][1]
    folder = save_family(scratch / "folder", family)
    model = {"unmapped": "drop"} if family.keeps_parts else {}
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": layout.toml()} | names_of(LOCAL), model=model)
    found, expected = logits_in_megatron(tree, layout, TOKENS), logits_of(folder, family)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
