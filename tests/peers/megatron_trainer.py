"""megatron.training itself on CPU: its command line, checks of arguments, builders, optimizers and checkpoints. Wheels have it since megatron-core 0.17.

Only the steps between two checkpoints are ours: gradients follow from the weights (`dcp_models.train_step`), so that every layout computes the same bits.
Beyond the changes of megatron_models.py and dcp_models.py, random generators of CUDA are a constant, and norms of torch are used with sequence parallelism,
which has no part in a step that is ours.
"""

import contextlib
import copy
import io
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import bridge_runs
import dcp_checkpoints
import dcp_models
import megatron_models
import megatron_release
import sharded_trainer
from peer_types import Layout

VOCABULARY, ITERATION, OPERATIONS = 300, 10, 123456789.0
GENERATOR = torch.arange(16, dtype=torch.uint8)
BASE = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --ffn-hidden-size 96 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--global-batch-size 8 --train-iters 100 --lr 0.01 --min-lr 0.001 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 0.0 --hidden-dropout 0 "
    f"--attention-dropout 0 --vocab-size {VOCABULARY} --make-vocab-size-divisible-by 16 --tokenizer-type NullTokenizer --transformer-impl local "
    "--attention-backend unfused --use-cpu-initialization --distributed-backend gloo --dist-ckpt-strictness raise_all --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-persist-layer-norm --no-rope-fusion "
    "--no-check-for-nan-in-loss-and-grad --bf16").split()


@dataclass(frozen=True)
class Run:
    """One start of the trainer: its words on the command line beside BASE, on a grid of processes with so many data parallel copies."""

    words: tuple
    layout: Layout = Layout()
    replicas: int = 1

    @property
    def ranks(self):
        return self.layout.world * self.replicas

    def command_line(self, without_rng):
        """The program leaves random state behind, and says that training then starts with --no-load-rng."""
        layout, base = self.layout, list(BASE)
        if "--fp16" in self.words:
            base.remove("--bf16")
        if "--hybrid-layer-pattern" in self.words:  # it counts the layers
            at = base.index("--num-layers")
            del base[at : at + 2]
        words = ["--tensor-model-parallel-size", layout.tp, "--pipeline-model-parallel-size", layout.pp]
        if "--num-experts" in self.words:
            words += ["--expert-model-parallel-size", layout.ep, "--expert-tensor-parallel-size", layout.etp]
            words += ["--sequence-parallel"] if layout.tp > 1 else []
        if layout.vpp > 1:
            words += ["--num-virtual-stages-per-pipeline-rank", layout.vpp]
        words += ["--no-load-rng"] if without_rng else []
        return ["pretrain_gpt.py", *base, *self.words, *map(str, words)]

    @property
    def is_fsdp(self):
        return "--use-megatron-fsdp" in self.words or "--use-torch-fsdp2" in self.words

    @property
    def preload(self):
        """Transformer Engine's modules, for what has no others."""
        return "trainer_te_preload" if "transformer_engine" in self.words else "trainer_preload"


# --- on each rank -------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    run: Run
    args: object
    chunks: list
    optimizer: object
    scheduler: object
    parallel_state: object

    def models(self):
        from megatron.core.utils import unwrap_model

        return unwrap_model(self.chunks)

    def parameters(self):
        return sharded_trainer.parameters(self).values() if self.run.is_fsdp else (each for chunk in self.chunks for each in chunk.parameters())

    def pieces(self):
        if self.run.is_fsdp:
            return sharded_trainer.pieces(self)
        return dcp_checkpoints.pieces(self.models(), self.parallel_state)

    def step(self, number):
        from megatron.training import training

        if self.run.is_fsdp:
            sharded_trainer.train_step(self, number)
        else:
            dcp_models.train_step(self.chunks, self.optimizer, number, self.run.layout)
        if training.should_disable_forward_pre_hook(self.args):  # weights are gathered in the next forward pass otherwise
            training.force_param_sync(self.chunks)
        self.scheduler.step(increment=self.args.global_batch_size)


def prepare():
    from megatron.core import tensor_parallel
    from megatron.core.tensor_parallel import random as generators
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.training import checkpointing

    have_transformer_engine = multi_latent_attention.HAVE_TE
    dcp_models.prepare_distributed_checkpoints()
    if "trainer_te_preload" in sys.modules:
        multi_latent_attention.HAVE_TE = have_transformer_engine
        os.environ["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"  # without it experts do not share one weight
        bridge_runs.build_without_kernels()
    norm_without_sequence_parallelism(WrappedTorchNorm)
    dcp_models.use_fused_adam()
    checkpointing.schedule_async_save = save_at_once
    dist.all_gather = dcp_models.gather_of_any_sizes
    torch.nn.Module.cuda = lambda module, *_, **__: module
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = lambda *_: GENERATOR, lambda *_, **__: None
    tracker = type(generators.get_cuda_rng_tracker())
    tracker.get_states, tracker.set_states = lambda _: {"model-parallel-rng": GENERATOR}, lambda *_: None
    for module in (generators, tensor_parallel):
        module.convert_cuda_rng_state = lambda state, to_graphable=False: state


def save_at_once(request):
    """The process that writes asynchronous saves asks for a CUDA device; what it does is done here."""
    request.execute_sync()


def norm_without_sequence_parallelism(norm):
    make = norm.__new__

    def made(cls, config, *arguments, **options):
        config = copy.copy(config)
        config.sequence_parallel = False
        return make(cls, config, *arguments, **options)

    norm.__new__ = made


def started(rank, run, without_rng=False):
    """The trainer up to its first iteration, as its initialize_megatron and setup_model_and_optimizer go there. Weights have the values that their keys stand
    for."""
    from megatron.core import parallel_state
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.rerun_state_machine import initialize_rerun_state_machine
    from megatron.training import arguments, global_vars, training

    prepare()
    if run.is_fsdp:
        sharded_trainer.prepare()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(run.ranks), LOCAL_RANK=str(rank), CUDA_DEVICE_MAX_CONNECTIONS="8" if run.is_fsdp else "1")
    sys.argv = run.command_line(without_rng)
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    args.padded_vocab_size = -(-args.vocab_size // multiple) * multiple
    global_vars.set_global_variables(args, build_tokenizer=False)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size, expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size)
    initialize_rerun_state_machine()
    torch.manual_seed(1)

    def filled_model(vp_stage=None, **_):
        model = megatron_release.model_of(args, vp_stage)
        dcp_checkpoints.fill([model], SimpleNamespace(recipe=SimpleNamespace(config=SimpleNamespace(vocab=VOCABULARY))), parallel_state)
        return model

    chunks = training.get_model(filled_model)
    optimizer_config, overrides = training.get_megatron_optimizer_config(args)
    optimizer = get_megatron_optimizer(optimizer_config, chunks, overrides)
    return Trainer(run, args, chunks, optimizer, training.get_optimizer_param_scheduler(optimizer), parallel_state)


def train_and_save_on_rank(rank, run, root):
    from megatron.training import checkpointing

    with contextlib.redirect_stdout(io.StringIO()):
        trainer = started(rank, run)
        trainer.step(1)
        saved = trainer.pieces()
        trainer.args.save, trainer.args.iteration = root, ITERATION
        checkpointing.save_checkpoint(ITERATION, trainer.chunks, trainer.optimizer, trainer.scheduler, OPERATIONS)
        dist.barrier()
        trainer.step(2)
    return saved, trainer.pieces()


def load_and_train_on_rank(rank, run, root, without_rng, saved_iteration):
    from megatron.training import checkpointing

    with contextlib.redirect_stdout(io.StringIO()):
        trainer = started(rank, run, without_rng)
        for parameter in trainer.parameters():
            torch.nn.init.constant_(parameter, 7.0)  # nothing of the source may already be there
        trainer.args.load = root
        iteration, operations = checkpointing.load_checkpoint(trainer.chunks, trainer.optimizer, trainer.scheduler)
        assert (iteration, operations) == (saved_iteration, 0 if trainer.args.use_megatron_fsdp else OPERATIONS)  # Megatron-FSDP does not load it
        loaded = trainer.pieces()
        trainer.step(2)
    return loaded, trainer.pieces()


# --- on all -------------------------------------------------------------------------------------------------------


def on_all(function, run, root, *arguments):
    results = megatron_models.run_ranks(function, run.ranks, run, str(root), *arguments, preload=run.preload)
    return [within_vocabulary(dcp_checkpoints.joined(list(side))) for side in zip(*results)]


def within_vocabulary(tensors):
    """Rows behind the vocabulary are padding, whose number depends on TP."""
    return {key: tensor[:VOCABULARY] if "word_embeddings" in key or "output_layer" in key else tensor for key, tensor in tensors.items()}


def train_and_save(run, root):
    """One step, a checkpoint, one more step: the weights in the checkpoint, and those of a run that never stopped."""
    Path(root).mkdir(parents=True)
    return on_all(train_and_save_on_rank, run, root)


def load_and_train(run, root, without_rng=True, saved_iteration=ITERATION):
    """The trainer loads strictly and trains the second step: the weights before and after it."""
    return on_all(load_and_train_on_rank, run, root, without_rng, saved_iteration)


def by_release(python, function, *arguments):
    """What the function gives in the Python of another release."""
    with tempfile.TemporaryDirectory() as folder:
        call, result = Path(folder) / "call", Path(folder) / "result"
        call.write_bytes(pickle.dumps((function, arguments)))
        subprocess.run([python, __file__, call, result], check=True, cwd=Path(__file__).parent, capture_output=True, text=True)
        return torch.load(result)


if __name__ == "__main__":
    function, arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    torch.save(function(*arguments), sys.argv[2])
