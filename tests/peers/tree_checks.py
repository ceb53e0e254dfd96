"""What every written Megatron tree must satisfy, whatever the case."""

import argparse
import io
import signal
import zipfile
from dataclasses import replace

import torch

from numpy_megatron import SHARD_FILE, TRACKER, iteration_folder, load_shards, read_tree, tree_args
from reshard_job import RECORDS
from tensor_patterns import assert_same_tensors, same_bits

SAFE_TYPES = [argparse.Namespace, signal.Signals, io.BytesIO]


def check_tree(root, config, layout, form, expected):
    """Same global tensors, sound zip files, args of the new layout, nothing but the tree itself."""
    assert_same_tensors(read_tree(root, config, layout, form), expected)
    assert_layout_args(tree_args(root, layout), config, layout)
    for path in iteration_folder(root).rglob(SHARD_FILE):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None, f"{path}: bad checksum"
    names = {path.name for path in root.iterdir()}
    assert names - RECORDS - {"huggingface"} == {TRACKER, iteration_folder(root).name}, f"unexpected beside the tree: {sorted(names)}"


def assert_layout_args(args, config, layout):
    """The attributes with which Megatron decides, before reading any tensor, whether it can load the tree."""
    expected = dict(
        tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp, expert_model_parallel_size=layout.ep,
        padded_vocab_size=config.padded_vocab(layout.tp), num_layers=config.layers, hidden_size=config.hidden,
        num_attention_heads=config.heads)
    if config.experts:
        expected["expert_tensor_parallel_size"] = layout.etp
    found = {name: getattr(args, name, "absent") for name in expected}
    assert found == expected
    vpp = getattr(args, "virtual_pipeline_model_parallel_size", None)
    assert vpp == layout.vpp if layout.vpp > 1 else vpp in (None, 1), f"virtual stages: {vpp}"


def assert_loads_restricted(root):
    """torch's restricted loader accepts every shard, given the harmless types that training's own args contain."""
    for path in iteration_folder(root).rglob(SHARD_FILE):
        with torch.serialization.safe_globals(SAFE_TYPES):
            content = torch.load(path, weights_only=True)
        assert content["checkpoint_version"] == 3.0


def assert_same_shards(found_root, expected_root, layout, norm_extras_known=True):
    """Shard by shard: the same keys in the same models, the same bits, vocabulary padding included."""
    found, expected = load_shards(found_root, layout), load_shards(expected_root, layout)
    for name, content in expected.items():
        for key in (key for key in content if key.startswith("model")):
            assert_same_state(found[name][key], content[key], f"{name}/{key}", norm_extras_known)


def assert_same_state(found, expected, place, norm_extras_known):
    different = {name for name in set(found) ^ set(expected) if norm_extras_known or not is_norm_extra(name)}
    assert not different, f"{place}: keys {sorted(different)[:5]}"
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor) and not name.endswith("_extra_state"):
            assert same_bits(found[name], tensor), f"{place}/{name} differs"


def with_written_divisor(config, root):
    """A Hugging Face folder names no vocabulary divisor: the tree's own args say which one the writer chose, and the padding must follow it."""
    shard = next(iteration_folder(root).rglob(SHARD_FILE))
    return config.with_(vocab_divisor=torch.load(shard, weights_only=False)["args"].make_vocab_size_divisible_by)


def is_norm_extra(name):
    return name.endswith("layernorm._extra_state")


def with_written_norms(form, root, source_form=None):
    """Recent Transformer Engine norms store an extra state, older ones do not, and only a Transformer Engine source tells which.

    Without such a source both are right, as long as all norms of the tree agree; the form returned is the one the tree has.
    """
    if form.impl != "te" or (source_form and source_form.impl == "te"):
        return form
    shard = torch.load(next(iteration_folder(root).rglob(SHARD_FILE)), weights_only=False)
    names = [name for key, state in shard.items() if key.startswith("model") for name in state]
    return replace(form, norm_extra_state=any(map(is_norm_extra, names)))
