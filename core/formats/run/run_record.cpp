#include "core/formats/run/run_record.hpp"

#include <algorithm>
#include <functional>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_shown = 6;

/// Removes entries of a dict or object, and remembers them in words.
class LeaveOut {
 public:
  explicit LeaveOut(pickle::Document& document)
      : document_(document), marked_(pickle::nodes_not_to_carry(document)) {}

  /// Removes entries whose values must not be carried.
  void from(pickle::NodeId dict, std::string_view of,
            std::function<bool(std::string_view)> const& may_go) {
    document_.erase(dict, [&](std::string_view key, pickle::NodeId value) {
      if (!marked_[value] || !may_go(key)) return false;
      std::string const name =
          words.size() < most_shown ? pickle::not_to_carry(document_, value).name : std::string();
      words.push_back(fmt::format("{}{} ({})", of, key, json_quoted(name)));
      return true;
    });
  }

  std::vector<std::string> words;

 private:
  pickle::Document& document_;
  std::vector<bool> marked_;
};

}  // namespace

RunRecord common_record(dcp::CommonState const& common) {
  RunRecord record;
  auto torch = std::make_shared<TorchFile>(common.torch);
  torch->document.root = common.root;
  record.torch = std::move(torch);
  record.all = true;
  record.file = common.file.string();
  return record;
}

RunRecord empty_record(std::string file, std::int64_t iteration) {
  auto torch = std::make_shared<TorchFile>();
  torch->document.root = torch->document.add_dict();
  RunRecord record;
  record.torch = std::move(torch);
  record.file = std::move(file);
  record.iteration = iteration;
  record.folder_iteration = iteration;
  return record;
}

bool may_be_carried(pickle::NotCarried const& found, ForeignClasses choice) {
  return !found || (found.foreign && choice == ForeignClasses::keep);
}

void refuse_to_carry(std::string_view place, pickle::NotCarried const& found) {
  if (found.foreign)
    fail(
        ErrorKind::source,
        "{} holds {}, which is not known to be plain data: loading the target would import and run it. Set model.foreign_classes = \"drop\" to leave "
        "such values out, or \"keep\" when you trust its package.",
        place, json_quoted(found.name));
  fail(
      ErrorKind::source,
      "{} holds {}, expected plain data; loading the target would import and run it. The value has no place in a checkpoint: "
      "set model.foreign_classes = \"drop\" to leave it out.",
      place, json_quoted(found.name));
}

void settle_foreign_classes(RunRecord& record, ForeignClasses choice,
                            std::vector<std::string>& warnings) {
  record.foreign_classes = choice;
  if (choice != ForeignClasses::drop) return;
  auto torch = std::make_shared<TorchFile>(*record.torch);
  pickle::Document& document = torch->document;
  LeaveOut leave_out(document);
  std::vector<megatron::Carried> const carried = megatron::carried_values(document);
  auto const is_carried = [&](std::string_view key) {
    return std::any_of(carried.begin(), carried.end(),
                       [&](megatron::Carried const& one) { return one.key == key; });
  };
  leave_out.from(megatron::find_args(document), "args.", [](std::string_view) { return true; });
  leave_out.from(document.root, "", [&](std::string_view key) {
    return record.all ? key != "args" && key != "optimizer" : is_carried(key);
  });
  if (leave_out.words.empty()) return;
  record.edited = true;
  record.torch = std::move(torch);
  warnings.push_back(fmt::format("{}: left out (model.foreign_classes = \"drop\"): {}", record.file,
                                 listed(leave_out.words, most_shown)));
}

bool may_copy_file(RunRecord const& record) {
  // The legacy container has further pickles next to the value's.
  return !record.edited && record.torch->container == TorchFile::Container::zip &&
         may_be_carried(pickle::not_to_copy(record.document()), record.foreign_classes);
}

void check_carried(RunRecord const& record, pickle::NodeId node, std::string_view key) {
  if (node == pickle::no_node) return;
  pickle::NotCarried const found = pickle::not_to_carry(record.document(), node);
  if (!may_be_carried(found, record.foreign_classes))
    refuse_to_carry(fmt::format("{}: '{}'", record.file, key), found);
}

std::string tensor_bytes(RunRecord const& record, pickle::TensorRef const& tensor) {
  FileTensor const from = file_tensor(*record.torch, tensor, "common state");
  if (!from.strides.empty())
    fail(ErrorKind::source,
         "{}: the common state holds a tensor that is a strided view. Save the checkpoint again.",
         record.file);
  std::string bytes(from.size_bytes, '\0');
  auto const other = record.elsewhere.find(tensor.storage.key);
  File::open_for_reading(other == record.elsewhere.end() ? fs::path(record.file) : other->second)
      .read_at(from.offset_bytes, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

namespace {

std::optional<std::int64_t> folder_iteration(RunRecord const* record, bool numbered) {
  if (record != nullptr && record->folder_iteration) return record->folder_iteration;
  return numbered ? std::optional<std::int64_t>(0) : std::nullopt;
}

}  // namespace

fs::path run_folder(RunRecord const* record, bool numbered) {
  auto const iteration = folder_iteration(record, numbered);
  if (!iteration) return fs::path(megatron::release_name);
  return fs::path(megatron::iteration_directory_name(*iteration));
}

std::string run_tracker(RunRecord const* record, bool numbered) {
  auto const iteration = folder_iteration(record, numbered);
  return iteration ? megatron::tracker_text(*iteration) : std::string(megatron::release_name);
}

}  // namespace reshard
