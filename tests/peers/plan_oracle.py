"""A slow model of where every element lies, in every format: it shares no code and no map file with the program.

Every element of a model is a number of its own, so the value at a place says which element it is: `assert_same_places` names, for a wrong one, the
element that was found there and the one that belongs there. Names, fused tensors and shares follow from the formulas of the frameworks
(`megatron_entries`, `pipeline_stages`, `hf_models`, `logical_tensors`, and `dist_tensors` below), chunks from torch.
"""

import bisect
import json
import math
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import dcp_reading
import hf_models
from checkpoint_args import training_args
from megatron_entries import chunk_entries
from numpy_megatron import TRACKER
from peer_types import Layout
from pipeline_stages import Chunk
from tensor_patterns import DTYPES, describe_difference, global_shapes, same_bits

NOT_NULL = {"tokenizer_type": "HuggingFaceTokenizer"}  # a null tokenizer counts one token more than vocab_size says
ITERATION = 1000

# --- values -------------------------------------------------------------------------------------------------------


class Numbered:
    """The tensors of a model, each element with its number, counted through all tensors from 1 on.

    F32 holds the number itself. Two bytes hold it modulo 32,000, as the bits of a normal number: enough to tell an element from all near it."""

    def __init__(self, shapes, dtype, first=1):
        self.starts, self.names, self.shapes, self.tensors = [], [], shapes, {}
        self.dtype = dtype
        for name, shape in shapes.items():
            count = math.prod(shape)
            self.starts.append(first)
            self.names.append(name)
            self.tensors[name] = self.values(first, count).reshape(shape)
            first += count
        self.end = first
        assert first < 2**24, "numbers that F32 does not hold"

    def values(self, first, count):
        numbers = torch.arange(first, first + count, dtype=torch.int64)
        if self.dtype == "float32":
            return numbers.to(torch.float32)
        return (numbers % 32000 + 0x0400).to(torch.int16).view(DTYPES[self.dtype])

    def element(self, value):
        """The element that a value is: "layers.0.qkv[3, 7]"."""
        if self.dtype != "float32":
            return f"bits {value.reshape(1).view(torch.int16).item():#06x}"
        number = int(value)
        if not math.isfinite(float(value)) or number != float(value) or not 1 <= number < self.end:
            return f"{float(value)}, no element"
        at = bisect.bisect_right(self.starts, number) - 1
        index = numpy.unravel_index(number - self.starts[at], self.shapes[self.names[at]] or (1,))
        return f"{self.names[at]}{[int(one) for one in index]}"


def numbered(config):
    return Numbered(global_shapes(config), config.dtype)


def assert_same_places(found, expected, model, where):
    """The same tensors with the same elements at the same places."""
    assert found.keys() == expected.keys(), f"{where}: {describe_difference(found.keys(), expected.keys())}"
    for name, wanted in expected.items():
        held = found[name]
        assert (held.dtype, held.shape) == (wanted.dtype, wanted.shape), f"{where}: {name} is {held.dtype} {tuple(held.shape)}, not {tuple(wanted.shape)}"
        if same_bits(held, wanted):
            continue
        wrong = (bits_of(held) != bits_of(wanted)).nonzero()
        at = tuple(wrong[0].tolist())
        raise AssertionError(f"{where}: {name}{list(at)} holds {model.element(held[at])}, and {model.element(wanted[at])} belongs there "
                             f"({len(wrong)} of {wanted.numel()} elements are wrong)")


def bits_of(tensor):
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


# --- the names of torch_dist ----------------------------------------------------------------------------------------


def layer_key(kind, config, layer, form):
    """What Megatron-Core's global checkpoints call a tensor of a layer, behind the layer."""
    own_norm = config.is_moe(layer) and form.impl == "te"
    return {
        "attn_norm": "self_attention.linear_qkv.layer_norm_weight", "qkv": "self_attention.linear_qkv.weight",
        "qkv_bias": "self_attention.linear_qkv.bias", "proj": "self_attention.linear_proj.weight", "q_norm": "self_attention.q_layernorm.weight",
        "k_norm": "self_attention.k_layernorm.weight", "mlp_norm": "pre_mlp_layernorm.weight" if own_norm else "mlp.linear_fc1.layer_norm_weight",
        "fc1": "mlp.linear_fc1.weight", "fc2": "mlp.linear_fc2.weight", "router": "mlp.router.weight",
        "experts.fc1": "mlp.experts.experts.linear_fc1.weight", "experts.fc2": "mlp.experts.experts.linear_fc2.weight"}[kind]


def dist_layer(config, tensors, layer, form):
    """Key behind the layer -> tensor of one layer, experts in front."""
    at, result = f"layers.{layer}.", {}
    for name, tensor in tensors.items():
        if name.startswith(at) and ".experts." not in name:
            result[layer_key(name.removeprefix(at), config, layer, form)] = tensor
    if config.is_moe(layer):
        for kind in ("fc1", "fc2"):
            experts = [tensors[f"{at}experts.{expert}.{kind}"] for expert in range(config.experts)]
            result[layer_key(f"experts.{kind}", config, layer, form)] = torch.stack(experts)
    return result


def dist_tensors(config, tensors, form):
    """Key -> whole tensor of a torch_dist checkpoint, vocabulary rows without padding. Layers that are all alike are one tensor."""
    result = {"embedding.word_embeddings.weight": tensors["embed"], "decoder.final_layernorm.weight": tensors["final_norm"]}
    if not config.tied:
        result["output_layer.weight"] = tensors["head"]
    layers = [dist_layer(config, tensors, layer, form) for layer in range(config.layers)]
    if config.moe_layers is not None:
        return result | {f"decoder.layers.{number}.{key}": tensor for number, layer in enumerate(layers) for key, tensor in layer.items()}
    return result | {f"decoder.layers.{key}": torch.stack([layer[key] for layer in layers]) for key in layers[0]}


def fsdp_tensors(config, tensors, form):
    """Key -> whole tensor of Megatron-FSDP's checkpoints: the names of one rank that has all, gate and up apart."""
    everything = Chunk(0, 0, tuple(range(config.layers)), True, True)
    result = {}
    for entry in chunk_entries(config, Layout(), form, everything, 0):
        if entry.source is None:
            continue
        key, tensor = "model.module." + entry.name, tensors[entry.source]
        if entry.rule == "halves":
            result |= dict(zip((key + "_w", key + "_v"), tensor.chunk(2)))
        else:
            result[key] = tensor
    return result


def padded_rows(key):
    return "word_embeddings.weight" in key or "output_layer.weight" in key


# --- writing ------------------------------------------------------------------------------------------------------


def random_boxes(generator, shape, most=6):
    """A grid of boxes that covers a tensor: a few cuts along each dimension, at any place."""
    cuts = []
    for extent in shape:
        inner = sorted(generator.sample(range(1, extent), min(extent - 1, generator.choice([0, 0, 1, 2])))) if extent > 1 else []
        cuts.append(list(zip([0, *inner], [*inner, extent])))
    grid = [((), ())]
    for pieces in cuts:
        if len(grid) * len(pieces) > most:
            pieces = [(pieces[0][0], pieces[-1][1])]
        grid = [(offsets + (begin,), sizes + (end - begin,)) for offsets, sizes in grid for begin, end in pieces]
    return grid


class BoxPlanner(DefaultSavePlanner):
    """Tells torch's own writer to store given boxes of whole tensors, as if ranks had had them."""

    def __init__(self, tensors, boxes):
        super().__init__()
        self.tensors, self.boxes = tensors, boxes

    def create_local_plan(self):
        items = [self.item(name, *box) for name, boxes in self.boxes.items() for box in boxes]
        self.plan = SavePlan(items, planner_data={name: (name,) for name in self.tensors})
        return self.plan

    def item(self, name, offsets, sizes):
        tensor = self.tensors[name]
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(tensor), tensor.size())
        return WriteItem(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data)

    def resolve_data(self, item):
        chunk = item.tensor_data.chunk
        region = tuple(slice(begin, begin + extent) for begin, extent in zip(chunk.offsets, chunk.sizes))
        return self.tensors[item.index.fqn][region].contiguous().clone()


def write_boxes(folder, tensors, generator):
    """A DCP folder by torch's writer, each tensor in random boxes, in files of their own as ranks would have them."""
    planner = BoxPlanner(tensors, {name: random_boxes(generator, tensor.shape) for name, tensor in tensors.items()})
    torch.distributed.checkpoint.save(
        tensors, storage_writer=FileSystemWriter(folder, single_file_per_rank=False, thread_count=1), planner=planner, no_dist=True)


def write_torch_dist(root, config, tensors, layout, form, generator, extra=None):
    """A root with one iteration as Megatron-Core saves it, in chunks of any kind."""
    folder = Path(root) / f"iter_{ITERATION:07d}"
    folder.mkdir(parents=True)
    wholes = dist_tensors(config, tensors, form)
    for key in filter(padded_rows, wholes):
        rows = config.padded_vocab(layout.tp) - config.vocab
        wholes[key] = torch.cat([wholes[key], wholes[key].new_zeros(rows, config.hidden)])
    write_boxes(folder, wholes | (extra or {}), generator)
    args = training_args(config, layout, form, NOT_NULL)
    args.ckpt_format, args.use_dist_ckpt = "torch_dist", True
    torch.save({"args": args, "checkpoint_version": 3.0, "iteration": ITERATION, "num_floating_point_operations_so_far": 0.0}, folder / "common.pt")
    (folder / "metadata.json").write_text(
        json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}))
    (Path(root) / TRACKER).write_text(str(ITERATION))
    return Path(root)


def write_hf(folder, config, tensors, generator):
    """A Hugging Face folder whose tensors lie in any order in any file."""
    folder = Path(folder)
    hf_models.hf_config(config).save_pretrained(folder)
    state = list(hf_models.globals_to_hf(config, tensors).items())
    generator.shuffle(state)
    count = generator.randint(1, 4)
    names = [f"model-{part + 1:05d}-of-{count:05d}.safetensors" for part in range(count)] if count > 1 else ["model.safetensors"]
    places = {}
    for part, name in enumerate(names):
        mine = dict(state[part::count])
        places |= dict.fromkeys(mine, name)
        save_file(mine, folder / name, metadata={"format": "pt"})
    if count > 1:
        total = sum(tensor.numel() * tensor.element_size() for _, tensor in state)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    return folder


# --- reading ------------------------------------------------------------------------------------------------------


def read_whole(folder, config):
    """What torch's loader puts together, without the padding of the vocabulary, which must be zero."""
    result = {}
    for key, tensor in dcp_reading.whole_tensors(folder).items():
        if padded_rows(key):
            assert not tensor[config.vocab:].any(), f"{key}: padding is not zero"
            tensor = tensor[: config.vocab]
        result[key] = tensor
    return result
