"""The program between `torch_dist` checkpoints of megatron-core, legacy trees and Hugging Face folders; megatron-core loads and computes."""

import json
import pickle
import shutil
from dataclasses import replace

import pytest
import torch

import cases
import dcp_checkpoints
import dcp_reading
import hf_models
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE, World, key_values
from dcp_models import Recipe
from numpy_megatron import TRACKER, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import tree_hashes
from tensor_patterns import assert_same_tensors, make_globals, same_bits
from tree_checks import check_tree, with_written_divisor, with_written_norms

TOKENS = (torch.arange(24).reshape(2, 12) * 7) % 32
DENSE = cases.QWEN3.with_(layers=4, dtype="float32")
MOE = cases.QWEN3_MOE.with_(layers=2, dtype="float32")
MIXED = cases.QWEN3_MOE_MIXED.with_(layers=3, moe_layers=(1, 2), experts=4, dtype="float32")
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_head_dim=8, qk_pos_emb_head_dim=8, v_head_dim=8, rope_type="rope")
SHARED = dict(moe_shared_expert_intermediate_size=48, moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid")
MLA = cases.LLAMA.with_(layers=2, groups=4, qk_norm=True, dtype="float32")
LATENT_MOE = cases.LLAMA.with_(layers=3, groups=4, qk_norm=True, experts=4, moe_layers=(1, 2), dtype="float32")

CHANGES = {  # name -> (recipe, form, source layout, target layout)
    "dense": (Recipe(DENSE), LOCAL, Layout(tp=2, pp=2), Layout(tp=4)),
    "dense-virtual": (Recipe(DENSE), LOCAL, Layout(), Layout(tp=2, pp=2, vpp=2)),
    "dense-te": (Recipe(DENSE), TE_SEQUENTIAL, Layout(tp=2), Layout(pp=4)),
    "tied-bf16": (Recipe(cases.LLAMA_TIED.with_(layers=4, dtype="bfloat16")), LOCAL, Layout(tp=2), Layout(pp=2)),
    "biases": (Recipe(cases.LLAMA.with_(layers=2, dtype="float32"), layer_norm=True), LOCAL, Layout(tp=2), Layout(pp=2)),
    "no-gate": (Recipe(cases.PLAIN_MLP.with_(layers=2, dtype="float32"), layer_norm=True, position="learned_absolute"), LOCAL, Layout(pp=2), Layout(tp=4)),
    "more-ranks-than-groups": (Recipe(cases.QWEN2.with_(layers=2, dtype="float32")), LOCAL, Layout(tp=2), Layout(tp=8)),
    "moe": (Recipe(MOE), LOCAL, Layout(tp=2, ep=2), Layout(ep=4)),
    "moe-etp": (Recipe(MOE), LOCAL, Layout(tp=2, ep=2, etp=2), Layout(tp=2, pp=2, ep=2)),
    "moe-grouped": (Recipe(MOE), TE_GROUPED, Layout(ep=8), Layout(tp=2, ep=2, etp=2)),
    "mixed": (Recipe(MIXED), LOCAL, Layout(ep=2), Layout(tp=2, pp=1, ep=4)),
    "mla": (Recipe(MLA, LATENT, mla=True), LOCAL, Layout(tp=2), Layout(tp=1, pp=2)),
    "mla-moe-shared": (Recipe(LATENT_MOE, LATENT | SHARED, mla=True), LOCAL, Layout(tp=2, ep=2), Layout(ep=4)),
    "mtp": (Recipe(DENSE.with_(layers=2), mtp=1), LOCAL, Layout(tp=2, pp=2), Layout(tp=1)),
}
CHANGED = pytest.mark.parametrize("name", CHANGES)


def worlds(name):
    recipe, form, source, target = CHANGES[name]
    return World(recipe, source, form), World(recipe, target, form)


def tokens_of(world):
    """Multi token prediction computes only with labels."""
    return None if world.recipe.mtp else TOKENS


def assert_holds_its_values(tensors, world):
    wrong = [key for key, tensor in tensors.items() if not same_bits(tensor, key_values(key, tensor.shape, tensor.dtype, world.recipe.config))]
    assert not wrong, f"{len(wrong)} of {len(tensors)} tensors differ, first {wrong[:4]}"


def assert_close(found, expected):
    if found is not None:
        tolerance = 1e-4 if found.dtype == torch.float32 else 0.3
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def to_torch_dist(program, source, target, layout, source_options=None, target_options=None, **options):
    return program.run(source, target, "torch_dist", source_options=source_options, target_options={"layout": layout.toml()} | (target_options or {}), **options)


def common_of(root):
    return torch.load(iteration_folder(root) / "common.pt", weights_only=False)


def without_paths(common):
    """What training leaves beside tensors, comparable."""
    return {key: vars(value) if key == "args" else value for key, value in common.items()}


# --- the oracle ---------------------------------------------------------------------------------------------------


@CHANGED
def test_megatron_core_loads_its_own_checkpoint_at_the_other_layout(name, scratch):
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    dcp_reading.check_catalogue(iteration_folder(root), hints=False)
    assert_holds_its_values(dcp_reading.whole_tensors(iteration_folder(root)), source)
    expected, held = dcp_checkpoints.load(source, root, tokens_of(source))
    found, there = dcp_checkpoints.load(target, root, tokens_of(target))
    assert_close(found, expected)
    assert_holds_its_values(held, source)
    assert_holds_its_values({key: tensor for key, tensor in there.items() if "embedding" not in key and "output_layer" not in key}, target)


@pytest.mark.parametrize("kind", [PLAIN, RESHARDABLE])
def test_a_resumed_optimizer_continues_with_the_same_bits(kind, scratch):
    source, target = optimizer_worlds("moe")
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    assert_same_tensors(dcp_checkpoints.resume(target, scratch / "source", kind), uninterrupted)


def test_the_oracle_sees_a_wrong_moment(scratch):
    source, _ = optimizer_worlds("dense")
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    folder = iteration_folder(scratch / "source")
    dcp_reading.overwrite(folder, "optimizer.state.exp_avg.decoder.final_layernorm.weight", torch.full((DENSE.hidden,), 3.0))
    resumed = dcp_checkpoints.resume(source, scratch / "source", RESHARDABLE)
    assert {key for key in resumed if not same_bits(resumed[key], uninterrupted[key])} == {"decoder.final_layernorm.weight"}


# --- torch_dist to torch_dist -------------------------------------------------------------------------------------


@CHANGED
def test_another_layout(name, program, scratch):
    """Same content, the chunks megatron-core itself would write there, a strict load, the same logits."""
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(root))
    theirs = dcp_reading.grids(iteration_folder(dcp_checkpoints.save(target, scratch / "theirs")))
    mine = dcp_reading.grids(iteration_folder(there))
    assert {key: grid for key, grid in mine.items() if grid != theirs[key] and not is_vocabulary(key)} == {}
    expected, _ = dcp_checkpoints.load(source, root, tokens_of(source))
    found, held = dcp_checkpoints.load(target, there, tokens_of(target))
    assert_close(found, expected)
    assert_holds_its_values(held, target)


def is_vocabulary(key):
    """Their rows are padded to a number that depends on TP; the file may keep the source's, megatron-core fills up with zeros."""
    return "word_embeddings" in key or "output_layer" in key


def test_run_state_and_common_state_come_along_unchanged(program, scratch):
    source, _ = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source", with_run_state=True)
    there = to_torch_dist(program, root, scratch / "there", source.layout)
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(root))
    assert any(key.startswith("rng_state/shard_") for key in dcp_reading.objects(iteration_folder(there)))
    assert without_paths(common_of(there)) == without_paths(common_of(root))
    assert (there / TRACKER).read_text().strip() == "1000"


def test_random_state_can_be_dropped(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source", with_run_state=True)
    there = to_torch_dist(program, root, scratch / "there", target.layout, source_options={"rng": "drop"})
    assert not any(key.startswith("rng_state") for key in dcp_reading.objects(iteration_folder(there)))
    assert_holds_its_values(dcp_checkpoints.load(target, there, strict="assume_ok_unexpected")[1], target)


def test_a_catalogue_small_enough_to_load(program, scratch):
    """None of the plans that megatron-core caches in its own catalogue, no class that needs megatron-core, no writer's paths."""
    source, target = worlds("moe")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    metadata = dcp_reading.catalogue(iteration_folder(there))
    assert getattr(metadata, "all_local_plans", None) is None and isinstance(metadata.planner_data, dict)
    assert (iteration_folder(there) / ".metadata").stat().st_size < (iteration_folder(root) / ".metadata").stat().st_size
    assert json.loads((iteration_folder(there) / "metadata.json").read_text()) == json.loads((iteration_folder(root) / "metadata.json").read_text())


def test_an_iteration_folder_is_a_source_too(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, iteration_folder(root), scratch / "there", target.layout)
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


def test_large_chunks_are_cut_to_the_size_asked_for(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", Layout(), target_options={"chunk_bytes": "4 KiB"})
    folder = iteration_folder(there)
    dcp_reading.check_catalogue(folder)
    sizes = {key: max(torch.Size(chunk).numel() for _, chunk in grid) * 4 for key, grid in dcp_reading.grids(folder).items()}
    assert {key: size for key, size in sizes.items() if size > 4096} == {}
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


def test_the_target_has_the_same_bytes_on_any_number_of_ranks(program, scratch):
    source, target = worlds("moe-etp")
    root = dcp_checkpoints.save(source, scratch / "source")
    hashes = [tree_hashes(to_torch_dist(program, root, scratch / f"on{ranks}", target.layout, ranks=ranks, memory=memory))
              for ranks, memory in ((1, "64 MiB"), (2, "1 MiB"), (5, "64 MiB"))]
    assert all(each == hashes[0] for each in hashes[1:])


# --- what newer and older releases write --------------------------------------------------------------------------


def with_common_item(folder):
    """The same checkpoint as core 0.19 writes it: common state as an item of the catalogue, two keys in metadata.json."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    metadata = pickle.loads((folder / ".metadata").read_bytes())
    with open(folder / "__0_7.distcp", "wb") as file:
        torch.save([torch.load(folder / "common.pt", weights_only=False)], file)
    metadata.state_dict_metadata["common_state/shard_0_1"] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex("common_state/shard_0_1")] = _StorageInfo("__0_7.distcp", 0, (folder / "__0_7.distcp").stat().st_size)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (folder / "common.pt").unlink()


def test_common_state_inside_the_catalogue_is_found_and_written_for_every_release(program, scratch):
    source, target = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    expected = without_paths(common_of(root))
    with_common_item(iteration_folder(root))
    there = to_torch_dist(program, root, scratch / "there", target.layout)
    assert without_paths(common_of(there)) == expected
    assert_holds_its_values(dcp_checkpoints.load(target, there)[1], target)


# --- layer axis, experts, implementation --------------------------------------------------------------------------


@pytest.mark.parametrize("stacked_source", [True, False], ids=["to-separate", "to-stacked"])
def test_layers_in_one_tensor_become_tensors_of_their_own_and_back(stacked_source, program, scratch):
    stacked = World(Recipe(MOE), Layout(tp=2, ep=2), LOCAL)
    separate = replace(stacked, recipe=Recipe(MOE, dict(moe_layer_freq=[1] * MOE.layers)))
    source, target = (stacked, separate) if stacked_source else (separate, stacked)
    root = dcp_checkpoints.save(source, scratch / "source")
    there = to_torch_dist(program, root, scratch / "there", target.layout, target_options={"layers": "separate" if stacked_source else "stacked"})
    dcp_reading.check_catalogue(iteration_folder(there))
    theirs = dcp_checkpoints.load(source, root, TOKENS)
    mine = dcp_checkpoints.load(target, there, TOKENS)
    assert_close(mine[0], theirs[0])
    assert layer_values(mine[1]) == layer_values(theirs[1])


def layer_values(tensors):
    """Per layer: the bytes of each of its tensors."""
    result = {}
    for key, tensor in tensors.items():
        if key.startswith("decoder.layers.") and not key.split(".")[2].isdigit():
            for layer, part in enumerate(tensor):
                result[key.replace("layers.", f"layers.{layer}.", 1)] = part.numpy().tobytes()
        else:
            result[key] = tensor.numpy().tobytes()
    return result


@pytest.mark.parametrize("source_form, target_form", [(LOCAL, TE_GROUPED), (TE_GROUPED, LOCAL), (TE_SEQUENTIAL, TE_GROUPED)], ids=lambda form: form.label())
def test_another_implementation(source_form, target_form, program, scratch):
    """Norm names and extra states differ between implementations; a file may hold more extra states than a loader wants, never fewer."""
    source, target = World(Recipe(MOE), Layout(tp=2, ep=2), source_form), World(Recipe(MOE), Layout(ep=4), target_form)
    root = dcp_checkpoints.save(source, scratch / "source")
    options = {"transformer_impl": "transformer_engine" if target_form.impl == "te" else "local", "experts": target_form.experts}
    there = to_torch_dist(program, root, scratch / "there", target.layout, target_options=options)
    dcp_reading.check_catalogue(iteration_folder(there))
    expected, _ = dcp_checkpoints.load(source, root, TOKENS)
    found, _ = dcp_checkpoints.load(target, there, TOKENS, strict="raise_unexpected")
    assert_close(found, expected)


def test_a_missing_expert_is_refused(program, scratch):
    source, target = worlds("moe")
    root = dcp_checkpoints.save(source, scratch / "source")
    folder, key = iteration_folder(root), "decoder.layers.mlp.experts.experts.linear_fc2.weight"
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    entry = metadata.state_dict_metadata[key]
    entry.chunks = [chunk for chunk in entry.chunks if chunk.offsets[1] != 3]
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items() if index.fqn != key or index.offset[1] != 3}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    outcome = program.attempt(root, scratch / "there", "torch_dist", target_options={"layout": target.layout.toml()})
    assert outcome.returncode == 3 and key in outcome.stderr and not (scratch / "there").exists()


# --- optimizer ----------------------------------------------------------------------------------------------------


def optimizer_worlds(name):
    config = {"dense": DENSE.with_(layers=2, dtype="bfloat16"), "dense-f32": DENSE.with_(layers=2), "moe": MOE.with_(experts=4, dtype="bfloat16")}[name]
    layouts = (Layout(tp=2, ep=2), Layout(ep=4)) if config.experts else (Layout(tp=2), Layout(pp=2))
    return [World(Recipe(config), layout, replicas=1 if config.experts else 2) for layout in layouts]


@pytest.mark.parametrize("kind", [PLAIN, RESHARDABLE])
@pytest.mark.parametrize("name", ["dense", "dense-f32", "moe"])
def test_training_continues_in_another_layout_as_if_nothing_had_happened(name, kind, program, scratch):
    source, target = optimizer_worlds(name)
    uninterrupted = dcp_checkpoints.train_and_save(source, scratch / "source", kind)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    dcp_reading.assert_same_content(iteration_folder(there), iteration_folder(scratch / "source"))
    assert without_paths(common_of(there)) == without_paths(common_of(scratch / "source"))
    assert_same_tensors(dcp_checkpoints.resume(target, there, kind), uninterrupted)


def test_state_that_only_its_own_layout_can_use_is_refused_in_one_sentence(program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", DP_RESHARDABLE)
    outcome = program.attempt(scratch / "source", scratch / "there", "torch_dist", target_options={"layout": target.layout.toml()})
    assert outcome.returncode == 3 and not (scratch / "there").exists()
    said = outcome.stderr.partition("error: ")[2].split("-" * 40)[0].strip()
    assert "dp_reshardable" in said and "optimizer" in said and "\n" not in said, said


def test_refused_state_can_be_dropped(program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", DP_RESHARDABLE)
    there = to_torch_dist(program, scratch / "source", scratch / "there", target.layout, source_options={"optimizer": "drop"})
    assert not [key for key in dcp_reading.catalogue(iteration_folder(there)).state_dict_metadata if "optimizer" in key]
    assert "optimizer" not in common_of(there)
    dcp_checkpoints.load(target, there)


def test_a_format_that_cannot_carry_the_optimizer_stops_unless_it_is_dropped(program, scratch):
    source, target = optimizer_worlds("dense")
    dcp_checkpoints.train_and_save(source, scratch / "source", RESHARDABLE)
    outcome = program.attempt(scratch / "source", scratch / "there", "megatron", target_options={"layout": target.layout.toml()})
    assert outcome.returncode == 3 and "optimizer" in outcome.stderr and not (scratch / "there").exists()
    there = program.run(scratch / "source", scratch / "there", "megatron", source_options={"optimizer": "drop"}, target_options={"layout": target.layout.toml()})
    weights = {key: tensor for key, tensor in dcp_reading.whole_tensors(iteration_folder(scratch / "source")).items() if not key.startswith("optimizer.")}
    assert_same_tensors(dcp_checkpoints.load_legacy_tree(target, there), weights)


# --- legacy trees and Hugging Face folders ------------------------------------------------------------------------


@CHANGED
def test_from_a_legacy_tree(name, program, scratch):
    source, target = worlds(name)
    tree = dcp_checkpoints.save_legacy(source, scratch / "tree")
    there = to_torch_dist(program, tree, scratch / "there", target.layout)
    dcp_reading.check_catalogue(iteration_folder(there))
    found, held = dcp_checkpoints.load(target, there, tokens_of(target))
    assert_holds_its_values(held, target)
    expected, _ = dcp_checkpoints.load(source, dcp_checkpoints.save(source, scratch / "own"), tokens_of(source))
    assert_close(found, expected)


@CHANGED
def test_to_a_legacy_tree(name, program, scratch):
    source, target = worlds(name)
    root = dcp_checkpoints.save(source, scratch / "source")
    options = {"layout": target.layout.toml()}
    tree = program.run(root, scratch / "tree", "megatron", target_options=options)
    assert_holds_its_values(dcp_checkpoints.load_legacy_tree(target, tree), target)


HF = {"llama": cases.LLAMA.with_(layers=4, dtype="float32"), "qwen3": DENSE, "qwen3-moe": MOE, "mixtral": cases.MIXTRAL.with_(layers=2)}
HF_LAYOUT = {"llama": Layout(tp=2, pp=2), "qwen3": Layout(tp=4), "qwen3-moe": Layout(tp=2, ep=4), "mixtral": Layout(pp=2, ep=2)}


def forms_of(config):
    return [LOCAL, TE_GROUPED, TE_SEQUENTIAL] if config.experts else [LOCAL, TE_SEQUENTIAL]


@pytest.mark.parametrize("name, form", [(name, form) for name in HF for form in forms_of(HF[name])], ids=lambda value: value if isinstance(value, str) else value.label())
def test_the_triangle_closes(name, form, program, scratch):
    """legacy tree -> torch_dist -> Hugging Face -> torch_dist -> legacy tree: every station holds exactly the model's numbers."""
    config, layout = HF[name], HF_LAYOUT[name]
    wanted, impl = make_globals(config), {"transformer_impl": "transformer_engine" if form.impl == "te" else "local", "experts": form.experts}
    tree = write_tree(scratch / "tree", config, layout, form, wanted)
    first = to_torch_dist(program, tree, scratch / "first", layout)
    folder = program.to_hf(first, scratch / "folder", model={"map": config.family})
    assert_same_tensors(hf_models.read_hf(folder), hf_models.globals_to_hf(config, wanted))
    second = to_torch_dist(program, folder, scratch / "second", layout, target_options=impl)
    dcp_reading.check_catalogue(iteration_folder(second))
    again = program.run(second, scratch / "again", "megatron", target_options={"layout": layout.toml()} | impl)
    config = with_written_divisor(config, again)
    check_tree(again, config, layout, with_written_norms(form, again), wanted)


@pytest.mark.parametrize("name", HF)
def test_a_hugging_face_folder_computes_the_same_in_megatron_core(name, program, scratch):
    config, layout = HF[name], HF_LAYOUT[name]
    folder = hf_models.save_hf(scratch / "folder", config, make_globals(config))
    for form in forms_of(config):
        impl = {"transformer_impl": "transformer_engine" if form.impl == "te" else "local", "experts": form.experts}
        there = to_torch_dist(program, folder, scratch / form.label(), layout, target_options=impl)
        assert (there / TRACKER).read_text().strip() == "release"
        divisor = common_of(there)["args"].make_vocab_size_divisible_by if "args" in common_of(there) else 128
        world = World(Recipe(config.with_(vocab_divisor=divisor), recipe_of_layers(there, config)), layout, form)
        found, _ = dcp_checkpoints.load(world, there, TOKENS, strict="raise_unexpected")
        torch.testing.assert_close(found, hf_models.hf_logits(folder, TOKENS), rtol=1e-4, atol=1e-4)


def recipe_of_layers(root, config):
    """Whether the writer chose one tensor for all layers, which a job with experts says by the form of moe_layer_freq."""
    separate = any(key.startswith("decoder.layers.0.") for key in dcp_reading.tensor_entries(iteration_folder(root)))
    return dict(moe_layer_freq=[1] * config.layers) if separate and config.experts else {}


@pytest.mark.parametrize("name", HF)
def test_both_ways_from_a_legacy_tree_to_hugging_face_give_the_same_files(name, program, scratch):
    config, layout = HF[name], HF_LAYOUT[name]
    tree = write_tree(scratch / "tree", config, layout, LOCAL, make_globals(config))
    direct = program.to_hf(tree, scratch / "direct", model={"map": config.family})
    through = to_torch_dist(program, tree, scratch / "through", Layout(pp=2))
    folder = program.to_hf(through, scratch / "folder", model={"map": config.family})
    assert tree_hashes(folder) == tree_hashes(direct)
    shutil.rmtree(scratch / "through")


def test_safetensors_names_without_a_model(program, scratch):
    """Without a map names stay as they are; that a file named after megatron-core's keys is of use is the user's affair."""
    source, _ = worlds("dense")
    root = dcp_checkpoints.save(source, scratch / "source")
    target = program.run(root, scratch / "plain", "dcp", model={"map": "none"}, target_options={"chunks": "whole"})
    assert_holds_its_values(dcp_reading.whole_tensors(target), source)
