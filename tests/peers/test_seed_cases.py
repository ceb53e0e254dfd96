"""Cases that went wrong in other converters: colliding expert ids, sidecars written by several ranks."""

import re
from collections import Counter

import pytest

import hf_models
from numpy_megatron import write_tree
from peer_types import TE_GROUPED, Layout, ModelConfig
from reshard_job import RECORDS
from tensor_patterns import assert_same_tensors, make_globals
from tree_checks import check_tree, with_written_divisor, with_written_norms

MANY_EXPERTS = ModelConfig(
    family="qwen3_moe", layers=9, hidden=16, heads=2, groups=1, head_dim=8, vocab=64, vocab_divisor=16, experts=512, expert_ffn=4, qk_norm=True)
MANY_RANKS = Layout(tp=1, pp=9, ep=8)
SIDECARS = {
    "tokenizer.json": '{"version": "1.0"}\n', "tokenizer_config.json": "{}\n", "merges.txt": "#version: 0.2\n", "chat_template.jinja": "{{ x }}\n",
    "modeling_custom.py": "# remote code\n", "LICENSE": "words\n"}


@pytest.mark.long_but("4")
@pytest.mark.parametrize("ranks", [1, 4, 7])
def test_512_experts_of_8_ep_by_9_pp_ranks_each_arrive_once(ranks, program, scratch):
    tensors = make_globals(MANY_EXPERTS)
    original = write_tree(scratch / "source", MANY_EXPERTS, MANY_RANKS, TE_GROUPED, tensors)
    reference = scratch / "reference"
    hf_models.hf_config(MANY_EXPERTS).save_pretrained(reference)
    for name, text in SIDECARS.items():
        (reference / name).write_text(text)
    there = program.to_hf(original, scratch / "there", ranks=ranks, target_options={"reference": reference})
    state = hf_models.read_hf(there)
    assert_every_expert_once(state)
    assert_same_tensors(state, hf_models.globals_to_hf(MANY_EXPERTS, tensors))
    assert_one_copy_of_each_sidecar(there)
    if ranks == 7:
        hf_models.load_hf(there)
        back = program.to_megatron(there, scratch / "back", MANY_RANKS, TE_GROUPED, ranks=ranks)
        check_tree(back, with_written_divisor(MANY_EXPERTS, back), MANY_RANKS, with_written_norms(TE_GROUPED, back), tensors)


def assert_every_expert_once(state):
    pattern = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
    found = Counter(match.groups() for match in map(pattern.fullmatch, state) if match)
    expected = {(str(layer), str(expert), part) for layer in range(9) for expert in range(512) for part in ("gate", "up", "down")}
    assert set(found) == expected and set(found.values()) == {1}


def assert_one_copy_of_each_sidecar(folder):
    """The folder holds weights, their index, the configuration, the manifest and each sidecar, byte for byte, and nothing else."""
    others = {path.name for path in folder.rglob("*") if path.is_file() and ".safetensors" not in path.name}
    assert others == {*SIDECARS, "config.json", *RECORDS}, sorted(others)
    for name, text in SIDECARS.items():
        assert (folder / name).read_text() == text
