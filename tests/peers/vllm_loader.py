"""vLLM's own model classes load folders on a CPU: python vllm_loader.py FOLDER... writes FOLDER.engine.pt beside each.

Run by the Python of scripts/install_peers.sh vllm. A process of its own for each folder, forked from one that has imported vLLM. The file holds
{"parameters": name -> tensor as loaded, before a kernel reorders it; "unloaded": names with memory that no weight of the folder was written to; "windows": of
each layer's attention}, or
{"error": why vLLM refused the folder}. Most kernels for quantised weights need a GPU, or matrix tiles of some CPUs: vLLM is told that it has them, as nothing
is computed. Which parameters there are, their shapes and where each tensor of the folder goes is its own code, unchanged.
"""

import inspect
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import torch
import vllm
from vllm.config import SpeculativeConfig
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.oracle import int_wna16, mxfp8, unquantized
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_mxfp8,
    compressed_tensors_moe_wna16,
)
from vllm.model_executor.model_loader import base_loader, default_loader
from vllm.platforms.interface import PlatformEnum

FILLING = 0xAB


def pretend_kernels():
    """Every kernel is there: only what a kernel does to weights after they are loaded, and computing, would miss it."""
    for kernel in vars(linear).values():
        if inspect.isclass(kernel) and hasattr(kernel, "is_supported"):
            kernel.is_supported = kernel.can_implement = classmethod(lambda cls, *args, **kwargs: (True, None))
    for kernel in linear._POSSIBLE_KERNELS[PlatformEnum.CPU]:
        kernel.can_implement = classmethod(lambda cls, *args, **kwargs: (True, None))
    linear._POSSIBLE_MXFP8_KERNELS[PlatformEnum.CPU] = [linear.EmulationMxfp8LinearKernel]
    linear._POSSIBLE_MXFP4_KERNELS[PlatformEnum.CPU] = [linear.EmulationMxfp4LinearKernel]
    integers, plain = int_wna16.WNA16MoEBackend.MARLIN, unquantized.UnquantizedMoeBackend.TRITON
    compressed_tensors_moe_wna16.select_wna16_moe_backend = lambda **kwargs: (integers, int_wna16.backend_to_kernel_cls(integers)[0])
    compressed_tensors_moe_w8a8_mxfp8.select_mxfp8_moe_backend = lambda **kwargs: (next(iter(mxfp8._SUPPORTED_BACKENDS)), object)
    unquantized_fused_moe_method.select_unquantized_moe_backend = lambda *args, **kwargs: (plain, unquantized.backend_to_kernel_cls(plain)[0])


def bytes_of(parameter):
    return parameter.data.reshape(-1).view(torch.uint8)


def save_loaded(loader, model, config, path):
    """Scales of the cache stand in `.attn.` and `.mla_attn.`: no folder here has them."""
    parameters = {name: parameter for name, parameter in model.named_parameters()
                  if ".attn." not in name and ".mla_attn." not in name and parameter.numel()}
    for parameter in parameters.values():
        bytes_of(parameter).fill_(FILLING)
    model.load_weights(loader.get_all_weights(config, model))
    # A byte of a scale can be the filling by chance.
    unloaded = [name for name, parameter in parameters.items()
                if (bytes_of(parameter) == FILLING).float().mean() > (0.1 if bytes_of(parameter).numel() > 64 else 0.9)]
    windows = [module.sliding_window for module in model.modules() if isinstance(module, Attention)]
    torch.save({"parameters": {name: parameter.data for name, parameter in parameters.items()}, "unloaded": unloaded, "windows": windows}, path)
    os._exit(0)


def pretend_speculation():
    """DeepSeek's draft takes its config from the one for speculation, of a draft beside a model: here the model is the draft itself."""
    initialize = base_loader.initialize_model

    def initialised(vllm_config, **more):
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        vllm_config.speculative_config = SpeculativeConfig(
            method="mtp", model=model.model, num_speculative_tokens=1, target_model_config=model, target_parallel_config=parallel)
        return initialize(vllm_config=vllm_config, **more)

    base_loader.initialize_model = initialised


def load(folder):
    path = f"{folder}.engine.pt"
    default_loader.DefaultModelLoader.load_weights = lambda loader, model, config: save_loaded(loader, model, config, path)
    try:
        # As vLLM makes the config of a draft of the one in its folder.
        draft = {"hf_overrides": SpeculativeConfig.hf_config_override} if os.path.basename(folder) == "draft" else {}
        if draft:
            pretend_speculation()
        vllm.LLM(model=folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, dtype="auto", **draft)
    except Exception as error:
        torch.save({"error": f"{type(error).__name__}: {error}"}, path)


if __name__ == "__main__":
    pretend_kernels()
    for given in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            load(os.path.abspath(given))
            os._exit(0)
        os.waitpid(child, 0)
