#include "stages/plan/averaged_weights.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/quant/cast.hpp"
#include "stages/plan/config/config_comparison.hpp"

namespace reshard {
namespace {

/// Bytes [begin, end) of a file: one box from its first element to the end of its item.
struct BoxBytes {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t tensor = 0;
  std::size_t chunk = 0;
};

/// Stored tensors by name. Files of ranks repeat names: each stands for its own part of the model,
/// in the order of the ranks.
class TensorsByName {
 public:
  explicit TensorsByName(StoredTable const& table) {
    for (std::size_t t = 0; t < table.tensors.size(); ++t)
      numbers_[table.tensors.name(t)].push_back(t);
  }

  std::optional<std::size_t> find(std::string_view name, std::size_t occurrence) const {
    auto const found = numbers_.find(name);
    if (found == numbers_.end() || occurrence >= found->second.size()) return std::nullopt;
    return found->second[occurrence];
  }

 private:
  std::unordered_map<std::string_view, std::vector<std::size_t>> numbers_;
};

/// Where the boxes of the source are in another checkpoint.
class Counterparts {
 public:
  Counterparts(Checkpoint const& source, Checkpoint const& other, std::uint32_t first_file)
      : source_(source), other_(other), first_file_(first_file), by_name_(other.stored) {
    if (source.storage != other.storage || source.names != other.names)
      fail(
          ErrorKind::source,
          "[source] average: {} is a {} checkpoint, and {} is a {} one. Convert them to one format "
          "and layout first.",
          other.folder.string(), other.format->name(), source.folder.string(),
          source.format->name());
    std::unordered_map<std::string_view, std::size_t> seen;
    for (StoredTensor const& tensor : source.stored.tensors)
      occurrence_.push_back(seen[tensor.name]++);
  }

  /// The place of the elements that lie at `stored` in the source, in the other checkpoint.
  StoredPlace of(BoxBytes const& box, StoredPlace const& stored) const {
    StoredTensor const& own = source_.stored.tensors[box.tensor];
    StoredTensor const& tensor = counterpart(box.tensor);
    if (!quant::castable(tensor.dtype, DType::f32))
      fail(
          ErrorKind::source,
          "[source] average: '{}' is {} in {} and {} in {}. Only floating weights have a mean: leave this checkpoint out.",
          std::string_view(own.name), name(own.dtype), source_.folder.string(), name(tensor.dtype),
          other_.folder.string());
    std::size_t const chunk = counterpart_box(box, own, tensor);
    std::uint64_t const elements =
        (stored.offset_bytes - box.begin) * 8 / static_cast<std::uint64_t>(bits(own.dtype));
    return {first_file_ + other_.stored.chunks[chunk].item.file,
            other_.stored.payload_offset_bytes(chunk) +
                elements * static_cast<std::uint64_t>(bits(tensor.dtype)) / 8,
            tensor.dtype, stored.shape};
  }

 private:
  StoredTensor counterpart(std::size_t t) const {
    StoredTensor const& own = source_.stored.tensors[t];
    auto const found = by_name_.find(own.name, occurrence_[t]);
    if (!found)
      fail(ErrorKind::source,
           "[source] average: {} has no '{}', which {} has. Name checkpoints of one model and one "
           "layout, or convert them to one layout first.",
           other_.folder.string(), std::string_view(own.name), source_.folder.string());
    StoredTensor tensor = other_.stored.tensors[*found];
    auto const shape = [](StoredTensor const& one) {
      return std::vector<Index>(one.shape.begin(), one.shape.end());
    };
    if (shape(tensor) != shape(own))
      fail(ErrorKind::source,
           "[source] average: '{}' has the shape {} in {} and {} in {}. Name checkpoints of one "
           "model and one layout, or convert them to one layout first.",
           std::string_view(own.name), shape_text(shape(own)), source_.folder.string(),
           shape_text(shape(tensor)), other_.folder.string());
    return tensor;
  }

  /// The chunk of a tensor with the same box and strides.
  std::size_t counterpart_box(BoxBytes const& box, StoredTensor const& own,
                              StoredTensor const& tensor) const {
    StoredTable const& from = source_.stored;
    StoredTable const& to = other_.stored;
    StoredChunk const wanted = from.chunks[box.chunk];
    auto const strides = [](StoredTable const& table, std::size_t chunk) {
      auto const found = table.strides.find(chunk);
      return found == table.strides.end() ? std::vector<Index>() : found->second;
    };
    auto const fits = [&](std::size_t chunk) {
      StoredChunk const held = to.chunks[chunk];
      return std::ranges::equal(to.offsets(held), from.offsets(wanted)) &&
             std::ranges::equal(to.sizes(held), from.sizes(wanted)) &&
             strides(to, chunk) == strides(from, box.chunk);
    };
    std::size_t const same = tensor.first_chunk + (box.chunk - own.first_chunk);
    if (same < tensor.first_chunk + tensor.chunk_count && fits(same)) return same;
    for (std::size_t chunk = tensor.first_chunk; chunk < tensor.first_chunk + tensor.chunk_count;
         ++chunk)
      if (fits(chunk)) return chunk;
    fail(ErrorKind::source,
         "[source] average: '{}' lies in other boxes in {} than in {}. Convert both to one layout "
         "first.",
         std::string_view(own.name), other_.folder.string(), source_.folder.string());
  }

  Checkpoint const& source_;
  Checkpoint const& other_;
  std::uint32_t first_file_;
  TensorsByName by_name_;
  std::vector<std::size_t> occurrence_;
};

/// Codes of quantised weights are integers that have no mean; other integers are few.
bool is_code(DType dtype, Index elements) {
  switch (dtype) {
    case DType::i64:
    case DType::boolean: return false;
    case DType::u8:
    case DType::i8:
    case DType::i32: return elements > 4096;
    default: return true;
  }
}

/// Weights that the source lacks would be lost.
void check_same_weights(Checkpoint const& source, Checkpoint const& other) {
  TensorsByName const held(source.stored);
  for (StoredTensor const& tensor : other.stored.tensors)
    if (!is_optimizer_key(tensor.name.text()) && !held.find(tensor.name, 0))
      fail(ErrorKind::source,
           "[source] average: {} has '{}', which {} lacks. Name checkpoints of one model and one "
           "layout, or convert them to one layout first.",
           other.folder.string(), std::string_view(tensor.name), source.folder.string());
}

void check_same_model(Checkpoint const& source, Checkpoint const& other, PlanRequest const& request,
                      std::vector<std::string>& warnings) {
  ModelDescription const own = describe_model(source, {}, request.read.library);
  ModelDescription const its = describe_model(other, {}, request.read.library);
  ConfigComparison const found = compare_configs(own, its, request.read.library);
  if (!found.not_compared.empty() && own.config != its.config)
    warnings.push_back(fmt::format(
        "[source] average: the configs of {} and {} differ, and whether this changes the model was "
        "not checked: {} That of the source is used",
        source.folder.string(), other.folder.string(), found.not_compared));
  if (found.differences.empty()) return;
  ConfigDifference const& first = found.differences.front();
  auto const shown = [](std::string const& value) { return value.empty() ? "missing" : value; };
  fail(ErrorKind::source,
       "[source] average: {} and {} are other models: {} is {} and {}. Name checkpoints of one "
       "model.",
       source.folder.string(), other.folder.string(), first.key, shown(first.a), shown(first.b));
}

class Averager {
 public:
  Averager(Checkpoint const& source, Model const& model, Catalog& catalog)
      : source_(source), model_(model), catalog_(catalog) {
    auto first = narrow<std::uint32_t>(source.own_files());
    for (auto const& other : source.others.averaged) {
      others_.emplace_back(source, *other, first);
      first += narrow<std::uint32_t>(other->files.size());
    }
    StoredTable const& table = source.stored;
    for (std::size_t t = 0; t < table.tensors.size(); ++t) {
      StoredTensor const tensor = table.tensors[t];
      for (std::size_t c = 0; c < tensor.chunk_count; ++c) {
        std::size_t const chunk = tensor.first_chunk + c;
        ItemPlace const item = table.chunks[chunk].item;
        boxes_.push_back({item.file, table.payload_offset_bytes(chunk),
                          item.offset_bytes + item.size_bytes, t, chunk});
      }
    }
    std::ranges::sort(boxes_, {},
                      [](BoxBytes const& box) { return std::pair(box.file, box.begin); });
  }

  void run(std::vector<std::string>& warnings) {
    std::map<std::uint32_t, Index> lengths;
    for (std::size_t t = 0; t < catalog_.tensors.size(); ++t) {
      TensorPieces const& pieces = catalog_.tensors[t];
      if (pieces.size() == 0 || model_.volume(model_.tensors()[t]) == 0) continue;
      LogicalTensor const& tensor = model_.tensors()[t];
      if (tensor.slot != SlotId::weight || is_optimizer_key(tensor.name))
        fail(ErrorKind::source,
             "{}: holds optimizer state, which has no mean. Set source.optimizer = \"drop\".",
             source_.place);
      for (std::size_t i = 0; i < pieces.size(); ++i)
        lengths[pieces.blob(i)] = std::max(lengths[pieces.blob(i)], pieces.reach_of(i));
    }
    std::map<std::uint32_t, std::uint32_t> means;
    std::vector<std::string> kept;
    for (auto const& [blob, elements] : lengths)
      if (auto const mean = mean_of(catalog_.blobs[blob], elements))
        means.emplace(blob, *mean);
      else
        kept.emplace_back(std::string_view(catalog_.blobs[blob].name));
    for (TensorPieces& pieces : catalog_.tensors)
      for (std::size_t i = 0; i < pieces.size(); ++i)
        if (auto const mean = means.find(pieces.blob(i)); mean != means.end())
          pieces.set_blob(i, mean->second);
    if (!kept.empty())
      warnings.push_back(fmt::format("{} of integers {} the source's, not a mean: {}",
                                     counted(kept.size(), "tensor"),
                                     agreeing(kept.size(), "is", "are"), listed(kept, 3)));
  }

 private:
  /// The number of the blob with the mean; nullopt where the values are not floating.
  std::optional<std::uint32_t> mean_of(Blob const& blob, Index elements) {
    SourceView view;
    if (blob.file >= catalog_.real_files()) {
      view = catalog_.views[blob.file - catalog_.real_files()];
      RESHARD_EXPECT(view.kind != ViewKind::dequantise && view.kind != ViewKind::merge);
    } else {
      view.name = blob.name;
      view.stored = {blob.file, blob.offset_bytes, blob.dtype, {elements}};
      view.dtype = blob.dtype;
      view.shape = {elements};
    }
    if (view.stored.dtype == DType::f64)
      fail(ErrorKind::source,
           "[source] average: '{}' is F64, and means are made of F32, BF16 and F16. Convert each "
           "checkpoint with target.dtype = \"f32\" first.",
           view.name);
    if (!quant::castable(view.stored.dtype, view.dtype)) {
      if (is_code(view.stored.dtype, elements))
        fail(ErrorKind::source,
             "[source] average: '{}' is {}, the codes of a quantised weight have no mean. "
             "Set model.quant = \"dequantise-bf16\" in a job for each checkpoint first.",
             view.name, name(view.stored.dtype));
      return std::nullopt;
    }
    view.kind = ViewKind::to_dtype;
    BoxBytes const& box = box_of(view.stored);
    for (Counterparts const& other : others_) view.averaged.push_back(other.of(box, view.stored));
    DType const dtype = view.dtype;
    SharedText const named = blob.name;
    catalog_.blobs.add({catalog_.add_view(std::move(view)), 0, dtype, named});
    return narrow<std::uint32_t>(catalog_.blobs.size() - 1);
  }

  BoxBytes const& box_of(StoredPlace const& stored) const {
    auto const after = std::ranges::upper_bound(
        boxes_, std::pair(stored.file, stored.offset_bytes), {},
        [](BoxBytes const& box) { return std::pair(box.file, box.begin); });
    std::uint64_t const bytes = static_cast<std::uint64_t>(stored.shape.front()) *
                                static_cast<std::uint64_t>(bits(stored.dtype)) / 8;
    if (after != boxes_.begin())
      if (BoxBytes const& box = *std::prev(after);
          box.file == stored.file && stored.offset_bytes + bytes <= box.end)
        return box;
    fail(ErrorKind::source,
         "[source] average: {}: weights that lie in buffers of an optimizer have no mean here. "
         "Convert each checkpoint to a Hugging Face folder first.",
         source_.place);
  }

  Checkpoint const& source_;
  Model const& model_;
  Catalog& catalog_;
  std::vector<Counterparts> others_;
  std::vector<BoxBytes> boxes_;
};

/// Of each averaged checkpoint its path, format and iteration.
Json average_record(Checkpoint const& source) {
  Json list = Json::array();
  for (auto const& other : source.others.averaged) {
    Json one;
    one.set("path", other->root.string()).set("format", other->format->name());
    if (other->run.iteration) one.set("iteration", *other->run.iteration);
    list.push(std::move(one));
  }
  return list;
}

}  // namespace

void average_weights(Checkpoint const& source, PlanRequest const& request, JobPlan& job) {
  if (source.others.averaged.empty()) return;
  if (format_of(request.target.format).target().needs_masters)
    fail(ErrorKind::usage,
         "[source] average: {} needs master weights beside the mean, which are not made. Write the "
         "mean as huggingface, and convert that.",
         format_of(request.target.format).name());
  for (auto const& other : source.others.averaged) {
    check_same_weights(source, *other);
    check_same_model(source, *other, request, job.warnings);
  }
  Averager(source, *job.model, job.source).run(job.warnings);
  job.made_with.set("average", average_record(source));
}

}  // namespace reshard
