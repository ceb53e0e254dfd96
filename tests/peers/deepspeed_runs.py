"""Real DeepSpeed on CPU ranks: trains a tiny model, saves it, and continues from what the program wrote."""

import os
import socket

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist

from gloo_ranks import run_ranks

LEARNING_RATE = 1e-2
DECAY = 0.1
STEPS_BEFORE, STEPS_AFTER = 2, 2
VOCABULARY = 35  # odd sizes everywhere: no group divides evenly among ranks


def llama_config(tied=False):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        tie_word_embeddings=tied, max_position_embeddings=32, architectures=["LlamaForCausalLM"])


def llama(tied=False):
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(llama_config(tied))


class Plain(torch.nn.Module):
    """A plain module with a buffer, a frozen parameter and a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = torch.nn.Linear(5, 7)
        self.frozen = torch.nn.Linear(7, 3, bias=False)
        self.last = torch.nn.Linear(3, 1)
        self.register_buffer("scale", torch.arange(3.0))
        self.frozen.weight.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))) * self.scale.to(x.dtype)).mean()


def loss_of(engine, case):
    if case["model"] == "plain":
        x = (torch.arange(10.0).reshape(2, 5) / 7 - 0.5).to(next(engine.module.parameters()).dtype)
        return engine(x)
    ids = (torch.arange(16).reshape(1, 16) * 3) % VOCABULARY
    return engine(input_ids=ids, labels=ids).loss


def config_of(case, universal=False):
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": case["stage"], **case.get("zero", {})}}
    if case.get("dtype", "bf16") != "fp32":
        config[case.get("dtype", "bf16")] = {"enabled": True}
    config |= case.get("config", {})
    if universal:
        config["checkpoint"] = {"load_universal": True}
    return config


def engine_of(case, universal=False):
    import deepspeed

    model = Plain() if case["model"] == "plain" else llama(case["model"] == "tied")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim > 1], "weight_decay": DECAY}, {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0}]
    if case.get("groups", 2) == 1:
        groups = [{"params": trained, "weight_decay": DECAY}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config_of(case, universal))[0]


def train(engine, case, steps):
    for _ in range(steps):
        engine.backward(loss_of(engine, case))
        engine.step()


def masters_of(engine):
    from deepspeed.utils import safe_get_full_fp32_param

    if engine.zero_optimization_stage() == 0:
        return {}
    return {name: safe_get_full_fp32_param(p).clone() for name, p in engine.module.named_parameters() if p.requires_grad}


def save_on_rank(rank, world, cases, port):
    """Saves every case after some steps; what the FP32 weights are some steps later, without a checkpoint in between."""
    start(rank, world, port)
    results = {}
    for name, case in cases.items():
        engine = engine_of(case)
        train(engine, case, STEPS_BEFORE)
        engine.save_checkpoint(case["folder"], client_state={"note": "of the training program"})
        train(engine, case, STEPS_AFTER)
        results[name] = masters_of(engine)
    return results if rank == 0 else None


def resume_on_rank(rank, world, cases, port):
    """The same some steps after loading a universal checkpoint."""
    start(rank, world, port)
    results = {}
    for name, case in cases.items():
        engine = engine_of(case, universal=True)
        path, client = engine.load_checkpoint(case["folder"])
        assert path is not None and engine.global_steps == STEPS_BEFORE
        train(engine, case, STEPS_AFTER)
        results[name] = masters_of(engine), client.get("note")
    return results if rank == 0 else None


def state_of(engine):
    """What DeepSpeed has of each parameter, put together from all ranks."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found = {}
    for name, parameter in engine.module.named_parameters():
        found[name, "fp32"] = safe_get_full_fp32_param(parameter).clone()
        for slot in ("exp_avg", "exp_avg_sq"):
            found[name, slot] = safe_get_full_optimizer_state(parameter, slot).clone()
    return found


def model_beside(folder):
    """A new model of the config that lies in a universal checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(f"{folder}/huggingface", attention_dropout=0.0))


def continue_on_rank(rank, world, cases, port):
    """Loads the universal checkpoints of other programs' runs: the state then, the settings, and the losses of some steps, of DeepSpeed and of torch."""
    start(rank, world, port)
    import deepspeed

    results = {}
    for name, case in cases.items():
        model = model_beside(case["folder"])
        parameters = list(model.parameters())
        groups = [parameters[::2], parameters[1::2]] if case.get("groups", 1) == 2 else [parameters]
        optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=LEARNING_RATE / 2, weight_decay=DECAY)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config_of(case, universal=True))[0]
        path, _ = engine.load_checkpoint(case["folder"])
        assert path is not None
        state, steps = state_of(engine), engine.global_steps
        settings = [{key: value for key, value in group.items() if key != "params"} for group in engine.optimizer.optimizer.param_groups]
        losses = losses_of(engine, case, lambda loss: (engine.backward(loss), engine.step()))
        results[name] = state, settings, steps, losses, continue_by_torch(case["folder"], state, settings[0], case["adam_steps"])
    return results if rank == 0 else None


def losses_of(model, case, step):
    losses = []
    for _ in range(3):
        losses.append(loss_of(model, case))
        step(losses[-1])
    return [loss.item() for loss in losses]


def continue_by_torch(folder, state, settings, steps):
    """The losses of torch's AdamW on F32 masters of a BF16 model, from the same state."""
    model = model_beside(folder)
    if any(parameter.dtype != torch.bfloat16 for parameter in model.parameters()):
        model.bfloat16()  # buffers too, as DeepSpeed does it
    masters = {name: torch.nn.Parameter(state[name, "fp32"].clone()) for name, _ in model.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), **{key: settings[key] for key in ("lr", "betas", "eps", "weight_decay")})
    for name, master in masters.items():
        optimizer.state[master] = {"step": torch.tensor(float(steps)), **{slot: state[name, slot].clone() for slot in ("exp_avg", "exp_avg_sq")}}

    def round_masters():
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(masters[name])

    def step(loss):
        model.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            masters[name].grad = parameter.grad.float()
        optimizer.step()
        round_masters()

    round_masters()
    return losses_of(model, {"model": ""}, step)


def start(rank, world, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed

    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    assert dist.get_world_size() == world


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def save(world, cases):
    return run_ranks(save_on_rank, world, (world, cases, free_port()), "deepspeed_preload")[0]


def resume(world, cases):
    return run_ranks(resume_on_rank, world, (world, cases, free_port()), "deepspeed_preload")[0]


def continued(world, cases):
    return run_ranks(continue_on_rank, world, (world, cases, free_port()), "deepspeed_preload")[0]
