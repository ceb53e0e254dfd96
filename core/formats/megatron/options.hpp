#pragma once

#include <optional>
#include <string>

#include "core/base/tables/integers.hpp"
#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/formats/targets/format_option.hpp"

namespace reshard::megatron {

/// Megatron's class that loads a target: GPTModel, or HybridModel, in which attention and MLP of a
/// layer are two layers.
enum class TargetModel { as_source, gpt, hybrid };

/// The program that starts from a torch_dist target. Megatron-Bridge reads the description of the
/// model from run_config.yaml, Megatron-LM from args; ms-swift has names of its own for some
/// families and requires a number for the iteration, as Megatron-Bridge does. as_source: settings
/// of the source's program are copied.
enum class TargetProgram { as_source, megatron_lm, megatron_bridge, ms_swift };

/// The names of low-rank adapters.
struct AdapterNames {
  std::string form;           ///< one of [adapter] of mcore.toml; "": as the source, else the first
  std::optional<bool> apart;  ///< adapters of q, k and v, of gate and up have a first matrix each,
                              ///< or one in common; nullopt: as the source, else separate ones
  friend bool operator==(AdapterNames const&, AdapterNames const&) = default;
};

/// The keys of every target with Megatron's names.
struct NameOptions {
  std::string names = "auto";    ///< the names of a language model and its other parts: [kept.NAME]
                                 ///< of a map, "huggingface", or "auto"
  std::string transformer_impl;  ///< "te", "local", or "": as the source, else te
  std::string experts;           ///< "grouped", "sequential", or "": as the source, else grouped
  TargetModel model = TargetModel::as_source;
  int megatron = 0;  ///< release of Megatron-Core: 19 for 0.19; 0: the source's, else the newest
  TargetProgram program = TargetProgram::as_source;
  AdapterNames adapter;
  friend bool operator==(NameOptions const&, NameOptions const&) = default;
};

FormatOptions<NameOptions> name_options();
/// The option `adapter`, which has its own position in a job file.
FormatOptions<NameOptions> adapter_options();

/// The place of optimizer state in mp_rank folders: inside the model files, or in those of
/// Megatron's distributed optimizer; automatic: as in the source.
enum class OptimizerFiles { automatic, in_model_files, distributed };

/// The keys of mp_rank folders, and of the run that loads them: its gradient buckets determine the
/// offsets of state in files of the distributed optimizer.
struct TargetOptions {
  NameStyle mp_rank_style = NameStyle::megatron;
  OptimizerFiles optimizer = OptimizerFiles::automatic;
  std::optional<bool> overlap_grad_reduce;  ///< nullopt: as in args
  Index bucket_size = 0;                    ///< --ddp-bucket-size; 0: as in args
  Index data_parallel_size = 0;             ///< 0: as in args
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

}  // namespace reshard::megatron
