"""Vision-language models under the names of their trainers: what we write is what the trainer's source says, and every form becomes every other."""

import json

import pytest
import torch

import vision_trees
from dcp_reading import whole_tensors
from family_models import FAMILIES, logits_of, save_family
from hf_models import read_hf
from numpy_megatron import SHARD_FILE, iteration_folder
from tensor_patterns import assert_same_tensors
from vision_trees import bridge_qwen3_vl, replicated, share, stacked

KEEP = {"unmapped": "keep"}
TE = {"transformer_impl": "transformer_engine", "experts": "grouped"}


def weights(tensors):
    return {name: tensor for name, tensor in tensors.items() if torch.is_tensor(tensor) and not name.endswith("_extra_state")}


def files_of(tree):
    return {path.parent.name: weights(torch.load(path, weights_only=False)["model"]) for path in sorted(iteration_folder(tree).rglob(SHARD_FILE))}


def made(name, scratch):
    folder = save_family(scratch / "folder", FAMILIES[name])
    return folder, read_hf(folder), json.loads((folder / "config.json").read_text())


@pytest.mark.long_but("qwen3-vl")
@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3-vl-moe"])
def test_a_tower_of_megatrons_modules(name, program, scratch):
    """Megatron-Bridge's Qwen3-VL: torch_dist that it would save is read without args, and rank files are cut as it cuts them."""
    folder, hf, config = made(name, scratch)
    source = vision_trees.save_torch_dist(scratch / "bridge", stacked(bridge_qwen3_vl(hf, config)))
    back = program.to_hf(source, scratch / "back", source_options={"config": folder}, target_options={"reference": folder}, model=KEEP)
    assert_same_tensors(read_hf(back), hf)
    assert torch.equal(logits_of(back, FAMILIES[name]), logits_of(folder, FAMILIES[name]))
    dist = program.run(folder, scratch / "dist", "torch_dist", target_options=TE, model=KEEP)
    assert_same_tensors(whole_tensors(iteration_folder(dist)), stacked(bridge_qwen3_vl(hf, config)))
    ranks = program.run(dist, scratch / "ranks", "megatron", target_options=TE | {"layout": "{ tp = 2, pp = 2, first_stage_layers = 2 }"}, model=KEEP)
    again = program.to_hf(ranks, scratch / "again", target_options={"reference": folder}, model=KEEP)
    assert_same_tensors(read_hf(again), hf)
    if "moe" in name:
        return
    whole = bridge_qwen3_vl(hf, config, tp=2)
    for folder_name, held in files_of(ranks).items():
        tp, pp = (int(number) for number in folder_name.removeprefix("mp_rank_").split("_"))
        layers = [0, 1] if pp == 0 else [2, 3, 4]
        assert_same_tensors(held, share(whole, 2, tp, layers, first=pp == 0, last=pp == 1))


@pytest.mark.parametrize("names, prefix", [("swift", "visual.visual."), pytest.param("slime", "vision_model.", marks=pytest.mark.long)])
def test_a_tower_of_transformers_is_whole_on_every_rank(names, prefix, program, scratch):
    folder, hf, config = made("qwen3-vl", scratch)
    layout = {"layout": "{ tp = 2, pp = 2, first_stage_layers = 2 }"}
    tree = program.run(folder, scratch / "tree", "megatron", target_options=TE | layout | {"names": names}, model=KEEP)
    tower = replicated(hf, {"model.visual.": prefix})
    for name, held in files_of(tree).items():
        assert_same_tensors({key: value for key, value in held.items() if not key.startswith("language_model.")}, tower if name.endswith("_000") else {})
    dist = program.run(tree, scratch / "dist", "torch_dist", target_options=TE | {"names": "bridge"}, model=KEEP)
    assert_same_tensors(whole_tensors(iteration_folder(dist)), stacked(bridge_qwen3_vl(hf, config, tp=1)))
    back = program.run(dist, scratch / "again", "megatron", target_options=TE | layout | {"names": names}, model=KEEP)
    assert_same_tensors(files_of(back)["mp_rank_01_000"], files_of(tree)["mp_rank_01_000"])
    assert_same_tensors(read_hf(program.to_hf(back, scratch / "back", target_options={"reference": folder}, model=KEEP)), hf)


def llava_folder(path):
    """A Hugging Face LLaVA of the same sizes as megatron_llava's, whose weights do not matter."""
    import megatron_llava
    from family_models import base, vision_language

    model, vision = megatron_llava.MODEL, megatron_llava.VISION
    text = base(model_type="llama", max_position_embeddings=128, num_hidden_layers=model.layers, rms_norm_eps=model.norm_eps)
    vision_language("Llava", text, vision | dict(model_type="clip_vision_model", projection_dim=16), image_token_index=89)().float().save_pretrained(path)
    return path


def random_values(name, parameter):
    from family_models import random_like

    return random_like(parameter, name, centre=1.0 if "norm" in name and name.endswith("weight") else 0.0)


def test_megatrons_own_llava(program, scratch):
    """Made by Megatron-Core, cut by the program, loaded strictly by Megatron-Core; Transformers' tower computes the same."""
    import megatron_llava
    import transformers
    from peer_types import Layout

    images = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    tower, projected = megatron_llava.save(scratch / "tree", images, random_values)
    folder = llava_folder(scratch / "folder")
    config, model = {"config": folder}, KEEP | {"map": "llava"}
    layout = Layout(tp=2, pp=2, first_stage_layers=2)
    cut = program.run(scratch / "tree", scratch / "cut", "megatron", source_options=config, target_options={"layout": layout.toml()}, model=model)
    results = megatron_llava.load(cut, layout, images)
    assert len(results) == 2
    for found in results:
        torch.testing.assert_close(found[0], tower, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1], projected, rtol=1e-4, atol=1e-4)
    back = program.to_hf(cut, scratch / "back", source_options=config, target_options={"reference": folder}, model=model)
    llava = transformers.LlavaForConditionalGeneration.from_pretrained(back, attn_implementation="eager").model.eval()
    with torch.no_grad():
        theirs = llava.vision_tower(images).last_hidden_state
        torch.testing.assert_close(theirs, tower, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(llava.multi_modal_projector(theirs), projected, rtol=1e-4, atol=1e-4)
    again = program.run(back, scratch / "again", "megatron", target_options={"transformer_impl": "local"}, model=KEEP)
    found, expected = (files_of(tree)["mp_rank_00"] for tree in (again, scratch / "tree"))
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):  # without padding
        found[f"language_model.{name}"], expected[f"language_model.{name}"] = (
            held[f"language_model.{name}"][:megatron_llava.MODEL.vocab] for held in (found, expected))
    assert_same_tensors(found, expected)


@pytest.mark.long_but("torch_dist")
@pytest.mark.parametrize("form", ["torch_dist", "megatron"])
def test_a_projector_of_megatrons_modules(form, program, scratch):
    """Megatron-Bridge's Gemma 3 (models/gemma_vl): SigLIP as in transformers, and a transposed, column-parallel projection."""
    folder, hf, config = made("gemma3", scratch)
    tree = program.run(folder, scratch / "tree", form, target_options=TE | {"layout": "{ tp = 2 }"}, model=KEEP)
    parts = replicated(hf, {"vision_tower.": "vision_tower."})
    parts["multi_modal_projector.proj.weight"] = hf["multi_modal_projector.mm_input_projection_weight"].T.contiguous()
    parts["multi_modal_projector.mm_soft_embed_norm.weight"] = hf["multi_modal_projector.mm_soft_emb_norm.weight"]
    if form == "torch_dist":
        found = [(whole_tensors(iteration_folder(tree)), parts)]
    else:
        found = [(held, share(parts, 2, int(name[-2:]))) for name, held in files_of(tree).items()]
    for held, expected in found:
        assert_same_tensors({name: tensor for name, tensor in held.items() if not name.startswith("language_model.")}, expected)
    back = program.to_hf(tree, scratch / "back", target_options={"reference": folder}, model=KEEP)
    assert_same_tensors(read_hf(back), hf)


def test_what_is_beside_a_language_model_is_said_and_never_lost(program, scratch):
    folder, hf, config = made("qwen3-vl", scratch)
    source = vision_trees.save_torch_dist(scratch / "bridge", stacked(bridge_qwen3_vl(hf, config)))
    options = dict(source_options={"config": folder}, target_options={"reference": folder})
    refused = program.attempt(source, scratch / "a", "huggingface", **options)
    assert refused.returncode == 2 and "[model] unmapped: 27 stored tensors such as 'vision_model.decoder.deepstack_merger_list.linear_fc1.bias'" in refused.stderr
    prefixed = dict(options, source_options={"config": folder, "prefix": "language_model."})
    for model in ({}, KEEP):
        lost = program.attempt(source, scratch / "b", "huggingface", model=model, **prefixed)
        assert lost.returncode == 2 and "27 stored tensors (vision_model.decoder.deepstack_merger_list.linear_fc1.bias" in lost.stderr
    said = program.attempt(source, scratch / "c", "huggingface", model=KEEP, **options)
    assert said.returncode == 0 and "by the map, 0 byte for byte; names of bridge -> Hugging Face" in said.stdout
    language = program.attempt(source, scratch / "d", "megatron", model={"unmapped": "drop"}, source_options={"config": folder}, target_options=TE)
    assert language.returncode == 0 and "beside the language model: left out" in language.stdout
    assert not any(name.startswith(("vision_model.", "language_model.")) for name in files_of(scratch / "d")["mp_rank_00"])
