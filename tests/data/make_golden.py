"""How tests/data/golden/v1.tar.xz was made, once, by reshard 0.1.0. It does not replace the file: tests/data/golden/README.md says why.

    RESHARD_BIN=build/dev/pipeline/reshard .cache/peers/bin/python tests/data/make_golden.py

The sources are random: models that transformers saves, one of them with its experts in FP8 blocks, one that megatron-core trained, and
one tensor of each dtype. Paths in the records are relative to the folder.
"""

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import dcp_checkpoints  # noqa: E402
import family_models  # noqa: E402
import hf_models  # noqa: E402
from dcp_checkpoints import World  # noqa: E402
from dcp_models import Recipe  # noqa: E402
from peer_types import Layout, ModelConfig  # noqa: E402
from quantised_folders import quantise_folder, random_bytes  # noqa: E402
from reshard_job import Program  # noqa: E402
from tensor_patterns import make_globals  # noqa: E402

MODEL = ModelConfig(family="qwen3_moe", layers=3, hidden=14, heads=4, groups=2, head_dim=6, ffn=22, vocab=37, vocab_divisor=4, experts=4, expert_ffn=10,
                    moe_layers=(1, 2), qk_norm=True)
BLOCKS = MODEL.with_(layers=2, hidden=36, vocab=11, expert_ffn=32, moe_layers=(1,))  # experts of 32 x 36 in blocks of 16 x 16
HYBRID = family_models.Family(  # one of its norms is stored with its one: `add`
    lambda: transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**family_models.base(
        vocab_size=11, hidden_size=6, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=5, linear_num_key_heads=1,
        linear_num_value_heads=3, linear_key_head_dim=4, linear_value_head_dim=5, linear_conv_kernel_dim=3, layer_types=["linear_attention", "full_attention"]))),
    None, None)
TRAINED = World(Recipe(ModelConfig(layers=2, hidden=12, head_dim=6, heads=2, groups=2, ffn=10, vocab=14, vocab_divisor=1)), Layout())
# what safetensors can hold, and PyTorch makes; each with an odd number of elements
DTYPES = ("uint8 int8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz int16 uint16 float16 bfloat16 int32 uint32 float32 complex64 "
          "float64 int64 uint64").split()
ALSO = ("complex128", "complex32", "float4_e2m1fn_x2")  # no types of safetensors


def one_of_each(dtypes):
    state = {f"of.{name}": bits_of(name) for name in dtypes} | {"of.bool": random_bytes("bool", (3, 5, 7), torch.uint8) > 127}
    return state | {"scalar": torch.tensor(-2.5, dtype=torch.bfloat16), "empty": torch.empty((3, 0), dtype=torch.float32)}


def bits_of(name):
    dtype = getattr(torch, name)
    return random_bytes(name, (3, 5, 7 * dtype.itemsize), torch.uint8).view(dtype)


def make(folder):
    program = Program(folder)
    layout = "{ tp = 2, ep = 2 }"
    hf_models.save_hf(folder / "model", MODEL, make_globals(MODEL))
    hf_models.save_hf(folder / "model-fp8", BLOCKS, make_globals(BLOCKS))
    quantise_folder(folder / "model-fp8", lambda name: "fp8_block" if ".experts." in name else None)
    family_models.save_family(folder / "qwen3_5", HYBRID)
    dcp_checkpoints.train_and_save(TRAINED, folder / "trained", dcp_checkpoints.RESHARDABLE)
    (folder / "dtypes").mkdir()
    save_file(one_of_each(DTYPES), folder / "dtypes" / "model.safetensors", metadata={"format": "pt"})
    objects = {"step": 7, "names": ["a", "b"]}
    dcp.save(one_of_each((*DTYPES, *ALSO)) | objects, checkpoint_id=folder / "dtypes-dcp", no_dist=True)

    def run(source, target, format, options=None, model=None):
        program.run(source, f"golden/{target}", format, target_options=options or {}, model=model or {}, ranks=1)

    run("model", "huggingface", "huggingface", {"shard_bytes": "8 KB"})
    run("model-fp8", "huggingface-fp8", "huggingface")
    run("qwen3_5", "huggingface-qwen3_5", "huggingface")
    run("dtypes", "huggingface-dtypes", "huggingface", model={"map": "none"})
    run("model", "mp_rank", "megatron", {"layout": "{ tp = 2, pp = 3, ep = 2 }"})
    run("model", "torch_dist", "torch_dist", {"layout": layout})
    run("model-fp8", "torch_dist-fp8", "torch_dist", {"layout": layout})
    run("model", "fsdp_dtensor", "fsdp_dtensor", {"layout": layout})
    run("trained", "torch_dist-optimizer", "torch_dist", {"layout": "{ tp = 2 }"})
    run("trained", "mp_rank-optimizer", "megatron", {"layout": "{ pp = 2 }"})
    run("dtypes-dcp", "dcp", "dcp", {"chunks": "ranks", "ranks": 2})
    run("model", "hdf5", "hdf5")


def without_owner(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def main():
    archive = HERE / "golden" / "v1.tar.xz"
    if archive.exists():
        sys.exit(f"{archive}: is there, and stays as it is")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        make(Path(name))
        with tarfile.open(archive, "w:xz") as files:
            for checkpoint in sorted(os.listdir("golden")):
                files.add(f"golden/{checkpoint}", checkpoint, filter=without_owner)


if __name__ == "__main__":
    main()
