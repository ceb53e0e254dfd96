"""docs/digest.py and docs/xxh3.py by themselves: against the definition in digest.md, and xxHash. test_golden.py and others compare them with the program."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(1, str(DOCS))

import digest as specification  # noqa: E402
import xxh3  # noqa: E402
from digest import digest  # noqa: E402

ECMA_182 = 1 << 64 | 0x42F0E1EBA9EA3693
DTYPES = ("bool uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float4_e2m1fn_x2 int16 uint16 float16 bfloat16 int32 uint32 float32 complex64 float64 int64 "
          "uint64 complex128").split()


def by_definition(data):
    """m(x) · x^64 mod P by long division; the first bit of the data has the highest power, and bit 63 of the result is x^0."""
    message = int("0" + "".join(f"{byte:08b}"[::-1] for byte in data), 2) << 64
    while message.bit_length() > 64:
        message ^= ECMA_182 << message.bit_length() - 65
    return int(f"{message:064b}"[::-1], 2)


def any_bits(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), generator=generator, dtype=torch.uint8).view(dtype)


def test_the_check_value_of_the_page():
    assert f"{digest(np.frombuffer(b'123456789', np.uint8)):016x}" == "2b9c7ee4e2780c8a" and "2b9c7ee4e2780c8a" in (DOCS / "digest.md").read_text()


@pytest.mark.parametrize("words", [3, 1 << 20])
def test_every_length_is_as_defined(words, monkeypatch):
    monkeypatch.setattr(specification, "WORDS", words)  # how many are summed at a time
    data = any_bits(torch.uint8, (600,), 0).numpy()
    for size in (*range(40), 127, 128, 129, 600):
        assert digest(data[:size]) == by_definition(data[:size]), size
        assert digest(torch.from_numpy(data)[600 - size :]) == by_definition(data[600 - size :]), "one that begins anywhere in its memory"


@pytest.mark.parametrize("name", DTYPES)
def test_pieces_of_every_dtype_add_up(name):
    """A tensor cut along every axis, in NumPy where it has the dtype and in PyTorch."""
    dtype = getattr(torch, name)
    for seed, shape in enumerate(((3, 5, 7), (1, 4), (2, 1, 3, 2), (9,))):
        tensor = any_bits(dtype, shape, seed)
        expected = by_definition(tensor.view(torch.uint8).flatten().tolist())
        forms = [tensor] if "float8" in name or name in ("bfloat16", "float4_e2m1fn_x2") else [tensor, tensor.numpy()]
        for whole in forms:
            assert digest(whole) == expected
            cuts = [[(0, extent // 3), (extent // 3, extent)] for extent in shape]
            total = 0
            for box in itertools.product(*cuts):
                total ^= digest(whole[tuple(slice(*ends) for ends in box)], shape, [begin for begin, _ in box])
            assert total == expected, shape


def test_scalars_empty_tensors_and_turned_ones():
    assert digest(torch.tensor(1.5)) == digest(np.array(1.5, "f4")) == digest(np.array(1.5, ">f4")) == by_definition(np.float32(1.5).tobytes())
    assert digest(torch.tensor(1.5), (), ()) == digest(torch.tensor([1.5]))
    assert digest(torch.empty(3, 0)) == digest(np.empty((0, 2))) == 0
    matrix = torch.arange(15.0).reshape(3, 5)
    assert digest(matrix.T) == digest(matrix.T.contiguous()) == digest(matrix.numpy().T) != digest(matrix)
    assert digest(torch.nn.Parameter(matrix)) == digest(matrix)


XXH3 = {  # of xxHash 0.8: length of the text below -> XXH3_64bits, XXH3_128bits
    0: "2d06800538d394c2 99aa06d3014798d86001c324468d497f", 1: "e5e62017e96f839c", 3: "d3bcc83c6f14e70f", 4: "c7f159f34b126cb4", 8: "0f25a2a1cc43dda2",
    9: "1e3be9699baa50cf", 16: "9ec324145cea1dcb", 17: "48f3651d7436310a e07226299d418421ee80c12e2eaa110d",
    32: "3ecd923442085a0d 064ad1b44ce81ec6f852b8182febef65", 33: "0afebb54eff3a3b5 79222b34b5dc6369b28082a9aad3b9d5",
    97: "7b0a9dae42e89ff6 98434fe44be46805b0673de5ad089029", 128: "5d813d42c0005ea8 4a4e39fcfa4515aa08d61631b87e5395",
    129: "c61639b552225575 5d41bb88ee7f7e4511b15591bb767e79", 240: "7d85b8d4f8b10c82 f92b835add69c25d4627a2b0d94e7351",
    241: "5c56141c894cd97e 80610486edf872df5c56141c894cd97e", 1025: "dbe2ed3c377d9922 2e457d89ed1973d3dbe2ed3c377d9922",
    2049: "2ba993b30fe87e40 83c842cbeb14f9a52ba993b30fe87e40"}  # fmt: skip


def random_text(size):
    state, result = 1, bytearray()
    for _ in range(size):
        state = (state * 1103515245 + 12345) % 2**32
        result.append(state >> 16 & 255)
    return bytes(result)


@pytest.mark.parametrize("blocks", [1, 1 << 14])
def test_xxh3_is_that_of_xxhash(blocks, monkeypatch):
    monkeypatch.setattr(xxh3, "BLOCKS", blocks)
    for size, values in XXH3.items():
        text = random_text(size)
        assert [xxh3.xxh3_64(text), xxh3.xxh3_128(text)][: len(values.split())] == values.split(), size


# --- the command line ---------------------------------------------------------------------------------------------


def recorded(name, tensor, axes):
    return {"name": name, "dtype": "F32", "shape": list(tensor.shape), "axes": axes, "crc64": f"{digest(tensor):016x}"}


def write_folder(folder, state, tensors):
    """A folder with its record, which nothing of the program wrote."""
    save_file(state, folder / "model.safetensors")
    data = (folder / "model.safetensors").read_bytes()
    files = [{"path": "model.safetensors", "size_bytes": len(data), "xxh3": xxh3.xxh3_64(data)}]
    record = {"reshard": "0", "version": 1, "total": specification.total(tensors), "tensors": tensors, "objects": [], "files": files}
    (folder / "reshard.json").write_text(json.dumps(record))


def check(folder, names=None):
    (folder.parent / "names.json").write_text(json.dumps(names or {}))
    done = subprocess.run([sys.executable, DOCS / "digest.py", folder, folder.parent / "names.json"], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def fused(scratch):
    """Gate and up row by row in one tensor, of the layers 1 and 3 alone."""
    folder = scratch / "folder"
    folder.mkdir()
    gate, up = (torch.arange(float(math.prod((2, 3, 5)))).reshape(2, 3, 5) + offset for offset in (0, 100))
    state = {f"layers.{layer}.both": torch.stack([gate[at], up[at]], 1).reshape(6, 5) for at, layer in enumerate((1, 3))}
    write_folder(folder, state | {"copy": gate[0]}, [recorded("ffn.gate", gate, ["layer", "inter", "hidden"]),
                                                     recorded("ffn.up", up, ["layer", "inter", "hidden"])])
    return folder


NAMES = {"layers.{layer}.both": "ffn: (inter (gate: | up:)) hidden", "copy": None}


def test_fused_tensors_are_taken_apart(fused):
    assert check(fused, NAMES) == (0, "all digests are those of reshard.json\n")


def test_parts_that_no_map_describes_are_numbered_by_their_names(scratch):
    (scratch / "folder").mkdir()
    state = {"tower.b": torch.arange(6.0).reshape(2, 3), "tower.a": torch.arange(4.0)}
    write_folder(scratch / "folder", state, [recorded("kept.t0", state["tower.a"], ["kept0_4"]), recorded("kept.t1", state["tower.b"], ["kept0_2", "kept1_3"])])
    assert check(scratch / "folder")[0] == 0


@pytest.mark.parametrize("names, expected", [
    (NAMES | {"layers.{layer}.both": "ffn: (gate: inter | up: inter) hidden"}, "ffn.gate: digest"), (NAMES | {"copy": "ffn.gate: hidden"}, "copy: has no place"),
    ({"copy": None}, "layers.1.both: has no place"), (NAMES | {"copy": "ffn.gate: inter hidden layer"}, "copy: has no place")])  # fmt: skip
def test_other_names_do_not_pass(names, expected, fused):
    status, said = check(fused, names)
    assert status == 1 and expected in said and "Traceback" not in said, said


def test_a_changed_bit_and_a_changed_record_are_found(fused):
    data = bytearray((fused / "model.safetensors").read_bytes())
    data[-4 * 15 - 40] ^= 1
    (fused / "model.safetensors").write_bytes(data)
    status, said = check(fused, NAMES)
    assert status == 1 and "ffn." in said and "model.safetensors: is missing, or has another" in said and "total" not in said, said
    record = json.loads((fused / "reshard.json").read_text())
    record["tensors"][0]["crc64"] = "0" * 16
    (fused / "reshard.json").write_text(json.dumps(record))
    assert "total: " in check(fused, NAMES)[1]
