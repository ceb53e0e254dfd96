"""Builds and reads `mp_rank_*` trees from global tensors, without Megatron and without any code or table of the program under test."""

import io
from pathlib import Path

import torch

from checkpoint_args import shard_content, training_args
from megatron_entries import EXTRA_NONE, chunk_entries
from pipeline_stages import chunks
from tensor_patterns import describe_difference, global_shapes, same_bits

TRACKER = "latest_checkpointed_iteration.txt"
SHARD_FILE = "model_optim_rng.pt"


def shard_directory(layout, tp, pp, ep):
    name = f"mp_rank_{tp:02d}"
    if layout.pp > 1:
        name += f"_{pp:03d}"
    if layout.ep > 1:
        name += f"_{ep:03d}"
    return name


def shard_directories(layout):
    """Directory name -> (tp, pp, ep) of every shard that exists."""
    pairs = layout.grid_pairs()
    return {shard_directory(layout, tp, pp, ep): (tp, pp, ep) for pp in range(layout.pp) for tp, ep in pairs}


def model_key(layout, vpp):
    return "model" if layout.vpp == 1 else f"model{vpp}"


# --- cutting and joining one tensor -------------------------------------------------------------------------------


def cut(whole, rule, rank, size, config, tp):
    """What rank `rank` of `size` stores of a global tensor."""
    if rule == "vocab":
        whole = torch.cat([whole, whole.new_zeros(config.padded_vocab(tp) - whole.shape[0], whole.shape[1])])
    if rule == "whole" or size == 1:
        return whole.clone()
    if rule == "columns":
        return part(whole, 1, rank, size)
    if rule == "halves":
        return torch.cat([part(half, 0, rank, size) for half in whole.chunk(2, dim=0)])
    return part(whole, 0, rank, size)


def part(tensor, axis, rank, size):
    assert tensor.shape[axis] % size == 0, f"{tuple(tensor.shape)} cannot be cut into {size} along {axis}"
    length = tensor.shape[axis] // size
    return tensor.narrow(axis, rank * length, length).clone()


def join(parts, rule, config):
    """The inverse of cut over all ranks in order; vocabulary padding must be zero and is dropped."""
    if rule == "columns":
        return torch.cat(parts, dim=1)
    if rule == "halves":
        halves = [piece.chunk(2, dim=0) for piece in parts]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    whole = torch.cat(parts)
    if rule == "vocab":
        assert whole.shape[0] == config.padded_vocab(len(parts)), f"{whole.shape[0]} vocabulary rows for TP {len(parts)}"
        assert not whole[config.vocab:].any(), "vocabulary padding is not zero"
        whole = whole[: config.vocab]
    return whole


# --- writing ------------------------------------------------------------------------------------------------------


def shard_models(config, layout, form, global_tensors, tp, pp, ep):
    """The "model" (or "model0"..) entries of one shard."""
    models = {}
    for chunk in chunks(config, layout):
        if chunk.pp == pp:
            entries = chunk_entries(config, layout, form, chunk, ep)
            models[model_key(layout, chunk.vpp)] = {e.name: stored_value(e, config, layout, form, global_tensors, tp) for e in entries}
    return {key: models[key] for key in sorted(models)}


def stored_value(entry, config, layout, form, global_tensors, tp):
    if entry.source is None:
        return extra_state(entry, form)
    rank, size = (tp % layout.etp, layout.etp) if entry.is_expert else (tp, layout.tp)
    return cut(global_tensors[entry.source], entry.rule, rank, size, config, layout.tp)


def extra_state(entry, form):
    if form.impl == "local" or entry.rule == EXTRA_NONE:
        return None
    return io.BytesIO(b"\x80\x02N.") if form.extra_state == "bytes" else torch.empty(0, dtype=torch.uint8)


def write_tree(root, config, layout, form, global_tensors, iteration=1000, enums=None, **content_options):
    """Writes the whole tree below `root`: iteration folder, every shard, tracker last."""
    args = training_args(config, layout, form, enums)
    args.iteration = iteration
    folder = Path(root) / f"iter_{iteration:07d}"
    for name, (tp, pp, ep) in shard_directories(layout).items():
        models = shard_models(config, layout, form, global_tensors, tp, pp, ep)
        (folder / name).mkdir(parents=True)
        torch.save(shard_content(args, models, **content_options), folder / name / SHARD_FILE)
    (Path(root) / TRACKER).write_text(str(iteration))
    return Path(root)


# --- reading ------------------------------------------------------------------------------------------------------


def iteration_folder(root):
    root = Path(root)
    if not (root / TRACKER).exists():
        return root
    word = (root / TRACKER).read_text().strip()
    return root / ("release" if word == "release" else f"iter_{int(word):07d}")


def load_shards(root, layout):
    """Directory name -> content, after checking that exactly the reachable shards exist."""
    folder = iteration_folder(root)
    expected = shard_directories(layout)
    found = {path.name for path in folder.iterdir() if path.name.startswith("mp_rank_")}
    assert found == set(expected), describe_difference(found, expected)
    for name in expected:
        files = {path.name for path in (folder / name).iterdir()}
        assert files == {SHARD_FILE}, f"{name} holds {sorted(files)}"
    return {name: torch.load(folder / name / SHARD_FILE, weights_only=False, map_location="cpu") for name in expected}


def read_tree(root, config, layout, form):
    """Global tensors of a tree. Every key must be expected, every replica equal, every padding row zero."""
    shards = load_shards(root, layout)
    pieces = {}  # source -> {cut rank: tensor}
    rules = {}
    for name, (tp, pp, ep) in shard_directories(layout).items():
        expected_keys = {model_key(layout, v) for v in range(layout.vpp)}
        models = {key: value for key, value in shards[name].items() if key.startswith("model")}
        assert set(models) == expected_keys, f"{name}: {sorted(models)}"
        for chunk in chunks(config, layout):
            if chunk.pp == pp:
                entries = chunk_entries(config, layout, form, chunk, ep)
                collect(models[model_key(layout, chunk.vpp)], entries, layout, tp, pieces, rules, f"{name}/{chunk.vpp}")
    return assemble(pieces, rules, config, layout)


def collect(state, entries, layout, tp, pieces, rules, place):
    check_keys(state, entries, place)
    for entry in entries:
        if entry.source is None:
            continue
        rank = 0 if entry.rule == "whole" else tp % layout.etp if entry.is_expert else tp
        rules[entry.source] = (entry.rule, entry.is_expert)
        known = pieces.setdefault(entry.source, {}).setdefault(rank, state[entry.name])
        assert same_bits(known, state[entry.name]), f"{place}: {entry.name} differs from another copy of {entry.source}"


def check_keys(state, entries, place):
    """Weights exactly; extra states of linears must be there only where their modules insist (Transformer Engine), none may be foreign."""
    weights = {e.name for e in entries if e.source}
    extras = {e.name for e in entries if not e.source}
    found_weights = {name for name in state if not name.endswith("_extra_state")}
    found_extras = set(state) - found_weights
    assert found_weights == weights, f"{place}: {describe_difference(found_weights, weights)}"
    assert found_extras == extras, f"{place}: {describe_difference(found_extras, extras)}"


def assemble(pieces, rules, config, layout):
    """Joins the pieces of every global tensor and checks names, shapes and completeness."""
    shapes = global_shapes(config)
    assert pieces.keys() == shapes.keys(), describe_difference(pieces, shapes)
    result = {}
    for name, shape in shapes.items():
        rule, is_expert = rules[name]
        size = 1 if rule == "whole" else layout.etp if is_expert else layout.tp
        assert sorted(pieces[name]) == list(range(size)), f"{name}: pieces {sorted(pieces[name])} of {size}"
        result[name] = join([pieces[name][rank] for rank in range(size)], rule, config)
        assert tuple(result[name].shape) == tuple(shape), f"{name}: {tuple(result[name].shape)}, not {shape}"
    return result


def tree_args(root, layout):
    """The args of the first shard, after checking that all shards agree."""
    shards = list(load_shards(root, layout).values())
    first = vars(shards[0]["args"])
    for shard in shards:
        assert vars(shard["args"]) == first, "args differ between shards"
    return shards[0]["args"]
