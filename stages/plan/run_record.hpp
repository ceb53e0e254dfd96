#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/formats/checkpoint.hpp"
#include "core/formats/torch_zip/torch_file.hpp"

namespace reshard {

/// What a Megatron or torch_dist source says about its run, to be kept in a target. `document` is the torch file that says so.
struct RunRecord {
  std::shared_ptr<TorchFile const> torch;
  std::string file;  ///< for messages
  std::int64_t iteration = 0;
  std::optional<std::int64_t> folder_iteration;  ///< nothing: a release

  pickle::Document const& document() const { return torch->document; }
};

/// Nothing for a Hugging Face source, a plain DCP checkpoint, or one without such a record.
std::optional<RunRecord> run_record(SourceCheckpoint const& source);

/// What we copy as inert data runs when somebody loads it: an Error of kind source when `node` holds more than classes and harmless constructors.
/// `no_node` is fine.
void check_carried(RunRecord const& record, pickle::NodeId node, std::string_view key);

/// The folder of the target: iter_0000010, or release for a source without a run.
std::filesystem::path run_folder(RunRecord const* record);
/// What the tracker says of it.
std::string run_tracker(RunRecord const* record);

}  // namespace reshard
