"""What the program wrote computes the same in megatron-core as its source in transformers: this finds mistakes that a way back undoes."""

import pytest
import torch
import transformers

import megatron_release
from dcp_cases import names_of
from family_models import TOKENS, Family, dense, logits_of, save_family
from family_models_hybrid import DELTA, LATENT, MAMBA2, mamba, mamba2
from megatron_hybrid import build_delta, build_latent, build_mamba, core_logits
from peer_types import LOCAL, TE_SEQUENTIAL, Layout

pytestmark = pytest.mark.long

LATENT_CASES = {
    "deepseek-v2-lite": (
        dense("DeepseekV2", **LATENT | dict(q_lora_rank=None, n_group=1, first_k_dense_replace=1)), Layout(pp=2, first_stage_layers=3)),
    "deepseek-v3": (dense("DeepseekV3", **LATENT), Layout(tp=2, ep=2)),
}


@pytest.mark.parametrize("name", LATENT_CASES)
def test_latent_attention(name, program, scratch):
    make, layout = LATENT_CASES[name]
    agree(program, scratch, Family(make, layout, layout, LOCAL, dtype=torch.float32), build_latent)


def test_gated_delta_net(program, scratch):
    layout = Layout(tp=2, ep=2)
    agree(program, scratch, Family(dense("Qwen3Next", **DELTA), layout, layout, TE_SEQUENTIAL, dtype=torch.float32), build_delta)


@pytest.mark.parametrize("pattern, layout", [("M-M*-M", Layout(pp=2)), ("ME*EMM", Layout(tp=2, ep=2))])
def test_mamba(pattern, layout, program, scratch):
    agree(program, scratch, Family(mamba(pattern), layout, layout, TE_SEQUENTIAL, dtype=torch.float32), build_mamba)


def test_mamba2(program, scratch):
    """Megatron-Core's model is built after a Nemotron-H of nothing but Mamba layers."""
    layout, sizes = Layout(tp=2, pp=2, first_stage_layers=3), dict(MAMBA2)
    renamed = {"num_heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state_size": "ssm_state_size"}
    members = {renamed.get(key, key): value for key, value in sizes.items() if key != "num_hidden_layers"}
    config = transformers.NemotronHConfig(**members, hybrid_override_pattern="M" * sizes["num_hidden_layers"], num_attention_heads=6, num_key_value_heads=6)
    agree(program, scratch, Family(mamba2(), layout, layout, TE_SEQUENTIAL, dtype=torch.float32), build_mamba, config)


def agree(program, scratch, family, build, config=None):
    megatron = ".".join(map(str, megatron_release.RELEASE))  # which has names of its own
    folder = save_family(scratch / "folder", family)
    root = program.run(folder, scratch / "megatron", "megatron", target_options={"layout": family.a.toml(), "megatron": megatron} | names_of(family.form))
    config = config or transformers.AutoConfig.from_pretrained(folder)
    expected = logits_of(folder, family)
    found = core_logits(root, config, family.a, build, TOKENS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
