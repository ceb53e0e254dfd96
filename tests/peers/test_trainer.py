"""The trainer of megatron-core's wheels, megatron.training: it saves, the program changes layout and format, and the trainer loads strictly and trains on to
the bits of a run that never stopped. The release of requirements.txt has no trainer: scripts/install_peers.sh installs one that has."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

import cases as model_cases
import dcp_checkpoints
import megatron_release
import megatron_trainer as trainer
from dcp_checkpoints import DP_RESHARDABLE, PLAIN, RESHARDABLE, World
from dcp_models import Recipe
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
FP16 = (*LLAMA, *"--fp16 --initial-loss-scale 1024 --loss-scale-window 2".split())  # the scale grows in the second step
FP16_EXPERTS = FP16 + EXPERTS[len(LLAMA):]
GATED = (*LLAMA, "--attention-output-gate")
SINKS = (*LLAMA, "--softmax-type", "learnable")
MUP = (*LLAMA, "--use-mup")
DECAYING_NORMS = (*LLAMA, "--qk-layernorm", "--apply-wd-to-qk-layernorm")
BUCKETS = (*LLAMA, *DISTRIBUTED, *"--overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 20000".split())
ASYNCHRONOUS = (*LLAMA, *DISTRIBUTED, *"--async-save --use-persistent-ckpt-worker --async-strategy mcore".split())
MUON, LION = ("--optimizer", "muon"), ("--optimizer", "lion")
UNPADDED_MUON = (*LLAMA, *MUON, "--no-use-layer-wise-param-layout")
# With the modules of Transformer Engine, by name and shape (te_package.py).
TE = ("--transformer-impl", "transformer_engine")
DENSE_TE = (*LLAMA, *TE)
GROUPED = (*EXPERTS, *TE, "--moe-grouped-gemm")
CENTRED = (*GPT, *TE, "--apply-layernorm-1p")
TWO_CONTEXTS = ("--context-parallel-size", "2")
ONE_WEIGHT = (*GROUPED, "--moe-single-grouped-weight", "--use-transformer-engine-op-fuser")
BIASED = tuple(word for word in GROUPED if word != "--disable-bias-linear")
ONE_BIAS = (*BIASED, *ONE_WEIGHT[len(GROUPED):], "--moe-single-grouped-bias")
LATENT = (*TE, *("--multi-latent-attention --q-lora-rank 16 --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 --v-head-dim 8 --swiglu "
                 "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --qk-layernorm").split())
FUSED_DOWN = (*LATENT, "--mla-down-proj-fusion")
SOME_EXPERTS = (*EXPERTS[len(LLAMA):], "--moe-grouped-gemm")
LATENT_EXPERTS = (*LATENT, *SOME_EXPERTS, *("--mtp-num-layers 1 --moe-layer-freq [0,1,1,1] --moe-shared-expert-intermediate-size 48 "
                                            "--moe-router-enable-expert-bias --moe-router-score-function sigmoid").split())
MAMBA = (*DENSE_TE, *"--mamba-state-dim 16 --mamba-head-dim 16 --mamba-num-groups 4".split())


def hybrid(pattern, words):
    return (*words, "--hybrid-layer-pattern", pattern)


PLAIN_HYBRID = hybrid("*-*-*-*-", DENSE_TE)
MIXED = hybrid("M*-M*-M-", MAMBA)
MIXED_EXPERTS = (*hybrid("MEM*EME-", MAMBA), *SOME_EXPERTS, "--moe-shared-expert-intermediate-size", "48")
PREDICTING_HYBRID = (*hybrid("M*-M*-/*-/*-", MAMBA), "--mtp-num-layers", "2")
LATENT_HYBRID = (*hybrid("+-+E+-+E", LATENT), *SOME_EXPERTS)
DELTA = (*hybrid("G-*-G-*-", DENSE_TE), *"--linear-num-key-heads 4 --linear-num-value-heads 8 --linear-key-head-dim 8 --linear-value-head-dim 8".split())
FSDP = "--use-megatron-fsdp --ckpt-format fsdp_dtensor --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params".split()
TORCH_DCP = "--use-torch-fsdp2 --ckpt-format torch_dcp".split()
TORCH_FSDP = (*DENSE_TE, *TORCH_DCP)
UNTIED_GPT = (*GPT, "--untie-embeddings-and-output-weights")
TORCH_DIST, MEGATRON, FSDP_DTENSOR = "torch_dist", "megatron", "fsdp_dtensor"
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
    "fp16-whole": (Run(FP16 + WHOLE, Layout(tp=2)), TORCH_DIST, Run(FP16 + WHOLE, Layout(pp=2))),
    "fp16": (Run(FP16 + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(FP16 + WHOLE, Layout(pp=2))),
    "fp16-experts": (Run(FP16_EXPERTS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(FP16_EXPERTS + WHOLE, Layout(ep=4))),
    "fp16-in-buffers-to-rank-files": (Run(FP16 + DISTRIBUTED, Layout(tp=2)), MEGATRON, Run(FP16 + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "fp16-plain": (Run(FP16), TORCH_DIST, Run(FP16, Layout(tp=2))),
    "fp16-from-rank-files": (Run(FP16 + DISTRIBUTED + RANK_FILES, Layout(tp=2)), TORCH_DIST, Run(FP16 + WHOLE, Layout(pp=2))),
    "fp16-to-rank-files": (Run(FP16 + WHOLE, Layout(tp=2)), MEGATRON, Run(FP16 + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "fp16-plain-from-rank-files": (Run(FP16 + RANK_FILES, Layout(tp=2)), TORCH_DIST, Run(FP16, Layout(pp=2))),
    "fp16-plain-to-rank-files": (Run(FP16, Layout(tp=2)), MEGATRON, Run(FP16 + RANK_FILES, Layout(pp=2))),
    "buckets": (Run(BUCKETS, Layout(tp=2), replicas=2), TORCH_DIST, Run(LLAMA + WHOLE, Layout(pp=2))),
    "to-buckets": (Run(LLAMA + WHOLE), TORCH_DIST, Run(BUCKETS + WHOLE, Layout(tp=2), replicas=2)),
    "gated-attention": (Run(GATED + DISTRIBUTED), TORCH_DIST, Run(GATED + WHOLE, Layout(tp=2))),
    "learnable-softmax": (Run(SINKS + DISTRIBUTED), TORCH_DIST, Run(SINKS + WHOLE, Layout(tp=2))),
    "random-state-kept": (Run(LLAMA + DISTRIBUTED, replicas=2), TORCH_DIST, Run(LLAMA + WHOLE, replicas=2)),
}
NEWER = {  # the same, with what 0.19 has
    "mup": (Run(MUP + DISTRIBUTED), TORCH_DIST, Run(MUP + WHOLE, Layout(tp=2))),
    "saved-asynchronously": (Run(ASYNCHRONOUS, replicas=2), TORCH_DIST, Run(LLAMA + WHOLE, Layout(tp=2))),
    # Norms of queries and keys decay, in a group of their own.
    "decaying-norms": (Run(DECAYING_NORMS + DISTRIBUTED), TORCH_DIST, Run(DECAYING_NORMS + WHOLE, Layout(tp=2))),
    "decaying-norms-to-rank-files": (Run(DECAYING_NORMS + WHOLE), MEGATRON, Run(DECAYING_NORMS + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "decaying-norms-plain": (Run(DECAYING_NORMS), TORCH_DIST, Run(DECAYING_NORMS, Layout(tp=2))),
    "decaying-norms-plain-to-rank-files": (Run(DECAYING_NORMS), MEGATRON, Run(DECAYING_NORMS + RANK_FILES, Layout(tp=2))),
    "decaying-norms-plain-from-rank-files": (Run(DECAYING_NORMS + RANK_FILES), TORCH_DIST, Run(DECAYING_NORMS, Layout(tp=2))),
    "muon": (Run(LLAMA + MUON, Layout(tp=2)), TORCH_DIST, Run(LLAMA + MUON, Layout(pp=2))),
    "muon-layer-wise": (Run(LLAMA + MUON + WHOLE, replicas=2), TORCH_DIST, Run(LLAMA + MUON + WHOLE, Layout(tp=2), replicas=2)),
    # By default its Adam keeps the state of all but matrices in flat buffers.
    "muon-half-flat": (Run(LLAMA + MUON + DISTRIBUTED, Layout(tp=2), replicas=2), TORCH_DIST, Run(LLAMA + MUON + WHOLE, Layout(pp=2))),
    "muon-half-flat-biases": (Run(GPT + MUON + DISTRIBUTED, Layout(pp=2)), TORCH_DIST, Run(GPT + MUON + WHOLE, Layout(tp=2), replicas=2)),
    "muon-half-flat-experts": (Run(SHARED + MUON + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(SHARED + MUON + WHOLE, Layout(tp=2, ep=2))),
    "muon-half-flat-buckets": (Run(BUCKETS + MUON, Layout(tp=2), replicas=2), TORCH_DIST, Run(LLAMA + MUON + WHOLE, Layout(pp=2))),
    "muon-half-flat-virtual": (Run(LLAMA + MUON + DISTRIBUTED, Layout(pp=2, vpp=2)), TORCH_DIST, Run(LLAMA + MUON + WHOLE, Layout(tp=2))),
    "muon-half-flat-hybrid": (Run(PLAIN_HYBRID + MUON + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID + MUON + WHOLE, Layout(pp=2))),
    "muon-layer-wise-unpadded": (Run(UNPADDED_MUON + DISTRIBUTED, replicas=2), TORCH_DIST, Run(UNPADDED_MUON + WHOLE, Layout(tp=2), replicas=2)),
    "muon-experts": (Run(EXPERTS + MUON, Layout(ep=2)), TORCH_DIST, Run(EXPERTS + MUON, Layout(tp=2, ep=2))),
    "muon-experts-layer-wise": (Run(EXPERTS + MUON + WHOLE, Layout(ep=2)), TORCH_DIST, Run(EXPERTS + MUON + WHOLE, Layout(tp=2, ep=2))),
    "muon-with-lion": (Run(LLAMA + MUON + ("--muon-scalar-optimizer", "lion")), TORCH_DIST,
                       Run(LLAMA + MUON + ("--muon-scalar-optimizer", "lion"), Layout(tp=2))),
    "lion": (Run(LLAMA + LION), TORCH_DIST, Run(LLAMA + LION, Layout(tp=2))),
    "transformer-engine": (Run(DENSE_TE + DISTRIBUTED), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(tp=2))),
    "transformer-engine-to-rank-files": (Run(DENSE_TE + DISTRIBUTED, Layout(tp=2)), MEGATRON, Run(DENSE_TE + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "transformer-engine-rank-files": (Run(DENSE_TE + DISTRIBUTED + RANK_FILES, Layout(tp=2)), MEGATRON,
                                      Run(DENSE_TE + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "transformer-engine-from-rank-files": (Run(DENSE_TE + DISTRIBUTED + RANK_FILES, Layout(tp=2)), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(pp=2))),
    "centred-norms": (Run(CENTRED + DISTRIBUTED), TORCH_DIST, Run(CENTRED + WHOLE, Layout(tp=2))),
    "centred-norms-to-rank-files": (Run(CENTRED + DISTRIBUTED), MEGATRON, Run(CENTRED + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "context-parallel": (Run(DENSE_TE + DISTRIBUTED + TWO_CONTEXTS, replicas=2), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(tp=2))),
    "context-parallel-tp": (Run(DENSE_TE + DISTRIBUTED + TWO_CONTEXTS, Layout(tp=2), replicas=2), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(pp=2))),
    "to-context-parallel": (Run(DENSE_TE + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(DENSE_TE + WHOLE + TWO_CONTEXTS, replicas=2)),
    "experts-grouped": (Run(GROUPED + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(GROUPED + WHOLE, Layout(ep=4))),
    "experts-grouped-to-rank-files": (Run(GROUPED + DISTRIBUTED, Layout(ep=2)), MEGATRON, Run(GROUPED + DISTRIBUTED + RANK_FILES, Layout(tp=2, etp=2))),
    "experts-grouped-from-rank-files": (Run(GROUPED + DISTRIBUTED + RANK_FILES, Layout(ep=2)), TORCH_DIST, Run(GROUPED + WHOLE, Layout(ep=4))),
    "experts-one-weight": (Run(ONE_WEIGHT + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(GROUPED + WHOLE, Layout(ep=4))),
    "experts-one-weight-to-rank-files": (Run(ONE_WEIGHT + DISTRIBUTED, Layout(ep=2)), MEGATRON, Run(ONE_WEIGHT + DISTRIBUTED + RANK_FILES, Layout(ep=4))),
    "experts-one-weight-rank-files": (Run(ONE_WEIGHT + DISTRIBUTED + RANK_FILES, Layout(ep=2)), MEGATRON,
                                      Run(ONE_WEIGHT + DISTRIBUTED + RANK_FILES, Layout(ep=4))),
    "experts-one-bias": (Run(ONE_BIAS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(BIASED + WHOLE, Layout(ep=4))),
    "experts-one-bias-rank-files": (Run(ONE_BIAS + DISTRIBUTED + RANK_FILES, Layout(ep=2)), MEGATRON,
                                    Run(ONE_BIAS + DISTRIBUTED + RANK_FILES, Layout(ep=4))),
    "latent": (Run(LATENT + DISTRIBUTED, Layout(pp=2)), TORCH_DIST, Run(LATENT + WHOLE, Layout(tp=2))),
    "latent-from-rank-files": (Run(LATENT + DISTRIBUTED + RANK_FILES, Layout(tp=2)), TORCH_DIST, Run(LATENT + WHOLE, Layout(pp=2))),
    "latent-to-rank-files": (Run(LATENT + DISTRIBUTED, Layout(tp=2)), MEGATRON, Run(LATENT + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "latent-fused-to-rank-files": (Run(FUSED_DOWN + DISTRIBUTED, Layout(tp=2)), MEGATRON, Run(FUSED_DOWN + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "latent-fused-rank-files": (Run(FUSED_DOWN + DISTRIBUTED + RANK_FILES, Layout(tp=2)), MEGATRON,
                                Run(FUSED_DOWN + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "latent-experts-predicting": (Run(LATENT_EXPERTS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(LATENT_EXPERTS + WHOLE, Layout(tp=2, etp=2))),
    "latent-experts-predicting-to-rank-files": (Run(LATENT_EXPERTS + DISTRIBUTED, Layout(ep=2)), MEGATRON,
                                                Run(LATENT_EXPERTS + DISTRIBUTED + RANK_FILES, Layout(pp=2, ep=2))),
    "hybrid": (Run(PLAIN_HYBRID + DISTRIBUTED), TORCH_DIST, Run(PLAIN_HYBRID + WHOLE, Layout(tp=2))),
    "hybrid-pp": (Run(PLAIN_HYBRID + WHOLE, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID + WHOLE, Layout(pp=2))),
    "hybrid-plain": (Run(PLAIN_HYBRID, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID, Layout(pp=2))),
    "hybrid-muon": (Run(PLAIN_HYBRID + MUON, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID + MUON, Layout(pp=2))),
    "hybrid-to-rank-files": (Run(PLAIN_HYBRID + DISTRIBUTED, Layout(pp=2)), MEGATRON, Run(PLAIN_HYBRID + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "hybrid-rank-files": (Run(PLAIN_HYBRID + DISTRIBUTED + RANK_FILES, Layout(tp=2)), MEGATRON,
                          Run(PLAIN_HYBRID + DISTRIBUTED + RANK_FILES, Layout(pp=2))),
    "hybrid-from-rank-files": (Run(MIXED + DISTRIBUTED + RANK_FILES, Layout(tp=2)), TORCH_DIST, Run(MIXED + WHOLE, Layout(pp=2))),
    "hybrid-mamba": (Run(MIXED + DISTRIBUTED), TORCH_DIST, Run(MIXED + WHOLE, Layout(tp=2))),
    "hybrid-mamba-stages": (Run(hybrid("M*-|M*-", MAMBA) + DISTRIBUTED, Layout(pp=2)), TORCH_DIST, Run(hybrid("M*-M*-", MAMBA) + WHOLE, Layout(tp=2))),
    "hybrid-mamba-to-rank-files": (Run(MIXED + DISTRIBUTED, Layout(pp=2)), MEGATRON, Run(MIXED + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "hybrid-mamba-experts": (Run(MIXED_EXPERTS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(MIXED_EXPERTS + WHOLE, Layout(tp=2, ep=2))),
    "hybrid-mamba-experts-to-rank-files": (Run(MIXED_EXPERTS + DISTRIBUTED, Layout(ep=2)), MEGATRON,
                                           Run(MIXED_EXPERTS + DISTRIBUTED + RANK_FILES, Layout(pp=2, ep=2))),
    "hybrid-predicting": (Run(PREDICTING_HYBRID + DISTRIBUTED), TORCH_DIST, Run(PREDICTING_HYBRID + WHOLE, Layout(tp=2))),
    "hybrid-predicting-to-rank-files": (Run(PREDICTING_HYBRID + DISTRIBUTED), MEGATRON, Run(PREDICTING_HYBRID + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "hybrid-latent-experts": (Run(LATENT_HYBRID + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(LATENT_HYBRID + WHOLE, Layout(tp=2, ep=2))),
    "hybrid-latent-experts-to-rank-files": (Run(LATENT_HYBRID + DISTRIBUTED, Layout(ep=2)), MEGATRON,
                                            Run(LATENT_HYBRID + DISTRIBUTED + RANK_FILES, Layout(tp=2, ep=2))),
    "hybrid-delta": (Run(DELTA + DISTRIBUTED), TORCH_DIST, Run(DELTA + WHOLE, Layout(tp=2))),
    # Megatron-FSDP. On CPUs two ranks of it save, and do not load what they saved.
    "fsdp": (Run((*LLAMA, *FSDP), replicas=2), TORCH_DIST, Run(LLAMA + WHOLE, Layout(tp=2))),
    "fsdp-biases": (Run((*GPT, *FSDP), replicas=2), TORCH_DIST, Run(GPT + WHOLE, Layout(tp=2))),
    "fsdp-experts": (Run((*EXPERTS, *FSDP), replicas=2), TORCH_DIST, Run(EXPERTS + WHOLE, Layout(ep=2))),
    "fsdp-to-rank-files": (Run((*LLAMA, *FSDP), replicas=2), MEGATRON, Run(LLAMA + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "fsdp-transformer-engine": (Run((*DENSE_TE, *FSDP), replicas=2), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(tp=2))),
    "fsdp-to-fsdp": (Run((*LLAMA, *FSDP), replicas=2), FSDP_DTENSOR, Run((*LLAMA, *FSDP))),
    "to-fsdp": (Run(LLAMA + DISTRIBUTED, Layout(tp=2)), FSDP_DTENSOR, Run((*LLAMA, *FSDP))),
    "to-fsdp-biases": (Run(GPT + DISTRIBUTED, Layout(tp=2)), FSDP_DTENSOR, Run((*GPT, *FSDP))),
    "to-fsdp-experts": (Run(EXPERTS + DISTRIBUTED, Layout(ep=2)), FSDP_DTENSOR, Run((*EXPERTS, *FSDP))),
    "to-fsdp-transformer-engine": (Run(DENSE_TE + DISTRIBUTED, Layout(tp=2)), FSDP_DTENSOR, Run((*DENSE_TE, *FSDP))),
    "rank-files-to-fsdp": (Run(LLAMA + DISTRIBUTED + RANK_FILES, Layout(tp=2)), FSDP_DTENSOR, Run((*LLAMA, *FSDP))),
    # torch's FSDP2. 0.19.2 does not load what it saves so.
    "torch-dcp": (Run(TORCH_FSDP, replicas=2), TORCH_DIST, Run(DENSE_TE, Layout(tp=2))),
    "torch-dcp-biases": (Run((*UNTIED_GPT, *TE, *TORCH_DCP), replicas=2), TORCH_DIST, Run(UNTIED_GPT + TE, Layout(pp=2))),
    "torch-dcp-experts": (Run((*GROUPED, *TORCH_DCP), replicas=2), TORCH_DIST, Run(GROUPED, Layout(ep=2))),
    "torch-dcp-hybrid": (Run((*PLAIN_HYBRID, *TORCH_DCP), replicas=2), TORCH_DIST, Run(PLAIN_HYBRID, Layout(tp=2))),
    "torch-dcp-to-rank-files": (Run(TORCH_FSDP, replicas=2), MEGATRON, Run(DENSE_TE + RANK_FILES, Layout(tp=2))),
    "torch-dcp-to-fsdp": (Run(TORCH_FSDP, replicas=2), FSDP_DTENSOR, Run((*DENSE_TE, *FSDP))),
}
KEEPS_RANDOM_STATE = ("random-state-kept",)


def skip_what_is_newer(name):
    if name in NEWER and megatron_release.RELEASE < (0, 19):
        pytest.skip("this release has no such settings, or other ones")


@pytest.mark.long_but("dense", "fp16", "muon-half-flat", "hybrid-mamba", "fsdp", "to-fsdp", "torch-dcp")
@pytest.mark.parametrize("name", CASES | NEWER)
def test_the_trainer_goes_on_in_another_layout(name, program, scratch):
    if name == "experts-balanced-by-quantiles" and megatron_release.RELEASE < (0, 19):
        pytest.skip("quantile balancing came with 0.19")
    skip_what_is_newer(name)
    source, target_format, target = (CASES | NEWER)[name]
    saved, uninterrupted = trainer.train_and_save(source, scratch / "source")
    is_kept = name in KEEPS_RANDOM_STATE
    there = program.run(scratch / "source", scratch / "there", target_format, source_options={} if is_kept else {"rng": "drop"},
                        target_options={"layout": target.layout.toml()})
    loaded, resumed = trainer.load_and_train(target, there, without_rng=not is_kept)
    assert_same_tensors(loaded, saved)
    assert_same_tensors(resumed, uninterrupted)
    compared = command("verify", scratch / "source", there)
    assert compared.returncode == 0, compared.stdout + compared.stderr


PAIRED_EXPERTS = (*hybrid("*E*E*E*E", DENSE_TE), *SOME_EXPERTS)
PAIRS = {  # the same, from a model of the one class into one of the other, which has attention and MLP as two layers
    "gpt-to-hybrid": (Run(DENSE_TE + DISTRIBUTED, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID + WHOLE)),
    "gpt-to-hybrid-pp": (Run(DENSE_TE + WHOLE), TORCH_DIST, Run(PLAIN_HYBRID + WHOLE, Layout(tp=2, pp=2))),
    "gpt-to-hybrid-rank-files": (Run(DENSE_TE + DISTRIBUTED), MEGATRON, Run(PLAIN_HYBRID + DISTRIBUTED + RANK_FILES, Layout(tp=2))),
    "gpt-to-hybrid-experts": (Run(GROUPED + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(PAIRED_EXPERTS + WHOLE, Layout(tp=2, ep=2))),
    "gpt-to-hybrid-muon": (Run(DENSE_TE + MUON, Layout(tp=2)), TORCH_DIST, Run(PLAIN_HYBRID + MUON)),
    "hybrid-to-gpt": (Run(PLAIN_HYBRID + DISTRIBUTED, Layout(pp=2)), TORCH_DIST, Run(DENSE_TE + WHOLE, Layout(tp=2))),
    "hybrid-to-gpt-experts": (Run(PAIRED_EXPERTS + DISTRIBUTED, Layout(ep=2)), TORCH_DIST, Run(GROUPED + WHOLE, Layout(ep=4))),
}


def of_pairs(tensors):
    """Under the keys of the hybrid model."""
    result = {}
    for key, tensor in tensors.items():
        words = key.replace("final_layernorm", "final_norm").split(".")
        if words[:2] != ["decoder", "layers"] or words[2].isdigit():
            result[".".join(words)] = tensor
            continue
        second = "mlp" in words[2]
        for layer, part in enumerate(tensor):
            result[".".join([*words[:2], str(2 * layer + second), *words[2:]])] = part
    return result


@pytest.mark.long_but("gpt-to-hybrid")
@pytest.mark.skipif(megatron_release.RELEASE < (0, 19), reason="settings of 0.19")
@pytest.mark.parametrize("name", PAIRS)
def test_the_trainer_goes_on_in_a_model_of_the_other_class(name, program, scratch):
    source, target_format, target = PAIRS[name]
    saved, uninterrupted = trainer.train_and_save(source, scratch / "source")
    model = "hybrid" if "--hybrid-layer-pattern" in target.words else "gpt"
    there = program.run(scratch / "source", scratch / "there", target_format, source_options={"rng": "drop"},
                        target_options={"layout": target.layout.toml(), "model": model})
    loaded, resumed = trainer.load_and_train(target, there)
    assert_same_tensors(of_pairs(loaded), of_pairs(saved))
    assert_same_tensors(of_pairs(resumed), of_pairs(uninterrupted))


# --- what does not go on ------------------------------------------------------------------------------------------

OF_KINDS = "weights are shared among optimizers of several kinds"
REFUSED = {  # name -> (run that saves, format of the target, words of the refusal)
    "muon-to-rank-files": (Run(LLAMA + MUON), MEGATRON, OF_KINDS),
    "muon-from-rank-files": (Run(LLAMA + MUON + RANK_FILES), TORCH_DIST, "args.optimizer is 'muon', whose groups"),
    "lion-to-rank-files": (Run(LLAMA + LION), MEGATRON, OF_KINDS),
    "lion-from-rank-files": (Run(LLAMA + LION + RANK_FILES), TORCH_DIST, "args.optimizer is 'lion', whose groups"),
}


@pytest.mark.long
@pytest.mark.skipif(megatron_release.RELEASE < (0, 19), reason="settings of 0.19")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_converted_is_refused(name, program, scratch):
    source, target_format, words = REFUSED[name]
    trainer.train_and_save(source, scratch / "source")
    outcome = program.attempt(scratch / "source", scratch / "there", target_format, source_options={"rng": "drop"})
    assert outcome.returncode in (2, 3) and words in outcome.stderr and not (scratch / "there").exists(), outcome.stderr


NOT_FOUND = "not in model_sharded_state_dict"
NOT_SAVED = {  # name -> (run, words of its error): the trainer does not save these, and no target could be loaded in such a run
    "latent-fused-whole": (Run(FUSED_DOWN + WHOLE, Layout(tp=2)), NOT_FOUND),
    "latent-fused-plain": (Run(FUSED_DOWN, Layout(tp=2)), "KeyError"),
    "experts-one-weight-whole": (Run(ONE_WEIGHT + WHOLE, Layout(ep=2)), NOT_FOUND),
    "muon-layer-wise-rank-files": (Run(LLAMA + MUON + DISTRIBUTED + RANK_FILES, replicas=2), "no attribute 'save_state_dict_to_file'"),
    "sgd-whole": (Run(LLAMA + ("--optimizer", "sgd") + WHOLE), "due to checkpointing requirements"),
    "torch-fsdp2-as-torch-dist": (Run((*DENSE_TE, *TORCH_DCP[:-1], "torch_dist"), replicas=2), "KeyError: 0"),
}
NOT_LOADED = {  # the same of what the trainer saves and does not load
    "lion-distributed": (Run(LLAMA + LION + DISTRIBUTED, replicas=2), "exp_avg_sq"),
    "lion-whole": (Run(LLAMA + LION + WHOLE), "KeyError: 'exp_avg_sq'"),
    "sgd": (Run(LLAMA + ("--optimizer", "sgd")), "'NoneType' object is not callable"),
    "torch-dcp": (Run(TORCH_FSDP, replicas=2), "unexpected keyword argument 'is_loading'"),
}


@pytest.mark.long
@pytest.mark.skipif(megatron_release.RELEASE < (0, 19), reason="settings of 0.19")
@pytest.mark.parametrize("name", NOT_SAVED)
def test_the_trainer_does_not_save(name, scratch):
    run, words = NOT_SAVED[name]
    with pytest.raises(RuntimeError, match=words):
        trainer.train_and_save(run, scratch / "source")


@pytest.mark.long
@pytest.mark.skipif(megatron_release.RELEASE < (0, 19), reason="settings of 0.19")
@pytest.mark.parametrize("name", NOT_LOADED)
def test_the_trainer_does_not_load_what_it_saved(name, scratch):
    run, words = NOT_LOADED[name]
    trainer.train_and_save(run, scratch / "source")
    with pytest.raises(RuntimeError, match=words):
        trainer.load_and_train(run, scratch / "source", without_rng=False)


# --- across releases ----------------------------------------------------------------------------------------------

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
    saved, uninterrupted = trainer.by_release(python_of(release), trainer.train_and_save, source, str(scratch / "source"))
    there = program.run(scratch / "source", scratch / "there", target_format, source_options={"rng": "drop"},
                        target_options={"layout": target.layout.toml(), "megatron": here.rpartition(".")[0]})
    loaded, resumed = trainer.load_and_train(target, there)
    assert_same_tensors(loaded, saved)
    assert_same_tensors(resumed, uninterrupted)


# Models of megatron_models.py, which 0.16 saves without a trainer: its args and settings of the scheduler are made by checkpoint_args.py.
SIZES = dict(layers=4, hidden=64, heads=8, groups=4, head_dim=8, ffn=96, vocab=trainer.VOCABULARY, vocab_divisor=16, dtype="bfloat16", norm_eps=1e-5)
OLD_DENSE = Recipe(model_cases.LLAMA.with_(**SIZES))
OLD_EXPERTS = Recipe(model_cases.QWEN3_MOE.with_(**SIZES, experts=8, expert_ffn=48, qk_norm=False, moe_layers=None))
AS_THEN = tuple("--max-position-embeddings 128 --lr-decay-style constant --override-opt-param-scheduler --train-iters 2000".split())


def old_world(recipe, layout, replicas=1):
    return World(recipe, layout, replicas=replicas, scheduled=True, min_lr=0.001)


WITHOUT_TRAINER = {  # name -> (what is saved, as which kind, format of the target, run that loads)
    "dense": (old_world(OLD_DENSE, Layout(tp=2)), DP_RESHARDABLE, TORCH_DIST, Run(LLAMA + WHOLE + AS_THEN, Layout(pp=2))),
    "dense-to-rank-files": (old_world(OLD_DENSE, Layout(tp=2), 2), RESHARDABLE, MEGATRON, Run(LLAMA + DISTRIBUTED + RANK_FILES + AS_THEN, Layout(pp=2))),
    "plain": (old_world(OLD_DENSE, Layout(tp=2)), PLAIN, TORCH_DIST, Run(LLAMA + AS_THEN, Layout(pp=2))),
    "experts": (old_world(OLD_EXPERTS, Layout(ep=2)), DP_RESHARDABLE, TORCH_DIST, Run(EXPERTS + WHOLE + AS_THEN, Layout(tp=2, ep=2))),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WITHOUT_TRAINER)
def test_the_trainer_goes_on_from_a_release_without_one(name, program, scratch):
    python = Path(__file__).resolve().parents[2] / ".cache" / "peers" / "bin" / "python"
    if not python.exists() or megatron_release.RELEASE < (0, 19):
        pytest.skip("0.16.1 is not installed in .cache/peers, or this release is older than 0.19")
    world, kind, target_format, target = WITHOUT_TRAINER[name]
    uninterrupted = trainer.by_release(python, dcp_checkpoints.train_and_save, world, str(scratch / "source"), kind)
    there = program.run(scratch / "source", scratch / "there", target_format, target_options={"layout": target.layout.toml(), "megatron": "0.19"})
    _, resumed = trainer.load_and_train(target, there, saved_iteration=dcp_checkpoints.ITERATION)
    assert_same_tensors(resumed, trainer.within_vocabulary(uninterrupted))
