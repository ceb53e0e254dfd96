"""Values of quantised folders by the libraries that write them, for quantised_matrix.py, which compares ours with them bit by bit."""

import json
import re

import torch
from safetensors.torch import load_file


def configs_of(folder):
    return [json.loads((folder / name).read_text()) if (folder / name).exists() else None for name in ("config.json", "hf_quant_config.json")]


def of_compressed_tensors(folder, tensors):
    from compressed_tensors.entrypoints.convert.converters.ct_dequantizer import CompressedTensorsDequantizer

    modules = {name.rpartition(".")[0] for name in tensors if name.endswith("_scale")}  # it takes embeddings in BF16 for quantised modules
    return CompressedTensorsDequantizer(folder).process({name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] in modules})


def with_scales_apart(tensors):
    """Scales of experts that transformers saves in one tensor, under the names of single experts."""
    apart = dict(tensors)
    for name, scales in tensors.items():
        if match := re.fullmatch(r"(.*experts)\.(gate_up|down)_proj_scale_inv", name):
            for expert, of_expert in enumerate(scales):
                halves = of_expert.chunk(2) if match[2] == "gate_up" else [of_expert]
                for words, scale in zip([("gate_proj", "w1"), ("up_proj", "w3")] if match[2] == "gate_up" else [("down_proj", "w2")], halves):
                    apart.update({f"{match[1]}.{expert}.{word}.weight_scale_inv": scale for word in words})
    return apart


def of_fp8(folder, tensors):
    """transformers' own dequantisation of FP8 in blocks."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    tensors = with_scales_apart(tensors)
    result = {}
    for name, codes in tensors.items():
        scale = tensors.get(f"{name}_scale_inv")
        if codes.dtype == torch.float8_e4m3fn and scale is not None:
            result[name] = Fp8Dequantize._dequantize_one(Fp8Dequantize.__new__(Fp8Dequantize), codes, scale, torch.bfloat16)
    return result


def module_of(name, beside):
    return name.removesuffix(f".{beside}")


def with_decoded(tensors, codes, decoded):
    """The weights of all modules with such codes, by `decoded(module)`; what stands beside them is gone."""
    modules = {module_of(name, codes) for name in tensors if name.endswith(f".{codes}")}
    return {f"{module}.weight": decoded(module) for module in modules}


def of_gptq(folder, tensors):
    """AutoRound's own layers, of which the identity comes back as the weight; scales in F32, so that only BF16 rounds."""
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    config = settings(folder)
    layers = qlinear_torch_zp if settings(folder).get("packing_format", "auto_gptq").endswith("auto_gptq") else qlinear_torch

    def decoded(module):
        inputs = tensors[f"{module}.qweight"].shape[0] * 32 // config["bits"]
        codes, zeros, scales = (tensors[f"{module}.{name}"] for name in ("qweight", "qzeros", "scales"))
        groups = tensors.get(f"{module}.g_idx")  # the layer takes them for square weights alone
        size = 1 if groups is not None else config["group_size"] if config["group_size"] > 0 else inputs
        layer = layers.QuantLinear(config["bits"], size, inputs, codes.shape[1], False)
        layer.post_init()
        layer.qweight, layer.qzeros, layer.scales = codes, zeros if groups is None else zeros[groups.long()], scales.float()
        if groups is not None:
            layer.scales = layer.scales[groups.long()]
        return layer(torch.eye(inputs, dtype=torch.float64)).T.contiguous().float().to(torch.bfloat16)

    return with_decoded(tensors, "qweight", decoded)


def of_awq(folder, tensors):
    from auto_round.export.export_to_awq.utils import dequantize_gemm

    def decoded(module):
        codes, zeros, scales = (tensors[f"{module}.{name}"] for name in ("qweight", "qzeros", "scales"))
        return dequantize_gemm(codes, zeros, scales.float(), 4, settings(folder)["group_size"]).T.contiguous().to(torch.bfloat16)

    return with_decoded(tensors, "qweight", decoded)


def of_autoround(folder, tensors):
    form = settings(folder).get("packing_format", "")
    if form.endswith("awq"):
        return of_awq(folder, tensors)
    if any(name.endswith(".weight_packed") for name in tensors):  # MXFP4, as ModelOpt has it under other names
        return of_modelopt(folder, {name.replace(".weight_packed", ".weight"): tensor for name, tensor in tensors.items()})
    return of_gptq(folder, tensors) if any(name.endswith(".qweight") for name in tensors) else of_blocks_plainly(tensors, "weight_scale_inv", 128, 128)


def of_torchao(folder, tensors):
    from torchao.quantization.quant_primitives import _dequantize_affine_no_dtype_check

    def decoded(module):
        codes, scale = tensors[f"{module}._weight_qdata"], tensors[f"{module}._weight_scale"]
        zero = tensors.get(f"{module}._weight_zero_point")
        return _dequantize_affine_no_dtype_check(codes, [1, codes.shape[-1]], scale, zero, None, None, torch.bfloat16)

    return with_decoded(tensors, "_weight_qdata", decoded)


def of_bitsandbytes(folder, tensors):
    import bitsandbytes.functional

    return with_decoded(tensors, "SCB", lambda module: bitsandbytes.functional.int8_vectorwise_dequant(
        tensors[f"{module}.weight"], tensors[f"{module}.SCB"]).to(torch.bfloat16))


def of_blocks_plainly(tensors, beside, rows, columns):
    """Code times the scale of its block, each in F32: for FP8 in blocks of folders that no dequantizer of a library takes."""
    result = {}
    for name, codes in tensors.items():
        scale = tensors.get(f"{name.removesuffix('weight')}{beside}")
        if codes.dtype == torch.float8_e4m3fn and scale is not None:
            spread = scale.float().repeat_interleave(rows, -2).repeat_interleave(columns, -1)[..., : codes.shape[-2], : codes.shape[-1]]
            result[name] = (codes.float() * spread).to(torch.bfloat16)
    return result


def of_modelopt(folder, tensors):
    """ModelOpt's NVFP4 by its own class; the forms that it cannot decompress: code times scale in F32, rounded once."""
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    result = {}
    for name, codes in tensors.items():
        scale = tensors.get(f"{name}_scale")
        if scale is None:
            continue
        second = tensors.get(f"{name}_scale_2")
        factor = tensors.get(f"{name.removesuffix('weight')}pre_quant_scale")
        outputs, inputs = codes.shape[-2:]
        if codes.dtype == torch.uint8 and scale.dtype == torch.float8_e4m3fn and name.endswith("weight"):
            shape = torch.Size([*codes.shape[:-1], 2 * inputs])
            made = NVFP4QTensor(shape, torch.bfloat16, codes).dequantize(scale=scale, double_scale=second, block_sizes={-1: shape[-1] // scale.shape[-1]})
        elif codes.dtype == torch.uint8 and scale.dtype == torch.float8_e4m3fn:  # gpt-oss: along the inputs, which are rows
            turned = codes.transpose(-1, -2).contiguous()
            shape = torch.Size([*turned.shape[:-1], 2 * outputs])
            made = NVFP4QTensor(shape, torch.bfloat16, turned).dequantize(scale=scale.transpose(-1, -2).contiguous(), double_scale=second,
                                                                         block_sizes={-1: 16}).transpose(-1, -2).contiguous()
        else:
            if codes.dtype == torch.uint8 and scale.dtype == torch.uint8:  # MXFP4
                table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
                values = table[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]
            elif codes.dtype == torch.uint8:  # integers of 4 bits, two rows in a byte
                values = torch.stack([codes & 15, codes >> 4], -2).flatten(0, 1).int()
                values = torch.where(values > 7, values - 16, values).float()
            else:
                values = codes.float()
            if scale.dtype == torch.uint8:
                scale = torch.pow(2.0, scale.float() - 127)
            scale = scale.float()
            block = 128
            if scale.ndim == codes.ndim + 2:
                scale = scale.flatten(-4).reshape(scale.shape[-4], scale.shape[-2]).repeat_interleave(block, 0)[: values.shape[0]]
            elif scale.ndim == 1 and scale.numel() > 1:
                scale = scale.unsqueeze(-1)
            else:
                block = values.shape[-1] // (scale.shape[-1] if scale.ndim > 1 else 1)
            if scale.ndim == 2 and scale.shape[-1] > 1:
                scale = scale.repeat_interleave(block, -1)[:, : values.shape[-1]]
            made = values * (scale if second is None else scale * second)
            made = (made if factor is None else made * factor.float()).to(torch.bfloat16)
        result[name] = made
    return result


def settings(folder):
    return configs_of(folder)[0].get("quantization_config") or {}


LIBRARIES = {"compressed-tensors": of_compressed_tensors, "fp8": of_fp8, "modelopt": of_modelopt, "gptq": of_gptq, "awq": of_awq, "auto-round": of_autoround,
             "torchao": of_torchao, "bitsandbytes": of_bitsandbytes}


def bits_of(tensor):
    return tensor.view(torch.int16)


def values(folder, target, counts):
    """How the values compare with those of the library."""
    method = settings(folder).get("quant_method")
    stored = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    found = {name: tensor for path in sorted(target.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    if method not in LIBRARIES:
        return "made"
    try:
        wanted = LIBRARIES[method](folder, dict(stored))
    except Exception as error:
        return f"made; the library fails: {type(error).__name__} {error}"
    new = {name: tensor for name, tensor in wanted.items() if name not in stored or stored[name].dtype != tensor.dtype}
    common = [name for name in new if name in found and found[name].shape == new[name].shape]
    if method in ("modelopt", "gptq", "auto-round"):  # zeros of these have no sign
        found.update({name: found[name] + 0.0 for name in common})
        new.update({name: new[name] + 0.0 for name in common})
    differ = sum((bits_of(found[name]) != bits_of(new[name].to(torch.bfloat16))).sum().item() for name in common)
    elements = sum(new[name].numel() for name in common)
    counts["elements"] += elements
    counts["elements that differ"] += differ
    if not common:
        return "made"
    return f"{differ} of {elements} differ" if differ else f"the same, {elements} elements of {len(common)} weights of {len(new)}"
