"""Damage inside the weights of a source: the CRC-32 of zip records, and small replicas that are not alike. Real files of torch, with a bit flipped."""

import json
import shutil
import signal
import struct
import zipfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import bad_sources
import cases
import hf_models
import test_resume
from bad_job import SOURCE, expect
from numpy_megatron import write_tree
from peer_types import LOCAL, TE_GROUPED, Layout
from reshard_job import MANIFEST
from tensor_patterns import crc64, make_globals, raw

# Tensors long enough to be read in several rounds, and a vocabulary without padding.
DENSE = cases.LLAMA.with_(layers=2, hidden=256, heads=8, groups=4, head_dim=32, ffn=512, vocab=512)
MOE = cases.QWEN3_MOE.with_(layers=2, hidden=256, heads=8, groups=4, head_dim=32, expert_ffn=128, vocab=512)
BIASES = DENSE.with_(family="qwen2", qkv_bias=True)
TP2 = Layout(tp=2)
FILE = "mp_rank_01/model_optim_rng.pt"
NORM = "decoder.layers.1.input_layernorm.weight"


def tree(scratch, config=DENSE, layout=TP2, form=LOCAL, **options):
    return write_tree(scratch / "source", config, layout, form, make_globals(config), **options)


def shard(source, name="mp_rank_01"):
    return bad_sources.shard(source, name)


def model_of(path):
    return torch.load(path, weights_only=False)["model"]


def flip(path, tensor, at=0.4):
    """Flips one bit of a stored tensor, somewhere in its middle, and says which record of a .pt file it is in."""
    content = bytearray(Path(path).read_bytes())
    stored = raw(tensor)
    assert content.count(stored) == 1
    begin = content.index(stored)
    content[begin + int(at * len(stored))] ^= 0x10
    Path(path).write_bytes(content)
    return begin


def record_at(path, begin):
    with zipfile.ZipFile(path) as archive:
        inside = [info for info in archive.infolist() if info.header_offset < begin]
        return max(inside, key=lambda info: info.header_offset).filename


def run_of(outcome):
    """What a finished job says of itself."""
    assert outcome.code == 0, outcome.error
    return json.loads(outcome.out)["run"]


def nothing_published(jobs):
    assert not any(jobs.parent.iterdir())


def job(jobs, source, target_format="megatron", run=(), **options):
    model = {"map": "llama"} if target_format in ("huggingface", "hdf5") else {}
    return jobs.text(source, target_format, model=model, memory="8 MiB", **options)


# --- .pt files ----------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("1-settings0-megatron", "3-settings3-hdf5", "2-settings4-torch_dist")
@pytest.mark.parametrize("target_format", ["megatron", "hdf5", "torch_dist", "huggingface"])
@pytest.mark.parametrize("ranks, settings", [(1, []), (2, []), (3, []), (3, ["run.transport=mpi"]), (2, ["run.device=emulated"])])
def test_a_flipped_bit_in_a_pt_file_is_named(target_format, ranks, settings, bad_jobs):
    source = tree(bad_jobs.scratch)
    text = job(bad_jobs, source, target_format, target_options={"layout": "{ tp = 4 }"} if target_format in ("megatron", "torch_dist") else None)
    sound = run_of(bad_jobs.run(text, ranks, settings=settings, options=["--json"]))
    assert sound["records_compared"] > 0
    bad_jobs.clear()
    name = "decoder.layers.1.self_attention.linear_qkv.weight"
    begin = flip(shard(source), model_of(shard(source))[name])
    outcome = bad_jobs.run(text, ranks, settings=settings)
    expect(outcome, SOURCE, (FILE, record_at(shard(source), begin), name, "CRC-32", "Nothing was published", 'source.verify = "off"'))
    nothing_published(bad_jobs)


VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


@pytest.mark.long_but("config1-*")
@pytest.mark.parametrize("config, layout, form", [
    (DENSE, TP2, LOCAL), (BIASES, TP2, LOCAL), (MOE, Layout(tp=2, ep=2), TE_GROUPED), (DENSE.with_(vocab=500), TP2, LOCAL)])
def test_every_record_that_is_read_is_compared(config, layout, form, bad_jobs):
    """All but replicas that are left out, biases whose rows are too short to be counted, and vocabulary with padding that is not read."""
    padded = config.vocab % 8 != 0
    source = tree(bad_jobs.scratch, config, layout, form)
    stored = set()
    count = 0
    for path in sorted(source.rglob("*.pt")):
        for name, tensor in model_of(path).items():
            if name.endswith("linear_qkv.bias") or (padded and name in VOCABULARY and path.parent.name == "mp_rank_01"):
                continue
            if isinstance(tensor, torch.Tensor) and tensor.numel() and (name, raw(tensor)) not in stored:
                stored.add((name, raw(tensor)))
                count += 1
    for ranks, settings in ((1, []), (3, ["run.transport=mpi"])):
        run = run_of(bad_jobs.run(job(bad_jobs, source), ranks, settings=settings, options=["--json"]))
        assert run["records_compared"] == count
        bad_jobs.clear()


@pytest.mark.long
def test_each_weight_of_a_shard_is_looked_at(bad_jobs):
    source = tree(bad_jobs.scratch)
    whole = shard(source).read_bytes()
    for name, tensor in model_of(shard(source)).items():
        if not isinstance(tensor, torch.Tensor) or "norm" in name:
            continue
        shard(source).write_bytes(whole)
        flip(shard(source), tensor, 0.99)
        expect(bad_jobs.run(job(bad_jobs, source)), SOURCE, (FILE, f"'{name}'"))
        nothing_published(bad_jobs)


def test_on_demand_bytes_are_taken_as_they_are(bad_jobs):
    source = tree(bad_jobs.scratch)
    flip(shard(source), model_of(shard(source))["decoder.layers.0.mlp.linear_fc2.weight"])
    run = run_of(bad_jobs.run(job(bad_jobs, source, source_options={"verify": "off"}), options=["--json"]))
    assert run["records_compared"] == 0


def test_a_source_without_checksums_converts(bad_jobs):
    """torch writes zeros where it is told to compute none."""
    torch.serialization.set_crc32_options(False)
    try:
        source = tree(bad_jobs.scratch)
        boxes = bad_jobs.scratch / "boxes"
        dcp.save({"w": torch.arange(5000.0)}, checkpoint_id=boxes, no_dist=True)
    finally:
        torch.serialization.set_crc32_options(True)
    for each, target_format, options in ((source, "megatron", {}), (boxes, "dcp", {"chunks": "whole"})):
        run = run_of(bad_jobs.run(job(bad_jobs, each, target_format, target_options=options), 2, options=["--json"]))
        assert run["records_compared"] == 0
        bad_jobs.clear()


def test_computed_tensors_are_read_as_they_are_stored(bad_jobs):
    """A router's bias in bfloat16 is wanted in float32: what is compared are the bytes in the file."""
    source = tree(bad_jobs.scratch, MOE, Layout(ep=2), TE_GROUPED)
    assert run_of(bad_jobs.run(job(bad_jobs, source), options=["--json"]))["records_compared"] > 0


# --- .distcp files ------------------------------------------------------------------------------------------------------


@pytest.mark.long_but("3-settings2")
@pytest.mark.parametrize("ranks, settings", [(1, []), (2, []), (3, []), (3, ["run.transport=mpi"])])
def test_a_flipped_bit_in_an_item_is_named(ranks, settings, bad_jobs):
    state = hf_models.globals_to_hf(DENSE, make_globals(DENSE))
    source = bad_jobs.scratch / "source"
    dcp.save(dict(state), checkpoint_id=source, no_dist=True)
    text = job(bad_jobs, source, "dcp", target_options={"chunks": "ranks", "ranks": 3})
    run = run_of(bad_jobs.run(text, ranks, settings=settings, options=["--json"]))
    assert run["records_compared"] == len(state)
    bad_jobs.clear()
    name = "model.layers.1.mlp.down_proj.weight"
    file = next(source.glob("*.distcp"))
    flip(file, state[name])
    outcome = bad_jobs.run(text, ranks, settings=settings)
    expect(outcome, SOURCE, (file.name, "archive/data/0", name, "CRC-32", "Nothing was published"))
    nothing_published(bad_jobs)


def test_a_flipped_bit_in_a_torch_dist_checkpoint_is_named(bad_jobs):
    """Of one that this program wrote: its checksums are looked at in the same way."""
    source = bad_jobs.scratch / "converted"
    run_of(bad_jobs.run(job(bad_jobs, tree(bad_jobs.scratch), "torch_dist", target=source), options=["--json"]))
    (source / MANIFEST).unlink()
    assert run_of(bad_jobs.run(job(bad_jobs, source), 2, options=["--json"]))["records_compared"] > 0
    bad_jobs.clear()
    file = max(source.rglob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    at = next(at for at in range(len(content) // 2, len(content), 64) if b"PK" not in content[at - 4096 : at + 4096])  # amid numbers
    content[at] ^= 1
    file.write_bytes(content)
    expect(bad_jobs.run(job(bad_jobs, source), 2), SOURCE, (file.name, "CRC-32"))
    nothing_published(bad_jobs)


# --- interrupted runs ---------------------------------------------------------------------------------------------------


@pytest.mark.long_but("10-auto")
@pytest.mark.skipif(not test_resume.SHIM, reason="RESHARD_DELAY_SHIM is not set: a job may be done before its signal comes")
@pytest.mark.parametrize("number, transport", [(signal.SIGUSR1, "auto"), (signal.SIGUSR1, "mpi"), (signal.SIGKILL, "auto")])
def test_what_earlier_runs_read_counts(number, transport, bad_jobs):
    """Every record of one file is damaged; some were read by the first run, some by the second, some by both."""
    source = shutil.copytree(test_resume.tree(), bad_jobs.scratch / "source")
    path = shard(source, "mp_rank_00_000")
    flipped = [record_at(path, flip(path, tensor)) for tensor in model_of(path).values() if isinstance(tensor, torch.Tensor) and tensor.numel() > 1 << 19]
    assert len(flipped) > 4
    text, settings = test_resume.text(bad_jobs, source=source), [f"run.transport={transport}"]
    test_resume.attempt(bad_jobs, text, number, settings=settings)
    outcome, log = test_resume.attempt(bad_jobs, text, settings=settings)
    assert test_resume.gone_on(log) and test_resume.reused(log) > 0
    expect(outcome, SOURCE, ("mp_rank_00_000/model_optim_rng.pt", "CRC-32"))
    named = sum(f"'{record}'" in outcome.error for record in flipped)
    assert named == min(len(flipped), 8), outcome.error
    nothing_published(bad_jobs)


def entry_block(cells):
    """A journal entry that claims cells and has no sums, as stages/write/journal.cpp writes it."""
    words = [0, 0, len(cells), *(word for pair in cells for word in pair), *[0] * 10]
    payload = struct.pack(f"<{len(words)}Q", *words)
    framed = struct.pack("<QQQ", 0x314C4E524A485352, 2, len(payload)) + payload
    return framed + struct.pack("<Q", int(crc64(framed), 16))


@pytest.mark.long_but("written")
@pytest.mark.skipif(not test_resume.SHIM, reason="RESHARD_DELAY_SHIM is not set: a job may be done before its signal comes")
@pytest.mark.parametrize("verify", ["written", "streamed", "off"])
def test_work_that_a_journal_only_claims_is_missed(verify, bad_jobs):
    """The cells are believed, so nobody does them; their bytes are zeros in the target and add nothing to any digest."""
    settings = [f"run.verify={verify}"]
    text = test_resume.text(bad_jobs)
    test_resume.attempt(bad_jobs, text, signal.SIGKILL, writes=1, settings=settings)
    journal = next(bad_jobs.parent.rglob("0000-00000"))
    content = journal.read_bytes()
    head = 24 + struct.unpack_from("<Q", content, 16)[0] + 8
    journal.write_bytes(content[:head] + entry_block([(0, 4)]))
    outcome, log = test_resume.attempt(bad_jobs, text, settings=settings)
    assert test_resume.gone_on(log)
    expect(outcome, 7, ("the plan was not executed exactly", "bytes", "Nothing was published"))
    nothing_published(bad_jobs)
    outcome, log = test_resume.attempt(bad_jobs, text, settings=settings)
    assert outcome.code == 0 and not test_resume.gone_on(log), outcome.error


# --- replicas -----------------------------------------------------------------------------------------------------------


def edited(source, change, name="mp_rank_01"):
    """Writes a shard again with another model: its checksums are right."""
    content = torch.load(shard(source, name), weights_only=False)
    change(content["model"])
    torch.save(content, shard(source, name))


def other_norm(model):
    model[NORM] = model[NORM].clone()
    model[NORM][17] += 1
    model[NORM][200] += 1


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_replicas_that_differ_are_named(ranks, bad_jobs):
    source = tree(bad_jobs.scratch)
    assert run_of(bad_jobs.run(job(bad_jobs, source), ranks, options=["--json"]))["replicas_compared"] > 0
    bad_jobs.clear()
    edited(source, other_norm)
    outcome = bad_jobs.run(job(bad_jobs, source), ranks)
    parts = (NORM, "mp_rank_00", "mp_rank_01", "2 of 256 elements differ", "layer 1, hidden 17", 'source.replicas = "first"', "Nothing was written")
    expect(outcome, SOURCE, parts)
    nothing_published(bad_jobs)
    run = run_of(bad_jobs.run(job(bad_jobs, source, source_options={"replicas": "first"}), ranks, options=["--json"]))
    assert run["replicas_compared"] == 0


def test_routers_of_expert_parallel_ranks_are_replicas(bad_jobs):
    source = tree(bad_jobs.scratch, MOE, Layout(ep=2), TE_GROUPED)
    names = sorted(path.parent.name for path in source.rglob("*.pt"))
    router = "decoder.layers.0.mlp.router.weight"

    def other_router(model):
        model[router] = model[router].clone()
        model[router][3, 5] = 9

    edited(source, other_router, names[-1])
    outcome = bad_jobs.run(job(bad_jobs, source), 2)
    expect(outcome, SOURCE, (router, *names[-1:], "1 of ", "elements differ", "expert 3, hidden 5 ("))
    assert "(9 and" in outcome.error or "and 9)" in outcome.error


@pytest.mark.long
def test_large_replicas_are_left_to_the_look_at_all_of_them(bad_jobs):
    """`reshard verify --replicas` reads everything; a job does not."""
    config = MOE.with_(layers=1, hidden=2048, experts=128, expert_ffn=16, dtype="float32", vocab=128)
    source = tree(bad_jobs.scratch, config, Layout(ep=2), TE_GROUPED)
    router = "decoder.layers.0.mlp.router.weight"

    def other_router(model):
        assert model[router].numel() * 4 >= 1 << 20
        model[router] = model[router].clone()
        model[router][0, 0] = 9

    edited(source, other_router, sorted(path.parent.name for path in source.rglob("*.pt"))[-1])
    assert run_of(bad_jobs.run(job(bad_jobs, source), 2, options=["--json"]))["replicas_compared"] > 0
    looked = bad_jobs.command("verify", "--replicas", source)
    assert looked.code != 0 and router in looked.out + looked.error
