"""What other converters do in against_peers.py, each in a Python that has it: peer_jobs.py JOB SOURCE TARGET [FOLDER]. Prints what starting has cost.

FOLDER is the Hugging Face folder of the model that SOURCE was made from. `zero` is no converter: it trains a model for a step on two ranks, which saves TARGET.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "peers"))
THREADS = len(os.sched_getaffinity(0))


def started():
    """Everything is imported: what follows is the conversion."""
    import psutil

    process = psutil.Process()
    used = process.cpu_times()
    print(json.dumps({"start_wall": time.time() - process.create_time(), "start_cpu": used.user + used.system}), flush=True)


def prepare(preload):
    """Imports a module that lets a library run without CUDA, and makes a world of this process alone."""
    __import__(preload)
    import torch

    torch.set_num_threads(THREADS)  # the tests have one for each of many ranks
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    started()


# --- Megatron-Bridge: AutoBridge.import_ckpt and export_ckpt, with modules that have no kernels -----------------------------


def bridge_import(source, target, _):
    prepare("bridge_preload")
    from bridge_runs import build, one_rank

    with one_rank():
        bridge, model = build(source, True)
        bridge.save_megatron_model([model], target, hf_tokenizer_path=source, low_memory_save=True)


def bridge_export(source, target, folder):
    prepare("bridge_preload")
    from bridge_runs import SETTINGS, one_rank
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.model_load_save import load_megatron_model

    with one_rank():
        bridge = AutoBridge.from_hf_pretrained(folder)
        [save] = Path(source).glob("iter_*")
        model = load_megatron_model(str(save), use_cpu_init=True, skip_temp_dist_context=True, mp_overrides=SETTINGS)
        bridge.save_hf_pretrained(model if isinstance(model, list) else [model], target, show_progress=False, strict=False)


# --- PyTorch and torchtitan -------------------------------------------------------------------------------------------------


def dcp_to_torch(source, target, _):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    started()
    os.makedirs(target)
    dcp_to_torch_save(source, os.path.join(target, "weights.pt"))


def titan_export(source, target, folder):
    """What torchtitan's scripts/checkpoint_conversion/convert_to_hf.py does, for a Llama of the sizes of FOLDER, in the dtype of the weights."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torchtitan.components.checkpoint import ModelWrapper
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.llama3 import Llama3Model, Llama3StateDictAdapter, _build_llama3_layers

    started()
    config = json.loads(Path(folder, "config.json").read_text())
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    rope = ComplexRoPE.Config(dim=dim // heads, max_seq_len=128, theta=config["rope_theta"])
    layers = _build_llama3_layers(n_layers=config["num_hidden_layers"], dim=dim, n_heads=heads, n_kv_heads=config["num_key_value_heads"],
                                  hidden_dim=config["intermediate_size"], rope=rope, attn_backend="flex")
    rows = config["vocab_size"]
    model_config = Llama3Model.Config(
        dim=dim, vocab_size=rows, tok_embeddings=Embedding.Config(num_embeddings=rows, embedding_dim=dim), norm=RMSNorm.Config(normalized_shape=dim),
        lm_head=Linear.Config(in_features=dim, out_features=rows), layers=layers)
    with torch.inference_mode():
        torch.set_default_dtype(torch.bfloat16)
        state = ModelWrapper(model_config.build())._get_state_dict()
        dcp.load(state, checkpoint_id=source)
        adapter = Llama3StateDictAdapter(model_config, folder)
        writer = dcp.HuggingFaceStorageWriter(path=target, save_distributed=True, fqn_to_index_mapping=adapter.fqn_to_index_mapping,
                                              enable_consolidation=True, thread_count_consolidation=5)
        dcp.save(adapter.to_hf(state), storage_writer=writer)


# --- verl: python -m verl.model_merger merge --backend megatron --use_cpu_initialization -------------------------------------


def verl_merge(source, target, _):
    prepare("bridge_preload")
    import torch
    from bridge_runs import OnTheCpu, build_without_kernels
    from verl.model_merger import megatron_model_merger as merger
    from verl.model_merger.base_model_merger import ModelMergerConfig

    import megatron_release

    megatron_release.write_in_this_process()
    build_without_kernels()
    merger.set_numa_affinity = merger.model_parallel_cuda_manual_seed = torch.distributed.init_process_group = lambda *_: None
    merger.get_torch_device = lambda: torch.cpu
    torch.nn.Module.cuda = lambda module, *_: module
    merger.init_empty_weights = contextlib.nullcontext  # parameters without kernels are not made on the meta device
    config = ModelMergerConfig(operation="merge", backend="megatron", local_dir=source, target_dir=target, use_cpu_initialization=True,
                               hf_model_config_path=os.path.join(source, "model/huggingface"))
    os.makedirs(target)
    with OnTheCpu():
        merger.MegatronModelMerger(config).merge_and_save()


# --- DeepSpeed --------------------------------------------------------------------------------------------------------------


def universal(source, target, _):
    """With its default numbers of workers."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import argparse

    from deepspeed.checkpoint import ds_to_universal

    started()
    [step] = Path(source).glob("global_step*")
    ds_to_universal.main(argparse.Namespace(input_folder=str(step), output_folder=target, num_extract_workers=4, num_merge_workers=2,
                                            keep_temp_folder=False, strict=True, inject_missing_state=True))


def zero(stage, target, folder, world=2):
    port = str(20000 + os.getpid() % 20000)
    if "RANK" not in os.environ:
        ranks = [subprocess.Popen([sys.executable, __file__, "zero", stage, target, folder], stdout=subprocess.DEVNULL, env=os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1"}) for rank in range(world)]
        sys.exit(max(rank.wait() for rank in ranks))
    import deepspeed_preload  # noqa: F401
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
                "zero_optimization": {"stage": int(stage)}, "bf16": {"enabled": True}}
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=settings)[0]
    tokens = torch.arange(8).reshape(1, 8)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    engine.save_checkpoint(target)


JOBS = {job.__name__: job for job in (bridge_import, bridge_export, dcp_to_torch, titan_export, verl_merge, universal, zero)}

if __name__ == "__main__":
    job, source, target, *folder = sys.argv[1:]
    JOBS[job](source, target, folder[0] if folder else "")
