"""Families that Megatron has no form for: Hugging Face -> HDF5 -> Hugging Face, and through DCP; Megatron's formats are refused with the map's reason."""

import fnmatch
import json
import os
import tomllib
from pathlib import Path

import pytest
import torch

import family_models_kinds
import family_models_recent
from dcp_cases import names_of
from family_models import MOE_A, MOE_B, logits_of, random_like, save_family, save_shards
from family_models_kinds import FAMILIES, KIMI_K3, kimi_k3_folder
from hf_models import read_hf
from peer_types import TE_GROUPED, Layout
from tensor_patterns import assert_same_tensors

MAPS = Path(os.environ.get("RESHARD_MAPS") or Path(__file__).parents[2] / "configs" / "models")
WITHOUT_MEGATRON = family_models_kinds.WITHOUT_MEGATRON | family_models_recent.WITHOUT_MEGATRON


def tables_of(folder):
    """The map of this model type and those that it inherits from, in this order."""
    open_maps, tables = [json.loads((folder / "config.json").read_text())["model_type"]], []
    while open_maps:
        tables.append(tomllib.loads((MAPS / f"{open_maps.pop(0)}.toml").read_text()))
        base = tables[-1].get("base", [])
        open_maps += [base] if isinstance(base, str) else base
    return tables


def reason_of(tables):
    """Why the map refuses Megatron's formats."""
    return next(reason for table in tables if (reason := table.get("let", {}).get("no_megatron"))).split("'")[1]


def without_parts(tensors, tables):
    kept = [pattern for table in tables for pattern in table.get("keep", [])]
    return {name: tensor for name, tensor in tensors.items() if not any(fnmatch.fnmatch(name, pattern) for pattern in kept)}


@pytest.mark.long_but("kimi-linear", "gemma4-planes")
@pytest.mark.parametrize("name", WITHOUT_MEGATRON)
def test_through_hdf5_and_dcp_and_not_into_megatron(name, program, scratch):
    family = WITHOUT_MEGATRON[name]
    folder = save_family(scratch / "folder", family)
    tables = tables_of(folder)
    for form in "hdf5", "dcp":
        alone = family.keeps_parts and form == "hdf5"  # which has no place for parts without a map
        options = dict(model={"unmapped": "drop" if alone else "keep"} if family.keeps_parts else {})
        there = program.run(folder, scratch / form, form, **options)
        back = program.to_hf(there, scratch / f"back-{form}", target_options={"reference": folder}, **options)
        assert_same_tensors(read_hf(back), without_parts(read_hf(folder), tables) if alone else read_hf(folder))
        assert (back / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        assert alone or torch.equal(logits_of(back, family), logits_of(folder, family))
    for form in "megatron", "torch_dist":
        outcome = program.attempt(folder, scratch / "refused", form, **options)
        assert outcome.returncode == 2 and reason_of(tables) in outcome.stderr, outcome.stderr
        assert not (scratch / "refused").exists()


@pytest.mark.long
def test_kimi_k3(program, scratch):
    """Its code is remote: what Megatron's files hold is compared with rows of the folder."""
    folder = kimi_k3_folder(scratch / "folder")
    options, names = dict(model={"map": "kimi_k3", "unmapped": "keep"}), names_of(TE_GROUPED)
    first = program.run(folder, scratch / "a", "megatron", target_options={"layout": MOE_A.toml()} | names, **options)
    dist = program.run(first, scratch / "dist", "torch_dist", target_options={"layout": MOE_B.toml()} | names, **options)
    second = program.run(dist, scratch / "b", "megatron", target_options={"layout": MOE_B.toml()} | names, **options)
    back = program.to_hf(second, scratch / "back", target_options={"reference": folder}, **options)
    assert_same_tensors(read_hf(back), read_hf(folder))

    stored, heads, dim = read_hf(folder), KIMI_K3["linear_attn_config"]["num_heads"], KIMI_K3["linear_attn_config"]["head_dim"]
    at, half = "language_model.model.layers.1.self_attn.", heads // MOE_A.tp
    for rank in range(MOE_A.tp):
        (file,) = first.glob(f"**/mp_rank_{rank:02}_000_00{rank % MOE_A.ep}/model_optim_rng.pt")
        model, here = torch.load(file, weights_only=False)["model"], "decoder.layers.1.self_attention."
        mine = slice(rank * half, (rank + 1) * half)
        assert torch.equal(model[f"{here}A_log"], stored[f"{at}A_log"][:heads][mine])
        for name in "q_proj", "q_conv1d", "f_b_proj", "g_proj":
            rows = stored[f"{at}{name}.weight"].unflatten(0, (heads, dim))[mine].flatten(0, 1)
            assert torch.equal(model[f"{here}{name}.weight"], rows), name
        assert torch.equal(model[f"{here}f_a_proj.weight"], stored[f"{at}f_a_proj.weight"])
        assert torch.equal(model["decoder.layers.1.self_attention_res_proj.weight"], stored["language_model.model.layers.1.self_attention_res_proj.weight"])
        assert model[f"{here}o_proj.weight"].shape == (48, half * dim)


# --- what Megatron's files hold, by formulas of Megatron-Bridge's mappings ---------------------------------------------


def fused(groups, *parts):
    """Rows of several matrices, group by group."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1)


def fused_rows(name, stored, layer):
    """linear_qkv of a layer: keys and values have groups of their own number; Step's gates are repeated for each value; Gemma's keys are values too."""
    at = f"model.layers.{layer}.self_attn."
    q, k = stored[f"{at}q_proj.weight"], stored[f"{at}k_proj.weight"]
    v = stored.get(f"{at}v_proj.weight", k)
    dim = {"mimo-v2-flash": 12, "step3p7": 8, "gemma4-moe": 12 if v is k else 8}[name]
    gate = [stored[f"{at}g_proj.weight"].repeat_interleave(dim, 0)] if name == "step3p7" else []
    return fused(k.shape[0] // dim, q, *gate, k, v)


@pytest.mark.long_but("step3p7")
@pytest.mark.parametrize("name", ["mimo-v2-flash", "step3p7", "gemma4-moe"])
def test_fused_attention_of_layers_with_sizes_of_their_own(name, program, scratch):
    family = FAMILIES[name]
    folder = save_family(scratch / "folder", family)
    model = {"unmapped": "keep"} if family.keeps_parts else {}
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout().toml()} | names_of(TE_GROUPED), model=model)
    (file,) = tree.glob("**/model_optim_rng.pt")
    held, stored = torch.load(file, weights_only=False)["model"], read_hf(folder)
    for layer in range(5):
        here = f"decoder.layers.{layer}.self_attention."
        assert torch.equal(held[f"{here}linear_qkv.weight"], fused_rows(name, stored, layer)), layer
        assert torch.equal(held[f"{here}linear_proj.weight"], stored[f"model.layers.{layer}.self_attn.o_proj.weight"]), layer


FALCON_NAMES = {  # Megatron-Bridge's name -> that of Hugging Face, for what is stored as it is at tp 1
    "norm.weight": "input_layernorm.weight", "mlp.linear_fc1.layer_norm_weight": "pre_ff_layernorm.weight",
    "mlp.linear_fc2.weight": "feed_forward.down_proj.weight", "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    **{f"mamba_mixer.{part}": f"mamba.{part}" for part in (
        "A_log", "D", "dt_bias", "in_proj.weight", "out_proj.weight", "conv1d.weight", "conv1d.bias")}}


@pytest.mark.long
def test_falcon_h1_has_the_names_of_megatron_bridge(program, scratch):
    folder = save_family(scratch / "folder", FAMILIES["falcon-h1"])
    tree = program.run(folder, scratch / "tree", "megatron", target_options={"layout": Layout().toml()} | names_of(TE_GROUPED))
    (file,) = tree.glob("**/model_optim_rng.pt")
    held, stored = torch.load(file, weights_only=False)["model"], read_hf(folder)
    for layer in range(5):
        here, at = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        fused_names = {f"{here}self_attention.linear_qkv.weight", f"{here}mlp.linear_fc1.weight"}
        weights = {name for name in held if name.startswith(here) and not name.endswith("_extra_state")}
        assert weights == {here + name for name in FALCON_NAMES} | fused_names
        for name, other in FALCON_NAMES.items():
            assert torch.equal(held[here + name], stored[at + other]), name
    assert torch.equal(held["decoder.final_norm.weight"], stored["model.final_layernorm.weight"])


@pytest.mark.long
@pytest.mark.parametrize("thinker", ["qwen2-5-omni", "qwen3-omni"])
def test_a_whole_omni_model(thinker, program, scratch):
    """Names and config of the releases: the thinker's behind a prefix, in an object inside an object; what speaks is carried as it is."""
    folder = save_family(scratch / "thinker", FAMILIES[thinker])
    config, tensors = json.loads((folder / "config.json").read_text()), read_hf(folder)
    whole = scratch / "whole"
    whole.mkdir()
    tensors = {f"thinker.{name}": tensor for name, tensor in tensors.items()}
    save_shards(whole, tensors | {name: random_like(torch.empty(5, 3), name) for name in ("talker.model.norm.weight", "talker.codec_head.weight")})
    kind = config["model_type"].removesuffix("_thinker")
    (whole / "config.json").write_text(json.dumps(dict(model_type=kind, thinker_config=config, talker_config=dict(hidden_size=5)), indent=2))
    options = dict(model={"map": kind, "unmapped": "keep"})
    layout = {"layout": Layout(tp=2, pp=2, first_stage_layers=2).toml()} | names_of(TE_GROUPED)
    tree = program.run(whole, scratch / "tree", "megatron", target_options=layout, **options)
    back = program.to_hf(tree, scratch / "back", target_options={"reference": whole}, **options)
    assert_same_tensors(read_hf(back), read_hf(whole))
    assert (back / "config.json").read_bytes() == (whole / "config.json").read_bytes()


@pytest.mark.long
def test_minimax_needs_no_reference(program, scratch):
    """Decays that transformers saves beside the weights go through HDF5 as all tensors do."""
    folder = save_family(scratch / "folder", WITHOUT_MEGATRON["minimax-lightning"])
    there = program.run(folder, scratch / "hdf5", "hdf5")
    assert_same_tensors(read_hf(program.to_hf(there, scratch / "back")), read_hf(folder))
