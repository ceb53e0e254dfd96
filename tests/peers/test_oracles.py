"""The oracles themselves against the real libraries; nothing here needs the program."""

import pytest
import torch

import cases
import hf_models
import megatron_models
import numpy_megatron
from megatron_sharding import described_globals
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from pipeline_stages import parse_pipeline
from tensor_patterns import assert_same_tensors, make_globals

TOKENS = (torch.arange(24).reshape(2, 12) * 7) % 32  # below the smallest vocabulary

DENSE_LAYOUTS = [Layout(tp=2, pp=2), Layout(tp=4), Layout(pp=2, vpp=2), Layout(pp=3, first_stage_layers=4), Layout(pp=2, vpp=2, pipeline="Et|t*3|tt|ttL")]
MOE_LAYOUTS = [Layout(ep=4), Layout(tp=2, ep=2, etp=2), Layout(tp=2, ep=4), Layout(tp=4, ep=2, etp=2), Layout(tp=2, pp=2, ep=2), Layout(pp=2, vpp=2, ep=2)]
FORMS = {"dense": (LOCAL, TE_SEQUENTIAL), "moe": (LOCAL, TE_SEQUENTIAL, TE_GROUPED, cases.TE_NORMS)}


def close(found, expected):
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-4, atol=1e-4)


def write(folder, config, layout, form):
    return numpy_megatron.write_tree(folder, config, layout, form, make_globals(config))


@pytest.mark.long_but("qwen2", "qwen3-moe-mixed")
@pytest.mark.parametrize("name", ["llama-f32", "llama-tied-f32", "qwen2", "qwen3", "qwen3-moe-f32", "qwen3-moe-mixed", "mixtral"])
def test_megatron_core_computes_what_transformers_computes(name, scratch):
    config = cases.FAMILIES[name].with_(layers=4, dtype="float32", moe_layers=(1, 3) if "mixed" in name else None)
    expected = hf_models.hf_logits(hf_models.save_hf(scratch / "hf", config, make_globals(config)), TOKENS)
    for form in FORMS["moe" if config.experts else "dense"]:
        tree = write(scratch / form.label(), config, Layout(tp=2), form)
        close(megatron_models.load_and_logits(tree, config, Layout(tp=2), form, TOKENS), expected)


@pytest.mark.long_but("tp1pp2v2ep1x1layout")
@pytest.mark.parametrize("layout", DENSE_LAYOUTS, ids=Layout.label)
def test_every_dense_layout_loads_strictly_and_computes_the_same(layout, scratch):
    check_layout(cases.LLAMA_TIED, layout, FORMS["dense"], scratch)


@pytest.mark.long_but("tp2pp2v1ep2x1")
@pytest.mark.parametrize("layout", MOE_LAYOUTS, ids=Layout.label)
def test_every_moe_layout_loads_strictly_and_computes_the_same(layout, scratch):
    check_layout(cases.QWEN3_MOE_MIXED.with_(dtype="float32"), layout, FORMS["moe"], scratch)


def check_layout(config, layout, forms, scratch):
    whole = write(scratch / "whole", config, Layout(), LOCAL)
    expected = megatron_models.load_and_logits(whole, config, Layout(), LOCAL, TOKENS)
    for form in forms:
        tree = write(scratch / form.label(), config, layout, form)
        close(megatron_models.load_and_logits(tree, config, layout, form, TOKENS), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", [Layout(tp=2, pp=2), Layout(tp=4, pp=2, vpp=2)], ids=Layout.label)
def test_dense_slices_lie_where_megatron_core_says(layout, scratch):
    check_described(cases.LLAMA, layout, scratch)


@pytest.mark.long_but("tp2pp2v1ep2x2")
@pytest.mark.parametrize("layout", [Layout(tp=2, ep=4), Layout(tp=2, pp=2, ep=2, etp=2)], ids=Layout.label)
def test_moe_slices_lie_where_megatron_core_says(layout, scratch):
    check_described(cases.QWEN3_MOE, layout, scratch)


def check_described(config, layout, scratch):
    described = [described_globals(write(scratch / each.label(), config, each, LOCAL), config, each, LOCAL) for each in (layout, Layout())]
    assert_same_tensors(*described)


@pytest.mark.long_but("config1-layout1")
@pytest.mark.parametrize("config, layout", [(cases.LLAMA_TIED, Layout(tp=2, pp=2, vpp=2)), (cases.QWEN3_MOE_MIXED, Layout(tp=2, pp=2, ep=2))])
def test_megatron_core_saves_the_tree_we_construct(config, layout, scratch):
    for form in FORMS["moe" if config.experts else "dense"]:
        saved = megatron_models.save_megatron(scratch / f"core-{form.label()}", config, layout, form, make_globals(config))
        made = numpy_megatron.load_shards(write(scratch / f"made-{form.label()}", config, layout, form), layout)
        for name, content in numpy_megatron.load_shards(saved, layout).items():
            for key in (key for key in content if key.startswith("model")):
                assert list(content[key]) == list(made[name][key]), f"{name}/{key}: order of keys"
                extras = {k: v is None for k, v in content[key].items() if "_extra_state" in k}
                assert extras == {k: v is None for k, v in made[name][key].items() if "_extra_state" in k}
        assert_same_tensors(numpy_megatron.read_tree(saved, config, layout, form), make_globals(config))


@pytest.mark.long_but("50GB-qwen2", "40KB-qwen3-moe-mixed")
@pytest.mark.parametrize("name", cases.FAMILIES)
@pytest.mark.parametrize("shard_size", ["50GB", "40KB"])
def test_transformers_folder_and_globals_agree(name, shard_size, scratch):
    config, tensors = cases.FAMILIES[name], make_globals(cases.FAMILIES[name])
    state = hf_models.read_hf(hf_models.save_hf(scratch, config, tensors, shard_size))
    assert_same_tensors(state, hf_models.globals_to_hf(config, tensors))
    assert_same_tensors(hf_models.hf_to_globals(config, state), tensors)


@pytest.mark.long_but("llama-*layout", "moe-*-to-te-grouped-tp4pp2v1ep2x2", "bytes-extras-*")
@pytest.mark.parametrize("change", cases.megatron_changes(), ids=cases.change_id)
def test_constructed_trees_read_back(change, scratch):
    _, config, source_form, source, target_form, target = change
    for form, layout in ((source_form, source), (target_form, target)):
        tree = write(scratch / layout.label(), config, layout, form)
        assert_same_tensors(numpy_megatron.read_tree(tree, config, layout, form), make_globals(config))


def test_pipeline_strings_expand_as_megatron_core_expands_them():
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    for text in ("Ettt|(tt|)*29,m|L", "Et*3||t*5|L", "Et|t*3|tt|ttL", "E|t*2|(t|)*3tL"):
        expected = ["".join(letters[kind.name] for kind in stage) for stage in PipelineParallelLayerLayout.parse_str_to_list(text)]
        assert parse_pipeline(text) == expected
