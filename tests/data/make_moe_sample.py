"""Makes the small checkpoints that are shipped with the tests. Run from anywhere; needs tests/peers/requirements.txt.

    python make_moe_sample.py [target folder, default: beside this script]

moe-tp2-pp2-ep2/    a qwen3_moe-like checkpoint written by megatron-core itself, in eight shards
moe-hf-reference/   config.json and tokenizer files of the same model, without weights
moe-digests.json    dtype, shape and sha256 of the bytes of every tensor under its Hugging Face name
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import hf_models  # noqa: E402
import megatron_models  # noqa: E402
import tensor_patterns  # noqa: E402
from peer_types import LOCAL, Layout, ModelConfig  # noqa: E402

# 300 tokens pad to 304 rows for TP 1, 320 for TP 2 and 4, 384 for TP 8.
MODEL = ModelConfig(
    family="qwen3_moe", layers=4, hidden=64, heads=8, groups=4, head_dim=16, ffn=96, vocab=300, vocab_divisor=16, experts=8, expert_ffn=32,
    top_k=2, qk_norm=True, rope_base=1000000)
LAYOUT = Layout(tp=2, pp=2, ep=2, etp=2)
CHECKPOINT, REFERENCE, DIGESTS = "moe-tp2-pp2-ep2", "moe-hf-reference", "moe-digests.json"
SAFETENSORS_NAMES = {"torch.bfloat16": "BF16", "torch.float32": "F32"}


def main(target):
    for name in (CHECKPOINT, REFERENCE):
        shutil.rmtree(target / name, ignore_errors=True)
    tensors = tensor_patterns.make_globals(MODEL)
    megatron_models.save_megatron(target / CHECKPOINT, MODEL, LAYOUT, LOCAL, tensors)
    write_reference(target / REFERENCE)
    (target / DIGESTS).write_text(json.dumps(digests(tensors), indent=0, sort_keys=True) + "\n")


def write_reference(folder):
    hf_models.hf_config(MODEL).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    settings = {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True, "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def tokenizer():
    """A word-level tokenizer of made-up words: small, and made without a download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>"] + [f"word{index}" for index in range(MODEL.vocab - 3)]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def digests(tensors):
    return {name: describe(tensor) for name, tensor in hf_models.globals_to_hf(MODEL, tensors).items()}


def describe(tensor):
    """sha256 of the plain little-endian bytes, as they lie in a safetensors file."""
    digest = hashlib.sha256(tensor_patterns.raw(tensor)).hexdigest()
    return {"dtype": SAFETENSORS_NAMES[str(tensor.dtype)], "shape": list(tensor.shape), "sha256": digest}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
