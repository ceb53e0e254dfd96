#include <array>

#include "core/formats/shapes.hpp"

namespace reshard {
namespace {

constexpr std::string_view rank_files = "model_world_size_*_rank_*.pt";

// After the programs' own code: Megatron-Bridge's training/checkpointing.py and
// checkpoint_utils.py, NeMo's lightning/io/mixin.py and ckpt_utils.py, verl's
// megatron_checkpoint_manager.py and megatron_utils.py (layouts 2 and 1) and its
// fsdp_checkpoint_manager.py, SkyRL's fsdp_strategy.py, lmms-engine's fsdp2_trainer.py, ms-swift's
// megatron_lm_utils.py and trainers/base.py, miles' and slime's rollout/data_source.py and
// arguments.py.
std::array<Shape, 13> const shapes = {{
    {.program = "Megatron-Bridge",
     .weights = "",
     .signs = {"run_config.yaml"},
     .configs = {"hf"},
     .settings = "run_config.yaml",
     .member = "model",
     .table = "megatron_bridge",
     .alpha = "peft.alpha",
     .origins = {"hf_model_id", "extra_checkpoint_metadata.hf_model_id"}},
    {.program = "NeMo 2",
     .weights = "weights",
     .signs = {"context"},
     .settings = "context/model.yaml",
     .member = "config",
     .table = "megatron_bridge"},
    {.program = "verl",
     .weights = "model/dist_ckpt",
     .signs = {"ckpt_contents.json", "transformer_config.json", "model/huggingface"},
     .saves = {"actor", "global_step_*/actor"},
     .configs = {"model/huggingface"},
     .optimizer = "optimizer/dist_ckpt",
     .rng = "extra/dist_ckpt"},
    {.program = "verl",
     .weights = "dist_ckpt",
     .signs = {"transformer_config.json", "huggingface"},
     .saves = {"actor", "global_step_*/actor"},
     .configs = {"huggingface"}},
    {.program = "verl",
     .weights = "",
     .saves = {"actor", "global_step_*/actor"},
     .files = rank_files},
    {.program = "SkyRL",
     .weights = "",
     .saves = {"policy", "global_step_*/policy"},
     .files = rank_files},
    {.program = "verl", .weights = "", .saves = {"global_step_*"}, .files = rank_files},
    {.program = "verl",
     .weights = "",
     .saves = {"critic", "global_step_*/critic"},
     .files = rank_files},
    {.program = "lmms-engine",
     .weights = "pytorch_model_fsdp_0",
     .saves = {"checkpoint-*"},
     .files = rank_files},
    {.program = "ms-swift",
     .weights = "iter_*",
     .signs = {"args.json"},
     .arg = "tuner_type",
     .saves = {"checkpoint-*"},
     .configs = {""},
     .settings = "args.json",
     .origins = {"model_dir", "model"}},
    {.program = "miles",
     .weights = "iter_*",
     .arg = "miles_router_timeout",
     .origins = {"hf_checkpoint"}},
    {.program = "slime",
     .weights = "iter_*",
     .signs = {"rollout/global_dataset_state_dict_*.pt"},
     .arg = "rollout_global_dataset",
     .origins = {"hf_checkpoint"}},
    {.program = "slime",
     .weights = "release",
     .arg = "rollout_global_dataset",
     .origins = {"hf_checkpoint"}},
}};

}  // namespace

std::span<Shape const> known_shapes() { return shapes; }

}  // namespace reshard
