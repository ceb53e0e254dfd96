"""What the tests of .metadata files share: the tool, what it should say, and catalogues of any size.

RESHARD_PROBE is the path of probe (tests/support/probe/dcp.cpp).
"""

import json
import os
import pathlib
import resource
import subprocess

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

TOOL = os.environ.get("RESHARD_PROBE")

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C32": torch.complex32,
    "C64": torch.complex64,
    "C128": torch.complex128,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4_X2": torch.float4_e2m1fn_x2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MEMORY = 1 << 30


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run(*words, preexec=None):
    return subprocess.run([TOOL, "dcp", *map(str, words)], capture_output=True, encoding="utf-8", errors="surrogatepass", timeout=120, preexec_fn=preexec)


def tool(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(path):
    return json.loads(tool("metadata", path))


def outcome(folder, data):
    """The exit code for these bytes: 0 or 3, under a bound on the memory."""
    path = folder / "hostile.metadata"
    path.write_bytes(data)
    done = run("count", path, preexec=limited)
    assert done.returncode in (0, 3), (done.returncode, done.stderr)
    assert (done.returncode == 3) == done.stderr.startswith("error: "), done.stderr
    return done.returncode


def item(info):
    return {"file": info.relative_path, "offset": info.offset, "length": info.length}


def as_described(metadata):
    """What probe dcp should say of a Metadata of torch."""
    tensors, objects = [], []
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            objects.append({**item(metadata.storage_data[MetadataIndex(name)]), "name": name})
            continue
        chunks = [
            {**item(metadata.storage_data[MetadataIndex(name, chunk.offsets)]), "offsets": list(chunk.offsets), "sizes": list(chunk.sizes)}
            for chunk in entry.chunks
        ]
        tensors.append({"name": name, "dtype": NAMES[entry.properties.dtype], "shape": list(entry.size), "chunks": chunks})
    planner = metadata.planner_data
    return {
        "tensors": tensors,
        "objects": objects,
        "planner_data": None if planner is None else [[key, list(path)] for key, path in planner.items()],
        "flattened": [[key, list(facts["nd_reformulated_orig_global_shape"])] for key, facts in (getattr(metadata, "mcore_data", None) or {}).items()],
    }


def banded(names=3, bands=5, files=4):
    metadata = Metadata({}, {}, {}, StorageMeta(checkpoint_id=pathlib.Path("/a/b"), save_id="s", modules=["m"]), "1.0.0")
    for n in range(names):
        name = f"decoder.layers.{n}.weight"
        chunks = [ChunkStorageMetadata(torch.Size([n, 2 * i, 0]), torch.Size([1, 2, 70000])) for i in range(bands)]
        metadata.state_dict_metadata[name] = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), torch.Size([names, 2 * bands, 70000]), chunks)
        metadata.planner_data[name] = (*name.split("."), n)
        for i, chunk in reversed(list(enumerate(chunks))):
            metadata.storage_data[MetadataIndex(name, chunk.offsets, i)] = _StorageInfo(f"__{i % files}_0.distcp", (n * bands + i) << 33, 280000 + 1577)
    metadata.state_dict_metadata["rng/shard_0_1"] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex("rng/shard_0_1")] = _StorageInfo("__0_0.distcp", 17, 1)
    return metadata


def with_megatron(metadata):
    """With the attributes that Megatron-Core adds."""
    name = next(iter(metadata.state_dict_metadata))
    metadata.mcore_data = {name: {"nd_reformulated_orig_global_shape": (3, 700000)}}
    chunks = [(entry, chunk) for entry in metadata.state_dict_metadata.values() for chunk in getattr(entry, "chunks", [])]
    items = [
        WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, entry.properties, entry.size))
        for index, (entry, chunk) in zip(metadata.storage_data, chunks)
    ]
    metadata.all_local_plans = [SavePlan(items, planner_data={"x": 1}), SavePlan([])]
    return metadata
