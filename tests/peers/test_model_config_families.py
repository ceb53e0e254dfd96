"""The settings of config_cases.py on every way, and all families with the config that transformers writes: the long form of test_model_config.py.

Its last test prints how many settings were carried, set in args or warned of, by way.
"""

import collections
import re

import pytest
import torch

from config_cases import SETTINGS
from family_models import FAMILIES, logits_of, save_family
from family_models_hybrid import FAMILIES as HYBRID_FAMILIES
from family_models_remote import FAMILIES as REMOTE_FAMILIES
from family_models_vision import FAMILIES as VISION_FAMILIES
from test_model_config import WAYS, beside, convert, try_setting

pytestmark = pytest.mark.long

COUNTS = collections.Counter()
ALL = FAMILIES | HYBRID_FAMILIES | VISION_FAMILIES | REMOTE_FAMILIES
# What Megatron's args cannot hold of a default config: true warnings.
GEMMA3 = ["hidden_activation", "rope_parameters.sliding_attention.rope_theta"]
LLAMA4 = ["attention_chunk_size", "attn_scale", "attn_temperature_tuning", "floor_scale"]
TOLD = {"gemma3": GEMMA3, "gemma3-text": GEMMA3, "llama4": LLAMA4, "llama4-text": LLAMA4}
TOLD |= dict.fromkeys(["ministral3", "mistral3-ministral3"], ["rope_parameters.llama_4_scaling_beta"])
TOLD |= dict.fromkeys(["hunyuan-dense", "hunyuan-moe"], ["architectures"])  # norms of q and k behind the rotation: no member of its own says so


@pytest.mark.parametrize("name", list(SETTINGS))
def test_settings_come_back(name, program, scratch):
    for way, outcome in try_setting(program, SETTINGS[name], scratch, list(WAYS)).items():
        COUNTS[way, outcome] += 1


@pytest.mark.parametrize("name", list(ALL))
def test_families_keep_their_config(name, program, scratch):
    family = ALL[name]
    folder = save_family(scratch / "folder", family)
    keeps = {"model": {"unmapped": "keep"}} if family.keeps_parts else {}
    told = set()
    for way in ("megatron", "torch_dist", "dcp"):
        options = {} if way == "dcp" else keeps
        said = convert(program, folder, scratch / way, way, **options)
        told |= {key for part in said.split("config.json states ")[1:] for key in re.findall(r"([\w.]+) = ", part.split(", which Megatron")[0])}
        back = scratch / f"{way}-back"
        convert(program, scratch / way, back, "huggingface", **options)
        assert {file: text for file, text in beside(back).items() if "index" not in file} == {
            file: text for file, text in beside(folder).items() if "index" not in file}
        if family.computes:
            assert torch.equal(logits_of(back, family), logits_of(folder, family))
        COUNTS[f"family, {way}", "carried"] += 1
    assert told == set(TOLD.get(name, ())), "warnings"


def test_print_the_table(capsys):
    with capsys.disabled():
        print("\nway              outcome       count")
        for (way, outcome), count in sorted(COUNTS.items()):
            print(f"{way:16} {outcome:13} {count}")
