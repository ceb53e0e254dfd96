"""What differs between the releases of megatron-core that these tests run with: 0.16 of requirements.txt, and those of releases.txt.

All else in these tests is the same for every release. Where a test states a fact of a release, it asks the constants below.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import pickle
import queue
import sys
import types
import typing

import torch

RELEASE = tuple(int(number) for number in importlib.metadata.version("megatron-core").split(".")[:2])
COMMON_FILE, COMMON_ITEM = "common.pt", "common_state/shard_0_1"
SAVES_A_COMMON_FILE = RELEASE < (0, 19)  # what is not sharded: in a file of its own, or an item of the catalogue. All releases read both
MOMENTUM = "momentum_beta" if RELEASE < (0, 19) else "momentum"  # how groups of Muon's optimizer name it
# metadata.json names the two backends and their versions; that of the common state is left out since it is an item.
ONE_BACKEND = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
TWO_BACKENDS = ONE_BACKEND | {"common_backend": "torch", "common_backend_version": 1}
BACKENDS = TWO_BACKENDS if SAVES_A_COMMON_FILE else ONE_BACKEND


# --- running without CUDA -----------------------------------------------------------------------------------------


class NoStream(contextlib.nullcontext):
    """A stream, or an event, of a device that there is not."""

    def __init__(self, *_, **__):
        super().__init__(self)

    def wait_stream(self, *_):
        pass

    wait_event = synchronize = wait_stream

    def record_event(self, *_):
        return self


def stand_in_for_cuda():
    """Devices are the CPU. Later releases ask for streams and for what the device is where 0.16 does not."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    if RELEASE >= (0, 17):
        torch.cuda.Stream = torch.cuda.Event = NoStream
        torch.cuda.current_stream = NoStream
        torch.cuda.stream = NoStream
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, name="none", total_memory=1 << 30, multi_processor_count=1)
        torch.cuda.get_device_capability = lambda *_: (9, 0)


def write_in_this_process():
    """megatron-core's writer of `torch_dist` forks one process per file, and needs psutil to measure them. Since 0.17 it has threads instead, and
    another process for its queue alone."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._process_memory = lambda: 0
    if hasattr(filesystem_async, "_get_write_results_queue"):
        filesystem_async._get_write_results_queue = queue.Queue
    else:
        filesystem_async.get_write_results_queue = lambda *_: queue.Queue()
    writer = filesystem_async.FileSystemWriterAsync
    if hasattr(writer, "write_preloaded_data_multiproc"):
        writer.write_preloaded_data_multiproc = staticmethod(write_buckets)


def write_buckets(transforms, use_msc, rank, buckets, results):
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    written, mine, begun = {}, queue.Queue(), queue.Queue()
    for index, bucket in enumerate(buckets):
        begun.put(index)
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, mine, begun, use_fsync=False)
        _, outcome = mine.get()
        if isinstance(outcome, Exception):
            raise outcome
        written[index] = outcome
    results.put(written)


# --- modules ------------------------------------------------------------------------------------------------------


def parts_of(spec):
    """The submodules of a module that a ModuleSpec describes; since 0.18 functools.partial describes MLPs and experts."""
    return spec.keywords["submodules"] if isinstance(spec, functools.partial) else spec.submodules


def experts_of(module, linear_fc1, linear_fc2):
    """The description of a module of experts with these linears."""
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe import experts
    from megatron.core.transformer.spec_utils import ModuleSpec

    if not hasattr(experts, "GroupedMLPSubmodules"):
        return ModuleSpec(module=module, submodules=MLPSubmodules(linear_fc1=linear_fc1, linear_fc2=linear_fc2))
    kind = experts.GroupedMLPSubmodules if issubclass(module, experts.TEGroupedMLP) else MLPSubmodules
    return functools.partial(module, submodules=kind(linear_fc1=linear_fc1, linear_fc2=linear_fc2))


def are_experts_apart(config):
    """Whether experts have buffers and an optimizer of their own: with expert parallelism, and since 0.19 where they are cut otherwise than dense weights."""
    cut_otherwise = RELEASE >= (0, 19) and config.expert_tensor_parallel_size != config.tensor_model_parallel_size
    return config.expert_model_parallel_size > 1 or cut_otherwise


def with_own_names(state):
    """Of weights in mp_rank files: 0.16 calls the inner layer of multi-token prediction as torch_dist still does."""
    own = ".transformer_layer." if RELEASE < (0, 17) else ".mtp_model_layer."
    return {name.replace(".mtp_model_layer.", own): value for name, value in state.items()}


# --- args ---------------------------------------------------------------------------------------------------------

RENAMED = {"norm_epsilon": "layernorm_epsilon", "apply_layernorm_1p": "layernorm_zero_centered_gamma"} if RELEASE >= (0, 17) else {}


def args_of_release(args):
    """Args as this release's trainer saves them: other names since 0.17, and since 0.19 the number of a weight's parts, which tensor parallelism counts for."""
    args = argparse.Namespace(**{RENAMED.get(name, name): value for name, value in vars(args).items()})
    if RELEASE >= (0, 19):
        args.tensor_parallel_num_weight_shards, args.gtp_weight_remat_size = args.tensor_model_parallel_size, 1
        args.expert_tensor_parallel_num_weight_shards, args.expert_gtp_weight_remat_size = args.expert_tensor_parallel_size, 1
    return args


# --- Muon ---------------------------------------------------------------------------------------------------------


def stand_in_for_emerging_optimizers(momentum_optimizer, orthogonalize, lion=None):
    """Modules of the package emerging_optimizers, which megatron-core takes Muon's parts and Lion from."""

    class OrthogonalizedOptimizer(momentum_optimizer):
        def __init__(self, params, lr, momentum, *_, **options):
            super().__init__(params, lr, momentum, options["scaled_orthogonalize_fn"], options["weight_decay"])

    contents = {
        "": {"registry": types.SimpleNamespace(get_optimizer_name_list=lambda: ["lion"] if lion else [], get_optimizer_cls=lambda _: lion)},
        ".orthogonalized_optimizers": {
            "OrthogonalizedOptimizer": OrthogonalizedOptimizer, "AdaptiveMuon": OrthogonalizedOptimizer, "get_muon_scale_factor": lambda *_, **__: 1.0},
        ".orthogonalized_optimizers.muon_utils": {"newton_schulz_tp": orthogonalize, "NSCoeffT": typing.Literal["quintic"]},
        ".scalar_optimizers": {"Lion": lion}, ".soap": {"SOAP": None}}
    for name, content in contents.items():
        module = types.ModuleType("emerging_optimizers" + name)
        vars(module).update(content)
        sys.modules[module.__name__] = module


def with_version_of(package, number):
    """Later releases ask which one is installed."""
    installed = importlib.metadata.version
    importlib.metadata.version = lambda name: number if name.replace("_", "-") == package else installed(name)


def muon_optimizer(config, wrapped, layer_wise):
    """Muon for matrices and Adam for all else, over data parallel ranks layer by layer or not."""
    from megatron.core import optimizer

    if RELEASE < (0, 18):
        if RELEASE == (0, 17):  # it asks for the package's version, once
            optimizer.HAVE_EMERGING_OPTIMIZERS = optimizer.HAVE_EO_V02 = True
            importlib.reload(importlib.import_module("megatron.core.optimizer.muon"))
        from megatron.core.optimizer.muon import get_megatron_muon_optimizer

        return get_megatron_muon_optimizer(config, wrapped, layer_wise_distributed_optimizer=layer_wise)
    from megatron.core.optimizer import emerging_optimizers

    importlib.reload(emerging_optimizers)  # it was imported before there was the package
    optimizer._EMERGING_OPTIMIZERS, optimizer.HAVE_EMERGING_OPTIMIZERS = emerging_optimizers._EMERGING_OPTIMIZERS, True
    if RELEASE < (0, 19):
        config.optimizer = "dist_muon" if layer_wise else "muon"
    else:
        config.optimizer, config.use_layer_wise_distributed_optimizer = "muon", layer_wise
    return optimizer.get_megatron_optimizer(config, wrapped)


# --- what a save of torch_dist has --------------------------------------------------------------------------------


def common_item_place(folder):
    """The catalogue, and the entry of the common state in it, if it has one."""
    from torch.distributed.checkpoint.metadata import MetadataIndex

    catalogue = pickle.loads((folder / ".metadata").read_bytes())
    return catalogue, catalogue.storage_data.get(MetadataIndex(COMMON_ITEM))


def read_common(folder):
    """What is not sharded, of a save by any release and of a target."""
    if (folder / COMMON_FILE).exists():
        return torch.load(folder / COMMON_FILE, weights_only=False)
    _, place = common_item_place(folder)
    with open(folder / place.relative_path, "rb") as file:
        file.seek(place.offset)
        item = file.read(place.length)
    return torch.load(io.BytesIO(item), weights_only=False)[0]


def write_common(folder, common):
    """Replaces it where it is."""
    if (folder / COMMON_FILE).exists():
        torch.save(common, folder / COMMON_FILE)
    else:
        put_common_item(folder, common)


def put_common_item(folder, common):
    """As 0.19 writes it: an item of the catalogue, in a file of its own here, and metadata.json without a backend of the common state."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    catalogue, _ = common_item_place(folder)
    file = folder / "__0_7.distcp"
    torch.save([common], file)
    catalogue.state_dict_metadata[COMMON_ITEM] = BytesStorageMetadata()
    catalogue.storage_data[MetadataIndex(COMMON_ITEM)] = _StorageInfo(file.name, 0, file.stat().st_size)
    (folder / ".metadata").write_bytes(pickle.dumps(catalogue))
    (folder / "metadata.json").write_text(json.dumps(ONE_BACKEND))
    (folder / COMMON_FILE).unlink(missing_ok=True)


# --- the trainer --------------------------------------------------------------------------------------------------


def model_of(args, stage):
    if getattr(args, "hybrid_layer_pattern", None) is None:
        return gpt_of(args, stage)
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.training.argument_utils import hybrid_config_from_args
    from megatron.training.models.hybrid import HybridModelBuilder

    return HybridModelBuilder(hybrid_config_from_args(args)).build_model(ProcessGroupCollection.use_mpu_process_groups(), vp_stage=stage)


def gpt_of(args, stage):
    """GPTModel as the trainer builds it of its args. The wheels of 0.17 and 0.18 have no builder: it stands beside pretrain_gpt.py, and is followed here."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    if RELEASE >= (0, 19):
        from megatron.training.argument_utils import gpt_config_from_args
        from megatron.training.models.gpt import GPTModelBuilder

        return GPTModelBuilder(gpt_config_from_args(args)).build_model(ProcessGroupCollection.use_mpu_process_groups(), vp_stage=stage)
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.training.arguments import core_transformer_config_from_args

    config = core_transformer_config_from_args(args)
    if args.num_experts:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization, vp_stage=stage)
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization=args.normalization)
    prediction = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=stage) if args.mtp_num_layers else None
    return GPTModel(
        config, spec, args.padded_vocab_size, args.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy, parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights, position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent, rotary_base=args.rotary_base, mtp_block_spec=prediction, vp_stage=stage)
