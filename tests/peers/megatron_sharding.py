"""Global tensors as megatron-core itself describes them: the offsets of its distributed checkpoint metadata, not our own slicing."""

import torch

from megatron_models import build_chunks, load_strictly, my_directory, run_ranks, start_parallel_state
from numpy_megatron import SHARD_FILE, iteration_folder
from tensor_patterns import same_bits


def described_globals(root, config, layout, form):
    """Distributed-checkpoint key -> whole tensor, put together from all ranks' shards; overlapping shards must agree."""
    pieces = [piece for rank in run_ranks(shards_on_rank, layout.world, str(root), config, layout, form) for piece in rank]
    wholes, covered = {}, {}
    for key, shape, offset, data in pieces:
        whole = wholes.setdefault(key, torch.zeros(shape, dtype=data.dtype))
        seen = covered.setdefault(key, torch.zeros(shape, dtype=torch.bool))
        region = tuple(slice(start, start + extent) for start, extent in zip(offset, data.shape))
        if seen[region].all():
            assert same_bits(whole[region], data), f"{key} at {offset}: ranks disagree"
        whole[region], seen[region] = data, True
    holes = [key for key, seen in covered.items() if not seen.all()]
    assert not holes, f"no rank holds all of {holes[:4]}"
    return {key: trim_vocabulary(key, whole, config) for key, whole in wholes.items()}


def trim_vocabulary(key, whole, config):
    return whole[: config.vocab] if "word_embeddings" in key or "output_layer" in key else whole


def shards_on_rank(rank, root, config, layout, form):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    parallel_state = start_parallel_state(layout)
    models = build_chunks(config, layout, form, parallel_state)
    content = torch.load(iteration_folder(root) / my_directory(layout, parallel_state) / SHARD_FILE, weights_only=False)
    load_strictly(models, content, layout)
    pieces = []
    for model in models:
        described = {"model": model.sharded_state_dict()}
        apply_factories(described)
        for shard in nested_values(described):
            if isinstance(shard, ShardedTensor):
                extents = (1,) * shard.prepend_axis_num + tuple(shard.local_shape)
                pieces.append((shard.key, shard.global_shape, shard.global_offset, shard.data.detach().reshape(extents).clone()))
    return pieces
