#include "stages/plan/check/args_proof.hpp"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "stages/plan/check/core_forms.hpp"
#include "stages/plan/source/catalog/source_names.hpp"

namespace reshard {
namespace {

using Shapes = std::map<std::string, std::vector<Index>>;

constexpr std::size_t most_patterns = 4;  // in a message

/// Whether args say nothing of a stored tensor: vision towers, which a config.json describes.
bool beside_args(Model const& model, Side const& side, StoredName const& name) {
  return std::ranges::all_of(side.tensors(name.entry), [&](TensorId tensor) {
    return model.tensor(tensor).name.starts_with("vision.");
  });
}

/// Every stored tensor of one rank that has all layers, without copies.
Shapes stored_shapes(Model const& model, MapFile const& core, SideOptions const& options) {
  Side const side(model, core, options);
  std::vector<PipelineChunk> chunks;
  if (options.local) {
    PipelineSpec whole;
    whole.decoder_layers = narrow<int>(model_count(model, "L"));
    whole.mtp_layers = narrow<int>(model_count(model, "M"));
    chunks = pipeline_chunks(whole);
  }
  PipelineChunk const* const chunk = chunks.empty() ? nullptr : chunks.data();
  Shapes result;
  for (StoredName const& name : side.names(chunk)) {
    if (name.copy || beside_args(model, side, name)) continue;
    result.emplace(name.name, options.local ? side.layout(name.entry, {{}, chunk}).file_shape
                                            : side.shape(name));
  }
  return result;
}

Json without(Json const& args, std::vector<std::string> const& keys) {
  Json::Object kept;
  if (auto const* members = args.members())
    for (auto const& [key, value] : *members)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) kept.emplace_back(key, value);
  return Json(std::move(kept));
}

/// Tensors that a checkpoint may lack are there when the model has them. Megatron-Core knows no
/// condition under which it may.
void settle_by_model(Model& described, MapFile const& core, SideOptions const& options,
                     Model const& model, ArgsReader reader) {
  Side const side(described, core, options);
  std::vector<bool> found;
  for (LogicalTensor const& tensor : described.tensors()) {
    std::optional<TensorId> const ours = model.find_tensor(tensor.name);
    found.push_back(ours && model.exists(*ours));
  }
  if (reader == ArgsReader::megatron)
    for (TensorId const tensor : side.conditional_tensors())
      found[static_cast<std::size_t>(tensor)] = true;
  settle_optional(described, side, found);
}

/// And by what Megatron-Core does with these args; a condition that is null says nothing.
void settle_by_megatron(Model& described, MapFile const& core) {
  for (auto const& [pattern, value] : described.evaluate(core.expected)) {
    if (value.is_null()) continue;
    bool const there = value.boolean() != nullptr
                           ? *value.boolean()
                           : value.integer() != nullptr && *value.integer() != 0;
    for (std::size_t t = 0; t < described.tensors().size(); ++t)
      if (matches_glob(pattern, described.tensors()[t].name))
        described.set_exists(TensorId(t), there);
  }
}

std::string pattern_of(std::string const& name) {
  std::string result;
  for (char const letter : name) {
    bool const digit = letter >= '0' && letter <= '9';
    bool const counts = digit && (result.ends_with('.') || result.ends_with('*') ||
                                  result.ends_with("weight") || result.ends_with("bias"));
    if (!counts)
      result += letter;
    else if (!result.ends_with('*'))
      result += '*';
  }
  return result;
}

std::vector<NameForm> grouped(std::vector<std::string> const& names) {
  std::vector<NameForm> result;
  for (std::string const& name : names) {
    std::string const pattern = pattern_of(name);
    auto known = std::find_if(result.begin(), result.end(),
                              [&](NameForm const& group) { return group.pattern == pattern; });
    if (known == result.end()) known = result.insert(result.end(), {pattern, 0});
    ++known->count;
  }
  return result;
}

bool all_contain(std::vector<NameForm> const& groups, std::string_view part) {
  return std::all_of(groups.begin(), groups.end(), [&](NameForm const& group) {
    return group.pattern.find(part) != std::string::npos;
  });
}

/// Advice about tensors that a strict load would miss. A bias that a model lacks is 0.
char const* advice(std::vector<NameForm> const& missing) {
  if (!all_contain(missing, ".bias")) return "load with strict=False";
  if (all_contain(missing, "linear_"))
    return "one switch, add_bias_linear, is for all biases; load with strict=False: Megatron "
           "initialises these to 0";
  return "they must be 0: load with strict=False, and set to 0 those that Megatron initialises at "
         "random, such as router.bias";
}

std::size_t total(std::vector<NameForm> const& groups) {
  std::size_t result = 0;
  for (NameForm const& group : groups) result += group.count;
  return result;
}

}  // namespace

ArgsDifference args_difference(Model const& model, MapFile const& core, Json const& args,
                               SideOptions options, ArgsReader reader) {
  options.mesh = {};
  options.padded_sizes.clear();
  Json const vocab = model.value("vocab");
  Json const read = reader == ArgsReader::megatron ? without(args, core.own_args) : args;
  Model described(core, core,
                  {read, "args", vocab.integer() == nullptr ? 0 : *vocab.integer(), std::nullopt});
  apply_present(described, core);
  settle_by_model(described, core, options, model, reader);
  if (reader == ArgsReader::megatron) settle_by_megatron(described, core);
  Shapes const ours = stored_shapes(model, core, options);
  Shapes const theirs = stored_shapes(described, core, options);
  ArgsDifference result;
  std::vector<std::string> unknown;
  std::vector<std::string> missing;
  for (auto const& [name, shape] : ours) {
    auto const other = theirs.find(name);
    if (other == theirs.end())
      unknown.push_back(name);
    else if (other->second != shape)
      result.shapes.push_back({name, shape, other->second});
  }
  for (auto const& [name, shape] : theirs)
    if (!ours.contains(name)) missing.push_back(name);
  result.unknown = grouped(unknown);
  result.missing = grouped(missing);
  return result;
}

std::string shown(std::vector<NameForm> const& groups, std::string_view word) {
  std::vector<std::string> patterns;
  for (NameForm const& group : groups)
    patterns.push_back(group.count == 1 ? group.pattern
                                        : fmt::format("{} ({})", group.pattern, group.count));
  return fmt::format("{} {}tensor{}: {}", total(groups), word, total(groups) == 1 ? "" : "s",
                     listed(patterns, most_patterns));
}

std::string shown(ShapeConflict const& conflict) {
  return fmt::format("'{}' is [{}], and [{}] by args", conflict.name,
                     fmt::join(conflict.in_model, ", "), fmt::join(conflict.by_args, ", "));
}

std::string first_difference(ArgsDifference const& difference) {
  if (!difference.shapes.empty()) return shown(difference.shapes.front());
  if (!difference.unknown.empty())
    return fmt::format("args do not describe {}", shown(difference.unknown));
  if (!difference.missing.empty()) return fmt::format("args ask for {}", shown(difference.missing));
  return "";
}

void check_made_args(Model const& model, MapFile const& core, std::string const& family,
                     Json const& args, SideOptions const& options,
                     std::vector<std::string>& warnings) {
  Json const vocab = model.value("vocab");
  Model const described(
      core, core, {args, "args", vocab.integer() == nullptr ? 0 : *vocab.integer(), std::nullopt});
  if (auto const conflict = axis_conflict(model, described, args))
    fail(
        ErrorKind::usage,
        "{} [args]: axis '{}' is {} by config.json and {} by the args that the target would have: no later job could read it. Correct [args] of the "
        "map.",
        family, conflict->axis, conflict->by_config, conflict->by_args);
  ArgsDifference const difference = args_difference(model, core, args, options, ArgsReader::map);
  if (difference.empty()) return;
  warnings.push_back(fmt::format(
      "the target's args do not describe all of it: {}. {} cannot read it without help: name "
      "this model's map (model.map) and config.json (source.config) in every later job, and "
      "give Megatron code for such layers. `reshard check-map` shows what to correct in [args] "
      "of {}",
      first_difference(difference), core.name, family));
}

std::string strict_load_note(Model const& model, MapFile const& core, Json const& args,
                             SideOptions const& options) {
  ArgsDifference const difference =
      args_difference(model, core, args, options, ArgsReader::megatron);
  std::vector<std::string> parts;
  if (!difference.missing.empty())
    parts.push_back(fmt::format("asks for {} ({})", shown(difference.missing, "more "),
                                advice(difference.missing)));
  if (!difference.unknown.empty())
    parts.push_back(fmt::format("does not know {}", shown(difference.unknown)));
  if (!difference.shapes.empty())
    parts.push_back(fmt::format(
        "has other shapes for {}: {}",
        difference.shapes.size() == 1 ? "a tensor" : counted(difference.shapes.size(), "tensor"),
        shown(difference.shapes.front())));
  if (parts.empty()) return "";
  bool const code = !difference.unknown.empty() || !difference.shapes.empty();
  return fmt::format("Megatron-Core's own model, made from the target's args, {}{}",
                     fmt::join(parts, ", and "),
                     code ? "; loading all of it needs layer code of the family's own" : "");
}

}  // namespace reshard
