"""torchtitan 0.3 saves small Qwen3 models with its own classes: model, optimizers, schedulers and CheckpointManager, on gloo processes."""

import pickle

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig, default_adamw
from torchtitan.models import qwen3
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from transformers import Qwen3Config, Qwen3MoeConfig

import gloo_ranks

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
EXPERTS = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)


def hf_config(kind):
    return Qwen3Config(**SIZES, tie_word_embeddings=False) if kind == "dense" else Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=False)


class Steps:
    """What torchtitan's trainer saves of itself, and its dataloader on each rank."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def titan_model(kind, fused):
    size = SIZES
    usual = dict(
        fuse_qkv=fused, n_layers=size["num_hidden_layers"], dim=size["hidden_size"], n_heads=size["num_attention_heads"],
        n_kv_heads=size["num_key_value_heads"], head_dim=size["head_dim"], attn_backend="flex",
        rope=CosSinRoPE.Config(dim=size["head_dim"], max_seq_len=128, theta=1e6))
    layers = (
        qwen3._build_qwen3_layers(hidden_dim=size["intermediate_size"], **usual) if kind == "dense" else
        qwen3._build_qwen3_moe_layers(moe_hidden_dim=16, num_experts=4, top_k=2, moe_comm_backend="standard", **usual))
    return qwen3.Qwen3Model.Config(
        vocab_size=size["vocab_size"], dim=size["hidden_size"], norm=qwen3._qwen3_norm(size["hidden_size"]), layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=size["vocab_size"], embedding_dim=size["hidden_size"], param_init=qwen3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=size["hidden_size"], out_features=size["vocab_size"], param_init=qwen3._LINEAR_INIT))


def titan_optimizers(kind):
    if kind == "adamw":
        return default_adamw(lr=1e-3)
    decays = {".*(norm|bias).*": 0.0, ".*": 0.1}
    return OptimizersContainer.Config(param_groups=[
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs=dict(lr=1e-3, weight_decay=decay)) for pattern, decay in decays.items()])


def save_by_titan(rank, world, jobs):
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    for kind, fused, optimizer, settings, folder in jobs:
        config = titan_model(kind, fused)
        torch.manual_seed(0)
        model = config.build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.1)
        for layer in (*model.layers.values(), model):
            fully_shard(layer, mesh=mesh)
        optimizers = titan_optimizers(optimizer).build(model_parts=[model])
        schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=10)
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = (parameter * 0.01).detach()
            optimizers.step()
            schedulers.step()
        steps = Steps({"step": torch.tensor(3, dtype=torch.int32), "ntokens_seen": torch.tensor(100)})
        loader = Steps({f"dp_rank_{rank}": pickle.dumps({"pos": 5}), "world_size": world})
        manager = CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0, **settings).build(
            dataloader=loader, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers, states={"train_state": steps},
            sd_adapter=qwen3.Qwen3StateDictAdapter(config, None), base_folder=folder)
        manager.save(3, last_step=bool(settings))
        manager.maybe_wait_for_staging()
        manager.close()


def save(world, jobs):
    """Each job is (model, fused wq, wk and wv, optimizers, settings of the CheckpointManager, folder)."""
    return gloo_ranks.run_ranks(save_by_titan, world, (world, jobs), "titan_runs")
