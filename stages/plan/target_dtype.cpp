#include "stages/plan/target_dtype.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "core/base/files/file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/huggingface/config/config_dtype.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/quant.hpp"
#include "core/quant/cast.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/config/expected_names.hpp"

namespace reshard {
namespace {

bool is_code(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::i32:
    case DType::f4:
    case DType::f4_x2:
    case DType::f6_e2m3:
    case DType::f6_e3m2:
    case DType::f8_e5m2:
    case DType::f8_e4m3:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz: return true;
    default: return false;
  }
}

std::string_view module_of(std::string_view name) {
  std::size_t const dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// Stored names of quantised modules. What lies beside codes, except the bias, is of the codes:
/// scales, zero points, tables.
class CodedModules {
 public:
  void add(std::string_view name, DType dtype) {
    if (!is_code(dtype)) return;
    modules_.emplace(module_of(name));
    modules_.emplace(name);  // "q_proj.weight" has "q_proj.weight.absmax"
  }

  bool holds_scale(std::string_view name) const {
    constexpr std::array endings = {"k_scale",        "v_scale",          "q_scale",
                                    "input_scale",    "output_scale",     "weight_scale",
                                    "weight_scale_2", "weight_scale_inv", "pre_quant_scale"};
    std::string_view const module = module_of(name);
    std::string_view const word = name.substr(module.empty() ? 0 : module.size() + 1);
    if (std::ranges::find(endings, word) != endings.end()) return true;
    return !module.empty() && !word.ends_with("bias") && modules_.contains(module);
  }

 private:
  std::set<std::string, std::less<>> modules_;
};

/// Numbers of stored tensors that are optimizer state.
std::set<std::size_t> stored_states(Checkpoint const& source, PlanRequest const& request) {
  std::set<std::size_t> states;
  if (source.format->id() == FormatId::huggingface) return states;  // has none
  for (auto const& table : source.format->view(source, request.read.prefix).state_tables)
    for (auto const& [name, at] : table) states.insert(at);
  return states;
}

/// Whether nothing is lost: F32 has all values of BF16 and F16.
bool only_widens(DType from, DType to) { return to == DType::f32 && from != DType::f64; }

bool is_part(Model const& model, std::string_view name) {
  return std::ranges::any_of(model.schemes(), [&](QuantScheme const& scheme) {
    return std::ranges::any_of(scheme.parts, [&](QuantPart const& part) {
      return name.ends_with(part_tensor("", scheme, part));
    });
  });
}

/// The warning about floating weights that a job with target.dtype leaves as they are.
std::string kept_dtypes_note(DType wanted, std::vector<std::string> const& names) {
  return fmt::format(
      "{} {} not become {}: the model map keeps {} in F32, or {} of quantised weights ({})",
      counted(names.size(), "floating tensor"), agreeing(names.size(), "does", "do"), name(wanted),
      agreeing(names.size(), "it", "them"),
      agreeing(names.size(), "it is a part", "they are parts"), listed(names, 3));
}

/// `config` is null for none, and `place` says where it is, or where one was looked for.
std::optional<DType> asked_dtype(TargetDType asked, Json const& config, std::string const& place) {
  switch (asked) {
    case TargetDType::keep: return std::nullopt;
    case TargetDType::bf16: return DType::bf16;
    case TargetDType::f16: return DType::f16;
    case TargetDType::f32: return DType::f32;
    case TargetDType::as_config: break;
  }
  if (config.is_null())
    fail(ErrorKind::usage,
         "[target] dtype = \"as-config\": {} has no config.json. Name the dtype, or the folder of "
         "the model's config.json with target.reference or source.config.",
         place);
  if (auto const dtype = stated_dtype(config, place)) return dtype;
  fail(ErrorKind::usage,
       "[target] dtype = \"as-config\": {} states neither dtype nor torch_dtype. Name the dtype.",
       place);
}

}  // namespace

void DTypeChanges::add(DType from, DType to, std::string const& name) {
  DTypeChange& change = changes_[{from, to}];
  change.from = from;
  change.to = to;
  ++change.tensors;
  if (change.names.size() < dtype_change_names) change.names.push_back(name);
}

std::vector<DTypeChange> DTypeChanges::list() const {
  std::vector<DTypeChange> result;
  for (auto const& [dtypes, change] : changes_) result.push_back(change);
  return result;
}

std::string listed_names(DTypeChange const& change) {
  return listed(change.names) + (change.tensors > change.names.size() ? ", …" : "");
}

std::optional<DType> stated_dtype(Json const& config, std::string const& place) {
  for (std::string_view const inner : {"", "text_config."})
    for (std::string_view const key : huggingface::dtype_members) {
      Json const value = fact(config, std::string(inner) + std::string(key));
      if (value.text() == nullptr) continue;
      auto const dtype = huggingface::dtype_of_word(*value.text());
      if (!dtype || *dtype == DType::f64)
        fail(ErrorKind::source,
             "{}: {}{} = \"{}\" is none of \"bfloat16\", \"float16\" and \"float32\". Name the "
             "dtype with target.dtype.",
             place, inner, key, *value.text());
      return dtype;
    }
  return std::nullopt;
}

std::optional<DType> asked_dtype(PlanRequest const& request, Checkpoint const& source,
                                 SourceModel const& read) {
  bool const own = !read.facts.config.is_null();
  Json const config = own || !read.facts.files ? read.facts.config : read.facts.files->config;
  std::string place = source.place;
  if (own && !request.options.huggingface.reference.empty() && read.facts.reference)
    place = config_name_of(*read.facts.reference);
  else if (read.facts.files && !read.facts.files->config.is_null())
    place = config_name_of(*read.facts.files);
  auto const dtype = asked_dtype(request.target.dtype, config, place);
  if (dtype && request.read.dequantise && *dtype != DType::bf16)
    fail(
        ErrorKind::usage,
        "[target] dtype: quantised weights become BF16 in this job, which another dtype would round "
        "again. Set dtype to \"bf16\", or convert the result in a second job.");
  return dtype;
}

std::vector<bool> cast_weights(SourceModel const& read, Model const& model, Catalog const& source,
                               DType wanted, std::vector<std::optional<DType>>& dtypes) {
  CodedModules coded;
  for (Blob const& blob : source.blobs) coded.add(blob.name, blob.dtype);
  std::vector<bool> cast(dtypes.size(), false);
  for (std::size_t t = 0; t < dtypes.size(); ++t) {
    LogicalTensor const& tensor = model.tensors()[t];
    if (!dtypes[t] || tensor.slot != SlotId::weight || !quant::castable(*dtypes[t], wanted) ||
        is_part(model, tensor.name))
      continue;
    bool const stated = t < read.stored.casts.size() && read.stored.casts[t].has_value();
    if (!only_widens(*dtypes[t], wanted) &&
        (stated || read.names.maps.keeps_f32(tensor.name, wanted == DType::f16)))
      continue;
    auto const blobs = source.tensors[t].blobs();
    if (std::ranges::any_of(blobs, [&](std::uint32_t const blob) {
          return coded.holds_scale(source.blobs[blob].name);
        }))
      continue;
    dtypes[t] = wanted;
    cast[t] = std::ranges::any_of(
        blobs, [&](std::uint32_t const blob) { return source.blobs[blob].dtype != wanted; });
  }
  return cast;
}

std::vector<DTypeChange> dtype_changes(Model const& model, Catalog const& source,
                                       Catalog const& target, std::vector<bool> const& cast,
                                       std::optional<DType> asked,
                                       std::vector<std::string>& notes) {
  DTypeChanges by_map;
  DTypeChanges all;
  std::vector<std::string> kept;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    LogicalTensor const& tensor = model.tensors()[t];
    auto const from = source.tensors[t].blobs();
    auto const to = target.tensors[t].blobs();
    if (from.empty() || to.empty() || tensor.slot != SlotId::weight) continue;
    DType const before = source.blobs[from.front()].dtype;
    DType const after = target.blobs[to.front()].dtype;
    if (asked && after != *asked && quant::castable(after, *asked)) kept.push_back(tensor.name);
    if (before == after) continue;
    if (t >= cast.size() || !cast[t]) by_map.add(before, after, tensor.name);
    all.add(before, after, tensor.name);
  }
  for (DTypeChange const& change : by_map.list())
    notes.push_back(fmt::format("{} {} {} in the source and {} {} in the target, as the map states",
                                listed_names(change), agreeing(change.tensors, "is", "are"),
                                name(change.from), agreeing(change.tensors, "becomes", "become"),
                                name(change.to)));
  if (!kept.empty()) notes.push_back(kept_dtypes_note(*asked, kept));
  return all.list();
}

NamedCasts cast_named(std::vector<NamedTensor>& tensors, Checkpoint const& source,
                      PlanRequest const& request, std::optional<huggingface::Folder> const& files) {
  Json const config = files ? files->config : Json();
  NamedCasts result;
  result.dtype = asked_dtype(request.target.dtype, config,
                             config.is_null() ? source.place : config_name_of(*files));
  if (!result.dtype) return result;
  DType const wanted = *result.dtype;
  CodedModules coded;
  std::set<std::string, std::less<>> names;
  for (NamedTensor const& tensor : tensors) {
    coded.add(tensor.key, tensor.dtype);
    names.insert(tensor.key);
  }
  auto const full = full_precision_names(config, names, request.read.library, wanted == DType::f16);
  std::set<std::size_t> const states = stored_states(source, request);
  bool const with_objects = format_of(request.target.format).target().objects;
  DTypeChanges changes;
  std::vector<std::string> kept;
  for (NamedTensor& tensor : tensors) {
    bool const state = is_optimizer_key(tensor.key) || tensor.scalar ||
                       states.contains(tensor.number) ||
                       (with_objects && tensor.shape.empty());  // a number of the run, not a weight
    if (state || tensor.dtype == wanted || !quant::castable(tensor.dtype, wanted)) continue;
    if (coded.holds_scale(tensor.key) ||
        (full.contains(tensor.key) && !only_widens(tensor.dtype, wanted))) {
      kept.push_back(tensor.key);
      continue;
    }
    changes.add(tensor.dtype, wanted, tensor.key);
    tensor.stored = tensor.stored.value_or(tensor.dtype);
    tensor.dtype = wanted;
    tensor.cast = true;
  }
  result.changes = changes.list();
  if (!kept.empty()) result.warnings.push_back(kept_dtypes_note(wanted, kept));
  return result;
}

void state_dtype(DType dtype, TargetDraft& draft) {
  for (TextFile& text : draft.texts)
    if (text.path.filename() == huggingface::config_name && !text.make)
      text.text = huggingface::config_with_dtype(std::move(text.text), dtype, text.path.string());
  std::erase_if(draft.side_copies, [&](SideCopy const& copy) {
    if (copy.to.filename() != huggingface::config_name) return false;
    std::string text = read_text_file(copy.from, huggingface::largest_config_bytes);
    draft.texts.push_back(
        {copy.to,
         huggingface::config_with_dtype(std::move(text), dtype, copy.from.string()),
         false,
         {}});
    return true;
  });
}

}  // namespace reshard
