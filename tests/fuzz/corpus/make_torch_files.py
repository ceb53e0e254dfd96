"""Makes corpus/torch_file: small files of torch.save for the fuzz target and its replay test. Run with a Python that has torch."""

import argparse
import collections
import io
from pathlib import Path

import numpy
import torch

folder = Path(__file__).parent / "torch_file"
torch.manual_seed(1)
base = torch.arange(12, dtype=torch.float32)
checkpoint = {
    "args": argparse.Namespace(size=64, dtype=torch.bfloat16, nothing=None, names=["q", ("k", 1 << 70)]),
    "model": collections.OrderedDict(w=base.reshape(3, 4).t(), v=base[3:], e=torch.zeros(0), s=io.BytesIO(b"\x80\xff")),
    "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.float16)),
    "rng": {1, 2.5},
}
torch.save(checkpoint, folder / "checkpoint.pt")
torch.save(checkpoint, folder / "legacy.pt", _use_new_zipfile_serialization=False)
torch.save([torch.zeros(3, dtype=torch.float8_e4m3fn), numpy.arange(3), torch.Size([1, 2])], folder / "protocol5.pt", pickle_protocol=5)
# Without CRCs, so that a changed pickle is not refused before it is parsed.
torch.serialization.set_crc32_options(False)
torch.save(checkpoint, folder / "no_crc.pt")
