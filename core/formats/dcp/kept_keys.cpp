#include <algorithm>
#include <map>
#include <set>

#include "core/formats/dcp/grid_files.hpp"
#include "core/formats/dcp/item_layout.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_parts.hpp"

namespace reshard::dcp {
namespace {

namespace fs = std::filesystem;

/// A target in chunks under the source's keys.
class KeptKeys {
 public:
  KeptKeys(NamedTarget const& job, KeptKeysTarget const& target, TargetDraft& draft)
      : job_(job), target_(target), draft_(draft), grid_(grid_of(job.request.options.dcp)) {}

  void run() {
    auto const files = files_of(job_.source);
    // Files next to the items stay there.
    if (files && !(job_.source.chunked.item_files && files->path == job_.source.folder))
      add_carried(draft_, files);
    if (job_.source.names == NameOwner::logical)
      draft_.warnings.push_back(
          "the keys of the target are logical names of the HDF5 container (" +
          job_.tensors.front().key +
          ", …), which other programs do not know. For Hugging Face or Megatron, convert the "
          "container itself");
    DcpTarget target(draft_, target_.folder);
    for (StoredObject const* object : job_.objects) {
      std::uint32_t const file = grid_.kind == ChunkGrid::Kind::source ? object->item.file : 0;
      if (object->tensor)
        target.add_object(job_.renamed(object->name), *object->tensor, file, object->item);
      else
        target.add_object(job_.renamed(object->name), file, object->item);
    }
    add_made_objects(target);
    std::vector<GridTensor> const tensors = grid_tensors();
    warn_of_idle_rules(grid_, tensors, draft_.warnings);
    std::vector<std::vector<TargetBox>> boxes = target_boxes(tensors);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (TargetBox& box : boxes[t]) box.pieces = {job_.piece(t, box.box, row_major(box.box))};
      target.add_tensor(tensors[t].key, tensors[t].dtype, tensors[t].shape, boxes[t], false);
    }
    draft_.opaque = target.finish(planner_data());
    if (job_.source.storage == Storage::chunks && target_.side_files) copy_side_files();
  }

 private:
  void add_made_objects(DcpTarget& target) {
    for (auto& [name, bytes] : job_.made_objects()) {
      made_.push_back(name);
      target.add_object(job_.renamed(name), 0, std::move(bytes));
    }
  }

  std::vector<GridTensor> grid_tensors() const {
    std::vector<GridTensor> result;
    for (NamedTensor const& tensor : job_.tensors)
      result.push_back({job_.target_key(tensor.key), tensor.dtype, tensor.shape});
    return result;
  }

  /// The boxes of every tensor in the target, with the number of their file.
  std::vector<std::vector<TargetBox>> target_boxes(std::span<GridTensor const> tensors) const {
    ChunkGrid grid = grid_;
    bool const as_source = grid.kind == ChunkGrid::Kind::source && job_.source.chunked.item_files;
    if (grid.kind == ChunkGrid::Kind::source) grid.kind = ChunkGrid::Kind::whole;
    if (!as_source) return boxes_in_files(grid, tensors);
    std::vector<std::vector<TargetBox>> all;
    for (NamedTensor const& tensor : job_.tensors) {
      all.emplace_back();
      for (SourceBox const& box : boxes_of(job_.source, tensor))
        all.back().push_back({box.box, {}, box.file});
    }
    return all;
  }

  /// Copies the files next to the items.
  void copy_side_files() {
    if (job_.source.chunked.has_common_file) copy_common();
    for (std::string const& name : job_.source.chunked.side_files)
      if (name != huggingface::carried_name || !draft_.reference)
        draft_.side_copies.push_back({job_.source.folder / name, target_.folder / name});
  }

  void copy_common() {
    fs::path const file = job_.source.folder / common_name;
    RunRecord record = common_record(read_common_file(file));
    settle_foreign_classes(record, job_.request.read.foreign_classes, draft_.warnings);
    check_carried(record, record.document().root, "common state");
    if (may_copy_file(record))
      draft_.side_copies.push_back({file, target_.folder / common_name});
    else
      draft_.texts.push_back({target_.folder / common_name, copied(record), false, {}});
  }

  /// common.pt with the complete content of a record.
  static std::string copied(RunRecord const& record) {
    pickle::Document copy;
    copy.root = copy.add_copy(record.document(), record.document().root);
    std::vector<pickle::TensorRef> const tensors = copy.tensors;
    return torch_file_bytes(copy, "common", [&](std::size_t tensor) {
      return tensor_bytes(record, tensors.at(tensor));
    });
  }

  /// The path that a renamed key has in the nested state dict: the steps of the old prefix are
  /// removed, those of the new one are prepended.
  Path renamed_path(Path const& old) const {
    Path path;
    std::string_view cut = job_.request.read.prefix;
    std::size_t first = 0;
    for (; first < old.size() && !cut.empty(); ++first) {
      auto const* word = std::get_if<std::string>(&old[first]);
      std::string const step =
          (word != nullptr ? *word : std::to_string(std::get<std::int64_t>(old[first]))) + ".";
      if (!cut.starts_with(step)) break;
      cut.remove_prefix(step.size());
    }
    std::string_view add = job_.request.options.dcp.prefix;
    for (std::size_t dot = add.find('.'); dot != std::string_view::npos; dot = add.find('.')) {
      path.emplace_back(std::string(add.substr(0, dot)));
      add.remove_prefix(dot + 1);
    }
    if (!cut.empty() || first == old.size() || !std::holds_alternative<std::string>(old[first]))
      return {};
    std::size_t const joined = path.size();
    path.insert(path.end(), old.begin() + static_cast<std::ptrdiff_t>(first), old.end());
    path[joined] =
        std::string(add) + std::get<std::string>(path[joined]);  // the end of the prefix without a
                                                                 // dot belongs to the first name
    return path;
  }

  std::optional<std::vector<std::pair<std::string, Path>>> planner_data() const {
    if (!target_.nested) return std::nullopt;
    std::map<std::string_view, Path const*> known;
    if (job_.source.chunked.paths)
      for (auto const& [key, path] : *job_.source.chunked.paths) known.emplace(key, &path);
    std::vector<std::pair<std::string, Path>> result;
    auto const add = [&](std::string const& old_key) {
      std::string const key = job_.renamed(old_key);
      auto const found = known.find(old_key);
      Path path = renamed_path(found == known.end() ? Path{old_key} : *found->second);
      if (path.empty()) path = {key};
      result.emplace_back(key, std::move(path));
    };
    std::set<std::string> kept;
    for (StoredObject const* object : job_.objects) kept.insert(object->name);
    kept.insert(made_.begin(), made_.end());
    for (NamedTensor const& tensor : job_.tensors)
      kept.insert(job_.request.read.prefix + tensor.key);
    if (job_.source.chunked.paths)  // in its order: nested dicts are built in it
      for (auto const& [key, path] : *job_.source.chunked.paths)
        if (kept.erase(key) > 0) add(key);
    for (std::string const& key : kept) add(key);
    return result;
  }

  NamedTarget const& job_;
  KeptKeysTarget const& target_;
  TargetDraft& draft_;
  ChunkGrid grid_;
  std::vector<std::string> made_;  ///< names of objects that no file of the source contains
};

}  // namespace

void lay_out_kept_keys(NamedTarget const& job, KeptKeysTarget const& target, TargetDraft& draft) {
  KeptKeys(job, target, draft).run();
}

}  // namespace reshard::dcp
