"""Forms that are moved by name alone become BF16: each is packed here as its library packs it, and the values are the library's own formula, bit by bit.

`quantised_matrix.py` compares them with the libraries, on folders that these have written.
"""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

HIDDEN, INTER, HEADS, GROUP = 128, 256, 2, 64
SHAPES = {f"self_attn.{word}_proj": (HIDDEN, HIDDEN) for word in "qkvo"}
MLP = {"mlp.gate_proj": (INTER, HIDDEN), "mlp.up_proj": (INTER, HIDDEN), "mlp.down_proj": (HIDDEN, INTER)}
CONFIG = dict(hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=HIDDEN // HEADS,
              vocab_size=32, tie_word_embeddings=True)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, bits, dim):
    """Codes one after the other along `dim`, from the lowest bit of each 32-bit word on."""
    codes = codes.movedim(dim, -1).to(torch.int64)
    stream = (codes.unsqueeze(-1) >> torch.arange(bits) & 1).flatten(-2).unflatten(-1, (-1, 32))
    return (stream << torch.arange(32)).sum(-1).to(torch.uint32).view(torch.int32).movedim(-1, dim).contiguous()


def gptq(bits, act_order, m, n, random):
    codes, zeros = (torch.randint(2**bits, (rows, m), generator=random) for rows in (n, n // GROUP))
    zeros = zeros.clamp(min=1)
    scales = (torch.rand(n // GROUP, m, generator=random) - 0.5).half()
    groups = torch.arange(n, dtype=torch.int32) // GROUP
    if act_order:
        groups = groups[torch.randperm(n, generator=random)]
    values = (codes - zeros[groups.long()]).float() * scales[groups.long()].float()
    return {"qweight": words(codes, bits, 0), "qzeros": words(zeros - 1, bits, 1), "scales": scales, "g_idx": groups}, values.T


def awq(m, n, random):
    codes, zeros = (torch.randint(16, (rows, m), generator=random) for rows in (n, n // GROUP))
    scales = torch.rand(n // GROUP, m, generator=random).half()
    values = (codes - zeros.repeat_interleave(GROUP, 0)).float() * scales.float().repeat_interleave(GROUP, 0)
    packed = [words(one.unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1), 4, 1) for one in (codes, zeros)]
    return {"qweight": packed[0], "qzeros": packed[1], "scales": scales}, values.T


def torchao(m, n, random):
    codes, scale = torch.randint(-128, 128, (m, n), generator=random).to(torch.int8), torch.rand(m, 1, generator=random)
    return {"_weight_qdata": codes, "_weight_scale": scale, "_weight_zero_point": torch.zeros(m, 1, dtype=torch.int8)}, codes.float() * scale


def bitsandbytes(m, n, random):
    codes, largest = torch.randint(-127, 128, (m, n), generator=random).to(torch.int8), torch.rand(m, generator=random)
    stored = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes * largest.unsqueeze(1) * 7.874015718698502e-3


def modelopt_int4(m, n, random):
    codes, scale = torch.randint(-8, 8, (m, n), generator=random), torch.rand(m, n // 128, generator=random)
    factors = torch.rand(n, generator=random).bfloat16()
    packed = (codes[::2] & 15 | (codes[1::2] & 15) << 4).to(torch.uint8)
    return {"weight": packed, "weight_scale": scale, "pre_quant_scale": factors}, codes.float() * scale.repeat_interleave(128, 1) * factors.float()


FORMS = {
    **{f"gptq{bits}{'-act-order' * act_order}": (dict(quant_method="gptq", bits=bits, group_size=GROUP), functools.partial(gptq, bits, act_order))
       for bits in (2, 3, 4, 8) for act_order in (False, True)},
    "auto-round": (dict(quant_method="auto-round", packing_format="auto_round:auto_gptq", bits=4, group_size=GROUP), functools.partial(gptq, 4, False)),
    "awq": (dict(quant_method="awq", bits=4, group_size=GROUP, version="gemm", zero_point=True), awq),
    "torchao": (dict(quant_method="torchao"), torchao),
    "bitsandbytes": (dict(quant_method="bitsandbytes", load_in_8bit=True), bitsandbytes),
    "modelopt": (dict(quant_method="modelopt", quant_algo="W4A16_AWQ"), modelopt_int4),
}


def written(folder, config, quantised, tensors):
    folder.mkdir()
    ones = {f"model.layers.0.{name}.weight": torch.ones(HIDDEN, dtype=torch.bfloat16) for name in ("input_layernorm", "post_attention_layernorm")}
    plain = ones | {"model.norm.weight": ones["model.layers.0.input_layernorm.weight"].clone(), "model.embed_tokens.weight": torch.ones(32, HIDDEN).bfloat16()}
    save_file({name: tensor.contiguous() for name, tensor in (plain | tensors).items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    return folder


def assert_values(program, source, scratch, expected):
    target = program.to_hf(source, scratch / "values", model={"quant": "dequantise-bf16"})
    found = {name: tensor for path in target.glob("*.safetensors") for name, tensor in load_file(path).items()}
    for name, values in expected.items():
        assert torch.equal(found[name].view(torch.int16), values.bfloat16().contiguous().view(torch.int16)), name
    assert not [name for name in found if name.endswith(("qzeros", "scales", "SCB", "_scale", "g_idx"))]
    assert "quantization_config" not in json.loads((target / "config.json").read_text())


@pytest.mark.parametrize("form", FORMS)
def test_values_of_the_form(program, scratch, form):
    described, packed = FORMS[form]
    random = torch.Generator().manual_seed(3)
    tensors, expected = {}, {}
    for module, (m, n) in (SHAPES | MLP).items():
        parts, values = packed(m, n, random)
        tensors |= {f"model.layers.0.{module}.{ending}": part for ending, part in parts.items()}
        expected[f"model.layers.0.{module}.weight"] = values
    source = written(scratch / "source", CONFIG | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, described, tensors)
    assert_values(program, source, scratch, expected)


def test_scales_of_experts_in_one_tensor(program, scratch):
    """As transformers saves FP8 that it has made while loading."""
    random = torch.Generator().manual_seed(4)
    f8 = torch.float8_e4m3fn
    experts, rows = 3, 256
    tensors, expected = {"model.layers.0.mlp.gate.weight": torch.ones(experts, HIDDEN).bfloat16()}, {}
    for name in ("q_norm", "k_norm"):
        tensors[f"model.layers.0.self_attn.{name}.weight"] = torch.ones(HIDDEN // HEADS).bfloat16()
    for module, shape in SHAPES.items():
        tensors[f"model.layers.0.{module}.weight"] = codes = torch.randn(shape, generator=random).to(f8)
        tensors[f"model.layers.0.{module}.weight_scale_inv"] = scale = torch.rand(1, 1, generator=random)
        expected[f"model.layers.0.{module}.weight"] = codes.float() * scale
    stacked = {"gate_up": torch.rand(experts, 2 * rows // 128, 1, generator=random), "down": torch.rand(experts, 1, rows // 128, generator=random)}
    for word, scales in stacked.items():
        tensors[f"model.layers.0.mlp.experts.{word}_proj_scale_inv"] = scales
    for expert in range(experts):
        for word, scale in zip(("gate", "up", "down"), [*stacked["gate_up"][expert].chunk(2), stacked["down"][expert]]):
            name = f"model.layers.0.mlp.experts.{expert}.{word}_proj.weight"
            tensors[name] = codes = torch.randn((HIDDEN, rows) if word == "down" else (rows, HIDDEN), generator=random).to(f8)
            expected[name] = codes.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    config = CONFIG | dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=experts, num_experts_per_tok=1,
                           moe_intermediate_size=rows, decoder_sparse_step=1, mlp_only_layers=[])
    source = written(scratch / "source", config, dict(quant_method="fp8", weight_block_size=[128, 128]), tensors)
    assert_values(program, source, scratch, expected)
