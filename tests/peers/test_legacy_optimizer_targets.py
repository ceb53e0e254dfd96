"""Legacy `mp_rank` folders with optimizer state as targets: megatron-core loads them and trains on to the bits of a run that never stopped."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import cases
import dcp_checkpoints
import legacy_optimizer
from dcp_cases import MIXED, MOE, to_torch_dist, vocabulary_of
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE
from legacy_optimizer import DISTRIBUTED_FILE
from numpy_megatron import SHARD_FILE, iteration_folder
from peer_types import Layout
from reshard_job import BINARY, tree_hashes
from tensor_patterns import assert_same_tensors, same_bits
from test_legacy_optimizer import CHANGES, DISTRIBUTED, MOE_4, ODD, ODD_TIED, SMALL, bf16, world

INLINE = PLAIN
KINDS = {DISTRIBUTED: "distributed", INLINE: "inline"}


def options_of(target, kind=None):
    """What a user says of the run that will load the target."""
    options = {"layout": target.layout.toml(), "experts": target.form.experts, "transformer_impl": "transformer_engine" if target.form.impl == "te" else "local"}
    if kind is not None:
        options["optimizer"] = KINDS[kind]
    if kind == DISTRIBUTED:
        options |= {"overlap_grad_reduce": "on", "bucket_size": target.bucket_size} if target.bucket_size else {"overlap_grad_reduce": "off"}
    return options


def to_rank_folders(program, source, there, target, kind=None, true_vocab_size=0, **options):
    model = {"true_vocab_size": true_vocab_size} if true_vocab_size else {}
    return program.run(source, there, "megatron", target_options=options_of(target, kind) | options, model=model)


def compared(*sides):
    outcome = subprocess.run([BINARY, "verify", *map(str, sides)], capture_output=True, text=True)
    return outcome.returncode, outcome.stdout + outcome.stderr


def check_training_goes_on(source, target, save, source_kind, kind, program, scratch):
    uninterrupted = save(source, scratch / "source", source_kind)
    there = to_rank_folders(program, scratch / "source", scratch / "there", target, kind, source.recipe.config.vocab)
    code, said = compared(there)
    assert code == 0, said
    resumed = legacy_optimizer.resume(target, there, kind)
    meant = vocabulary_of(source)
    assert_same_tensors({key: meant(key, tensor) for key, tensor in resumed.items()}, {key: meant(key, tensor) for key, tensor in uninterrupted.items()})


BUCKETS = {  # where buckets end differs between source and target
    "more": (world(ODD, Layout(tp=1), replicas=2), world(ODD, Layout(tp=2), bucket_size=1500)),
    "fewer": (world(ODD, Layout(tp=2), bucket_size=1500), world(ODD, Layout(tp=1), replicas=3)),
    "other": (world(ODD, Layout(tp=1), replicas=3, bucket_size=900), world(ODD, Layout(pp=2), bucket_size=2100)),
    "tied": (world(ODD_TIED, Layout(tp=2)), world(ODD_TIED, Layout(tp=1, pp=2), replicas=2, bucket_size=1500)),
}


@pytest.mark.long_but("odd-sizes", "tied-odd", "moe-apart", "moe-one-group")
@pytest.mark.parametrize("name", CHANGES)
def test_training_goes_on_with_a_distributed_optimizer(name, program, scratch):
    check_training_goes_on(*CHANGES[name], legacy_optimizer.train_and_save, DISTRIBUTED, DISTRIBUTED, program, scratch)


@pytest.mark.long_but("tied", "moe-together")
@pytest.mark.parametrize("name", [name for name in CHANGES if "buckets" not in name])
def test_training_goes_on_with_state_inside_the_model_files(name, program, scratch):
    check_training_goes_on(*CHANGES[name], legacy_optimizer.train_and_save, INLINE, INLINE, program, scratch)


@pytest.mark.long_but("other", "tied")
@pytest.mark.parametrize("name", BUCKETS)
def test_buckets_of_the_target_are_its_own(name, program, scratch):
    check_training_goes_on(*BUCKETS[name], legacy_optimizer.train_and_save, DISTRIBUTED, DISTRIBUTED, program, scratch)


SAVES = {  # form of the source -> (how it is saved, kind)
    "distributed": (legacy_optimizer.train_and_save, DISTRIBUTED), "inline": (legacy_optimizer.train_and_save, INLINE),
    "dp_reshardable": (dcp_checkpoints.train_and_save, DP_RESHARDABLE), "fully_reshardable": (dcp_checkpoints.train_and_save, RESHARDABLE),
    "plain": (dcp_checkpoints.train_and_save, PLAIN),
}  # fmt: skip
CROSSES = {
    "dense": (world(SMALL, Layout(tp=2)), world(SMALL, Layout(pp=2), replicas=2)),
    "odd": (world(ODD, Layout(tp=1)), world(ODD, Layout(tp=2), bucket_size=1500)),
    "moe": (world(MOE_4, Layout(tp=2, ep=2)), world(MOE_4, Layout(ep=4))),
    "one-group": (world(MOE_4, Layout(tp=2, etp=2)), world(MOE_4, Layout(tp=4, etp=2))),
    "mixed": (world(bf16(MIXED), Layout(ep=2)), world(bf16(MIXED), Layout(pp=3, ep=2))),
    "fp32": (world(MOE.with_(experts=4), Layout(tp=2)), world(MOE.with_(experts=4), Layout(ep=2))),
}
TORCH = (world(MOE_4, Layout(tp=2), torch_adam=True), world(MOE_4, Layout(ep=2), torch_adam=True))


@pytest.mark.long_but("dp_reshardable-inline-one-group", "fully_reshardable-distributed-moe", "distributed-inline-moe", "inline-distributed-mixed", "plain-distributed-fp32")
@pytest.mark.parametrize("name", [f"{form}-{KINDS[kind]}-{case}" for form in SAVES for kind in KINDS for case in CROSSES
                                  if not (case == "fp32" and kind == INLINE and form in ("distributed", "dp_reshardable", "fully_reshardable"))])  # fmt: skip
def test_every_form_goes_into_rank_folders(name, program, scratch):
    form, kind, case = name.split("-", 2)
    save, source_kind = SAVES[form]
    check_training_goes_on(*CROSSES[case], save, source_kind, {text: kind for kind, text in KINDS.items()}[kind], program, scratch)


@pytest.mark.parametrize("form", ["inline", "plain"])
def test_training_goes_on_with_the_adamw_of_torch(form, program, scratch):
    """It counts steps for each parameter, in tensors."""
    check_training_goes_on(*TORCH, *SAVES[form], INLINE, program, scratch)


def test_steps_of_the_adamw_of_torch_go_into_the_groups_of_a_distributed_optimizer(program, scratch):
    """Megatron-Core 0.16 saves such files, and cannot load them."""
    here = world(ODD, Layout(tp=1), torch_adam=True)
    legacy_optimizer.train_and_save(here, scratch / "inline", INLINE)
    legacy_optimizer.train_and_save(here, scratch / "distributed", DISTRIBUTED)
    there = to_rank_folders(program, scratch / "inline", scratch / "there", here, DISTRIBUTED)
    for file in (SHARD_FILE, DISTRIBUTED_FILE):
        found, expected = content_of(there, file), content_of(scratch / "distributed", file)
        assert_same(*(content["optimizer"] if file == SHARD_FILE else content for content in (found, expected)))


# --- the files -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """By kind: a world, and the checkpoint that it saved."""
    root = Path(tempfile.mkdtemp(prefix="reshard-legacy-targets-"))
    for kind in KINDS:
        legacy_optimizer.train_and_save(world(ODD, Layout(tp=2)), root / kind, kind)
    yield root
    shutil.rmtree(root)


def content_of(root, file, rank=0):
    return torch.load(iteration_folder(root) / f"mp_rank_{rank:02d}" / file, weights_only=False)


def assert_same(found, expected, place=""):
    """Nested values, tensors by their bits."""
    assert type(found) is type(expected), place
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape and same_bits(found, expected), place
    elif isinstance(found, dict):
        assert set(found) == set(expected), place
        for key in found:
            assert_same(found[key], expected[key], f"{place}.{key}")
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected)):
            assert_same(one, other, f"{place}[{number}]")
    else:
        assert found == expected, place


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_layout_gives_the_optimizer_that_megatron_saved(kind, program, trained, scratch):
    there = to_rank_folders(program, trained / kind, scratch / "there", world(ODD, Layout(tp=2)))
    for rank in (0, 1):
        assert_same(content_of(there, SHARD_FILE, rank)["optimizer"], content_of(trained / kind, SHARD_FILE, rank)["optimizer"])
        if kind == DISTRIBUTED:
            assert_same(content_of(there, DISTRIBUTED_FILE, rank), content_of(trained / kind, DISTRIBUTED_FILE, rank))


def test_experts_state_lies_where_megatron_saves_it(program, scratch):
    """Dense state in the folders of the first data-parallel ranks alone, and nothing for stages without experts."""
    here = world(bf16(MIXED), Layout(tp=2, pp=3, ep=2))
    legacy_optimizer.train_and_save(here, scratch / "source", DISTRIBUTED)
    there = to_rank_folders(program, scratch / "source", scratch / "there", here)
    folders = sorted(path.name for path in iteration_folder(scratch / "source").iterdir())
    assert sorted(path.name for path in iteration_folder(there).iterdir()) == folders
    for folder in folders:
        assert_same(*(torch.load(iteration_folder(root) / folder / DISTRIBUTED_FILE, weights_only=False) for root in (there, scratch / "source")), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_reads_back_as_a_source(kind, program, trained, scratch):
    """Through rank folders of another layout, and through torch_dist: the same files."""
    away = to_rank_folders(program, trained / kind, scratch / "away", world(ODD, Layout(pp=2)))
    back = to_rank_folders(program, away, scratch / "back", world(ODD, Layout(tp=2)))
    through = to_rank_folders(program, to_torch_dist(program, away, scratch / "dist", Layout(tp=2)), scratch / "through", world(ODD, Layout(tp=2)))
    for root in (back, through):
        for rank in (0, 1):
            assert_same(content_of(root, SHARD_FILE, rank)["optimizer"], content_of(trained / kind, SHARD_FILE, rank)["optimizer"])
            if kind == DISTRIBUTED:
                assert_same(content_of(root, DISTRIBUTED_FILE, rank), content_of(trained / kind, DISTRIBUTED_FILE, rank))


def test_verify_compares_state_in_any_form(program, trained, scratch):
    """Both forms of rank folders, and fsdp_dtensor, which has master weights alone."""
    there = to_rank_folders(program, trained / DISTRIBUTED, scratch / "there", world(ODD, Layout(pp=2)), INLINE)
    fsdp = program.run(trained / INLINE, scratch / "fsdp", "fsdp_dtensor", target_options={"layout": Layout(tp=2).toml()})
    for other in (trained / DISTRIBUTED, trained / INLINE, fsdp):
        code, said = compared(there, other)
        assert code == 0 and "same: 84 tensors" in said, said
    file = iteration_folder(there) / "mp_rank_00_001" / SHARD_FILE
    content = torch.load(file, weights_only=False)
    next(iter(content["optimizer"]["optimizer"]["state"].values()))["exp_avg"].view(-1)[1] += 1
    torch.save(content, file)
    for other in (trained / DISTRIBUTED, trained / INLINE, fsdp):
        code, said = compared(there, other)
        assert code == 1 and "(exp_avg)" in said and "different: 1 of 84 tensors" in said, said


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_ranks_changes_nothing(kind, program, trained, scratch):
    trees = [program.run(trained / kind, scratch / f"there-{ranks}", "megatron", ranks=ranks, target_options={"layout": Layout(pp=2).toml()}) for ranks in (1, 3)]
    assert tree_hashes(trees[0]) == tree_hashes(trees[1])


def test_args_say_how_training_starts(program, trained, scratch):
    there = to_rank_folders(program, trained / DISTRIBUTED, scratch / "there", world(ODD, Layout(tp=1), bucket_size=1500), DISTRIBUTED)
    args = content_of(there, SHARD_FILE)["args"]
    assert (args.use_distributed_optimizer, args.overlap_grad_reduce, args.ddp_bucket_size) == (True, True, 1500)
    assert content_of(there, SHARD_FILE)["opt_param_scheduler"] == content_of(trained / DISTRIBUTED, SHARD_FILE)["opt_param_scheduler"]
    inline = to_rank_folders(program, trained / DISTRIBUTED, scratch / "inline", world(ODD, Layout(tp=1)), INLINE)
    assert not content_of(inline, SHARD_FILE)["args"].use_distributed_optimizer
    assert not (iteration_folder(inline) / "mp_rank_00" / DISTRIBUTED_FILE).exists()


def test_places_that_depend_on_buckets_are_warned_of(program, trained, scratch):
    said = [program.attempt(trained / DISTRIBUTED, scratch / f"there-{number}", "megatron", target_options=options_of(world(ODD, Layout(tp=1)), kind) | more).stderr
            for number, (kind, more) in enumerate([(DISTRIBUTED, {"overlap_grad_reduce": "on", "bucket_size": 1500}), (DISTRIBUTED, {}), (INLINE, {})])]  # fmt: skip
    assert "--overlap-grad-reduce --ddp-bucket-size 1500" in said[0], said[0]
    assert "without --overlap-grad-reduce" in said[1], said[1]
    assert "gradient buckets" not in said[2], said[2]


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key, value, target, options, words", [
    ("wd_mult", lambda group: 1.0, "megatron", {"optimizer": "inline"}, "several parameter groups with weight decay"),
    ("is_decoupled_lr", lambda group: group["wd_mult"] == 0, "megatron", {"optimizer": "inline"}, "has no parameter group with weight decay, which"),
    ("is_decoupled_lr", lambda group: group["wd_mult"] == 0, "fsdp_dtensor", {}, "has no parameter group with weight decay, which"),
], ids=["several", "none", "none, fsdp"])  # fmt: skip
def test_groups_that_parameters_do_not_fall_into_are_refused(key, value, target, options, words, program, trained, scratch):
    source = Path(shutil.copytree(trained / DISTRIBUTED, scratch / "source"))
    for path in iteration_folder(source).rglob(SHARD_FILE):
        content = torch.load(path, weights_only=False)
        for group in content["optimizer"]["optimizer"]["param_groups"]:
            group[key] = value(group)
        torch.save(content, path)
    layout = {"layout": Layout(tp=1).toml()} if target == "megatron" else {}
    outcome = program.attempt(source, scratch / "there", target, target_options=layout | options)
    assert outcome.returncode == 3 and words in outcome.stderr, outcome.stderr
    assert not (scratch / "there").exists()


def test_copies_of_f32_weights_have_no_place_inside_model_files(program, scratch):
    legacy_optimizer.train_and_save(world(cases.LLAMA.with_(layers=2, dtype="float32"), Layout(tp=1)), scratch / "source", DISTRIBUTED)
    outcome = program.attempt(scratch / "source", scratch / "there", "megatron", target_options={"layout": Layout(tp=1).toml(), "optimizer": "inline"})
    assert outcome.returncode == 2 and 'target.optimizer = "distributed"' in outcome.stderr, outcome.stderr
    assert not (scratch / "there").exists()
