"""The program between real checkpoints: every result is judged by the oracles, by megatron-core or by transformers."""

import json

import pytest
import torch

import cases
import hf_models
import megatron_models
from cases import LLAMA, QWEN3_MOE, QWEN3_MOE_MIXED
from numpy_megatron import TRACKER, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import RECORDS, tree_hashes
from tensor_patterns import assert_same_tensors, make_globals
from tree_checks import assert_loads_restricted, assert_same_shards, check_tree, with_written_divisor, with_written_norms

TOKENS = (torch.arange(24).reshape(2, 12) * 7) % 32  # below the smallest vocabulary
RANKS = (1, 2, 3, 4, 7)


def ranks_for(text):
    """A fixed, spread choice of rank counts, so that the table as a whole runs on all of them."""
    return RANKS[sum(text.encode()) % len(RANKS)]


def source_tree(scratch, config, layout, form, **options):
    return write_tree(scratch / "source", config, layout, form, make_globals(config), **options)


# --- Megatron to Megatron -----------------------------------------------------------------------------------------


@pytest.mark.long_but("llama-*layout", "moe-*-to-te-grouped-tp4pp2v1ep2x2", "bytes-extras-*")
@pytest.mark.parametrize("change", cases.megatron_changes(), ids=cases.change_id)
def test_megatron_to_megatron_and_back(change, program, scratch):
    _, config, source_form, source, target_form, target = change
    ranks = ranks_for(cases.change_id(change))
    original = source_tree(scratch, config, source, source_form)
    there = program.to_megatron(original, scratch / "there", target, target_form, ranks=ranks)
    check_tree(there, config, target, with_written_norms(target_form, there, source_form), make_globals(config))
    assert_loads_restricted(there)
    back = program.to_megatron(there, scratch / "back", source, source_form, ranks=ranks)
    assert_same_shards(back, original, source, norm_extras_known=target_form.impl == "te" or source_form.impl == "local")


@pytest.mark.long
@pytest.mark.parametrize("source, target", [(Layout(tp=2, pp=2), Layout(tp=4)), (Layout(), Layout(tp=2, pp=2, vpp=2))])
def test_dense_checkpoint_of_megatron_core_keeps_its_logits(source, target, program, scratch):
    keeps_logits(cases.LLAMA_TIED, LOCAL, source, target, program, scratch)


@pytest.mark.long_but("source0-target0-te-grouped")
@pytest.mark.parametrize("form", [LOCAL, TE_GROUPED], ids=lambda form: form.label())
@pytest.mark.parametrize("source, target", [
    (Layout(tp=2, pp=2, ep=2, etp=2), Layout(ep=4)), (Layout(tp=2, ep=4), Layout(tp=4, ep=2, etp=2)), (Layout(), Layout(pp=2, vpp=2, ep=4))])
def test_moe_checkpoint_of_megatron_core_keeps_its_logits(form, source, target, program, scratch):
    keeps_logits(QWEN3_MOE_MIXED.with_(dtype="float32"), form, source, target, program, scratch)


def keeps_logits(config, form, source, target, program, scratch):
    original = megatron_models.save_megatron(scratch / "source", config, source, form, make_globals(config))
    expected = megatron_models.load_and_logits(original, config, source, form, TOKENS)
    there = program.to_megatron(original, scratch / "there", target, form)
    check_tree(there, config, target, form, make_globals(config))
    found = megatron_models.load_and_logits(there, config, target, form, TOKENS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_options_left_on_auto_keep_the_spelling_of_the_source(program, scratch):
    for form in (LOCAL, TE_SEQUENTIAL, TE_GROUPED):
        source, target = Layout(tp=2, ep=2), Layout(tp=1, pp=2, ep=4)
        tree = write_tree(scratch / form.label(), QWEN3_MOE, source, form, make_globals(QWEN3_MOE))
        options = {"layout": target.toml(), "transformer_impl": "auto", "experts": "auto"}
        there = program.run(tree, scratch / f"to-{form.label()}", "megatron", target_options=options)
        check_tree(there, QWEN3_MOE, target, form, make_globals(QWEN3_MOE))


def test_an_iteration_folder_is_a_source_too(program, scratch):
    original = source_tree(scratch, LLAMA, Layout(tp=2), LOCAL)
    there = program.to_megatron(iteration_folder(original), scratch / "there", Layout(pp=2), LOCAL)
    check_tree(there, LLAMA, Layout(pp=2), LOCAL, make_globals(LLAMA))
    assert (there / TRACKER).read_text().strip() == "1000"


# --- what a source may hold besides weights -----------------------------------------------------------------------


@pytest.mark.parametrize("what", ["optimizer", "rng"])
def test_training_state_is_refused_unless_the_job_drops_it(what, program, scratch):
    original = source_tree(scratch, LLAMA, Layout(tp=2), LOCAL, **{f"with_{what}": True})
    target_options = {"layout": Layout(pp=2).toml()}
    outcome = program.attempt(original, scratch / "refused", "megatron", target_options=target_options)
    assert outcome.returncode != 0, f"{what} state vanished without a word"
    assert what in (outcome.stdout + outcome.stderr).lower()
    assert not (scratch / "refused" / TRACKER).exists()
    there = program.to_megatron(original, scratch / "there", Layout(pp=2), LOCAL, source_options={what: "drop"})
    check_tree(there, LLAMA, Layout(pp=2), LOCAL, make_globals(LLAMA))


def test_a_missing_shard_is_an_error_and_leaves_no_finished_target(program, scratch):
    original = source_tree(scratch, LLAMA, Layout(tp=2, pp=2), LOCAL)
    (iteration_folder(original) / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    outcome = program.attempt(original, scratch / "there", "megatron", target_options={"layout": Layout().toml()})
    assert outcome.returncode != 0
    assert "mp_rank_01_001" in outcome.stdout + outcome.stderr
    assert not (scratch / "there" / TRACKER).exists()


# --- Megatron to Hugging Face -------------------------------------------------------------------------------------


def hf_source_layouts(config):
    return (Layout(tp=2, pp=2, ep=4), TE_GROUPED) if config.experts else (Layout(tp=2, pp=2, vpp=2), LOCAL)


@pytest.mark.long_but("qwen3-moe-mixed")
@pytest.mark.parametrize("name", cases.FAMILIES)
def test_megatron_to_hf_with_a_reference(name, program, scratch):
    config = cases.FAMILIES[name]
    reference = hf_models.save_hf(scratch / "reference", config, make_globals(config, salt="other weights"), "40KB")
    (reference / "tokenizer.json").write_text('{"version": "1.0"}\n')
    (reference / "chat_template.jinja").write_text("{{ messages }}\n")
    layout, form = hf_source_layouts(config)
    original = source_tree(scratch, config, layout, form)
    there = program.to_hf(original, scratch / "there", ranks=ranks_for(name), target_options={"reference": reference})
    check_hf(there, config, scratch)
    for sidecar in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (there / sidecar).read_bytes() == (reference / sidecar).read_bytes(), sidecar
    index = "model.safetensors.index.json"
    assert json.loads((there / index).read_text())["weight_map"] == json.loads((reference / index).read_text())["weight_map"]
    assert {path.name for path in there.iterdir()} == {path.name for path in reference.iterdir()} | RECORDS


@pytest.mark.long_but("llama-tied-f32", "mixtral-bf16")
@pytest.mark.parametrize("name", cases.FAMILIES)
def test_megatron_to_hf_without_a_reference(name, program, scratch):
    config = cases.FAMILIES[name]
    layout, form = hf_source_layouts(config)
    original = source_tree(scratch, config, layout, form)
    there = program.to_hf(original, scratch / "there", ranks=ranks_for(name), model={"map": config.family})
    check_hf(there, config, scratch)


def check_hf(folder, config, scratch):
    """Tensors bit for bit, a folder transformers loads without complaint, and exactly its logits."""
    assert_same_tensors(hf_models.read_hf(folder), hf_models.globals_to_hf(config, make_globals(config)))
    expected = hf_models.save_hf(scratch / "expected", config, make_globals(config))
    torch.testing.assert_close(hf_models.hf_logits(folder, TOKENS), hf_models.hf_logits(expected, TOKENS), rtol=0, atol=0)


# --- Hugging Face to Megatron -------------------------------------------------------------------------------------


@pytest.mark.long_but("llama-square-one-file", "qwen3-moe-mixed-shards")
@pytest.mark.parametrize("shard_size", ["50GB", "40KB"], ids=["one-file", "shards"])
@pytest.mark.parametrize("name", cases.FAMILIES)
def test_hf_to_megatron_and_back(name, shard_size, program, scratch):
    config = cases.FAMILIES[name]
    original = hf_models.save_hf(scratch / "source", config, make_globals(config), shard_size)
    layout, form = (Layout(tp=2, pp=2, ep=2), TE_GROUPED) if config.experts else (Layout(tp=2, pp=2), LOCAL)
    there = program.to_megatron(original, scratch / "there", layout, form, ranks=ranks_for(name))
    config = with_written_divisor(config, there)
    check_tree(there, config, layout, with_written_norms(form, there), make_globals(config))
    assert_loads_restricted(there)
    assert (there / TRACKER).read_text().strip() == "release"
    back = program.to_hf(there, scratch / "back", target_options={"reference": original})
    assert_same_tensors(hf_models.read_hf(back), hf_models.read_hf(original))


@pytest.mark.long_but("qwen3-moe-mixed")
@pytest.mark.parametrize("name", ["llama-f32", "llama-tied-f32", "qwen2", "qwen3", "qwen3-moe-f32", "qwen3-moe-mixed", "mixtral"])
def test_hf_to_megatron_computes_the_same_in_megatron_core(name, program, scratch):
    config = cases.FAMILIES[name].with_(dtype="float32")
    original = hf_models.save_hf(scratch / "source", config, make_globals(config))
    layout = Layout(tp=2, pp=2, ep=2) if config.experts else Layout(tp=2, pp=2)
    for form in (LOCAL, TE_GROUPED if config.experts else TE_SEQUENTIAL):
        there = program.to_megatron(original, scratch / form.label(), layout, form)
        found = megatron_models.load_and_logits(there, with_written_divisor(config, there), layout, with_written_norms(form, there), TOKENS)
        torch.testing.assert_close(found, hf_models.hf_logits(original, TOKENS), rtol=1e-4, atol=1e-4)


# --- the number of ranks --------------------------------------------------------------------------------------------


@pytest.mark.long_but("megatron-to-hf")
@pytest.mark.parametrize("direction", ["megatron-to-megatron", "megatron-to-hf", "hf-to-megatron"])
def test_the_target_has_the_same_bytes_on_any_number_of_ranks(direction, program, scratch):
    config = QWEN3_MOE_MIXED
    if direction == "hf-to-megatron":
        original = hf_models.save_hf(scratch / "source", config, make_globals(config), "40KB")
    else:
        original = source_tree(scratch, config, Layout(tp=2, pp=2, ep=4), TE_GROUPED)
    hashes = []
    for ranks in RANKS:
        target = scratch / f"target{ranks}"
        if direction == "megatron-to-hf":
            program.to_hf(original, target, ranks=ranks, model={"map": config.family})
        else:
            program.to_megatron(original, target, Layout(tp=4, ep=2, etp=2), TE_GROUPED, ranks=ranks)
        hashes.append(tree_hashes(target))
    assert all(each == hashes[0] for each in hashes[1:])


def test_a_small_memory_limit_changes_no_byte(program, scratch):
    config = QWEN3_MOE.with_(layers=4, hidden=192, expert_ffn=96, dtype="float32")  # some 10 MiB: several rounds of 4 MiB
    original = source_tree(scratch, config, Layout(tp=2, pp=2, ep=4), TE_GROUPED)
    trees = []
    for memory in ("4 MiB", "64 MiB"):
        target = scratch / memory.replace(" ", "")
        trees.append(tree_hashes(program.to_megatron(original, target, Layout(tp=4, ep=2, etp=2), TE_GROUPED, memory=memory)))
    assert trees[0] == trees[1]
