"""Meshes of CPU processes that save and load DTensors with torch's distributed checkpoint, and what their chunks must be.

A `Mesh` is written the way a job file writes it, and torch gets the same one. Every tensor's bytes follow from its name, so that nothing has
to travel between the processes that save, the test, and the processes that load: NaNs of all payloads, negative zeros and all.
"""

import itertools
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy
import torch
import torch.distributed.checkpoint as dcp

import gloo_ranks

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool",
    "uint16", "uint32", "uint64", "complex128", "float8_e8m0fnu"]
SHAPES = {"matrix": (12, 10), "uneven": (13, 7), "narrow": (2, 6), "vector": (11,), "cube": (4, 6, 5), "scalar": (), "empty": (0, 4), "one": (1, 1)}


# --- meshes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mesh:
    """Named dims, outermost first, and per kind of tensor one placement per dim: "S0" or "R".

    `strided` names the dims in another order: the one in which torch's mesh has them. Where two dims cut the same axis, torch then needs
    its strided placement to describe what the order of `dims` says (tensor parallel first, data parallel inside)."""

    dims: tuple  # (name, size), in cutting order
    placements: tuple  # (pattern, "S0 R ..."), first match wins
    strided: tuple = ()

    @property
    def world(self):
        return int(numpy.prod([size for _, size in self.dims]))

    def text(self):
        return " ".join(f"{name}={size}" for name, size in self.dims)

    def placements_text(self):
        return "; ".join(f"{pattern}: {text}" for pattern, text in self.placements)

    def placement(self, name):
        text = next(text for pattern, text in self.placements if fnmatch(name, pattern))
        return [None if word == "R" else int(word[1:]) for word in text.split()]

    def target_options(self):
        return {"chunks": "mesh", "mesh": self.text(), "placements": self.placements_text()}

    def label(self):
        return "x".join(f"{name}{size}" for name, size in self.dims) + ("s" if self.strided else "")


def box(mesh, name, shape, coordinate):
    """What the process at this coordinate holds: each dim cuts the box that is left into pieces of ceil(size / n); late ones are short or empty."""
    offsets, extents = [0] * len(shape), list(shape)
    for (_, size), place, axis in zip(mesh.dims, coordinate, mesh.placement(name)):
        if axis is None:
            continue
        step = -(-extents[axis] // size)
        begin = min(place * step, extents[axis])
        offsets[axis], extents[axis] = offsets[axis] + begin, min(step, extents[axis] - begin)
    return tuple(offsets), tuple(extents)


def coordinates(mesh):
    return itertools.product(*(range(size) for _, size in mesh.dims))


def expected_grid(mesh, name, shape):
    """Chunk offsets and sizes, without empty pieces and without replicas; an empty tensor is one empty chunk."""
    boxes = sorted({box(mesh, name, shape, place) for place in coordinates(mesh)})
    return [each for each in boxes if numpy.prod(each[1], dtype=int)] or [((0,) * len(shape), tuple(shape))]


def whole_grid(shape):
    return [((0,) * len(shape), tuple(shape))]


def ranks_mesh(count, patterns=("*",)):
    """What chunks = "ranks" stands for: axis 0 over `count` ranks."""
    return Mesh((("rank", count),), tuple((pattern, "S0") for pattern in patterns))


# --- values -------------------------------------------------------------------------------------------------------


def values(name, shape, dtype):
    """Bytes that follow from the name. Any bit pattern is a value, except of bool."""
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    size = torch.empty((), dtype=kind).element_size()
    random = numpy.random.default_rng(numpy.frombuffer(name.encode(), dtype=numpy.uint8).astype(numpy.uint32))
    raw = random.integers(0, 2 if dtype == "bool" else 256, int(numpy.prod(shape, dtype=int)) * size, dtype=numpy.uint8)
    return torch.from_numpy(raw).view(kind).reshape(shape)


def tensor_names(dtypes=DTYPES):
    return {f"model.{dtype}.{name}": (shape, dtype) for dtype in dtypes for name, shape in SHAPES.items()}


def plain_part():
    """What training leaves beside weights: nested dicts and lists with tensors, numbers, texts and objects."""
    return {
        "optim": {
            "state": [{"step": torch.tensor(7.0), "exp_avg": values("optim.0", (3, 5), "float32")}, {"step": torch.tensor(8.0)}],
            "param_groups": [{"lr": 0.25, "betas": (0.9, 0.95), "params": [0, 1]}, {"lr": -0.0, "name": "no decay"}]},
        "step": 41, "words": ["a", {"b": None, "c": True}], "none": None, "text": "naïve\n", "bytes": b"\0\xff",
        "deep": {"a": {"b": {"c": values("deep", (2, 2), "int64"), "d": []}}, "empty": {}},
    }


# --- processes ----------------------------------------------------------------------------------------------------


def run_ranks(function, world, *arguments):
    return gloo_ranks.run_ranks(function, world, arguments, "dcp_preload")


# --- DTensors -----------------------------------------------------------------------------------------------------


def device_mesh(mesh):
    from torch.distributed.device_mesh import init_device_mesh

    dims = mesh.strided or [name for name, _ in mesh.dims]
    sizes = dict(mesh.dims)
    return init_device_mesh("cpu", tuple(sizes[name] for name in dims), mesh_dim_names=tuple(dims))


def torch_placements(mesh, name):
    """In the order of torch's mesh; a dim that is cut inside a later one of the same axis is strided."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    order = [dim for dim, _ in mesh.dims]
    axes, sizes = dict(zip(order, mesh.placement(name))), dict(mesh.dims)
    names, result = list(mesh.strided or order), []
    for place, dim in enumerate(names):
        before = [other for other in names[place + 1:] if axes[other] == axes[dim] and order.index(other) < order.index(dim)]
        factor = int(numpy.prod([sizes[other] for other in before], dtype=int))
        result.append(Replicate() if axes[dim] is None else _StridedShard(axes[dim], split_factor=factor) if before else Shard(axes[dim]))
    return result


def local_part(mesh, torch_mesh, name, whole):
    names = list(torch_mesh.mesh_dim_names)
    place = [torch_mesh.get_coordinate()[names.index(dim)] for dim, _ in mesh.dims]
    offsets, extents = box(mesh, name, whole.shape, place)
    return whole[tuple(slice(start, start + extent) for start, extent in zip(offsets, extents))]


def distributed(mesh, torch_mesh, name, shape, dtype, fill):
    from torch.distributed.tensor import DTensor

    whole = values(name, shape, dtype)
    local = local_part(mesh, torch_mesh, name, whole).clone().contiguous()
    if not fill:
        local = torch.full((local.numel() * local.element_size(),), 1, dtype=torch.uint8).view(local.dtype).reshape(local.shape)
    return DTensor.from_local(local, torch_mesh, torch_placements(mesh, name), run_check=False, shape=whole.shape, stride=whole.stride())


def model_part(mesh, torch_mesh, tensors, fill):
    """{"model": {dtype: {name: DTensor}}}: the nesting that a module's state has after torch flattened and rebuilt it."""
    model = {}
    for name, (shape, dtype) in tensors.items():
        model.setdefault(dtype, {})[name.split(".")[-1]] = distributed(mesh, torch_mesh, name, shape, dtype, fill)
    return {"model": model}


def save_on_rank(rank, jobs):
    for mesh, folder, tensors, with_plain in jobs:
        state = model_part(mesh, device_mesh(mesh), tensors, fill=True) | (plain_part() if with_plain else {})
        dcp.save(state, checkpoint_id=folder)


def save(jobs):
    """(mesh, folder, tensors, with_plain) of meshes of one size, one start of the processes for all."""
    run_ranks(save_on_rank, jobs[0][0].world, [(mesh, str(folder), tensors, with_plain) for mesh, folder, tensors, with_plain in jobs])


def load_on_rank(rank, jobs):
    """The names whose local part differs from what this rank must hold."""
    wrong = []
    for mesh, folder, tensors in jobs:
        torch_mesh = device_mesh(mesh)
        state = model_part(mesh, torch_mesh, tensors, fill=False)
        dcp.load(state, checkpoint_id=folder)
        for name, (shape, dtype) in tensors.items():
            found = state["model"][dtype][name.split(".")[-1]].to_local()
            if bits(found) != bits(local_part(mesh, torch_mesh, name, values(name, shape, dtype))):
                wrong.append(f"{name} of {folder} on rank {rank}")
    return wrong


def load(jobs):
    """(mesh, folder, tensors): torch loads each folder into its mesh; nothing may differ in any bit on any rank."""
    results = run_ranks(load_on_rank, jobs[0][0].world, [(mesh, str(folder), tensors) for mesh, folder, tensors in jobs])
    wrong = [name for result in results for name in result]
    assert not wrong, f"{len(wrong)} local parts differ, first {wrong[:4]}"


# --- flat states: one dict of DTensors under their full names -----------------------------------------------------


def save_flat_on_rank(rank, mesh, folder, tensors):
    torch_mesh = device_mesh(mesh)
    state = {name: distributed(mesh, torch_mesh, name, shape, dtype, fill=True) for name, (shape, dtype) in tensors.items()}
    dcp.save(state | {"step": 5}, checkpoint_id=folder)


def save_flat(mesh, folder, tensors):
    run_ranks(save_flat_on_rank, mesh.world, mesh, str(folder), tensors)
    return folder


def save_safetensors_on_rank(rank, mesh, folder, tensors):
    torch_mesh = device_mesh(mesh)
    state = {name: distributed(mesh, torch_mesh, name, shape, dtype, fill=True) for name, (shape, dtype) in tensors.items()}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(folder, save_distributed=True))


def save_safetensors(mesh, folder, tensors):
    """Every rank's own parts as a safetensors file."""
    run_ranks(save_safetensors_on_rank, mesh.world, mesh, str(folder), tensors)


def load_flat_on_rank(rank, mesh, tensors, folders):
    """Per folder the names that this rank got wrong, and the shapes of what it holds."""
    torch_mesh, report = device_mesh(mesh), []
    for folder in folders:
        state = {name: distributed(mesh, torch_mesh, name, shape, dtype, fill=False) for name, (shape, dtype) in tensors.items()}
        dcp.load(state, checkpoint_id=folder)
        parts = {name: local_part(mesh, torch_mesh, name, values(name, *tensors[name])) for name in tensors}
        wrong = [f"{name} of {folder}" for name, tensor in state.items() if bits(tensor.to_local()) != bits(parts[name])]
        report.append((wrong, [tuple(tensor.to_local().shape) for tensor in state.values()]))
    return report


def load_flat(mesh, tensors, *folders):
    """Loads each folder on every rank; nothing may differ. Per rank the shapes of its parts, the same whichever folder they come from."""
    reports = run_ranks(load_flat_on_rank, mesh.world, mesh, tensors, [str(folder) for folder in folders])
    assert [wrong for report in reports for wrong, _ in report if wrong] == []
    assert all(shapes == report[0][1] for report in reports for _, shapes in report)
    return [report[0][1] for report in reports]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def save_rows_on_rank(rank, folder, equal_experts):
    """Two layers whose rows are cut into two; or of experts, those of one rank as those of the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    root = "experts." if equal_experts else ""
    whole = {f"layers.{layer}.{root}{name}.weight": torch.randn(64, 64) for layer in range(2) for name in ("gate", "up")}
    if equal_experts:  # as a model begins whose experts were copied from one
        whole = {name: torch.cat([tensor[:32], tensor[:32]]) for name, tensor in whole.items()}
    dcp.save({name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}, checkpoint_id=folder)
