"""Computed tensors (casts, zero-centred norms, quantised weights) against the libraries that define or use their forms.

RESHARD_PROBE is the path of probe (tests/support/probe/views.cpp). Every form is compared twice, bit for bit: with its definition, and with what the
library's own code makes of the same tensors.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

TOOL = os.environ.get("RESHARD_PROBE")
pytestmark = pytest.mark.skipif(not TOOL, reason="RESHARD_PROBE is not set")

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def computed(folder: Path, tensors: dict, *views: dict, seed: int = 1) -> list[torch.Tensor]:
    """What the program makes of each view."""
    file, listing, out = folder / "weights.safetensors", folder / "views.json", folder / "out.bin"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    listing.write_text(json.dumps(views))
    done = subprocess.run([TOOL, "views", file, listing, out, str(seed)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ValueError(f"{done.returncode}: {done.stderr}")
    kinds = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16, "F64": torch.float64}
    data, at, result = bytearray(out.read_bytes()), 0, []
    for view in views:
        dtype = kinds[view.get("dtype", "BF16")]
        count = torch.Size(view["shape"]).numel()
        result.append(torch.frombuffer(data, dtype=dtype, count=count, offset=at).reshape(view["shape"]))
        at += count * dtype.itemsize
    assert at == len(data)
    return result


def dequantised(folder: Path, tensors: dict, shape, codes: str, block, **more) -> torch.Tensor:
    view = {"kind": "dequantise", "stored": "w", "scale": "s", "shape": list(shape), "codes": codes, "block": list(block), **more}
    return computed(folder, tensors, view)[0]


def assert_same(found: torch.Tensor, exact: torch.Tensor):
    """`exact` in float64 holds the very products, which become numbers of F32 and then of BF16, as in the libraries."""
    assert found.dtype == torch.bfloat16 and exact.dtype == torch.float64 and found.shape == exact.shape
    nan = exact.isnan()
    assert torch.equal(found.isnan(), nan)
    wanted = exact.float().bfloat16()
    different = found[~nan].view(torch.int16) != wanted[~nan].view(torch.int16)
    assert not different.any(), (found[~nan][different][:5], exact[~nan][different][:5])


def assert_equal(found: torch.Tensor, peer: torch.Tensor):
    """The same numbers, whatever the sign of zero and of what is none."""
    peer = peer.to(torch.bfloat16)
    nan = peer.isnan()
    assert torch.equal(found.isnan(), nan)
    different = found[~nan] != peer[~nan]
    assert not different.any(), (found[~nan][different][:5], peer[~nan][different][:5])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_bytes(shape, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed))


def random_f32(shape, seed: int) -> torch.Tensor:
    """Scales above zero over 16 binades, with full mantissas."""
    g = generator(seed)
    return torch.ldexp(1 + torch.rand(shape, generator=g), torch.randint(-14, 2, shape, generator=g))


def spread(scale: torch.Tensor, block, shape) -> torch.Tensor:
    """One number per block to one per element, blocks at the end cut off."""
    wide = scale.to(torch.float64).repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return wide[..., : shape[-2], : shape[-1]]


def unpacked_fp4(packed: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return E2M1[codes.long()]


# Casts and zero-centred norms


def test_every_bf16_and_f16_is_widened(scratch):
    for stored in (torch.bfloat16, torch.float16):
        w = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(stored)
        f32, f64 = computed(scratch, {"w": w}, *({"kind": "cast", "stored": "w", "shape": [65536], "dtype": d} for d in ("F32", "F64")))
        nan = w.isnan()
        assert torch.equal(f32.isnan(), nan) and torch.equal(f64.isnan(), nan)
        assert torch.equal(f32[~nan], w[~nan].float()) and torch.equal(f64[~nan], w[~nan].double())
        assert torch.equal(f32.signbit(), w.signbit())


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_8_bit_float_is_widened(scratch, stored):
    w = torch.arange(256, dtype=torch.uint8).view(stored)
    for dtype in ("BF16", "F32"):
        (found,) = computed(scratch, {"w": w}, {"kind": "cast", "stored": "w", "shape": [256], "dtype": dtype})
        wanted = w.to(torch.float32)
        nan = wanted.isnan()
        assert torch.equal(found.isnan(), nan)
        assert torch.equal(found[~nan].float(), wanted[~nan])


def test_narrowing_is_exact_or_refused(scratch):
    w = torch.randn(1000, generator=generator(1)).bfloat16().float()
    view = {"kind": "cast", "stored": "w", "shape": [1000], "dtype": "BF16"}
    assert torch.equal(computed(scratch, {"w": w}, view)[0].float(), w)
    w[700] = 0.1
    with pytest.raises(ValueError, match=r"^3: .*'w': element 700 is 0\.1.*BF16"):
        computed(scratch, {"w": w}, view)


def test_norms_lose_and_regain_their_one(scratch):
    # Gemma and Qwen3-Next keep norm - 1; every BF16 in [0.5, 2] can do so.
    w = torch.arange(0x3F00, 0x4001, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    n = w.numel()
    (centred,) = computed(scratch, {"w": w}, {"kind": "add", "stored": "w", "shape": [n], "constant": -1})
    assert torch.equal(centred.double(), w.double() - 1)
    (back,) = computed(scratch, {"w": centred}, {"kind": "add", "stored": "w", "shape": [n], "constant": 1})
    assert torch.equal(back.view(torch.int16), w.view(torch.int16))
    w[3] = 0.01
    with pytest.raises(ValueError, match=r"^3: .*element 3 is 0\.01.*\+ \(-1\)"):
        computed(scratch, {"w": w}, {"kind": "add", "stored": "w", "shape": [n], "constant": -1})


# 8-bit floats


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu])
def test_block_fp8(scratch, scale_dtype):
    """DeepSeek: weight * weight_scale_inv of its 128 x 128 tile; kv_a_proj has 576 rows, 4.5 tiles."""
    shape, block = (576, 300), (128, 128)
    w = random_bytes(shape, 1).view(torch.float8_e4m3fn)
    if scale_dtype == torch.float8_e8m0fnu:
        s = torch.randint(100, 140, (5, 3), dtype=torch.uint8, generator=generator(2)).view(scale_dtype)
    else:
        s = random_f32((5, 3), 2).to(scale_dtype)
    found = dequantised(scratch, {"w": w, "s": s}, shape, "e4m3", block)
    wide = spread(s.float(), block, shape)
    assert_same(found, w.to(torch.float64) * wide)
    assert_equal(found, w.float() * wide.float())  # DeepSeek's kernel: product in F32, then BF16


def test_block_fp8_of_a_stack_against_transformers(scratch):
    """transformers derives the block from the grid, so it knows whole blocks only."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    shape, block = (3, 32, 48), (16, 16)
    w = random_bytes(shape, 3).view(torch.float8_e4m3fn)
    s = random_f32((3, 2, 3), 4)
    found = dequantised(scratch, {"w": w, "s": s}, shape, "e4m3", block)
    assert_same(found, w.to(torch.float64) * spread(s, block, shape))
    for matrix in range(3):
        assert_equal(found[matrix], Fp8Dequantize(None)._dequantize_one(w[matrix], s[matrix], torch.bfloat16))


def test_blocks_begin_anew_in_every_matrix_of_a_stack(scratch):
    shape, block = (3, 20, 30), (16, 16)
    w = random_bytes(shape, 33).view(torch.float8_e4m3fn)
    s = random_f32((3, 2, 2), 34)
    assert_same(dequantised(scratch, {"w": w, "s": s}, shape, "e4m3", block), w.to(torch.float64) * spread(s, block, shape))


def test_fp8_per_tensor_and_per_channel(scratch):
    shape = (33, 70)
    w = random_bytes(shape, 5).view(torch.float8_e4m3fn)
    for s in (torch.tensor(0.0123), torch.tensor([0.0123]), torch.tensor([[0.77]])):
        assert_same(dequantised(scratch, {"w": w, "s": s}, shape, "e4m3", (0, 0)), w.double() * s.double())
    for s in (random_f32((33,), 6), random_f32((33, 1), 6), random_f32((33, 1), 6).bfloat16()):
        assert_same(dequantised(scratch, {"w": w, "s": s}, shape, "e4m3", (1, 0)), w.double() * s.double().reshape(33, 1))


def test_mxfp8(scratch):
    shape = (9, 96)
    w = random_bytes(shape, 7).view(torch.float8_e4m3fn)
    s = torch.randint(90, 150, (9, 3), dtype=torch.uint8, generator=generator(8))
    exact = w.double() * spread(torch.exp2(s.double() - 127), (1, 32), shape)
    for scale in (s, s.view(torch.float8_e8m0fnu)):
        assert_same(dequantised(scratch, {"w": w, "s": scale}, shape, "e4m3", (1, 32)), exact)


# 4-bit floats


def mxfp4_scales(shape, seed: int) -> torch.Tensor:
    return torch.randint(90, 150, shape, dtype=torch.uint8, generator=generator(seed))


def test_mxfp4_of_gpt_oss_against_transformers(scratch):
    """[experts, rows, groups, 16] bytes; transformers gives [experts, columns, rows]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_bytes((3, 10, 2, 16), 9), mxfp4_scales((3, 10, 2), 10)
    found = dequantised(scratch, {"w": blocks, "s": scales}, (3, 10, 64), "e2m1", (1, 32))
    assert_same(found, unpacked_fp4(blocks.flatten(-2)) * spread(torch.exp2(scales.double() - 127), (1, 32), (10, 64)))
    peer = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
    assert torch.equal(found, peer)  # a power of two times a short number: nothing is rounded


def test_mxfp4_as_signed_bytes_against_transformers(scratch):
    """DeepSeek-V4: I8 [rows, columns / 2] and E8M0."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    packed, scales = random_bytes((12, 32), 11).view(torch.int8), mxfp4_scales((12, 2), 12).view(torch.float8_e8m0fnu)
    found = dequantised(scratch, {"w": packed, "s": scales}, (12, 64), "e2m1", (1, 32))
    assert torch.equal(found, Fp8Dequantize(None)._dequantize_one(packed, scales, torch.bfloat16))


def e4m3_scales(shape, seed: int) -> torch.Tensor:
    """Every size above zero and below the NaN."""
    return torch.randint(1, 0x7F, shape, dtype=torch.uint8, generator=generator(seed)).view(torch.float8_e4m3fn)


def test_nvfp4_multiplies_or_divides_by_its_second_scale(scratch):
    packed, scales = random_bytes((20, 40), 13), e4m3_scales((20, 5), 14)
    codes = unpacked_fp4(packed)
    for second in (torch.tensor(0.00123), torch.tensor([2688.0 / 3.7]), random_f32((), 15)):
        tensors = {"w": packed, "s": scales, "g": second}
        times = dequantised(scratch, tensors, (20, 80), "e2m1", (1, 16), second="times", second_scale="g")
        assert_same(times, codes * spread(scales.float() * second, (1, 16), (20, 80)))
        divided = dequantised(scratch, tensors, (20, 80), "e2m1", (1, 16), second="divided_by", second_scale="g")
        assert_same(divided, codes * spread(scales.float() / second, (1, 16), (20, 80)))


def test_nvfp4_of_experts_with_a_second_scale_each(scratch):
    packed, scales, second = random_bytes((4, 6, 16), 16), e4m3_scales((4, 6, 2), 17), random_f32((4,), 18)
    found = dequantised(scratch, {"w": packed, "s": scales, "g": second}, (4, 6, 32), "e2m1", (1, 16), second="times", second_scale="g")
    assert_same(found, unpacked_fp4(packed) * spread(scales.float() * second.reshape(4, 1, 1), (1, 16), (6, 32)))


# ModelOpt's own tensors


@pytest.fixture(scope="module")
def modelopt():
    return pytest.importorskip("modelopt.torch.quantization.qtensor")


def quantisable(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator(seed)).bfloat16()


@pytest.mark.long
def test_nvfp4_against_modelopt(scratch, modelopt):
    weight = quantisable(24, 96, 19)
    quantised, scale, second = modelopt.NVFP4QTensor.quantize(weight, 16)
    tensors = {"w": quantised._quantized_data, "s": scale, "g": second}
    found = dequantised(scratch, tensors, (24, 96), "e2m1", (1, 16), second="times", second_scale="g")
    peer = quantised.dequantize(torch.bfloat16, scale=scale, double_scale=second, block_sizes={-1: 16})
    assert torch.equal(found, peer)  # which does not see the sign of zeros
    assert_same(found, unpacked_fp4(tensors["w"]) * spread(scale.float() * second, (1, 16), (24, 96)))
    assert (found - weight).abs().max() < 1  # it is this weight, and not another


@pytest.mark.long
def test_mx_against_modelopt(scratch, modelopt):
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor

    weight = quantisable(10, 64, 20)
    fp4, scale = MXFP4QTensor.quantize(weight, 32)
    found = dequantised(scratch, {"w": fp4._quantized_data, "s": scale.reshape(10, 2)}, (10, 64), "e2m1", (1, 32))
    assert torch.equal(found, fp4.dequantize(torch.bfloat16, scale=scale, block_sizes={-1: 32}))
    fp8, scale = MXFP8QTensor.quantize(weight)
    found = dequantised(scratch, {"w": fp8._quantized_data, "s": scale}, (10, 64), "e4m3", (1, 32))
    assert torch.equal(found, fp8.dequantize(torch.bfloat16, scale=scale))


@pytest.mark.long
def test_fp8_against_modelopt(scratch, modelopt):
    weight = quantisable(30, 50, 21)
    for axis, block in ((None, (0, 0)), (0, (1, 0))):
        quantised, scale = modelopt.FP8QTensor.quantize(weight, axis=axis)
        found = dequantised(scratch, {"w": quantised._quantized_data, "s": scale.float()}, (30, 50), "e4m3", block)
        assert_equal(found, quantised.dequantize(torch.float32, scale=scale.float()))


# compressed-tensors' own packing and decompression


@pytest.fixture(scope="module")
def compressed_tensors():
    return pytest.importorskip("compressed_tensors")


def scheme_of(**weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


@pytest.mark.long_but("4-False")
@pytest.mark.parametrize("bits, symmetric", list(itertools.product([4, 8, 3], [True, False])))
def test_packed_integers_against_compressed_tensors(scratch, compressed_tensors, bits, symmetric):
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    rows, columns, group = 21, 96, 32
    low, high, g = -(2 ** (bits - 1)), 2 ** (bits - 1), generator(22)
    codes = torch.randint(low, high, (rows, columns), dtype=torch.int8, generator=g)
    zeros = torch.randint(low, high, (rows, columns // group), dtype=torch.int8, generator=g)
    scale = random_f32((rows, columns // group), 23).bfloat16()
    state = {"weight_packed": pack_to_int32(codes, bits), "weight_scale": scale, "weight_shape": torch.tensor([rows, columns])}
    tensors, more = {"w": state["weight_packed"], "s": scale}, {"bits": bits}
    exact = codes.double()
    if not symmetric:
        state["weight_zero_point"] = tensors["z"] = pack_to_int32(zeros, bits, packed_dim=0)
        more["zero_points"] = "z"
        exact = exact - spread(zeros, (1, group), (rows, columns))
    found = dequantised(scratch, tensors, (rows, columns), "integer", (1, group), **more)
    assert_same(found, exact * spread(scale, (1, group), (rows, columns)))
    scheme = scheme_of(num_bits=bits, type="int", strategy="group", group_size=group, symmetric=symmetric)
    assert_equal(found, PackedQuantizationCompressor.decompress(state, scheme)["weight"])  # a BF16 product, rounded once


def test_packed_integers_of_columns_that_fill_no_word(scratch, compressed_tensors):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    codes = torch.randint(-8, 8, (5, 45), dtype=torch.int8, generator=generator(24))
    packed, scale = pack_to_int32(codes, 4), random_f32((5, 1), 25)
    assert torch.equal(unpack_from_int32(packed, 4, torch.Size([5, 45])), codes)
    found = dequantised(scratch, {"w": packed, "s": scale}, (5, 45), "integer", (1, 0), bits=4)
    assert_same(found, codes.double() * scale.double())


def test_nvfp4_against_compressed_tensors(scratch, compressed_tensors):
    """Its global scale divides: the reciprocal of ModelOpt's."""
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor

    packed, scale, second = random_bytes((16, 32), 26), e4m3_scales((16, 4), 27), torch.tensor([1234.5])
    scheme = scheme_of(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    found = dequantised(scratch, {"w": packed, "s": scale, "g": second}, (16, 64), "e2m1", (1, 16), second="divided_by", second_scale="g")
    state = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": second}
    assert_equal(found, NVFP4PackedCompressor.decompress(state, scheme)["weight"])
    assert_same(found, unpacked_fp4(packed) * spread(scale.float() / second, (1, 16), (16, 64)))


@pytest.mark.long
def test_mx_against_compressed_tensors(scratch, compressed_tensors):
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor

    packed, scale = random_bytes((16, 32), 28), mxfp4_scales((16, 2), 29)
    scheme = scheme_of(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)
    found = dequantised(scratch, {"w": packed, "s": scale}, (16, 64), "e2m1", (1, 32))
    assert torch.equal(found, MXFP4PackedCompressor.decompress({"weight_packed": packed, "weight_scale": scale}, scheme)["weight"])
    weight = random_bytes((16, 64), 30).view(torch.float8_e4m3fn)
    scheme = scheme_of(num_bits=8, type="float", strategy="group", group_size=32, symmetric=True)
    found = dequantised(scratch, {"w": weight, "s": scale}, (16, 64), "e4m3", (1, 32))
    assert_equal(found, MXFP8QuantizationCompressor.decompress({"weight": weight, "weight_scale": scale}, scheme)["weight"])


# What is refused


@pytest.mark.parametrize(
    "change, words",
    [
        ({"shape": [16, 96]}, "codes"),
        ({"shape": [32, 32]}, "codes"),
        ({"block": [1, 16]}, r"scale.*\[16, 2\].*\[16, 4\]"),
        ({"second": "times"}, "lacks a second scale"),
        ({"dtype": "F32"}, "only BF16"),
    ],
)
def test_sizes_that_disagree_are_refused_before_anything_is_read(scratch, change, words):
    tensors = {"w": random_bytes((16, 32), 31), "s": mxfp4_scales((16, 2), 32)}
    view = {"kind": "dequantise", "stored": "w", "scale": "s", "shape": [16, 64], "codes": "e2m1", "block": [1, 32]} | change
    with pytest.raises(ValueError, match=words):
        computed(scratch, tensors, view)
