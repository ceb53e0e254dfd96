"""Makes seeds for the fuzz targets: real files, cut down to what a parser sees of them.

    make_seeds.py OUT [--most BYTES] [--probe PROGRAM] [--reshard PROGRAM]

One folder per target below OUT. From the repository: configs, maps, jobs, the sample checkpoint. With a Python that has torch and h5py, also
what these write; with probe and reshard of a build, also HDF5 containers and a manifest. Equal files are made once; larger ones than --most are left
out. (corpus/ holds a small choice of the same, for builds that have nothing of this.)
"""

import argparse
import hashlib
import io
import json
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


# The seeds that are kept in corpus/, for builds that can make none.
CORPUS = {
    "config": ["qwen3-32b", "llama4-scout", "generation_config"],
    "dcp_common": ["common-True", "common-False"],
    "dcp_item": ["tensor-True", "tensor-False", "scalar-True", "empty-True", "view-True"],
    "dcp_metadata": ["saved", "protocol2", "protocol4", "protocol5"],
    "hdf5": ["one", "objects", "slash", "latest"],
    "hdf5_answer": ["empty", "two"],
    "integrity": ["list", "empty"],
    "sha256_sums": ["list", "escaped"],
    "job_spec": ["dcp-to-mesh", "fp8-to-bf16", "megatron-reshard", "to-hdf5", "torch-dist-reshard", "huggingface-to-megatron"],
    "journal": ["head", "two", "lockstep", "torn"],
    "json": ["qwen3-32b", "llama4-scout", "generation_config"],
    "legacy_torch": ["checkpoint", "tensor"],
    "manifest": ["made", "real"],
    "map_file": ["mixtral", "qwen3", "gpt_oss", "glm4_moe_lite", "decoder-3"],
    "megatron_args": ["args-2", "args-4"],
    "pickle": ["args", "checkpoint", "protocol5", "tensor"],
    "placements": None,
    "run_journal": None,
    "safetensors": None,
    "torch_zip": ["args-True", "checkpoint-True", "checkpoint-False", "protocol5-True"],
}


class Seeds:
    def __init__(self, out: pathlib.Path, most: int):
        self.out, self.most = out, most

    def add(self, target: str, name: str, data: bytes | str):
        data = data.encode() if isinstance(data, str) else data
        if len(data) > self.most:
            return
        folder = self.out / target
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(data).hexdigest()[:8]
        if not list(folder.glob(f"*-{digest}")):
            (folder / f"{name}-{digest}").write_bytes(data)


def texts(seeds: Seeds):
    for path in sorted((ROOT / "tests/data").rglob("*.json")):
        for target in ("json", "config"):
            seeds.add(target, path.stem, path.read_bytes())
    for path in sorted((ROOT / "configs/jobs").glob("*.toml")):
        text = path.read_text()
        more = "\ntarget.layout.tp=2" if 'format = "megatron"' in text else ""
        seeds.add("job_spec", path.stem, text + "\0target.path=/a\nrun.memory=1 GiB" + more)
    for path in sorted((ROOT / "configs/models").glob("*.toml")):
        text = path.read_text()
        seeds.add("map_file", path.stem, text)
        for number, table in enumerate(re.split(r"\n(?=\[)", text)):
            seeds.add("map_file", f"{path.stem}-{number}", table)
        for quoted in sorted(set(re.findall(r'"([^"\n]*)"', text))):
            seeds.add("layout_expr", re.sub(r"\W+", "_", quoted)[:24], quoted)
            seeds.add("expression", re.sub(r"\W+", "_", quoted)[:24], quoted)
    for text in ("dp=4 tp=2\nS(0) R", "dp=2 ep=2 tp=2\n_S(0, 2) Shard(dim=0) Replicate()", "Ettt|(tt|)*29,m|L", "Et*3|t|tL", "a=3\nS2"):
        seeds.add("placements", re.sub(r"\W+", "_", text), text)
    files = {"latest_checkpointed_iteration.txt": "0" * 64, "iter_0000010/__0_0.distcp": "f" * 64, "weights/ü.bin": "a5" * 32}
    seeds.add("integrity", "list", json.dumps({"algorithm": "sha256", "files": files}, indent=2))
    seeds.add("integrity", "empty", json.dumps({"files": {}}))
    seeds.add("sha256_sums", "list", "".join(f"{value}  {path}\n" for path, value in sorted(files.items())))
    seeds.add("sha256_sums", "escaped", "# by hand\n\\" + "A" * 64 + " *./a\\\\b\n")


def manifest(seeds: Seeds, reshard: str | None):
    tensor = {"name": "decoder.norm", "dtype": "bf16", "shape": [2, 64], "axes": ["layer", "hidden"], "crc64": "00000000000000ff", "add": -1}
    made = {
        "reshard": "0.1.0", "version": 1, "format": "megatron", "map": "mcore", "source": {"path": "/a"}, "job": {"target": {"path": "/b"}},
        "total": "", "tensors": [tensor, tensor | {"name": "w\u00fc", "shape": [], "axes": []}],
        "objects": [{"name": "state", "shape": [5], "crc64": "0123456789abcdef"}],
        "files": [{"path": "a/b.pt", "size_bytes": 5, "xxh3": "00112233445566ff"}],
    }
    seeds.add("manifest", "made", json.dumps(made))
    if not reshard:
        return
    with tempfile.TemporaryDirectory() as scratch:
        job = pathlib.Path(scratch) / "job.toml"
        job.write_text(
            f'[source]\npath = "{ROOT}/tests/data/moe-tp2-pp2-ep2"\noptimizer = "drop"\nrng = "drop"\n'
            f'[target]\npath = "{scratch}/out"\nformat = "megatron"\n')
        subprocess.run([reshard, "run", job], check=True, capture_output=True)
        whole = json.loads(pathlib.Path(scratch, "out/reshard.json").read_text())
    whole["tensors"], whole["files"] = whole["tensors"][:6], whole["files"][:3]
    whole["source"] = whole["job"] = {}
    seeds.add("manifest", "real", json.dumps(whole))
    defaults = subprocess.run([reshard, "--print-defaults"], check=True, capture_output=True, text=True).stdout
    seeds.add("job_spec", "defaults", "\n".join(line for line in defaults.splitlines() if line and not line.startswith("#")))


def safetensors(seeds: Seeds):
    def file(header: dict | str, pad: int = 0) -> bytes:
        text = header if isinstance(header, str) else json.dumps(header)
        text += " " * (-len(text) % 8 + pad)
        return struct.pack("<Q", len(text)) + text.encode()

    two = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
           "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}}
    seeds.add("safetensors", "two", file(two))
    seeds.add("safetensors", "two-whole", file(two) + bytes(16))
    seeds.add("safetensors", "empty", file({}))
    seeds.add("safetensors", "zero", file({"z": {"dtype": "I64", "shape": [0, 4], "data_offsets": [0, 0]}}, 8))
    layer = {}
    end = 0
    for name, dtype, shape, size in (("q_proj.weight", "F8_E4M3", [64, 32], 2048), ("q_proj.weight_scale_inv", "F32", [1, 1], 4),
                                     ("norm.weight", "BF16", [32], 64), ("blocks", "U8", [4, 16], 64), ("mask", "BOOL", [3], 3)):
        layer[f"model.layers.0.self_attn.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    seeds.add("safetensors", "layer", file(layer))


def crc64(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return crc


def block(kind: int, payload: bytes) -> bytes:
    framed = b"RSHJRNL1" + struct.pack("<QQ", kind, len(payload)) + payload
    return framed + struct.pack("<Q", crc64(framed))


def entry(round_: int, cells: list, sums: list) -> bytes:
    words = [round_, 100 * round_, len(cells), *(x for cell in cells for x in cell)]
    for shares in (sums, [], sums):
        words += [len(shares), *(x for share in shares for x in share)]
    held = struct.pack("<QQQQ", 1, 0, 64, 5) + b"\x80\x02}q."
    written = struct.pack("<QQ", 1, 0)
    return block(2, struct.pack(f"<{len(words)}Q", *words) + held + written)


def journals(seeds: Seeds):
    def head(ranks: int, lockstep: int) -> bytes:
        return block(1, struct.pack("<Q", 4) + b"boot" + struct.pack("<QQ", ranks, lockstep))

    journal = head(2, 0) + entry(1, [(0, 2)], [(1, 5)]) + block(3, struct.pack("<Q", 1)) + entry(2, [(4, 6), (2, 4)], [(1, 7), (2, 9)])
    lockstep = head(2, 1) + entry(1, [(0, 2)], []) + entry(2, [(2, 3)], []) + block(3, struct.pack("<Q", 2))
    for name, data in (("head", head(1, 0)), ("two", journal), ("lockstep", lockstep), ("torn", journal[:-9]), ("entry", entry(3, [(5, 9)], [(0, 1)]))):
        seeds.add("journal", name, data)

    def named(number: int, data: bytes) -> bytes:
        return bytes([number]) + struct.pack("<H", len(data)) + data

    identity = b"program 0.1.0-00\njob 11\nsource 22\nplan 33\n"
    seeds.add("run_journal", "none", identity + b"staging 5\n")
    seeds.add("run_journal", "first", identity + b"\0" + named(0, journal))
    seeds.add("run_journal", "two-ranks", identity + b"\0" + named(0, lockstep) + named(1, lockstep))
    seeds.add("run_journal", "later", identity + b"\0" + named(4, head(1, 0) + entry(0, [(0, 9)], [(3, 3)])) + named(3, journal) + named(2, journal))


def torch_archives(seeds: Seeds, paths: list):
    """data.pkl of real files; the files themselves without their storages are too large, or no files any more."""
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    for target in ("pickle", "megatron_args"):
                        seeds.add(target, path.parent.name, archive.read(name))


def torch_files(seeds: Seeds):
    import collections
    import pickle

    import numpy
    import torch
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(1)
    base = torch.arange(12, dtype=torch.float32)
    args = argparse.Namespace(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=None, num_layers=4, num_experts=8,
        pipeline_model_parallel_layout="Ett|ttL", swiglu=True, moe_ffn_hidden_size=64, params_dtype=torch.bfloat16, rope=[1.5, None], path=pathlib.Path("/a"))
    checkpoint = {
        "args": args,
        "model": collections.OrderedDict(w=base.reshape(3, 4).t(), v=base[3:], e=torch.zeros(0), s=io.BytesIO(b"\x80\xff")),
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.float16)),
        "rng": {1, 2.5},
    }
    eight = [torch.zeros(3, dtype=torch.float8_e4m3fn), numpy.arange(3), torch.Size([1, 2])]
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    common = {"args": args, "iteration": 10, "checkpoint_version": 3.0, "rerun": {"mode": None}}
    for crc in (True, False):
        torch.serialization.set_crc32_options(crc)
        for name, value, more in (("checkpoint", checkpoint, {}), ("protocol5", eight, {"pickle_protocol": 5}), ("args", {"args": args}, {}),
                                  ("tensor", tensor, {}), ("scalar", torch.tensor(3), {}), ("empty", torch.zeros(0, 4), {}), ("view", base[3:7], {})):
            buffer = io.BytesIO()
            torch.save(value, buffer, **more)
            seeds.add("torch_zip", f"{name}-{crc}", buffer.getvalue())
            if isinstance(value, torch.Tensor):
                seeds.add("dcp_item", f"{name}-{crc}", buffer.getvalue())
            if crc:
                with zipfile.ZipFile(buffer) as archive:
                    seeds.add("pickle", name, next(archive.read(each) for each in archive.namelist() if each.endswith("data.pkl")))
        buffer = io.BytesIO()
        torch.save([common], buffer)
        seeds.add("dcp_common", f"common-{crc}", buffer.getvalue())
    for protocol in (2, 4):
        seeds.add("megatron_args", f"args-{protocol}", pickle.dumps(args.__class__(**{k: v for k, v in vars(args).items() if k != "params_dtype"}), protocol))
    for name, value in (("checkpoint", checkpoint), ("tensor", tensor)):
        buffer = io.BytesIO()
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
        seeds.add("legacy_torch", name, buffer.getvalue())
    metadata_files(seeds)
    with tempfile.TemporaryDirectory() as scratch:
        dcp.save({"model": {"w": tensor, "scalar": torch.tensor(3)}, "list": [torch.zeros(2)], "step": 5}, checkpoint_id=scratch, no_dist=True)
        folder = pathlib.Path(scratch)
        seeds.add("dcp_metadata", "saved", (folder / ".metadata").read_bytes().replace(folder.name.encode(), b"x" * len(folder.name)))


def metadata_files(seeds: Seeds):
    """With what Megatron adds, by each protocol that Python writes."""
    import pickle

    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

    chunks = [ChunkStorageMetadata(torch.Size([2 * i, 0]), torch.Size([2, 5])) for i in range(3)]
    metadata = Metadata(
        {"w": TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([6, 5]), chunks)}, None,
        {MetadataIndex("w", chunk.offsets, i): _StorageInfo("__0_0.distcp", i << 40, 1600) for i, chunk in enumerate(chunks)})
    metadata.mcore_data = {"w": {"nd_reformulated_orig_global_shape": (3, 10)}}
    metadata.all_local_plans = [SavePlan([WriteItem(MetadataIndex("w", torch.Size([0, 0])), WriteItemType.SHARD)])]
    for protocol in (2, 4, 5):
        seeds.add("dcp_metadata", f"protocol{protocol}", pickle.dumps(metadata, protocol))


def hdf5_containers(seeds: Seeds, probe: str):
    def spec(**more):
        tensor = {"name": "w", "dtype": "BF16", "shape": [2, 3], "data": "00" * 12}  # labels would be behind the data
        return {"tensors": [tensor], "objects": [], "attributes": {}, "alignment": 64, **more}

    cases = {"one": spec(), "objects": spec(objects=[{"name": "o", "data": "0102"}], attributes={"map": "mcore"}), "unfinished": spec(finish=False),
             "slash": spec(tensors=[{"name": "a/b%", "dtype": "F8_E4M3", "shape": [4], "domain": "layer 3:61", "data": "00010203"}]),
             "none": spec(tensors=[])}
    with tempfile.TemporaryDirectory() as scratch:
        for name, case in cases.items():
            job, out = pathlib.Path(scratch) / "spec.json", pathlib.Path(scratch) / "out.h5"
            job.write_text(json.dumps(case))
            if subprocess.run([probe, "hdf5", "make", job, out], capture_output=True).returncode == 0:
                with out.open("rb") as file:  # the data, zeros, come after a MiB: the target puts zeros behind its input
                    seeds.add("hdf5", name, file.read(1 << 16).rstrip(b"\0"))


def hdf5_files(seeds: Seeds):
    """Anybody's files, such as h5py writes."""
    import h5py

    for libver in ("earliest", "latest"):
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "a.h5"
            with h5py.File(path, "w", libver=libver) as file:
                file.attrs["made_by"] = "h5py"
                file.create_dataset("a/w", data=[[1.0, 2.0]], dtype="f4").attrs["dtype"] = "F32"
                file.create_dataset("b", data=[1, 2, 3], dtype="i8").dims[0].label = "rows"
            seeds.add("hdf5", libver, path.read_bytes())


def answers(seeds: Seeds):
    """What hdf5::pack writes: magic, container, attributes, tensors, objects as core/base/text/wire has them, CRC-64."""

    def number(value):
        low, rest = value & 0x7f, value >> 7
        return bytes([low | 0x80]) + number(rest) if rest else bytes([low])

    integer = lambda value: number(2 * value)  # noqa: E731  (zigzag of what is not negative)
    text = lambda value: number(len(value)) + value.encode()  # noqa: E731

    def dataset(name, dtype, shape, axes, offset, size, digest):
        return (text(name) + number(dtype) + number(len(shape)) + b"".join(map(integer, shape)) + number(len(axes)) + b"".join(map(text, axes)) + text("")
                + number(offset) + number(size) + (bytes([0]) if digest is None else bytes([1]) + number(digest)))

    for name, parts in (
            ("empty", bytes([0]) + number(0) + number(0) + number(0)),
            ("two", bytes([1]) + number(1) + text("map") + text("mcore") + number(2) + dataset("w", 4, [2, 3], ["a", "b"], 2048, 6, 7)
             + dataset("v", 4, [8], [], 4096, 8, None) + number(1) + dataset("o", 4, [5], [], 5000, 5, 1))):
        body = b"RH5F0002" + parts
        seeds.add("hdf5_answer", name, body + struct.pack("<Q", crc64(body)))


def choose(seeds: pathlib.Path, corpus: pathlib.Path):
    for target, names in CORPUS.items():
        (corpus / target).mkdir(parents=True, exist_ok=True)
        for path in (seeds / target).iterdir():
            name = path.name.rsplit("-", 1)[0]
            if names is None or name in names:
                shutil.copy(path, corpus / target / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=16384, help="bytes of a seed")
    parser.add_argument("--probe")
    parser.add_argument("--reshard")
    parser.add_argument("--corpus", action="store_true", help="also copy the choice that corpus/ holds")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    seeds = Seeds(arguments.out, arguments.most)
    texts(seeds)
    safetensors(seeds)
    journals(seeds)
    answers(seeds)
    manifest(seeds, arguments.reshard)
    torch_archives(seeds, sorted((ROOT / "tests/data/moe-tp2-pp2-ep2").rglob("*.pt")))
    if arguments.probe:
        hdf5_containers(seeds, arguments.probe)
    for make in (torch_files, hdf5_files):
        try:
            make(seeds)
        except ImportError as missing:
            print(f"make_seeds.py: {missing.name} is not there: nothing of {make.__name__}")
    if arguments.corpus:
        choose(arguments.out, ROOT / "tests/fuzz/corpus")
    for folder in sorted(arguments.out.iterdir()):
        print(f"{folder.name}: {len(list(folder.iterdir()))} seeds")


if __name__ == "__main__":
    main()
