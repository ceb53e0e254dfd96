#include "stages/plan/run_record.hpp"

#include "core/formats/megatron/directory.hpp"
#include "core/formats/torch_zip/carried_calls.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Megatron-FSDP has no common state: args and counters are objects of their own.
std::optional<RunRecord> record_of_objects(SourceCheckpoint const& source) {
  RunRecord record;
  for (dcp::StoredObject const& object : source.dcp->metadata.objects) {
    if (object.name != "args") continue;
    fs::path const& file = source.files[object.item.file];
    File const opened = File::open_for_reading(file);
    auto torch = std::make_shared<TorchFile>(read_torch_file(FileRange(opened, object.item.offset_bytes, object.item.size_bytes)));
    pickle::NodeId const args = torch->document.root;
    torch->document.root = torch->document.add_dict();
    torch->document.set(torch->document.root, "args", args);
    record.torch = std::move(torch);
    record.file = file.string();
    record.folder_iteration = source.dcp->directory.iteration;
    record.iteration = record.folder_iteration.value_or(0);
    return record;
  }
  return std::nullopt;
}

std::int64_t stated_iteration(pickle::Document const& document) {
  pickle::NodeId const node = document.find(document.root, "iteration");
  return node != pickle::no_node && document.at(node).kind == pickle::Kind::integer ? document.at(node).integer : 0;
}

}  // namespace

std::optional<RunRecord> run_record(SourceCheckpoint const& source) {
  RunRecord record;
  if (source.megatron) {
    megatron::Directory const& directory = source.megatron->directory;
    fs::path const file = directory.shards.front().model_path();
    record.torch = std::make_shared<TorchFile>(read_torch_file(File::open_for_reading(file)));
    record.file = file.string();
    record.iteration = source.megatron->headers.front().iteration;
    if (!directory.release) record.folder_iteration = directory.iteration;
    return record;
  }
  if (!source.dcp || source.dcp->flavour == dcp::Flavour::plain) return std::nullopt;
  if (!source.dcp->common) return record_of_objects(source);
  auto torch = std::make_shared<TorchFile>(source.dcp->common->torch);
  torch->document.root = source.dcp->common->root;
  record.iteration = stated_iteration(torch->document);
  record.torch = std::move(torch);
  record.file = source.dcp->common->file.string();
  if (!source.dcp->directory.release) record.folder_iteration = source.dcp->directory.iteration;
  return record;
}

void check_carried(RunRecord const& record, pickle::NodeId node, std::string_view key) {
  if (node == pickle::no_node) return;
  std::string const call = pickle::call_not_to_carry(record.document(), node);
  if (call.empty()) return;
  fail(ErrorKind::source,
       "{}: '{}' holds a call of {}, expected settings; loading the target would carry it out. The file is hostile, or the value has "
       "no place in a checkpoint: remove it.",
       record.file, key, call);
}

fs::path run_folder(RunRecord const* record) {
  if (record == nullptr || !record->folder_iteration) return fs::path(megatron::release_name);
  return fs::path(megatron::iteration_directory_name(*record->folder_iteration));
}

std::string run_tracker(RunRecord const* record) {
  if (record == nullptr || !record->folder_iteration) return std::string(megatron::release_name);
  return megatron::tracker_text(*record->folder_iteration);
}

}  // namespace reshard
