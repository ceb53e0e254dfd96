"""Models that peft has wrapped, sharded by FSDP2 and saved by torch on CPU ranks, and what peft itself makes of them."""

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import gloo_ranks

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SIZES = {"vocab_size": 53, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 38,
         "tie_word_embeddings": False}
KINDS = {
    "lora": {"target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"], "lora_alpha": 12},
    "pattern": {"target_modules": ["q_proj", "down_proj"], "lora_alpha": 12, "use_rslora": True, "rank_pattern": {"down_proj": 3},
                "alpha_pattern": {"layers.1.self_attn.q_proj": 5}},
    "bf16": {"target_modules": ATTENTION, "lora_alpha": 8},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "lora_alpha": 4},
    "dora": {"target_modules": [*ATTENTION, "up_proj", "down_proj"], "lora_alpha": 12, "use_dora": True},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 5], "lora_alpha": 4},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"], "lora_alpha": 4},
    "ia3": None,
}


def base_of(kind):
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    return model.to(torch.bfloat16 if kind == "bf16" else torch.float32)


def wrapped_of(kind):
    """Every parameter of the adapter is random: untrained ones change nothing."""
    import peft

    config = peft.IA3Config(task_type="CAUSAL_LM") if KINDS[kind] is None else peft.LoraConfig(r=4, task_type="CAUSAL_LM", **KINDS[kind])
    model = peft.get_peft_model(base_of(kind), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def save_on_rank(rank, kinds, root, forms):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    world = dist.get_world_size()
    for kind in kinds:
        folder = Path(root) / kind
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            base = base_of(kind)
            base.config.save_pretrained(folder / "base")
            base.save_pretrained(folder / "base")
            wrapped = wrapped_of(kind)
            wrapped.save_pretrained(folder / "adapter", save_embedding_layers=False)
            if kind in ("lora", "pattern", "bf16", "saved", "dora"):
                wrapped.merge_and_unload().save_pretrained(folder / "merged")
        dist.barrier()
        model = wrapped_of(kind)
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
        for layer in model.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for form in forms:
            if form == "ranks":
                (folder / form).mkdir(exist_ok=True)
                torch.save(model.state_dict(), folder / form / f"model_world_size_{world}_rank_{rank}.pt")
                if rank == 0:
                    (folder / form / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
                    base.config.save_pretrained(folder / form / "huggingface")
            else:
                state = {"model": model.state_dict()} if form == "nested" else model.state_dict()
                dcp.save(state, checkpoint_id=folder / form)
        dist.barrier()
    return None


def save(kinds, root, world, forms):
    """Below the root a folder of each kind has base, adapter (peft's own file), merged (merge_and_unload), and the forms: flat and nested DCP, ranks."""
    gloo_ranks.run_ranks(save_on_rank, world, (kinds, str(root), forms), "fsdp_rank_preload")
    return root
