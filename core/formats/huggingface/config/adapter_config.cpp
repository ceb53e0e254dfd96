#include "core/formats/huggingface/config/adapter_config.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/text/text.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/shapes.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::huggingface {
namespace {

constexpr std::string_view prefix = "base_model.model.";
constexpr std::string_view wrapper = ".base_layer";

/// Facts in the names of an adapter's tensors.
struct Found {
  std::map<std::string, Index> modules;     ///< with their ranks
  std::map<std::string, Index> parameters;  ///< likewise
};

/// The parameters that the wrappers of a module belong to, outermost first, are in alphabetic
/// order.
Found find(MappedTarget const& job, Side const& side, std::vector<StoredName> const& names) {
  Found found;
  MapAdapter const& form = adapter_form(job.model.adapter_forms(), "peft");
  for (StoredName const& name : names) {
    auto const matrix = adapter_of(job.model, side.tensors(name.entry).front());
    if (!matrix || matrix->matrix != AdapterMatrix::a) continue;
    std::string module = name.name.substr(form.prefix.size());
    module = module.substr(0, module.size() - form.a.size() - 1);
    if (side.layout(name.entry, {}).layout.shape.front() == matrix->rank) {
      found.modules[module] = matrix->rank;
      continue;
    }
    std::size_t depth = 0;
    while (module.ends_with(wrapper)) {
      module.resize(module.size() - wrapper.size());
      ++depth;
    }
    std::set<std::string> words;
    for (MapName const& stored : job.read.names.maps.family->stored)
      for (MapEntry const& entry : stored.entries)
        for (std::string const& weight : parse_layout(entry.is).tensors())
          if (adapted_axes(job.model, weight, matrix->rank) &&
              adapter_name(form, stored.name, AdapterMatrix::a, "").empty())
            words.insert(std::string(module_and_word(stored.name).second));
    if (depth < words.size())
      found.parameters[module + "." +
                       *std::next(words.begin(), static_cast<std::ptrdiff_t>(depth))] =
          matrix->rank;
  }
  return found;
}

Index most_frequent(Found const& found) {
  std::map<Index, std::size_t> counts;
  for (auto const* list : {&found.modules, &found.parameters})
    for (auto const& [name, rank] : *list) ++counts[rank];
  auto const best = std::ranges::max_element(
      counts, [](auto const& a, auto const& b) { return a.second < b.second; });
  return best->first;
}

Json strings(std::map<std::string, Index> const& names) {
  Json::Array list;
  for (auto const& [name, rank] : names) list.emplace_back(name);
  return Json(std::move(list));
}

Json alpha_of(MappedTarget const& job) {
  return stated_alpha(
      job.request.read.lora_alpha,
      job.source.shares.shape ? job.source.shares.shape->alpha : Json(),
      fmt::format("{} does not state the alpha of its adapter, which peft needs to scale it. Set "
                  "model.lora_alpha, or give target.reference, a folder with an "
                  "adapter_config.json.",
                  job.source.place));
}

/// The base model, where the settings of the source name one ("run_config.yaml: hf_model_id =
/// Qwen/Qwen3-4B"); null where they do not.
Json base_of(MappedTarget const& job) {
  if (!job.source.shares.shape) return {};
  std::string const folder = value_of_origin(job.source.shares.shape->origin);
  return folder.empty() ? Json() : Json(folder);
}

std::string made(MappedTarget const& job, Found const& found) {
  Index const rank = most_frequent(found);
  Json ranks = Json::object();
  for (auto const* list : {&found.modules, &found.parameters})
    for (auto const& [name, own] : *list)
      if (own != rank) ranks.set(name, own);
  Json config = Json::object();
  config.set("peft_type", "LORA").set("task_type", "CAUSAL_LM");
  config.set("base_model_name_or_path", base_of(job)).set("bias", "none");
  config.set("fan_in_fan_out", false);
  config.set("inference_mode", true).set("init_lora_weights", true);
  config.set("r", rank).set("lora_alpha", alpha_of(job)).set("lora_dropout", 0.0);
  config.set("rank_pattern", std::move(ranks)).set("alpha_pattern", Json::object());
  config.set("target_modules", strings(found.modules));
  if (!found.parameters.empty()) config.set("target_parameters", strings(found.parameters));
  config.set("modules_to_save", Json()).set("use_dora", false).set("use_rslora", false);
  return config.dump(2) + "\n";
}

void check_terms(Folder const& folder, Found const& found) {
  LoraConfig const config = *lora_config(folder, LoraUse::carry);
  for (auto const* list : {&found.modules, &found.parameters})
    for (auto const& [name, rank] : *list) config.check(name, rank);
}

}  // namespace

std::string adapter_config_text(MappedTarget const& job, Side const& side,
                                std::vector<StoredName> const& names) {
  Found const found = find(job, side, names);
  for (auto const* folder : {&job.read.facts.reference, &job.read.facts.files})
    if (*folder && !(*folder)->adapter.is_null()) {
      check_terms(**folder, found);
      return (*folder)->adapter_text;
    }
  return made(job, found);
}

}  // namespace reshard::huggingface
