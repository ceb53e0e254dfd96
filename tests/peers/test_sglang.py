"""Folders that the program makes against the parameters that SGLang's quantised layers register: names, dtypes and shapes of every module that is no expert.

In need of scripts/install_peers.sh vllm and scripts/install_peers.sh sglang. SGLang itself needs a GPU and is not run.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from family_models import save_family
from reshard_job import Program
from test_vllm import ENGINE, FAMILIES

SOURCES = ENGINE.parents[2] / "peers-sglang"
IS_THERE = ENGINE.exists() and SOURCES.exists()
pytestmark = [pytest.mark.long, pytest.mark.skipif(not IS_THERE, reason="SGLang is not there: scripts/install_peers.sh vllm, then sglang")]
NAMES = ("llama", "qwen2", "qwen3", "gemma3", "olmo2", "mixtral", "qwen3-moe", "qwen3-next", "deepseek-v3", "glm4-moe")
READ = {
    "fp8-block": {}, "fp8-block-transformers": dict(quant_for="transformers"), "fp8-channel": {}, "int4-group": dict(quant_block="32"),
    "int8-group": dict(quant_block="32"), "int8-channel": {}, "nvfp4": {}, "nvfp4-modelopt": dict(quant_for="modelopt")}
NOT_READ = {
    "mxfp8": "No compressed-tensors compatible scheme", "mxfp4": "No compressed-tensors compatible scheme",
    "mxfp8-modelopt": "weight_scale_inv", "fp8-block-modelopt": "'NoneType'", "fp8-channel-modelopt": "'NoneType'"}


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    root = tmp_path_factory.mktemp("sglang")
    made = []
    for name in NAMES:
        source = save_family(root / f"{name}-hf", FAMILIES[name])
        for form in READ if name != "llama" else READ | NOT_READ:
            quant = form.removesuffix("-transformers").removesuffix("-modelopt")
            more = READ.get(form) or (dict(quant_for="modelopt") if form.endswith("-modelopt") else {})
            made.append(Program(root).to_hf(source, root / f"{name}-{form}", target_options=dict(quant=quant) | more, ranks=1))
    script = Path(__file__).with_name("sglang_parameters.py")
    outcome = subprocess.run([ENGINE, script, SOURCES, *made], capture_output=True, text=True, timeout=1700, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])


@pytest.mark.parametrize("form", READ)
def test_every_part_is_a_parameter_of_its_shape(form, differences):
    for name in NAMES:
        assert not differences[f"{name}-{form}"], (name, differences[f"{name}-{form}"])


@pytest.mark.parametrize("form", NOT_READ)
def test_forms_that_it_does_not_read(form, differences):
    """docs/formats/quantised.md names them."""
    assert any(NOT_READ[form] in one for one in differences[f"llama-{form}"]), differences[f"llama-{form}"]
