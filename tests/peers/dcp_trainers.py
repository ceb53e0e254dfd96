"""Checkpoints that training programs without Megatron save with torch's distributed checkpoint: FSDP2 on CPU ranks, weights and optimizer."""

import torch
import torch.distributed.checkpoint as dcp
import transformers  # noqa: F401: once for all ranks
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import cases
import dcp_reading
from gloo_ranks import run_ranks

CONFIG = cases.LLAMA.with_(layers=2, dtype="bfloat16", vocab=90, vocab_divisor=128)
LEARNING_RATE, DECAY, STEPS = 1e-2, 0.1, 3
FORMS = ("nested", "flattened", "bare")
NESTS = ("nested", "app", "accelerate")  # whose names no key of a job needs to state


def llama_config(tied=False):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=CONFIG.vocab, hidden_size=CONFIG.hidden, intermediate_size=CONFIG.ffn, num_hidden_layers=CONFIG.layers,
        num_attention_heads=CONFIG.heads, num_key_value_heads=CONFIG.groups, head_dim=CONFIG.head_dim, tie_word_embeddings=tied,
        rms_norm_eps=CONFIG.norm_eps, max_position_embeddings=64, architectures=["LlamaForCausalLM"], dtype="bfloat16")


def trained(tied, groups):
    """F32 weights that are cut among all ranks, and compute in BF16."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(llama_config(tied)).float()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    parameters = list(model.parameters())
    split = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY}, {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(split if groups == 2 else parameters, lr=LEARNING_RATE, weight_decay=DECAY)
    for step in range(STEPS):
        optimizer.zero_grad()
        ids = (torch.arange(16).reshape(1, 16) * 3 + step) % CONFIG.vocab
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model, optimizer


def save_on_rank(rank, saves):
    """`saves`: of each form, whether embeddings are tied, the number of parameter groups, and the folder."""
    for form, tied, groups, folder in saves:
        model, optimizer = trained(tied, groups)
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=form not in NESTS))
        if form == "accelerate":
            save_by_accelerate(rank, model, optimizer, folder)
        else:
            whole = weights | state if form == "bare" else {"model": weights, "optimizer": state}
            dcp.save({"app": whole} if form == "app" else whole, checkpoint_id=folder)
        if rank == 0:
            llama_config(tied).save_pretrained(folder)


def save_by_accelerate(rank, model, optimizer, folder):
    """Its own functions for FSDP2; Accelerator itself does not shard on CPU."""
    from types import SimpleNamespace

    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer

    PartialState(cpu=True)  # for its log
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    ranks = torch.distributed.get_world_size()
    accelerator = SimpleNamespace(process_index=rank, num_processes=ranks, is_fsdp2=True, wait_for_everyone=torch.distributed.barrier)
    save_fsdp_model(plugin, accelerator, model, folder)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)


def save(world, saves):
    run_ranks(save_on_rank, world, (saves,), "dcp_trainers")


def values_of(folder):
    """All keys of a checkpoint, whole tensors and objects."""
    return dcp_reading.whole_tensors(folder) | dcp_reading.objects(folder)


def save_values(values, folder, config=None):
    """As torch saves them, under these keys."""
    dcp.save(values, checkpoint_id=folder, planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
    (config or llama_config()).save_pretrained(folder)
    return folder


# --- torchtitan -----------------------------------------------------------------------------------------------------

TITAN_NAMES = {
    "model.embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "model.norm": "norm", "lm_head": "output", "model.layers": "layers"}


def titan_name(name):
    for old, new in TITAN_NAMES.items():
        name = name.replace(old, new)
    return name


def titan_rows(key, tensor):
    """Rows of queries and keys as complex numbers: real and imaginary parts alternate."""
    heads = CONFIG.heads if ".wq." in key else CONFIG.groups
    if not torch.is_tensor(tensor) or tensor.ndim < 2 or not (".wq." in key or ".wk." in key):
        return tensor
    return tensor.view(heads, 2, CONFIG.head_dim // 2, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)


def as_torchtitan(values):
    """What torchtitan would have saved: weights at the top, the optimizer flattened, and its counters."""
    result = {titan_name(key): value for key, value in values.items()}
    result = {key.removeprefix("model."): titan_rows(key, value) for key, value in result.items()}
    return result | {"train_state.step": torch.tensor(STEPS), "lr_scheduler": {"last_epoch": STEPS}, "dataloader.dp_rank_0": b"1234"}
