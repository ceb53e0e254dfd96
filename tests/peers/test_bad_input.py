"""Sources that are damaged, incomplete or contradict themselves, and jobs that cannot be: each is refused with a sentence that helps."""

import pytest
import torch

import bad_sources as bad
from bad_job import SOURCE, USAGE, Case, with_ranks
from bad_sources import cut, damage_args, damage_model, shard, without_directories, without_file

QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
NORM = "decoder.final_layernorm.weight"
FC1 = "decoder.layers.0.mlp.experts.linear_fc1.weight1"


def to(layout, **options):
    return {"target_options": {"layout": layout, **options}}


TREE_CASES = [
    Case("cut to 0", "dense", ("mp_rank_01_001/model_optim_rng.pt", "empty file", "Fetch"), cut("mp_rank_01_001", 0)),
    Case("cut to 1", "dense", ("mp_rank_01_001/model_optim_rng.pt", "unknown kind", "Fetch"), cut("mp_rank_01_001", 1)),
    *[Case(f"cut to {length}", "dense", ("mp_rank_01_001/model_optim_rng.pt", "no end record", "bytes", "truncated", "compare its size"),
           cut("mp_rank_01_001", length)) for length in (30, 0.1, 0.5, 0.9, -1)],
    Case("no tensor rank 1", "flat", ("mp_rank_01",), without_directories("mp_rank_01")),
    Case("no tensor rank 1 in stage 1", "dense", ("mp_rank_01_001",), without_directories("mp_rank_01_001")),
    Case("no stage 1", "dense", ("mp_rank_00_001",), without_directories("mp_rank_00_001", "mp_rank_01_001")),
    Case("no stage 0", "dense", ("mp_rank_00_000",), without_directories("mp_rank_00_000", "mp_rank_01_000")),
    Case("no expert rank 1", "ep", ("mp_rank_00_001",), without_directories("mp_rank_00_001")),
    Case("no expert rank 1 in stage 1", "moe-pp", ("mp_rank_00_001_001",), without_directories("mp_rank_00_001_001")),
    Case("no experts of tp 0 ep 1", "moe", ("mp_rank_00_001",), without_directories("mp_rank_00_001")),
    Case("no model file", "dense", ("mp_rank_01_000", "model_optim_rng.pt", "restore"), without_file("mp_rank_01_000")),
    Case("experts collide, args EP 1", "ep", ("mp_rank_00_001", "pipeline rank by args", "expert rank by keys", "expert size 1", "Correct"), damage_args(expert_model_parallel_size=1)),
    Case("experts collide, 4 of 4 in both", "ep", ("mp_rank_00_000", "linear_fc1.weight2", "beyond", "linear_fc1.weight1"), bad.all_experts_in_every_directory),
    Case("expert numbers with a gap", "ep", ("mp_rank_00_001", "lacks", "linear_fc1.weight1"), bad.renumbered),
    Case("num_experts is 8", "ep", ("mp_rank_00_000", "router.weight", "[4, 32]", "[8, 32]", "args"), damage_args(num_experts=8)),
    Case("args TP 4", "flat", ("tensor 4 (from args)", "mp_rank_02", "mp_rank_03", "Restore"), damage_args(tensor_model_parallel_size=4)),
    Case("args TP 1", "flat", ("tensor 1 (from args)", "mp_rank_01", "Remove"), damage_args(tensor_model_parallel_size=1)),
    Case("args PP 4", "dense", ("pipeline 4 (args)", "mp_rank_00_003", "Restore"), damage_args(pipeline_model_parallel_size=4)),
    Case("args of shards differ", "flat", ("tensor_model_parallel_size", "2", "4"), damage_args(["mp_rank_01"], tensor_model_parallel_size=4)),
    Case("num_layers 3", "flat", ("mp_rank_00", "layers.3.", "beyond", "layers.2.", "args"), damage_args(num_layers=3)),
    Case("num_layers 6", "flat", ("mp_rank_00", "lacks", "layers.4.", "27 of the 39 expected names"), damage_args(num_layers=6)),
    Case("hidden_size 64", "flat", ("mp_rank_00/model_optim_rng.pt", "weight", "[48, 32]", "[48, 64]", "args"), damage_args(hidden_size=64)),
    Case("heads 8", "flat", ("linear_qkv.weight", "[32, 32]", "[48, 32]"), damage_args(num_attention_heads=8)),
    Case("unknown tensor", "flat", ("decoder.layers.1.mystery.weight", "mp_rank_01"),
         damage_model(lambda model: model.update({"decoder.layers.1.mystery.weight": torch.ones(3)}), ["mp_rank_01"])),
    Case("tensor missing everywhere", "flat", ("linear_qkv", "layers.0"), damage_model(lambda model: model.pop(QKV))),
    Case("tensor missing in one rank", "flat", ("linear_qkv", "layers.0"), damage_model(lambda model: model.pop(QKV), ["mp_rank_01"])),
    Case("expert missing", "ep", ("linear_fc1.weight",), damage_model(lambda model: model.pop(FC1), ["mp_rank_00_001"])),
    Case("dtypes differ between ranks", "flat", ("F16", "BF16", "mp_rank"), damage_model(bad.half_precision, ["mp_rank_01"])),
    Case("shape of one tensor", "flat", (NORM, "[31]", "[32]"), damage_model(bad.another_shape, ["mp_rank_00"])),
    Case("shape of a replica", "flat", (NORM, "[31]", "[32]", "mp_rank_01"), damage_model(bad.another_shape, ["mp_rank_01"])),
    Case("optimizer kept", "flat", ("optimizer", "drop"), bad.with_optimizer),
    Case("rng kept", "flat", ("rng", "drop"), bad.with_rng),
    Case("distrib_optim.pt beside", "flat", ("optimizer", "drop"), bad.distrib_optim_beside),
    Case("checkpoint_version 2", "flat", ("checkpoint_version", "2", "3.0"),
         lambda tree: bad.edit_shards(tree, lambda content: content.update(checkpoint_version=2.0))),
    Case("no args", "flat", ("args",), lambda tree: bad.edit_shards(tree, lambda content: content.pop("args"))),
    Case("no model", "flat", ("mp_rank_00", "model"), lambda tree: bad.edit_shards(tree, lambda content: content.pop("model"))),
    Case("a list as shard", "flat", ("mp_rank_00/model_optim_rng.pt", "dict"), lambda tree: torch.save([1], shard(tree, "mp_rank_00"))),
    Case("tracker of another iteration", "flat", ("latest_checkpointed_iteration.txt", "999"),
         lambda tree: (tree / "latest_checkpointed_iteration.txt").write_text("999")),
    Case("tracker is no number", "flat", ("latest_checkpointed_iteration.txt", "soon"),
         lambda tree: (tree / "latest_checkpointed_iteration.txt").write_text("soon")),
]

LAYOUT_CASES = [
    Case("tp 3", "dense", ("tp = 3", "is 4, which 3 does not divide", "Sizes that fit: 1, 2, 4."), code=USAGE, options=to("{ tp = 3 }")),
    Case("tp 64", "dense", ("tp = 64", "is 4, which 64 does not divide", "Sizes that fit: 1, 2, 4."), code=USAGE, options=to("{ tp = 64 }")),
    Case("ep 3 of 4 experts", "moe", ("ep = 3", "4", "1, 2, 4"), code=USAGE, options=to("{ ep = 3 }")),
    Case("ep without experts", "dense", ("layout.ep = 2", "0 experts", "ep = 1"), code=USAGE, options=to("{ ep = 2 }")),
    Case("etp 3", "moe", ("etp = 3", "tp = 2", "Sizes that fit: 1, 2"), code=USAGE, options=to("{ tp = 2, etp = 3 }")),
    Case("etp 4 over tp 2", "moe", ("etp = 4", "tp = 2", "Sizes that fit: 1, 2"), code=USAGE, options=to("{ tp = 2, etp = 4 }")),
    Case("pp 3 of 4 layers", "dense", ("toml:", "[target] layout.pp = 3: ", "4 decoder layers", "3 chunks", "Sizes of pp that fit: 1, 2, 4.", "Choose"), code=USAGE, options=to("{ pp = 3 }")),
    Case("pp 8 of 4 layers", "dense", ("4 decoder layers", "8 chunks", "Choose"), code=USAGE, options=to("{ pp = 8 }")),
    Case("vpp 3 of 4 layers", "dense", ("layout.vpp = 3: ", "4 decoder layers", "6 chunks", "Sizes of vpp that fit with pp = 2: 1, 2.", "Choose"), code=USAGE, options=to("{ pp = 2, vpp = 3 }")),
    Case("vpp without pp", "dense", ("layout.vpp = 3", "layout.pp = 1", "Set vpp to 1"), code=USAGE, options=to("{ pp = 1, vpp = 3 }")),
    Case("first stage of 5", "dense", ("first stage", "5", "4 decoder layers", "pp = 2"), code=USAGE, options=to("{ pp = 2, first_stage_layers = 5 }")),
    Case("pipeline of 3 layers", "dense", ("Ett|tL", "3 t", "4 decoder layers", "Change"), code=USAGE, options=to('{ pp = 2, pipeline = "Ett|tL" }')),
    Case("pipeline of 3 stages on pp 2", "dense", ("3 stages", "pp = 2"), code=USAGE, options=to('{ pp = 2, pipeline = "Et|tt|tL" }')),
    Case("pipeline with an unknown letter", "dense", ("Ett|txL", "column 6"), code=USAGE, options=to('{ pp = 2, pipeline = "Ett|txL" }')),
    Case("unknown map", "dense", ("lama", "llama", "Known"), code=USAGE, options={"target_format": "huggingface", "model": {"map": "lama"}}),
    Case("map file that is not there", "dense", ("./none.toml", "no such file", "Check"), code=USAGE, options={"model": {"map": "./none.toml"}}),
    Case("memory too small", "dense", ("memory", "1.0 KiB", "at least 1.0 MiB"), code=USAGE, options={"memory": "1 KiB"}),
    Case("source format of another kind", "dense", ("safetensors",), options={"source_options": {"format": "huggingface"}}),
    Case("reference that is not there", "dense", ("/none", "target.reference"), code=USAGE,
         options={"target_format": "huggingface", "model": {"map": "llama"}, "target_options": {"reference": "/none"}}),
]


@pytest.mark.long_but(
    "*-3", "optimizer kept-1", "unknown tensor-1", "expert missing-1", "shape of one tensor-1", "ep 3 of 4 experts-1", "memory too small-1")
@with_ranks(TREE_CASES + LAYOUT_CASES)
def test_a_refused_job(case, ranks, bad_jobs):
    case.check(bad_jobs, ranks)


def other_values(model):
    model[NORM] = model[NORM] + 1


def test_copies_that_are_not_read_do_not_count(bad_jobs, scratch):
    """Of a tensor that all tensor ranks hold, a job that asks for it reads one copy; the choice does not depend on the values."""
    source = bad.copy_of("flat", scratch / "source")
    damage_model(other_values, ["mp_rank_01"])(source)
    outcome = bad_jobs.run(bad_jobs.text(source, source_options={"replicas": "first"}), ranks=3)
    assert outcome.code == 0, outcome.error
    written = torch.load(shard(bad_jobs.target, "mp_rank_00"), weights_only=False)["model"][NORM]
    copies = [torch.load(shard(source, name), weights_only=False)["model"][NORM] for name in ("mp_rank_00", "mp_rank_01")]
    assert any(torch.equal(written, copy) for copy in copies)
