"""The trainer of megatron-core's wheels, megatron.training: it saves, the program changes layout and format, and the trainer loads strictly and trains on to
the bits of a run that never stopped. The release of requirements.txt has no trainer: scripts/install_peers.sh installs one that has."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

import megatron_release
import megatron_trainer as trainer
from megatron_trainer import Run
from peer_types import Layout
from reshard_job import command
from tensor_patterns import assert_same_tensors

pytestmark = pytest.mark.skipif(importlib.util.find_spec("megatron.training") is None, reason="this release of megatron-core has no megatron.training")

LLAMA = tuple("--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --group-query-attention --num-query-groups 4 "
              "--untie-embeddings-and-output-weights".split())
GPT = ("--add-qkv-bias",)  # LayerNorm, biases, learned positions, embeddings that are the output layer too
EXPERTS = (*LLAMA, *("--num-experts 8 --moe-ffn-hidden-size 48 --moe-router-topk 2 --moe-token-dispatcher-type allgather "
                     "--moe-router-load-balancing-type none").split())
SHARED = (*EXPERTS, *"--moe-shared-expert-intermediate-size 48 --moe-router-enable-expert-bias --moe-router-score-function sigmoid".split())
QUANTILES = (*EXPERTS[:-1], "quantile_balancing")
PREDICTING = (*EXPERTS, "--mtp-num-layers", "1")
DISTRIBUTED = ("--use-distributed-optimizer",)
WHOLE = (*DISTRIBUTED, "--dist-ckpt-optim-fully-reshardable")
RANK_FILES = ("--ckpt-format", "torch")
TORCH_DIST, MEGATRON = "torch_dist", "megatron"
CASES = {  # name -> (run that saves, format of the target, run that loads)
    "dense": (Run(LLAMA + DISTRIBUTED, replicas=2), TORCH_DIST, Run(LLAMA + WHOLE, Layout(tp=2))),
    "dense-tp": (Run(LLAMA + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(LLAMA + WHOLE, Layout(pp=2))),
    "dense-whole": (Run(LLAMA + WHOLE, Layout(tp=2)), TORCH_DIST, Run(LLAMA + WHOLE, Layout(tp=4))),
    "dense-to-rank-files": (Run(LLAMA + DISTRIBUTED), MEGATRON, Run(LLAMA + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "dense-from-rank-files": (Run(LLAMA + DISTRIBUTED + RANK_FILES, Layout(pp=2)), TORCH_DIST, Run(LLAMA + WHOLE)),
    "plain": (Run(LLAMA, Layout(pp=2)), TORCH_DIST, Run(LLAMA)),
    "biases": (Run(GPT + DISTRIBUTED, Layout(pp=2)), TORCH_DIST, Run(GPT + WHOLE, Layout(tp=2))),
    "virtual": (Run(LLAMA + DISTRIBUTED, Layout(pp=2, vpp=2)), TORCH_DIST, Run(LLAMA + WHOLE)),
    "experts": (Run(EXPERTS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(EXPERTS + WHOLE, Layout(ep=4))),
    "experts-tp": (Run(EXPERTS + DISTRIBUTED, Layout(tp=2, ep=2)), TORCH_DIST, Run(EXPERTS + WHOLE, Layout(pp=2, ep=2))),
    "experts-default-etp": (Run(SHARED + WHOLE, Layout(ep=2)), TORCH_DIST, Run(SHARED + WHOLE, Layout(tp=2, etp=2))),
    "experts-one-group": (Run(EXPERTS + DISTRIBUTED, Layout(tp=2, etp=2)), TORCH_DIST, Run(EXPERTS + WHOLE, Layout(ep=2))),
    # Since 0.19 experts that are cut otherwise than dense weights have an optimizer of their own.
    "experts-cut-otherwise": (Run(EXPERTS + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(EXPERTS + WHOLE)),
    "experts-to-cut-otherwise": (Run(EXPERTS + WHOLE, Layout(ep=2)), TORCH_DIST, Run(EXPERTS + WHOLE, Layout(tp=2))),
    "experts-one-group-to-rank-files": (Run(EXPERTS + DISTRIBUTED), MEGATRON, Run(EXPERTS + DISTRIBUTED + RANK_FILES, Layout(tp=2, etp=2))),
    "experts-from-rank-files": (Run(SHARED + DISTRIBUTED + RANK_FILES, Layout(tp=2, ep=2)), TORCH_DIST, Run(SHARED + WHOLE, Layout(ep=2))),
    # What quantile balancing subtracts from scores, since 0.19.
    "experts-balanced-by-quantiles": (Run(QUANTILES + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(QUANTILES + WHOLE, Layout(ep=4))),
    "experts-predicting": (Run(PREDICTING + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(PREDICTING + WHOLE, Layout(tp=2, etp=2))),
    "experts-virtual": (Run(SHARED + DISTRIBUTED, Layout(pp=2, vpp=2)), TORCH_DIST, Run(SHARED + WHOLE, Layout(tp=2, etp=2))),
    "experts-to-rank-files": (Run(SHARED + DISTRIBUTED, Layout(ep=2)), MEGATRON, Run(SHARED + DISTRIBUTED + RANK_FILES, Layout(pp=2, ep=2))),
}


@pytest.mark.long_but("dense")
@pytest.mark.parametrize("name", CASES)
def test_the_trainer_goes_on_in_another_layout(name, program, scratch):
    if name == "experts-balanced-by-quantiles" and megatron_release.RELEASE < (0, 19):
        pytest.skip("quantile balancing came with 0.19")
    source, target_format, target = CASES[name]
    saved, uninterrupted = trainer.train_and_save(source, scratch / "source")
    there = program.run(scratch / "source", scratch / "there", target_format, source_options={"rng": "drop"}, target_options={"layout": target.layout.toml()})
    loaded, resumed = trainer.load_and_train(target, there)
    assert_same_tensors(loaded, saved)
    assert_same_tensors(resumed, uninterrupted)
    compared = command("verify", scratch / "source", there)
    assert compared.returncode == 0, compared.stdout + compared.stderr


OTHERS = ("0.17.1", "0.18.2", "0.19.2")
ACROSS = ("dense", "dense-from-rank-files", "experts-default-etp", "experts-cut-otherwise", "experts-to-cut-otherwise")


def python_of(release):
    return Path(__file__).resolve().parents[2] / ".cache" / f"peers-megatron-core-{release}" / "bin" / "python"


@pytest.mark.long
@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.parametrize("release", OTHERS)
def test_the_trainer_goes_on_from_another_release(release, name, program, scratch):
    here = importlib.metadata.version("megatron-core")
    if release == here or not python_of(release).exists():
        pytest.skip(f"{release} is this release, or not installed")
    if megatron_release.RELEASE < (0, 18):
        pytest.skip("args of later releases hold an object of a class that 0.17 does not have, and its loader refuses them")
    source, target_format, target = CASES[name]
    saved, uninterrupted = trainer.save_by(python_of(release), source, scratch / "source")
    there = program.run(scratch / "source", scratch / "there", target_format, source_options={"rng": "drop"},
                        target_options={"layout": target.layout.toml(), "megatron": here.rpartition(".")[0]})
    loaded, resumed = trainer.load_and_train(target, there)
    assert_same_tensors(loaded, saved)
    assert_same_tensors(resumed, uninterrupted)
