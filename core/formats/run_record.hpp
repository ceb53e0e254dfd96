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
#include "core/containers/torch/carried_calls.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

/// What happens to values whose classes are not known to be plain data: they stop the job, are
/// carried, or are left out.
enum class ForeignClasses { refuse, keep, drop };

/// What a Megatron or torch_dist source says about its run, to be kept in a target. `document` is
/// the torch file that says so.
struct RunRecord {
  std::shared_ptr<TorchFile const> torch;
  std::string file;  ///< that `torch` was read from
  /// Keys of storages that are in other files.
  std::unordered_map<std::string, std::filesystem::path> elsewhere{};
  std::int64_t iteration = 0;
  std::int64_t samples = 0;                      ///< seen in training, of a record without args
  std::optional<std::int64_t> folder_iteration;  ///< nothing: a release
  ForeignClasses foreign_classes = ForeignClasses::refuse;
  bool all =
      false;  ///< the whole document is common state; else args and a few values are the record
  bool edited = false;  ///< values were left out of `torch`: its file must not be copied as it is

  pickle::Document const& document() const { return torch->document; }
};

/// All of a common state.
RunRecord common_record(dcp::CommonState const& common);

/// That of a run of which `file` says no more than how many iterations it has done.
RunRecord empty_record(std::string file, std::int64_t iteration);

/// Whether a job lets this into a target; `found` may be nothing.
bool may_be_carried(pickle::NotCarried const& found, ForeignClasses choice);
/// The Error of kind source: `place` says where it stands.
[[noreturn]] void refuse_to_carry(std::string_view place, pickle::NotCarried const& found);

/// Takes over what a job says of classes that we do not know. With `drop` the attributes of args
/// and the values of the record that hold such are left out, with a warning; the optimizer's
/// settings are not, a target without them would not load.
void settle_foreign_classes(RunRecord& record, ForeignClasses choice,
                            std::vector<std::string>& warnings);

/// Whether the record's file may be copied byte for byte: pickles can hold more than their value
/// shows.
bool may_copy_file(RunRecord const& record);

/// What we copy as inert data runs when it is loaded: an Error of kind source when `node`
/// holds more than plain data. `no_node` is fine.
void check_carried(RunRecord const& record, pickle::NodeId node, std::string_view key);

/// The bytes of a tensor of the record's document, or of a copy of it. A strided view is an Error
/// of kind source.
std::string tensor_bytes(RunRecord const& record, pickle::TensorRef const& tensor);

/// The folder of the target: iter_0000010, or release for a source without a run; `numbered`:
/// iter_0000000 for such a one.
std::filesystem::path run_folder(RunRecord const* record, bool numbered = false);
/// What the tracker says of it.
std::string run_tracker(RunRecord const* record, bool numbered = false);

}  // namespace reshard
