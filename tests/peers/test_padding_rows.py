"""Rows of a vocabulary's padding that are not zero, as Megatron trains them: what becomes of them does not depend on whether a family is named."""

import pytest
import torch

from dcp_reading import whole_tensors
from numpy_megatron import iteration_folder, load_shards, write_tree
from peer_types import LOCAL, Layout, ModelConfig
from reshard_job import command
from tensor_patterns import make_globals, pattern

CONFIG = ModelConfig(vocab=66)  # padded to 72, 80 and 96 rows for TP 1, 2 and 4
SOURCE = Layout(tp=2)
PADDED = {"embed": "embedding.word_embeddings.weight", "head": "output_layer.weight"}


@pytest.fixture
def source(scratch):
    """All 80 rows have values."""
    tensors = make_globals(CONFIG)
    for name in PADDED:
        behind = pattern(f"{name} padding", (CONFIG.padded_vocab(SOURCE.tp) - CONFIG.vocab, CONFIG.hidden), tensors[name].dtype)
        assert behind.any(dim=1).all()
        tensors[name] = torch.cat([tensors[name], behind])
    return write_tree(scratch / "source", CONFIG, SOURCE, LOCAL, tensors)


def rows_of(root, layout):
    """Stored name -> all rows, padding included."""
    if layout is None:
        return {name: whole_tensors(iteration_folder(root))[name] for name in PADDED.values()}
    shards = load_shards(root, layout)
    return {name: torch.cat([shards[rank]["model"][name] for rank in sorted(shards)]) for name in PADDED.values()}


@pytest.mark.long_but("as-the-source", "torch_dist")
@pytest.mark.parametrize("form, layout", [
    pytest.param("megatron", SOURCE, id="as-the-source"), pytest.param("megatron", Layout(tp=1), id="shorter"),
    pytest.param("megatron", Layout(tp=4), id="longer"), pytest.param("torch_dist", SOURCE, id="torch_dist"),
])  # fmt: skip
def test_rows_of_padding_are_those_of_the_source(form, layout, source, program, scratch):
    before = rows_of(source, SOURCE)
    rows = CONFIG.padded_vocab(layout.tp)
    for model_map in ("auto", CONFIG.family):
        target = program.run(source, scratch / model_map, form, target_options={"layout": layout.toml(), "transformer_impl": "local"}, model={"map": model_map})
        for name, found in rows_of(target, None if form == "torch_dist" else layout).items():
            kept = before[name][:rows]
            assert found.shape[0] == rows
            assert torch.equal(found[: len(kept)], kept), f"{name} with map = {model_map}"
            assert not found[len(kept) :].any()
    same = command("verify", source, scratch / CONFIG.family)
    assert same.returncode == 0, same.stdout + same.stderr


def test_new_tokens_reach_the_next_target_and_are_told_of(program, scratch):
    """Rows 66 to 69 are tokens that args do not count; the next job needs no key any more, and transformers loads the result."""
    from transformers import AutoModelForCausalLM

    tensors = make_globals(CONFIG)
    rows = CONFIG.padded_vocab(SOURCE.tp)
    for name in PADDED:
        new = torch.zeros(rows - CONFIG.vocab, CONFIG.hidden, dtype=tensors[name].dtype)
        new[:4] = pattern(f"{name} tokens", (4, CONFIG.hidden), new.dtype)
        tensors[name] = torch.cat([tensors[name], new])
    source = write_tree(scratch / "source", CONFIG, SOURCE, LOCAL, tensors)
    outcome = program.attempt(source, scratch / "short", "huggingface", model={"map": CONFIG.family})
    assert outcome.returncode == 0, outcome.stderr
    assert "'embed', 'lm_head': 4 of the 14 rows behind the first 66 are not zero (rows 66 to 69)" in outcome.stderr
    assert "model.true_vocab_size = 70" in outcome.stderr
    first = program.run(source, scratch / "first", "megatron", target_options={"layout": Layout(tp=1).toml(), "transformer_impl": "local"},
                        model={"true_vocab_size": 70})  # fmt: skip
    outcome = program.attempt(first, scratch / "second", "huggingface", model={"map": CONFIG.family})
    assert outcome.returncode == 0 and "rows behind" not in outcome.stderr, outcome.stderr
    weight = AutoModelForCausalLM.from_pretrained(scratch / "second").get_input_embeddings().weight
    assert torch.equal(weight.float(), rows_of(source, SOURCE)[PADDED["embed"]][:70].float())


@pytest.mark.parametrize("model_map", ["auto", CONFIG.family])
def test_rows_behind_the_stated_vocabulary_are_zero(model_map, source, program, scratch):
    """They are no data of the job, and no fault to its check of itself."""
    layout = Layout(tp=1)
    target = program.run(source, scratch / "target", "megatron", target_options={"layout": layout.toml(), "transformer_impl": "local"},
                         model={"map": model_map, "true_vocab_size": 70}, run={"self_check": 2000})  # fmt: skip
    before = rows_of(source, SOURCE)
    for name, found in rows_of(target, layout).items():
        assert found.shape[0] == CONFIG.padded_vocab(1) == 72
        assert torch.equal(found[:70], before[name][:70])
        assert not found[70:].any()
