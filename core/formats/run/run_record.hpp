#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/containers/dcp/directory.hpp"
#include "core/containers/torch/pickle/carried_calls.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

/// The treatment of values whose classes are not known to be plain data: they stop the job, are
/// copied, or are left out.
enum class ForeignClasses { refuse, keep, drop };

/// The record of a run in a source, to be kept in a target, as a parsed torch file.
struct RunRecord {
  std::shared_ptr<TorchFile const> torch;
  std::string file;  ///< the file of `torch`
  /// Keys of storages that are in other files.
  std::unordered_map<std::string, std::filesystem::path> elsewhere{};
  std::int64_t iteration = 0;
  std::int64_t samples = 0;                      ///< trained on, of a record without args
  std::optional<std::int64_t> folder_iteration;  ///< nullopt: a release
  ForeignClasses foreign_classes = ForeignClasses::refuse;
  bool all =
      false;  ///< the complete document is common state; else args and a few values are the record
  bool edited = false;  ///< values were left out of `torch`: its file must not be copied as it is

  pickle::Document const& document() const { return torch->document; }
};

/// The record with a complete common state.
RunRecord common_record(dcp::CommonState const& common);

/// The record of a run of which `file` contains only the number of iterations.
RunRecord empty_record(std::string file, std::int64_t iteration);

/// Whether a job admits this finding into a target; `found` may be empty.
bool may_be_carried(pickle::NotCarried const& found, ForeignClasses choice);
/// Throws the Error of kind source about a finding at `place`.
[[noreturn]] void refuse_to_carry(std::string_view place, pickle::NotCarried const& found);

/// Applies the job's choice for unknown classes. With `drop` the attributes of args and the values
/// of the record that contain such are left out, with a warning, but not the optimizer's settings,
/// without which a target would not load.
void settle_foreign_classes(RunRecord& record, ForeignClasses choice,
                            std::vector<std::string>& warnings);

/// Whether the record's file may be copied byte for byte: pickles can contain more than their
/// value.
bool may_copy_file(RunRecord const& record);

/// Throws an Error of kind source if `node` contains more than plain data: copied data runs when it
/// is loaded. `no_node` is allowed.
void check_carried(RunRecord const& record, pickle::NodeId node, std::string_view key);

/// The bytes of a tensor of the record's document, or of a copy of it. A strided view is an Error
/// of kind source.
std::string tensor_bytes(RunRecord const& record, pickle::TensorRef const& tensor);

/// The folder of the target: iter_0000010, or release for a source without a run; with `numbered`
/// iter_0000000 instead of release.
std::filesystem::path run_folder(RunRecord const* record, bool numbered = false);
/// The text of the tracker for it.
std::string run_tracker(RunRecord const* record, bool numbered = false);

}  // namespace reshard
