"""`target.model = "hybrid"`: attention and MLP of a layer are two layers, under the numbers of Megatron's own converter, and Megatron-Core computes the same."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
import transformers

from dcp_cases import names_of
from dcp_reading import catalogue
from family_models import TOKENS, Family, dense, logits_of, save_family
from megatron_hybrid import common_config, core_logits, mamba_spec, moe_config
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import TE_SEQUENTIAL, Layout
from reshard_job import command

DATA = Path(__file__).parents[1] / "data"
CASES = {  # name -> (model, layout, letter of the second layer)
    "llama": (dense("Llama", num_hidden_layers=4), Layout(pp=2), "-"),
    "mixtral": (dense("Mixtral", num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=2, sliding_window=None), Layout(tp=2, ep=2), "E"),
}


def pairs_config(config, layout):
    from megatron.core.transformer.transformer_config import TransformerConfig

    values = common_config(config, layout) | dict(num_layers=2 * config.num_hidden_layers)
    if hasattr(config, "num_local_experts"):
        config.n_routed_experts, config.moe_intermediate_size = config.num_local_experts, config.intermediate_size
        values |= moe_config(config, 1, None)
    return TransformerConfig(
        num_query_groups=config.num_key_value_heads, kv_channels=getattr(config, "head_dim", None), is_hybrid_model=True, mamba_num_heads=2,
        mamba_head_dim=8, mamba_num_groups=1, mamba_state_dim=8, **values)


def build_pairs(config, layout, parallel_state):
    """The hybrid model of this release, with the letters that have no Mamba."""
    from megatron.core.models.mamba import MambaModel
    from megatron.core.ssm import mamba_block
    from te_stand_ins import Norm

    mamba_block.TENorm = Norm
    core = pairs_config(config, layout)
    stage, unit = parallel_state.get_pipeline_model_parallel_rank(), 128 * layout.tp
    pattern = ("*E" if core.num_moe_experts else "*-") * config.num_hidden_layers
    return MambaModel(
        core, mamba_spec(core), vocab_size=-(-config.vocab_size // unit) * unit, max_sequence_length=config.max_position_embeddings,
        pre_process=stage == 0, hybrid_override_pattern=pattern, post_process=stage == layout.pp - 1, position_embedding_type="rope",
        rotary_base=config.rope_parameters["rope_theta"], share_embeddings_and_output_weights=config.tie_word_embeddings).eval()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_megatron_core_computes_the_same(name, program, scratch):
    make, layout, letter = CASES[name]
    family = Family(make, layout, layout, TE_SEQUENTIAL, dtype=torch.float32)
    folder = save_family(scratch / "folder", family)
    options = {"layout": layout.toml(), "model": "hybrid"} | names_of(family.form)
    root = program.run(folder, scratch / "hybrid", "megatron", target_options=options)
    config = transformers.AutoConfig.from_pretrained(folder)
    found = core_logits(root, config, layout, build_pairs, TOKENS)
    torch.testing.assert_close(found, logits_of(folder, family), rtol=1e-4, atol=1e-4)


def tensors_of(listing):
    return {entry["name"]: entry["shape"] for entry in json.loads(listing.stdout)["tensors"] if "shape" in entry}


@pytest.mark.parametrize("name", ["mixtral"])
def test_there_and_back_and_from_the_hybrid_model_to_its_family(name, program, scratch):
    """The keys are those that Megatron's tools/checkpoint/gpt_hybrid_conversion.py maps to: attention of layer i is that of the i-th `*`, its MLP that of
    the i-th `-` or `E`, and the last norm is called final_norm."""
    make, layout, letter = CASES[name]
    folder = save_family(scratch / "folder", Family(make, layout, layout, TE_SEQUENTIAL))
    gpt = program.run(folder, scratch / "gpt", "torch_dist", target_options={"layers": "separate"})
    hybrid = program.run(gpt, scratch / "hybrid", "torch_dist", target_options={"model": "hybrid"})

    assert command("verify", gpt, hybrid).returncode == command("verify", folder, hybrid).returncode == 0

    def renumbered(key):
        words = key.split(".")
        if words[:2] == ["decoder", "final_layernorm"]:
            words[1] = "final_norm"
        if words[:2] == ["decoder", "layers"]:
            second = words[3] in ("mlp", "pre_mlp_layernorm")
            words[2] = str(2 * int(words[2]) + second)
        return ".".join(words)

    before, after = (tensors_of(command("ls", "--json", root)) for root in (gpt, hybrid))
    assert after == {renumbered(key): shape for key, shape in before.items()}
    output_state = "output_layer._extra_state/shard_0_1"  # GPTModel does not ask for it, HybridModel does
    assert [output_state in catalogue(iteration_folder(root)).state_dict_metadata for root in (gpt, hybrid)] == [False, True]
    args = torch.load(iteration_folder(hybrid) / "common.pt", weights_only=False)["args"]
    layers = len({key.split(".")[2] for key in before if key.startswith("decoder.layers.")})
    assert (args.hybrid_layer_pattern, args.num_layers) == (f"*{letter}" * layers, 2 * layers)
    tree = program.run(hybrid, scratch / "tree", "megatron", target_options={"layout": Layout(tp=2, pp=2).toml()})
    args = torch.load(next(iteration_folder(tree).glob("mp_rank_*")) / SHARD_FILE, weights_only=False)["args"]
    assert args.hybrid_layer_pattern.count("|") <= 1 and args.num_layers == 2 * layers
    back = program.run(tree, scratch / "back", "torch_dist", target_options={"model": "gpt"})
    assert command("verify", back, gpt).returncode == 0
    model = program.run(tree, scratch / "model", "huggingface")
    assert command("verify", model, folder).returncode == 0


def test_a_container_of_either_class_is_the_same_model(program, scratch):
    """A container keeps the numbers that layers had in the run, and is compared with models of either class, with stages and without."""
    make, layout, letter = CASES["mixtral"]
    folder = save_family(scratch / "folder", Family(make, layout, layout, TE_SEQUENTIAL))
    gpt = program.run(folder, scratch / "gpt", "torch_dist")
    hybrid = program.run(gpt, scratch / "hybrid", "megatron", target_options={"model": "hybrid", "layout": Layout(pp=2).toml()})
    of_gpt, of_hybrid = program.run(gpt, scratch / "of-gpt", "hdf5"), program.run(hybrid, scratch / "of-hybrid", "hdf5")
    back = program.run(of_hybrid, scratch / "back", "torch_dist", target_options={"model": "gpt"})
    for container in (of_gpt, of_hybrid):
        for other in (folder, gpt, hybrid, back, of_gpt):
            assert command("verify", container, other).returncode == 0, (container.name, other.name)


@pytest.mark.parametrize("model", [{}, {"map": "llama"}], ids=["stated by args", "of a family"])
def test_a_run_that_went_through_a_container_has_the_stages_of_its_target(model, program, scratch):
    """What a container keeps of a run, its settings, says the same of the model as what describes its tensors."""
    with tarfile.open(DATA / "flattened-optimizer.tar.xz") as archive:
        archive.extractall(scratch, filter="data")
    hybrid = program.run(scratch / "dense", scratch / "hybrid", "megatron", source_options={"rng": "drop"},
                         target_options={"model": "hybrid", "layout": Layout(pp=2).toml(), "optimizer": "distributed"})
    container = program.run(hybrid, scratch / "container", "hdf5", model=model)
    tree = program.run(container, scratch / "tree", "megatron", target_options={"layout": Layout(tp=2).toml()})
    args = torch.load(next(iteration_folder(tree).glob("mp_rank_*")) / SHARD_FILE, weights_only=False)["args"]
    assert "|" not in (args.hybrid_layer_pattern or "") and args.num_layers == (2 if model else 4)
    dist = program.run(container, scratch / "dist", "torch_dist", target_options={"model": "gpt", "layout": Layout(tp=2).toml()})
    for a, b in ((hybrid, container), (container, tree), (container, dist), (scratch / "dense", dist), (dist, scratch / "dense")):
        assert command("verify", a, b).returncode == 0, (a.name, b.name)  # rows behind the vocabulary differ, and are nobody's


def test_what_cannot_be_pairs_is_refused(program, scratch):
    make, layout, _ = CASES["llama"]
    folder = save_family(scratch / "folder", Family(make, layout, layout, TE_SEQUENTIAL))
    hybrid = program.run(folder, scratch / "hybrid", "torch_dist", target_options={"model": "hybrid"}, ranks=1)
    common = torch.load(iteration_folder(hybrid) / "common.pt", weights_only=False)
    common["args"].hybrid_layer_pattern = "*" + common["args"].hybrid_layer_pattern[1:].replace("-", "*", 1)
    torch.save(common, iteration_folder(hybrid) / "common.pt")
    refused = program.attempt(hybrid, scratch / "gpt", "torch_dist", target_options={"model": "gpt"}, ranks=1)
    assert refused.returncode == 2
    assert "has '*' as layer 1, where an MLP or experts is expected" in refused.stderr
