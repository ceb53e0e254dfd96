#pragma once

#include <optional>
#include <string>

#include "core/base/integers.hpp"
#include "core/formats/format_option.hpp"
#include "core/formats/megatron/shard_name.hpp"

namespace reshard::megatron {

/// The class of Megatron's that loads a target: GPTModel, or HybridModel, in which attention and
/// MLP of a layer are two layers.
enum class TargetModel { as_source, gpt, hybrid };

/// The program that starts from a torch_dist target. Megatron-Bridge reads what describes the model
/// from run_config.yaml, Megatron-LM from args; ms-swift has names of its own for some families and
/// wants a number for the iteration, as Megatron-Bridge does. as_source: settings of the source's
/// program go along.
enum class TargetProgram { as_source, megatron_lm, megatron_bridge, ms_swift };

/// How low-rank adapters are named.
struct AdapterNames {
  std::string form;           ///< one of [adapter] of mcore.toml; "": as the source, else the first
  std::optional<bool> apart;  ///< those of q, k and v, of gate and up have a first matrix each, or
                              ///< one in common; nothing: as the source, else apart
  friend bool operator==(AdapterNames const&, AdapterNames const&) = default;
};

/// The keys of every target with Megatron's names.
struct NameOptions {
  std::string names = "auto";    ///< whose names a language model and the parts beside it have:
                                 ///< [kept.NAME] of a map, "huggingface", or "auto"
  std::string transformer_impl;  ///< "te", "local", or "" for as the source, else te
  std::string experts;           ///< "grouped", "sequential", or "" for as the source, else grouped
  TargetModel model = TargetModel::as_source;
  int megatron = 0;  ///< release of Megatron-Core: 19 for 0.19; 0: the source's, else the newest
  TargetProgram program = TargetProgram::as_source;
  AdapterNames adapter;
  friend bool operator==(NameOptions const&, NameOptions const&) = default;
};

FormatOptions<NameOptions> name_options();
/// That of `adapter`, which stands apart in a job file.
FormatOptions<NameOptions> adapter_options();

/// How optimizer state lies in mp_rank folders: inside the model files, or in those of Megatron's
/// distributed optimizer; automatic: as in the source.
enum class OptimizerFiles { automatic, in_model_files, distributed };

/// The keys of mp_rank folders, and of the run that loads them: its gradient buckets decide
/// where state lies in files of the distributed optimizer.
struct TargetOptions {
  NameStyle mp_rank_style = NameStyle::megatron;
  OptimizerFiles optimizer = OptimizerFiles::automatic;
  std::optional<bool> overlap_grad_reduce;  ///< nothing: as args say
  Index bucket_size = 0;                    ///< --ddp-bucket-size; 0: as args say
  Index data_parallel_size = 0;             ///< 0: as args say
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

}  // namespace reshard::megatron
