#include "stages/plan/identity_plan.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "core/base/text.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "core/formats/model_files.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/source/source_names.hpp"
#include "stages/plan/target/dist_files.hpp"
#include "stages/plan/target/object_gate.hpp"
#include "stages/plan/target/target_dcp.hpp"
#include "stages/plan/target/target_hdf5.hpp"
#include "stages/plan/target/target_side.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Without a grid of its own a target's files are about so large.
constexpr std::uint64_t usual_file_bytes = std::uint64_t{4} << 30;

/// A box of a source tensor and its bytes.
struct SourceBox {
  TensorBox box;
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::vector<Index> strides;  ///< in elements; empty: row-major of the box
};

struct SourceTensor {
  std::string key;  ///< without the prefix
  DType dtype = DType::u8;
  std::vector<Index> shape;
  std::vector<SourceBox> boxes;
};

std::vector<Index> row_major(TensorBox const& box) {
  std::vector<Index> strides(box.begin.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<Index>(box.end[d] - box.begin[d], 1);
  return strides;
}

Piece piece_of(Model const& model, int tensor, TensorBox const& box,
               std::vector<Index> const& strides) {
  Piece piece{tensor, {}, {}, 0};
  auto const& axes = model.tensors()[static_cast<std::size_t>(tensor)].axes;
  for (std::size_t d = 0; d < axes.size(); ++d)
    piece.digits.push_back({axes[d].axis, model.axes()[axes[d].axis].size, 1, box.begin[d],
                            box.end[d] - box.begin[d], strides[d]});
  return piece;
}

bool looks_like_optimizer(std::string_view key) {
  return key.starts_with("optim") || key.find(".optim") != std::string_view::npos ||
         key.find("exp_avg") != std::string_view::npos;
}

class IdentityPlanner {
 public:
  IdentityPlanner(Checkpoint const& source, TargetRequest const& request)
      : source_(source), request_(request) {
    job_.warnings = source.warnings;
    job_.stored_names = true;
    read_source();
    if (!unread_.empty())
      job_.warnings.push_back(unread_note(unread_, request.source_prefix) + ": they are left out");
  }

  JobPlan run(PlanLimits const& limits) {
    check_keys();
    for (std::string& text : config_warnings(source_, Json(), request_))
      job_.warnings.push_back(std::move(text));
    if (request_.drop_optimizer) drop_optimizer();
    if (to_huggingface()) drop_what_safetensors_cannot_hold();
    check_anything_left();
    check_objects();
    make_source();
    std::vector<OpaqueCopy> opaque;
    if (to_huggingface()) plan_safetensors();
    if (!to_huggingface()) opaque = request_.format == FormatId::hdf5 ? plan_hdf5() : plan_dcp();
    job_.plan = make_plan(*job_.model, job_.source, job_.target, limits, opaque);
    job_.opaque = std::move(opaque);
    return std::move(job_);
  }

  JobPlan run_source() {
    make_source();
    return std::move(job_);
  }

 private:
  bool in_chunks() const { return source_.storage == Storage::chunks; }
  bool to_huggingface() const { return request_.format == FormatId::huggingface; }

  void read_source() {
    StoredTable const& stored = source_.stored;
    for (StoredTensor const& one : stored.tensors) {
      if (!one.name.starts_with(request_.source_prefix)) {
        unread_.push_back(one.name);
        continue;
      }
      SourceTensor tensor{
          one.name.substr(request_.source_prefix.size()), one.dtype, one.shape, {}};
      for (std::size_t c = one.first_chunk; c < one.first_chunk + one.chunk_count; ++c) {
        StoredChunk const& chunk = stored.chunks[c];
        TensorBox box{{stored.offsets(chunk).begin(), stored.offsets(chunk).end()}, {}};
        for (std::size_t d = 0; d < box.begin.size(); ++d)
          box.end.push_back(box.begin[d] + stored.sizes(chunk)[d]);
        auto const strides = stored.strides.find(c);
        tensor.boxes.push_back(
            {std::move(box), chunk.item.file, stored.payload_offset_bytes[c],
             strides == stored.strides.end() ? std::vector<Index>() : strides->second});
      }
      tensors_.push_back(std::move(tensor));
    }
    for (StoredObject const& object : stored.objects)
      if (object.name.starts_with(request_.source_prefix)) objects_.push_back(&object);
    if (source_.paths) sort_as_nested(*source_.paths);
  }

  /// The order of the nested state dict, which does not depend on how many ranks saved it.
  void sort_as_nested(std::vector<std::pair<std::string, dcp::Path>> const& planner_data) {
    std::unordered_map<std::string_view, std::size_t> places;
    for (auto const& [key, path] : planner_data) places.emplace(key, places.size());
    auto const place = [&](std::string const& key) {
      auto const found = places.find(key);
      return found == places.end() ? places.size() : found->second;
    };
    std::stable_sort(
        tensors_.begin(), tensors_.end(), [&](SourceTensor const& a, SourceTensor const& b) {
          return place(request_.source_prefix + a.key) < place(request_.source_prefix + b.key);
        });
    std::stable_sort(objects_.begin(), objects_.end(),
                     [&](StoredObject const* a, StoredObject const* b) {
                       return place(a->name) < place(b->name);
                     });
  }

  std::vector<OpaqueCopy> plan_hdf5() {
    Hdf5Target target;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      target.specs.push_back(
          {request_.target_prefix + tensors_[t].key, tensors_[t].dtype, tensors_[t].shape});
      target.tensors.push_back(static_cast<int>(t));
    }
    target.attributes = {{std::string(hdf5::map_key), ""},
                         {std::string(hdf5::names_key), std::string(hdf5::stored_names)},
                         {std::string(hdf5::software_version_key), request_.tool_version}};
    target.part_bytes = request_.shard_bytes;
    auto const files = files_of(source_);
    // Where the source is one container, so is the target. Of a DCP folder the config lies beside
    // the file: its names may be no family's.
    bool const inside = !source_.config.is_null() && source_.names == NameOwner::family;
    if (inside && files && !files->config_text.empty())
      target.objects.push_back({std::string(huggingface::config_name), files->config_text, {}});
    for (StoredObject const* object : objects_)
      target.objects.push_back({renamed(object->name), {}, object->item});
    if (files) add_sidecars(job_, {files, {}});
    return plan_hdf5_target(job_, std::move(target));
  }

  /// A prefix that ends inside a word leaves names that nobody meant; keys that describe a model
  /// describe nothing here.
  void check_keys() const {
    for (SourceTensor const& tensor : tensors_)
      if (!request_.source_prefix.empty() && (tensor.key.empty() || tensor.key.front() == '.'))
        fail(ErrorKind::usage,
             "[source] prefix = \"{}\": '{}{}' would become '{}'. End the prefix behind the dot.",
             request_.source_prefix, request_.source_prefix, tensor.key, tensor.key);
    if (request_.source_etp != 1)
      fail(
          ErrorKind::usage,
          "[source] etp = {}: names are kept in this job, so nothing is taken apart. Remove the key.",
          request_.source_etp);
    if (request_.dequantise)
      fail(
          ErrorKind::usage,
          "[model] quant = \"dequantise-bf16\": names are kept in this job, so nothing says which tensors are scales. Remove the key, or choose a "
          "source and a target that a map describes.");
    if (!request_.source_config.empty())
      fail(
          ErrorKind::usage,
          "[source] config = \"{}\": names are kept in this job, so no model is described. Remove the key, or name a map.",
          request_.source_config.string());
  }

  void drop_optimizer() {
    std::size_t const before = tensors_.size() + objects_.size();
    std::erase_if(tensors_,
                  [](SourceTensor const& tensor) { return looks_like_optimizer(tensor.key); });
    std::erase_if(objects_, [](StoredObject const* object) {
      return looks_like_optimizer(object->name);
    });
    std::size_t const dropped = before - tensors_.size() - objects_.size();
    if (dropped > 0)
      job_.warnings.push_back(fmt::format(
          "{} keys of optimizer state are dropped (source.optimizer = \"drop\")", dropped));
  }

  void drop_what_safetensors_cannot_hold() {
    std::vector<std::string> states;
    for (SourceTensor const& tensor : tensors_)
      if (looks_like_optimizer(tensor.key)) states.push_back(tensor.key);
    if (!states.empty())
      fail(
          ErrorKind::source,
          "{}: holds optimizer state ({}), which has no place in a Hugging Face folder. Set source.prefix to the keys of the weights, such as "
          "\"model.\", or source.optimizer = \"drop\".",
          origin(), listed(states, 3));
    std::vector<std::string> objects;
    for (StoredObject const* object : objects_) objects.push_back(object->name);
    if (!objects.empty())
      job_.warnings.push_back("dropped, because safetensors files hold tensors alone: " +
                              listed(objects, 6));
    objects_.clear();
  }

  void check_anything_left() const {
    if (!tensors_.empty() || !objects_.empty()) return;
    fail(ErrorKind::usage,
         "[source] prefix = \"{}\": {} has no such key. Look at the keys with reshard ls.",
         request_.source_prefix, origin());
  }

  std::string origin() const { return source_.folder.string(); }

  void make_source() {
    std::vector<PlainTensor> plain;
    for (SourceTensor const& tensor : tensors_) plain.push_back({tensor.key, tensor.shape});
    job_.model = std::make_unique<Model>(plain, origin());
    for (fs::path const& file : source_.files) job_.source.files.push_back(file.string());
    job_.source.tensors.resize(tensors_.size());
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      for (SourceBox const& box : tensors_[t].boxes)
        job_.source.add({box.file, box.offset_bytes, tensors_[t].dtype, tensors_[t].key},
                        {piece_of(*job_.model, static_cast<int>(t), box.box,
                                  box.strides.empty() ? row_major(box.box) : box.strides)},
                        false);
  }

  /// The source's own files, or those of target.reference, which say the same.
  std::optional<huggingface::Folder> reference() {
    std::optional<huggingface::Folder> own = files_of(source_);
    if (request_.reference.empty()) return own;
    huggingface::Folder given = huggingface::open_reference(request_.reference);
    for (std::string& text :
         reference_warnings({own ? own->config : Json(), Json()}, given, request_))
      job_.warnings.push_back(std::move(text));
    return given;
  }

  /// Names that are not those of the config that lies beside them make no model.
  void check_names(std::vector<TensorSpec> const& specs, huggingface::Folder const& files) {
    bool const own = source_.storage == Storage::whole && source_.names == NameOwner::family &&
                     source_.folder == files.path;
    bool const as_they_were =
        own && request_.source_prefix.empty() && request_.target_prefix.empty();
    if (as_they_were) return;
    std::set<std::string, std::less<>> names;
    for (TensorSpec const& spec : specs) names.insert(spec.name);
    auto const expected = expected_names(files.config, names, request_.map_folders);
    if (!expected || expected->lacking.empty()) return;
    std::string text = origin() + ": " + lacking_sentence(*expected, names, config_name_of(files));
    if (!expected->most_lack() || request_.map == "none")
      return job_.warnings.push_back(std::move(text));
    fail(
        ErrorKind::source,
        "{}. Convert the checkpoint that these were made from, cut a prefix off with source.prefix, name a map with the source's names, or set "
        "model.map = \"none\" to write them as they are.",
        text);
  }

  void plan_safetensors() {
    std::vector<TensorSpec> specs;
    for (SourceTensor const& tensor : tensors_)
      specs.push_back({request_.target_prefix + tensor.key, tensor.dtype, tensor.shape});
    HuggingFaceTarget target;
    target.reference = reference();
    if (target.reference) check_names(specs, *target.reference);
    if (!target.reference)
      job_.warnings.push_back(
          "the target gets no config.json, because the source has none: transformers cannot load it without one. Give target.reference, the folder "
          "of the model's config and tokenizer");
    place_in_shards(job_, specs, request_.shard_bytes, target, [this](std::size_t t) {
      TensorBox const whole{std::vector<Index>(tensors_[t].shape.size(), 0), tensors_[t].shape};
      return std::vector<Piece>{
          piece_of(*job_.model, static_cast<int>(t), whole, row_major(whole))};
    });
  }

  /// The boxes of every tensor in the target, with the number of their file.
  std::vector<std::vector<TargetBox>> target_boxes() const {
    bool const as_source = request_.grid.kind == ChunkGrid::Kind::source && source_.item_files;
    ChunkGrid grid = request_.grid;
    if (grid.kind == ChunkGrid::Kind::source) grid.kind = ChunkGrid::Kind::whole;
    std::vector<std::vector<TargetBox>> all;
    std::size_t most = 1;
    for (SourceTensor const& tensor : tensors_) {
      all.emplace_back();
      if (as_source)
        for (SourceBox const& box : tensor.boxes) all.back().push_back({box.box, {}, box.file});
      else
        for (TensorBox& box : grid_boxes(grid, request_.target_prefix + tensor.key, tensor.shape))
          all.back().push_back({std::move(box), {}, 0});
      most = std::max(most, all.back().size());
    }
    if (as_source) return all;
    if (grid.kind == ChunkGrid::Kind::whole)
      fill_files(all);
    else
      spread_over_files(
          all, grid.kind == ChunkGrid::Kind::ranks ? static_cast<std::size_t>(grid.ranks) : most);
    return all;
  }

  /// Box i of n goes to file i * files / n, as the ranks that will load them come.
  static void spread_over_files(std::vector<std::vector<TargetBox>>& all, std::size_t files) {
    for (auto& boxes : all)
      for (std::size_t i = 0; i < boxes.size(); ++i)
        boxes[i].file = narrow<std::uint32_t>(i * std::max(files, boxes.size()) / boxes.size());
  }

  void fill_files(std::vector<std::vector<TargetBox>>& all) const {
    std::uint64_t bytes = 0;
    for (std::size_t t = 0; t < all.size(); ++t) {
      for (TargetBox& box : all[t]) box.file = narrow<std::uint32_t>(bytes / usual_file_bytes);
      bytes +=
          static_cast<std::uint64_t>(std::accumulate(
              tensors_[t].shape.begin(), tensors_[t].shape.end(), Index{1}, std::multiplies<>())) *
          static_cast<std::uint64_t>(bits(tensors_[t].dtype)) / 8;
    }
  }

  std::vector<OpaqueCopy> plan_dcp() {
    bool const dist = request_.format == FormatId::torch_dist;
    bool const fsdp = request_.format == FormatId::fsdp_dtensor;
    auto const files = files_of(source_);
    if (files && !(in_chunks() && files->path == source_.folder))
      add_carried(job_, files);  // what lies beside the items stays there
    if (source_.names == NameOwner::logical)
      job_.warnings.push_back(
          "the keys of the target are logical names of the HDF5 container (" +
          tensors_.front().key +
          ", …), which other programs do not know: for Hugging Face or Megatron convert the container itself");
    std::optional<RunRecord> found = dist || fsdp ? source_.format->run_record(source_) : std::nullopt;
    if (found) settle_foreign_classes(*found, request_.foreign_classes, job_.warnings);
    RunRecord const* record = found ? &*found : nullptr;
    DcpTarget target(job_, dist || record != nullptr ? run_folder(record) : fs::path());
    for (StoredObject const* object : objects_)
      target.add_object(renamed(object->name),
                        request_.grid.kind == ChunkGrid::Kind::source ? object->item.file : 0,
                        object->item.file, object->item.offset_bytes, object->item.size_bytes);
    warn_of_idle_rules();
    std::vector<std::vector<TargetBox>> boxes = target_boxes();
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      for (TargetBox& box : boxes[t])
        box.pieces = {piece_of(*job_.model, static_cast<int>(t), box.box, row_major(box.box))};
      target.add_tensor(request_.target_prefix + tensors_[t].key, tensors_[t].dtype,
                        tensors_[t].shape, boxes[t], false);
    }
    std::vector<OpaqueCopy> opaque = target.finish(planner_data());
    if (dist) add_dist_files(job_, {record, {}, false, false, false, false, false}, source_);
    if (fsdp && record != nullptr) add_tracker(job_, record);
    if (in_chunks() && !dist)
      copy_side_files(record != nullptr ? run_folder(record) : fs::path());
    return opaque;
  }

  void warn_of_idle_rules() {
    if (request_.grid.kind != ChunkGrid::Kind::mesh) return;
    std::vector<std::string> keys;
    for (SourceTensor const& tensor : tensors_) keys.push_back(request_.target_prefix + tensor.key);
    for (std::string const& pattern : idle_rules(request_.grid, keys))
      job_.warnings.push_back(
          fmt::format("target.placements: the rule '{}' decides about no key", pattern));
  }

  /// What lies beside the items stays beside them.
  void copy_side_files(fs::path const& folder) {
    if (source_.has_common_file) copy_common(folder);
    for (std::string const& name : source_.side_files)
      if (name != huggingface::carried_name || !job_.reference)
        job_.side_copies.push_back({source_.folder / name, folder / name});
  }

  void copy_common(fs::path const& folder) {
    fs::path const file = source_.folder / dcp::common_name;
    RunRecord record = common_record(dcp::read_common_file(file));
    settle_foreign_classes(record, request_.foreign_classes, job_.warnings);
    check_carried(record, record.document().root, "common state");
    if (may_copy_file(record))
      job_.side_copies.push_back({file, folder / dcp::common_name});
    else
      job_.texts.push_back({folder / dcp::common_name, common_text(record), false, {}});
  }

  /// What is in the way of a load must not stand in the target; leaving it out is the job's choice.
  void check_objects() {
    ObjectGate gate(source_, request_);
    std::erase_if(objects_,
                  [&gate](StoredObject const* object) { return !gate.admits(*object); });
    gate.warn(job_.warnings);
  }

  std::string renamed(std::string const& key) const {
    return request_.target_prefix + key.substr(request_.source_prefix.size());
  }

  /// The path that a renamed key has in the nested state dict: steps that the old prefix named are
  /// cut, those of the new one are put in front.
  dcp::Path renamed_path(dcp::Path const& old) const {
    dcp::Path path;
    std::string_view cut = request_.source_prefix;
    std::size_t first = 0;
    for (; first < old.size() && !cut.empty(); ++first) {
      auto const* word = std::get_if<std::string>(&old[first]);
      std::string const step =
          (word != nullptr ? *word : std::to_string(std::get<std::int64_t>(old[first]))) + ".";
      if (!cut.starts_with(step)) break;
      cut.remove_prefix(step.size());
    }
    std::string_view add = request_.target_prefix;
    for (std::size_t dot = add.find('.'); dot != std::string_view::npos; dot = add.find('.')) {
      path.emplace_back(std::string(add.substr(0, dot)));
      add.remove_prefix(dot + 1);
    }
    if (!cut.empty() || first == old.size() || !std::holds_alternative<std::string>(old[first]))
      return {};
    std::size_t const joined = path.size();
    path.insert(path.end(), old.begin() + static_cast<std::ptrdiff_t>(first), old.end());
    path[joined] = std::string(add) +
                   std::get<std::string>(
                       path[joined]);  // what of the prefix has no dot belongs to the first name
    return path;
  }

  std::optional<std::vector<std::pair<std::string, dcp::Path>>> planner_data() const {
    if (request_.format == FormatId::torch_dist) return std::nullopt;
    std::map<std::string_view, dcp::Path const*> known;
    if (source_.paths)
      for (auto const& [key, path] : *source_.paths) known.emplace(key, &path);
    std::vector<std::pair<std::string, dcp::Path>> result;
    auto const add = [&](std::string const& old_key) {
      std::string const key = renamed(old_key);
      auto const found = known.find(old_key);
      dcp::Path path = renamed_path(found == known.end() ? dcp::Path{old_key} : *found->second);
      if (path.empty()) path = {key};
      result.emplace_back(key, std::move(path));
    };
    std::set<std::string> kept;
    for (StoredObject const* object : objects_) kept.insert(object->name);
    for (SourceTensor const& tensor : tensors_) kept.insert(request_.source_prefix + tensor.key);
    if (source_.paths)  // in its order: nested dicts are built in it
      for (auto const& [key, path] : *source_.paths)
        if (kept.erase(key) > 0) add(key);
    for (std::string const& key : kept) add(key);
    return result;
  }

  Checkpoint const& source_;
  TargetRequest const& request_;
  JobPlan job_;
  std::vector<std::string> unread_;  ///< what source.prefix leaves out
  std::vector<SourceTensor> tensors_;
  std::vector<StoredObject const*> objects_;
};

/// Whether the target's names are those that the source has: Megatron's own of one format.
bool has_own_names(Checkpoint const& source, TargetRequest const& request) {
  return source.format->id() == request.format && source.names == NameOwner::megatron;
}

void check_formats(Checkpoint const& source, TargetRequest const& request) {
  bool const named = request.map == "none";
  if (source.storage == Storage::shares)
    fail(
        ErrorKind::usage,
        "[model] map = \"none\": the files of a Megatron source hold parts that only a map can put together. Set map to \"auto\".");
  if (!has_layout(request.format)) return;
  if (has_own_names(source, request) && !source.flattened) return;
  fail(
      ErrorKind::usage,
      "[model] map = \"{}\": the target's format has names of its own, which only a map can give. Name the model's map{}.",
      request.map, named ? "" : ", and its config.json with source.config");
}

}  // namespace

bool keeps_names(Checkpoint const& source, TargetRequest const& request) {
  if (request.map == "none") return true;
  bool const plain = source.storage == Storage::chunks && source.names == NameOwner::family;
  bool const described = !request.source_config.empty() ||
                         (plain && !source.config.is_null()) ||
                         // Names that Megatron has need the config, wherever it lies.
                         (plain && has_layout(request.format) && files_of(source).has_value());
  bool const fsdp = request.format == FormatId::fsdp_dtensor && has_own_names(source, request);
  bool const to_plain = fsdp || request.format == FormatId::dcp ||
                        (plain && request.format == FormatId::huggingface);
  return request.map == "auto" && (to_plain || (plain && !described)) &&
         source.storage != Storage::shares;
}

JobPlan make_identity_plan(Checkpoint const& source, TargetRequest const& request,
                           PlanLimits const& limits) {
  check_formats(source, request);
  return IdentityPlanner(source, request).run(limits);
}

JobPlan identity_catalogue(Checkpoint const& source) {
  return IdentityPlanner(source, {}).run_source();
}

}  // namespace reshard
