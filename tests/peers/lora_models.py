"""Tiny transformers models with LoRA adapters that peft itself saves, and what merging them must give."""

import json

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2MoeConfig, Qwen3MoeConfig

SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4, "vocab_size": 101,
         "max_position_embeddings": 64, "tie_word_embeddings": False}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def llama(dtype, **changes):
    return LlamaConfig(**(SIZES | {"intermediate_size": 80} | changes)), dtype


def qwen3_moe(dtype, **changes):
    more = {"intermediate_size": 80, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
    return Qwen3MoeConfig(**(SIZES | more | changes)), dtype


def qwen2_moe(dtype):
    more = {"intermediate_size": 80, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "num_experts": 4, "num_experts_per_tok": 2}
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return Qwen2MoeConfig(**(sizes | more)), dtype


def save_base(folder, model, seed=1):
    config, dtype = model
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    made.save_pretrained(folder)
    return folder


def adapter_of(folder, base, seed=2, **settings):
    """An adapter on the base model, saved by peft; both factors are random."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    adapted = get_peft_model(model, LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    adapted.save_pretrained(folder, save_embedding_layers=False)
    return folder


def adapted_model(base, adapter, dtype=torch.float32):
    from peft import PeftModel

    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), adapter)


def change_config(adapter, **members):
    """adapter_config.json with other members."""
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def change_tensors(adapter, change):
    path = adapter / "adapter_model.safetensors"
    save_file({name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in change(load_file(path)).items()}, path)


def tensors_of(folder):
    result = {}
    for file in sorted(folder.glob("*.safetensors")):
        result |= load_file(file)
    return result


# --- the definition -----------------------------------------------------------------------------------------------


def product(b, a):
    """B · A in float32: from 0 on, rank after rank in ascending order, each product and each sum rounded."""
    b, a = b.float().numpy(), a.float().numpy()
    total = b[:, :1] * a[:1] * 0
    for rank in range(a.shape[0]):
        total = total + b[:, rank:rank + 1] * a[rank:rank + 1]
    return torch.from_numpy(total)


def merged(weight, b, a, scale):
    """W + scale · B · A, rounded to the weight's dtype once."""
    return (weight.float() + torch.tensor(scale, dtype=torch.float32) * product(b, a)).to(weight.dtype)


def merged_tensors(base, adapter, scale_of):
    """The tensors of a folder of linear layers with an adapter merged into it. `scale_of`: by module and rank."""
    tensors, factors = tensors_of(base), load_file(adapter / "adapter_model.safetensors")
    for name, a in factors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").split(".lora_A.")[0]
        b = factors[name.replace(".lora_A.", ".lora_B.")]
        tensors[module + ".weight"] = merged(tensors[module + ".weight"], b, a, scale_of(module, a.shape[0]))
    return tensors
