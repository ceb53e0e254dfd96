#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/tables/integers.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/mapping/maps/map_library.hpp"

namespace reshard {

/// The treatment of stored tensors that a map lists under `keep`: they stop the job, are copied
/// byte for byte, or are left out.
enum class Unmapped { refuse, keep, drop };

/// The treatment of an adapter (LoRA): as it is; merged into the weights; of a model that peft has
/// wrapped, left out, or taken alone.
enum class AdapterUse { keep, merge, drop, only };

/// The keys of a job about its source and the model.
struct ReadChoice {
  MapLibrary library;            ///< the maps
  std::string map = "auto";      ///< model.map
  std::string prefix;            ///< DCP: only keys with this prefix, which is cut off
  std::filesystem::path config;  ///< config.json (or its folder) that describes the source
  Json base_config;              ///< of an adapter's base model, if no file states it; or null
  Index tp = 1;                  ///< tensor parallelism of a Megatron Lite source
  Index etp = 1;                 ///< expert tensor parallelism of a Megatron Lite source
  Index true_vocab_size = 0;
  Unmapped unmapped = Unmapped::refuse;
  std::string lora_alpha;           ///< a number, if the source does not state it; "": none
  std::vector<std::string> frozen;  ///< patterns of Megatron's names: without optimizer state
  ForeignClasses foreign_classes = ForeignClasses::refuse;
  bool objects_unread = false;  ///< objects of a DCP source are not checked
  bool dequantise = false;      ///< quantised weights become BF16
  bool drop_optimizer = false;
  bool drop_rng = false;
  bool axes_by_config = false;  ///< a config.json decides about axes, not args
  bool true_rows = false;       ///< rows of the vocabulary known to be padding are left out
  bool carries_rows = false;  ///< of a job: a named family, too, has the vocabulary rows that args
                              ///< count
};

}  // namespace reshard
