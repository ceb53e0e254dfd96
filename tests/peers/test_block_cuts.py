"""Cuts inside a block of a quantised weight are found while the job is planned, with tensor, axis, offset and the sizes that work."""

import re
import subprocess

import pytest

from quantised_folders import header_folder
from reshard_job import BINARY, job_text

F8_TILE = ("weight", "F8_E4M3", lambda m, n: [m, n]), ("weight_scale_inv", "F32", lambda m, n: [-(-m // 128), -(-n // 128)])
NVFP4 = (
    ("weight", "U8", lambda m, n: [m, n // 2]),
    ("weight_scale", "F8_E4M3", lambda m, n: [m, n // 16]),
    ("weight_scale_2", "F32", lambda m, n: []),
)
MXFP4 = ("weight_packed", "U8", lambda m, n: [m, n // 2]), ("weight_scale", "U8", lambda m, n: [m, n // 32])
INT4 = (
    ("weight_packed", "I32", lambda m, n: [m, n // 8]),
    ("weight_scale", "BF16", lambda m, n: [m, n // 32]),
    ("weight_shape", "I64", lambda m, n: [2]),
)
GPT_OSS = ("blocks", "U8", lambda m, n: [m, n // 32, 16]), ("scales", "U8", lambda m, n: [m, n // 32])


def llama(scheme, inter, hidden=1024, heads=128, groups=128, dim=128, which="mlp"):
    """One layer; the named projections are quantised."""
    config = dict(
        model_type="llama", hidden_size=hidden, intermediate_size=inter, num_hidden_layers=1, num_attention_heads=heads,
        num_key_value_heads=groups, head_dim=dim, vocab_size=128, tie_word_embeddings=True,
    )  # fmt: skip
    shapes = {
        "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (groups * dim, hidden), "self_attn.v_proj": (groups * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim), "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden), "mlp.down_proj": (hidden, inter),
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": ("BF16", [128, hidden]), "model.norm.weight": ("BF16", [hidden])}
    tensors |= {f"model.layers.0.{norm}.weight": ("BF16", [hidden]) for norm in ("input_layernorm", "post_attention_layernorm")}
    for name, (m, n) in shapes.items():
        if which in name:
            tensors |= {f"model.layers.0.{name}.{ending}": (dtype, shape(m, n)) for ending, dtype, shape in scheme}
        else:
            tensors[f"model.layers.0.{name}.weight"] = ("BF16", [m, n])
    return config, tensors


def deepseek(inter, moe_inter, shared=1):
    """DeepSeek-V3's latent attention and sizes, with one dense and one expert layer of four experts, block FP8."""
    hidden, heads, q_rank, kv_rank = 7168, 128, 1536, 512
    config = dict(
        model_type="deepseek_v3", hidden_size=hidden, intermediate_size=inter, num_hidden_layers=2, num_attention_heads=heads, vocab_size=128,
        num_key_value_heads=heads, q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=4, moe_intermediate_size=moe_inter, n_shared_experts=shared, first_k_dense_replace=1, tie_word_embeddings=False,
        num_experts_per_tok=2, num_nextn_predict_layers=0,
    )  # fmt: skip
    tensors = {"model.embed_tokens.weight": ("BF16", [128, hidden]), "lm_head.weight": ("BF16", [128, hidden]), "model.norm.weight": ("BF16", [hidden])}

    def quantised(name, m, n):
        tensors.update({f"{name}.{ending}": (dtype, shape(m, n)) for ending, dtype, shape in F8_TILE})

    def mlp(name, width):
        quantised(name + ".gate_proj", width, hidden)
        quantised(name + ".up_proj", width, hidden)
        quantised(name + ".down_proj", hidden, width)

    for layer in range(2):
        at = f"model.layers.{layer}."
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_a_layernorm": q_rank, "self_attn.kv_a_layernorm": kv_rank}
        tensors |= {f"{at}{norm}.weight": ("BF16", [size]) for norm, size in norms.items()}
        quantised(at + "self_attn.q_a_proj", q_rank, hidden)
        quantised(at + "self_attn.q_b_proj", heads * 192, q_rank)
        quantised(at + "self_attn.kv_a_proj_with_mqa", kv_rank + 64, hidden)
        quantised(at + "self_attn.kv_b_proj", heads * 256, kv_rank)
        quantised(at + "self_attn.o_proj", hidden, heads * 128)
    mlp("model.layers.0.mlp", inter)
    mlp("model.layers.1.mlp.shared_experts", moe_inter * shared)
    for expert in range(4):
        mlp(f"model.layers.1.mlp.experts.{expert}", moe_inter)
    tensors["model.layers.1.mlp.gate.weight"] = ("BF16", [4, hidden])
    tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = ("F32", [4])
    return config, tensors


def gpt_oss(size=2880):
    config = dict(
        model_type="gpt_oss", hidden_size=size, intermediate_size=size, num_hidden_layers=1, num_attention_heads=64, num_key_value_heads=8,
        head_dim=64, vocab_size=128, attention_bias=True, num_local_experts=4, num_experts_per_tok=2, sliding_window=128, tie_word_embeddings=False,
    )  # fmt: skip
    at = "model.layers.0."
    tensors = {"model.embed_tokens.weight": ("BF16", [128, size]), "lm_head.weight": ("BF16", [128, size]), "model.norm.weight": ("BF16", [size])}
    tensors |= {f"{at}{norm}.weight": ("BF16", [size]) for norm in ("input_layernorm", "post_attention_layernorm")}
    for name, rows in (("q", 4096), ("k", 512), ("v", 512)):
        tensors |= {f"{at}self_attn.{name}_proj.weight": ("BF16", [rows, size]), f"{at}self_attn.{name}_proj.bias": ("BF16", [rows])}
    tensors |= {f"{at}self_attn.o_proj.weight": ("BF16", [size, 4096]), f"{at}self_attn.o_proj.bias": ("BF16", [size]), f"{at}self_attn.sinks": ("BF16", [64])}
    tensors |= {f"{at}mlp.router.weight": ("BF16", [4, size]), f"{at}mlp.router.bias": ("BF16", [4])}
    for name, rows in (("gate_up", 2 * size), ("down", size)):
        tensors[f"{at}mlp.experts.{name}_proj_bias"] = ("BF16", [4, rows])
        tensors |= {f"{at}mlp.experts.{name}_proj_{ending}": (dtype, [4, *shape(rows, size)]) for ending, dtype, shape in GPT_OSS}
    return config, tensors


# model, layout, and what the refusal must name: tensor, axis, its size, the offset of the first cut, the block
ILLEGAL = [
    ("dense 18432", lambda: llama(F8_TILE, 18432), "tp = 32", "ffn.", "inter", 18432, 576, 128),
    ("dense 18432", lambda: llama(F8_TILE, 18432), "tp = 64", "ffn.", "inter", 18432, 288, 128),
    ("dense 11008", lambda: llama(F8_TILE, 11008), "tp = 4", "ffn.", "inter", 11008, 2752, 128),
    ("dense 11008", lambda: llama(F8_TILE, 11008), "tp = 8", "ffn.", "inter", 11008, 1376, 128),
    ("dense 14336", lambda: llama(F8_TILE, 14336), "tp = 32", "ffn.", "inter", 14336, 448, 128),
    ("dense 8960", lambda: llama(F8_TILE, 8960), "tp = 4", "ffn.", "inter", 8960, 2240, 128),
    ("dense 25600", lambda: llama(F8_TILE, 25600), "tp = 16", "ffn.", "inter", 25600, 1600, 128),
    ("dense 12288", lambda: llama(F8_TILE, 12288), "tp = 64", "ffn.", "inter", 12288, 192, 128),
    ("dense 29568", lambda: llama(F8_TILE, 29568), "tp = 2", "ffn.", "inter", 29568, 14784, 128),
    ("V4 3072", lambda: llama(F8_TILE, 3072), "tp = 16", "ffn.", "inter", 3072, 192, 128),
    ("V4 3072", lambda: llama(F8_TILE, 3072), "tp = 32", "ffn.", "inter", 3072, 96, 128),
    ("NVFP4 columns", lambda: llama(NVFP4, 1536), "tp = 64", "ffn.down", "inter", 1536, 24, 16),
    ("NVFP4 columns", lambda: llama(NVFP4, 1536), "tp = 128", "ffn.down", "inter", 1536, 12, 16),
    ("NVFP4 2880", lambda: llama(NVFP4, 2880), "tp = 8", "ffn.down", "inter", 2880, 360, 16),
    ("NVFP4 2880", lambda: llama(NVFP4, 2880), "tp = 16", "ffn.down", "inter", 2880, 180, 16),
    ("NVFP4 11008", lambda: llama(NVFP4, 11008), "tp = 32", "ffn.down", "inter", 11008, 344, 16),
    ("MXFP4 columns", lambda: llama(MXFP4, 2880), "tp = 4", "ffn.down", "inter", 2880, 720, 32),
    ("MXFP4 columns", lambda: llama(MXFP4, 2880), "tp = 8", "ffn.down", "inter", 2880, 360, 32),
    ("MXFP4 11008", lambda: llama(MXFP4, 11008), "tp = 16", "ffn.down", "inter", 11008, 688, 32),
    ("INT4 columns", lambda: llama(INT4, 1408), "tp = 8", "ffn.down", "inter", 1408, 176, 32),
    ("INT4 columns", lambda: llama(INT4, 1408), "tp = 16", "ffn.down", "inter", 1408, 88, 32),
    ("INT4 3072", lambda: llama(INT4, 3072), "tp = 64", "ffn.down", "inter", 3072, 48, 32),
    ("V3 shared 2048", lambda: deepseek(18432, 2048), "tp = 32, etp = 1", "ffn.", "inter", 18432, 576, 128),
    ("V3 shared 2048", lambda: deepseek(65536, 2048), "tp = 32, etp = 1", "shared.", "shared_inter", 2048, 64, 128),
    ("V3 shared 2048", lambda: deepseek(65536, 2048), "tp = 64, etp = 1", "shared.", "shared_inter", 2048, 32, 128),
    ("V3 queries", lambda: deepseek(65536, 16384), "tp = 128, etp = 1", "mla.q_up", "q_row", 24576, 192, 128),
    ("V3 experts", lambda: deepseek(65536, 2048, 16), "tp = 32, etp = 32", "experts.", "moe_inter", 2048, 64, 128),
    ("V3 experts 1408", lambda: deepseek(65536, 1408, 32), "tp = 2, etp = 2", "experts.", "moe_inter", 1408, 704, 128),
    ("V4 experts 3072", lambda: deepseek(65536, 3072, 16), "tp = 16, etp = 16", "experts.", "moe_inter", 3072, 192, 128),
    ("gpt-oss", gpt_oss, "tp = 4, etp = 4", "experts.down", "moe_inter", 2880, 720, 32),
    ("gpt-oss", gpt_oss, "tp = 8, etp = 8", "experts.down", "moe_inter", 2880, 360, 32),
    ("gpt-oss", lambda: gpt_oss(5760), "tp = 8, etp = 8", "experts.down", "moe_inter", 5760, 720, 32),
]

LEGAL = [
    (lambda: llama(F8_TILE, 18432), "tp = 16"),
    (lambda: llama(F8_TILE, 3072), "tp = 8"),
    (lambda: llama(NVFP4, 1536), "tp = 32"),
    (lambda: deepseek(65536, 2048), "tp = 16, etp = 1"),
    (lambda: deepseek(65536, 8192), "tp = 64, etp = 64"),
    (lambda: gpt_oss(), "tp = 2, etp = 2"),
]


def plan(scratch, model, layout, **model_keys):
    config, tensors = model
    source = header_folder(scratch / "source", config, tensors)
    job = scratch / "job.toml"
    job.write_text(job_text(source, scratch / "target", "megatron", {}, {"layout": "{ " + layout + " }"}, model_keys, {"memory": "64 MiB"}))
    return subprocess.run([BINARY, "plan", str(job)], capture_output=True, text=True, timeout=60)


@pytest.mark.long_but("dense 11008*", "NVFP4 2880*", "MXFP4 columns*", "INT4 columns*")
@pytest.mark.parametrize(("what", "model", "layout", "tensor", "axis", "size", "cut", "block"), ILLEGAL, ids=lambda value: str(value)[:24])
def test_a_cut_inside_a_block_is_refused(what, model, layout, tensor, axis, size, cut, block, program, scratch):
    outcome = plan(scratch, model(), layout)
    text = outcome.stderr
    assert outcome.returncode == 2, text
    assert f"'{tensor}" in text and f"a cut of axis '{axis}' (size {size}) at {cut} falls inside a block of {block}" in text, text
    if size % block == 0:
        blocks = size // block
        offered = re.search(r"Sizes that fit: ([0-9, ]+)(, …)?.*\. Choose one of them", text)
        assert offered, text
        assert all(blocks % int(number) == 0 for number in re.findall("[0-9]+", offered[1])), text
    assert "dequantise-bf16" in text


@pytest.mark.long_but("dense 11008-*tp = 8", "gpt-oss*tp = 4, etp = 4")
@pytest.mark.parametrize(("what", "model", "layout"), [case[:3] for case in ILLEGAL if case[0] in ("dense 11008", "gpt-oss")], ids=lambda value: str(value)[:24])
def test_what_the_sentence_offers_works(what, model, layout, program, scratch):
    outcome = plan(scratch, model(), layout, quant="dequantise-bf16")
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.long_but("<lambda>-tp = 16", "<lambda>-tp = 2, etp = 2")
@pytest.mark.parametrize(("model", "layout"), LEGAL)
def test_a_cut_between_blocks_is_planned(model, layout, program, scratch):
    outcome = plan(scratch, model(), layout)
    assert outcome.returncode == 0, outcome.stderr


def test_heads_smaller_than_a_block_cannot_be_fused(program, scratch):
    """Megatron's rows go q, k, v in each group: tiles of 128 rows would hold two of them at head size 64."""
    outcome = plan(scratch, llama(F8_TILE, 1024, heads=16, groups=4, dim=64, which="self_attn"), "tp = 1")
    assert outcome.returncode == 2 and "blocks of 128 straddle 'dim' (extent 64)" in outcome.stderr, outcome.stderr


def test_gate_and_up_that_end_inside_a_block_cannot_be_fused(program, scratch):
    outcome = plan(scratch, llama(F8_TILE, 1100), "tp = 1")
    assert outcome.returncode == 2 and "blocks of 128 straddle 'inter' (extent 1100)" in outcome.stderr, outcome.stderr
