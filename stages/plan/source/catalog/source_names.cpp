#include "stages/plan/source/catalog/source_names.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <unordered_set>
#include <utility>

#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"
#include "stages/plan/adapter/adapter_source.hpp"

namespace reshard {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without_digits(std::string text) {
  std::erase_if(text, is_digit);
  return text;
}

/// The last of the names that differ from this one only in a number, as late in the name as any
/// does; nullptr when there is none.
StoredName const* last_alike(std::string const& text, std::vector<StoredName> const& names) {
  StoredName const* best = nullptr;
  std::ptrdiff_t longest = 0;
  for (StoredName const& name : names) {
    auto const shared =
        std::mismatch(text.begin(), text.end(), name.name.begin(), name.name.end()).first -
        text.begin();
    if (shared < longest || without_digits(name.name) != without_digits(text)) continue;
    longest = shared;
    best = &name;
  }
  return best;
}

/// The numbers in a name, in its order.
std::vector<std::uint64_t> numbers_in(std::string_view name) {
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_digit(name[i])) continue;
    if (i == 0 || !is_digit(name[i - 1])) numbers.push_back(0);
    numbers.back() = numbers.back() * 10 + static_cast<std::uint64_t>(name[i] - '0');
  }
  return numbers;
}

/// Whether a number of `text` is larger than that of every name which differs from it in numbers
/// only.
bool is_beyond(std::string const& text, std::vector<StoredName> const& names) {
  std::vector<std::uint64_t> const own = numbers_in(text);
  std::string const words = without_digits(text);
  std::vector<std::uint64_t> largest(own.size(), 0);
  for (StoredName const& name : names) {
    if (without_digits(name.name) != words) continue;
    std::vector<std::uint64_t> const numbers = numbers_in(name.name);
    for (std::size_t i = 0; i < std::min(own.size(), numbers.size()); ++i)
      largest[i] = std::max(largest[i], numbers[i]);
  }
  return !std::ranges::equal(own, largest, std::less_equal<>());
}

constexpr char const* merge_adapters =
    "Merge the adapter into its base model first (peft: merge_and_unload() and save_pretrained(); Megatron-Bridge: its script that merges LoRA), and "
    "convert the result.";

/// The map whose `drop` counts, and how a copy of it is used.
std::string droppable(std::string const& map_names) {
  constexpr std::string_view both = " and ";
  auto const last = map_names.rfind(both);
  std::string const map =
      last == std::string::npos ? map_names : map_names.substr(last + both.size());
  return map == "mcore.toml" ? map + " (in a copy of the map folder, RESHARD_MAPS)"
                             : map + ", and name the copy with model.map";
}

}  // namespace

std::string weight_beside(std::string const& tensor, std::vector<StoredName> const& names) {
  if (last_alike(tensor, names) != nullptr || is_adapter(tensor)) return "";
  for (StoredName const& known : names) {
    std::string_view const name = known.name;
    std::size_t const end = name.rfind('.') + 1;
    bool const weight = name.substr(end).starts_with("weight");
    if (weight && tensor.starts_with(name.substr(0, end))) return known.name;
    if (tensor.starts_with(known.name + "_")) return known.name;
  }
  return "";
}

std::string unread_note(std::vector<std::string> const& names, std::string const& prefix) {
  return fmt::format("{} stored tensor{} ({}) do{} not begin with '{}' (source.prefix)",
                     names.size(), names.size() == 1 ? "" : "s", listed(names, 4),
                     names.size() == 1 ? "es" : "", prefix);
}

void note_found(Model const& model, Side const& side, std::vector<StoredName> const& names,
                std::function<bool(std::string const&)> const& stored, std::vector<bool>& found) {
  found.resize(model.tensors().size(), false);
  for (StoredName const& name : names) {
    bool const there =
        stored(name.name) || std::any_of(name.aliases.begin(), name.aliases.end(), stored);
    if (there && !name.copy)
      for (TensorId const tensor : side.tensors(name.entry))
        found[static_cast<std::size_t>(tensor)] = true;
  }
}

bool settle_optional(Model& model, Side const& side, std::vector<bool> const& found) {
  auto const take_away = [&](std::vector<TensorId> const& tensors) {
    std::vector<TensorId> taken;
    for (TensorId const tensor : tensors)
      if (model.exists(tensor) && !found[static_cast<std::size_t>(tensor)]) {
        model.set_exists(tensor, false);
        taken.push_back(tensor);
      }
    return taken;
  };
  bool lacks_more = !take_away(side.optional_tensors()).empty();
  std::vector<TensorId> const taken = take_away(side.conditional_tensors());
  std::vector<TensorId> const may_lack = side.conditional_tensors_that_may_lack();
  for (TensorId const tensor : taken)
    if (std::ranges::find(may_lack, tensor) == may_lack.end())
      model.set_exists(tensor, true);
    else
      lacks_more = true;
  return lacks_more;
}

void fail_unexplained(std::string const& file, std::string const& tensor,
                      std::vector<StoredName> const& names, Model const& model,
                      std::string const& map_names, std::string const& method) {
  StoredName const* const last = last_alike(tensor, names);
  if (last != nullptr && is_beyond(tensor, names))
    fail(ErrorKind::source,
         "{}: '{}' is beyond the sizes of {}: the last such name is '{}'. {} counts fewer than the "
         "weights, or is of another model: correct it.",
         file, tensor, model.origin(), last->name, model.origin());
  if (last != nullptr)
    fail(
        ErrorKind::source,
        "{}: '{}' has no place in the model of {}, which has '{}'. Store what it belongs to (the codes of "
        "a scale), or give the config of this model.",
        file, tensor, model.origin(), last->name);
  std::vector<std::string> known;
  for (StoredName const& name : names) known.push_back(name.name);
  if (is_adapter(tensor))
    fail(
        ErrorKind::source,
        "{}: '{}' matches no entry of {} for this model: it is part of an adapter (LoRA). {} To leave adapters out, add their names to `drop` in a copy of {}.",
        file, tensor, map_names, merge_adapters, droppable(map_names));
  if (std::string const weight = weight_beside(tensor, names); !weight.empty() && !method.empty())
    fail(
        ErrorKind::source,
        "{}: '{}' stands beside the weight '{}', and matches no entry of {} for this model. By config.json the "
        "model is quantised by {}, and no map describes this form. model.map = \"none\" keeps the "
        "stored tensors as they are, in a Hugging Face folder, DCP or HDF5; or take the model as "
        "it was before.",
        file, tensor, weight, map_names, method);
  std::string const near = nearest(tensor, known);
  fail(
      ErrorKind::source,
      "{}: '{}' matches no entry of {} for this model{}. Name another map with model.map, or leave the tensor out: add its name to `drop` in a copy of {}.",
      file, tensor, map_names, near.empty() ? "" : "; the nearest name is '" + near + "'",
      droppable(map_names));
}

bool is_of_codes(DType dtype) {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::f4_x2;
}

void check_stored(std::string const& file, std::string const& tensor, DType dtype,
                  std::vector<Index> const& shape, std::vector<Index> const& expected,
                  Side const& side, std::uint32_t entry, Model const& model,
                  std::function<std::string()> const& other_form) {
  if (shape != expected) {
    std::string const form = other_form();
    fail(ErrorKind::source, "{}: '{}' is {} {}, {} requires {} with the sizes of {}. {}.", file,
         tensor, name(dtype), shape_text(shape), side.entry_place(entry), shape_text(expected),
         model.origin(),
         !form.empty()
             ? form
             : fmt::format("Either {} is of another model, or the map does not describe this one: "
                           "compare them, and name the right one (source.config, model.map)",
                           model.origin()));
  }
  if (!is_of_codes(dtype) || shape.size() < 2 || !side.part(entry).empty() || side.as_it_is(entry))
    return;
  std::string const form = other_form();
  fail(ErrorKind::source,
       "{}: '{}' is {}, and no scale in a form that a map describes is stored with it: without one "
       "its values are lost. {}.",
       file, tensor, name(dtype),
       !form.empty() ? form
                     : "The folder is incomplete, or the scale has a name of its own: compare the "
                       "names with those of the original (reshard ls)");
}

void each_stored(Checkpoint const& source, StoredView const& view,
                 std::function<void(std::string const&, std::vector<Index> const&)> const& visit) {
  auto const& tensors = source.stored.tensors;
  if (source.storage != Storage::shares) {
    for (auto const& [name, at] : view.weights) visit(name, tensors.shape(at));
    return;
  }
  // Equal names and shapes are the same objects: the files of 8,192 ranks have a few hundred.
  using Known = std::pair<std::string const*, std::vector<Index> const*>;
  auto const hash = [](Known const& known) {
    return std::hash<void const*>()(known.first) * 31 + std::hash<void const*>()(known.second);
  };
  std::unordered_set<Known, decltype(hash)> seen(0, hash);
  for (TensorRun const& run : source.different_tensors(Checkpoint::Which::first))
    for (std::size_t t = run.first; t < run.first + run.count; ++t)
      if (seen.insert({&tensors.name(t).text(), &tensors.shape(t).sizes()}).second)
        visit(tensors.name(t), tensors.shape(t));
}

MapFile own_names(Checkpoint const& source, StoredView const& view, PlanRequest const& request) {
  MapFile map =
      request.read.library.named("[source] format", std::string(source.format->names_map()));
  std::string part;
  std::string scale;
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    if (name.ends_with(".qscale_weight")) scale = name;
    if (std::ranges::any_of(map.keep,
                            [&](std::string const& kept) { return matches_glob(kept, name); }))
      part = name;
  });
  bool const elsewhere =
      !request.target.folder.empty() && request.target.format != source.format->id();
  if (elsewhere && request.read.unmapped == Unmapped::keep && !part.empty())
    fail(ErrorKind::usage,
         "[model] unmapped = \"keep\": {} holds '{}' and others, which other formats have under "
         "other names and with rows in another order. Set it to \"drop\" for the language model "
         "alone, or use the model's Hugging Face files.",
         source.place, part);
  if (!request.target.folder.empty() && !request.read.dequantise && !scale.empty())
    fail(ErrorKind::usage,
         "[model] quant: {} holds FP8 weights with scales of Mistral's own ('{}'), which no target "
         "has. Set it to \"dequantise-bf16\", or use the model's Hugging Face files.",
         source.place, scale);
  return map;
}

}  // namespace reshard
