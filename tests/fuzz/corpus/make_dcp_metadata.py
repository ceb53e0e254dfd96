"""Makes corpus/dcp_metadata: small .metadata files for the fuzz target and its replay test. Run with a Python that has torch."""

import pickle
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

folder = Path(__file__).parent / "dcp_metadata"
state = {
    "model": {"w": torch.ones(2, 3, dtype=torch.bfloat16), "scalar": torch.tensor(3), "empty": torch.zeros(0, 4)},
    "list": [torch.zeros(2), torch.zeros(1, dtype=torch.float8_e4m3fn)],
    "step": 5,
}
with tempfile.TemporaryDirectory() as scratch:
    dcp.save(state, checkpoint_id=scratch, no_dist=True)
    saved = (Path(scratch) / ".metadata").read_bytes().replace(Path(scratch).name.encode(), b"x" * len(Path(scratch).name))
(folder / "saved.metadata").write_bytes(saved)

chunks = [ChunkStorageMetadata(torch.Size([2 * i, 0]), torch.Size([2, 5])) for i in range(3)]
metadata = Metadata(
    {"w": TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([6, 5]), chunks)},
    None,
    {MetadataIndex("w", chunk.offsets, i): _StorageInfo("__0_0.distcp", i << 40, 1600) for i, chunk in enumerate(chunks)},
)
metadata.mcore_data = {"w": {"nd_reformulated_orig_global_shape": (3, 10)}}
metadata.all_local_plans = [SavePlan([WriteItem(MetadataIndex("w", torch.Size([0, 0])), WriteItemType.SHARD)])]
for protocol in (2, 4, 5):
    (folder / f"protocol{protocol}.metadata").write_bytes(pickle.dumps(metadata, protocol))
