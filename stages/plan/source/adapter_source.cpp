#include "stages/plan/source/adapter_source.hpp"

#include <algorithm>

#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/mapping/config_defaults.hpp"
#include "stages/plan/source/source_names.hpp"

namespace reshard {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

constexpr char const* merge_first =
    "Merge it into its base model with peft (merge_and_unload, save_pretrained), and convert the "
    "result.";

/// Kinds of adapters beside the two matrices.
void refuse_kind(std::string const& place, std::string const& name) {
  if (contains(name, ".lora_magnitude_vector"))
    fail(ErrorKind::source,
         "{}: '{}' belongs to a DoRA adapter, whose magnitudes no Megatron name describes. {}",
         place, name, merge_first);
  if (contains(name, ".lora_embedding_"))
    fail(ErrorKind::source,
         "{}: '{}' is an adapter of an embedding, for which Megatron has no name. {}", place, name,
         merge_first);
  if (contains(name, ".bias"))
    fail(ErrorKind::source, "{}: '{}' is a bias of an adapter, for which Megatron has no name. {}",
         place, name, merge_first);
}

/// The text that all names of a form have: of its pattern, what is in front of the first field.
std::string mark_of(std::string const& pattern) {
  std::string const before = pattern.substr(0, pattern.find('{'));
  return "." + before;
}

bool says_yes(Json const& value) {
  if (auto const* flag = value.boolean()) return *flag;
  if (auto const* list = value.items()) return !list->empty();
  if (auto const* members = value.members()) return !members->empty();
  if (auto const* text = value.text()) return !text->empty() && *text != "none";
  return !value.is_null();
}

}  // namespace

bool is_adapter(std::string_view name) {
  for (char const* part : {".lora_A.", ".lora_B.", ".lora_embedding_", ".lora_magnitude_vector",
                           ".adapter.linear_in", ".adapter.linear_out", ".adapter.adapter_"})
    if (contains(name, part)) return true;
  return false;
}

bool holds_adapter(Checkpoint const& source, StoredView const& view) {
  std::string const place = source.folder.string();
  std::size_t all = 0;
  std::size_t adapters = 0;
  std::string other;
  std::string wrapped;
  std::string odd;
  auto const least = [](std::string& so_far, std::string const& name) {
    so_far = so_far.empty() ? name : std::min(so_far, name);
  };
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    ++all;
    if (contains(name, ".to_wrap.")) least(wrapped, name);
    if (!is_adapter(name)) return least(other, name);
    ++adapters;
    if (contains(name, ".lora_magnitude_vector") || contains(name, ".lora_embedding_") ||
        contains(name, ".bias"))
      least(odd, name);
  });
  if (!wrapped.empty())
    fail(ErrorKind::source, "{}: '{}' is a weight that an adapter (LoRA) is wrapped around. {}",
         place, wrapped, merge_first);
  if (adapters == 0) return false;
  if (!odd.empty()) refuse_kind(place, odd);
  bool const peft = source.beside && !source.beside->adapter.is_null();
  if (adapters < all && peft)
    fail(ErrorKind::source,
         "{}: holds an adapter (LoRA) and '{}', which is no matrix of one (modules_to_save, or "
         "another kind of adapter). {}",
         place, other, merge_first);
  return adapters == all;
}

void check_adapter_config(Json const& config, std::string const& place) {
  std::string const file = place + "/adapter_config.json";
  Json const type = fact(config, "peft_type");
  if (type.text() != nullptr && *type.text() != "LORA")
    fail(ErrorKind::source, "{}: peft_type is \"{}\", only LORA can be converted. {}", file,
         *type.text(), merge_first);
  for (char const* key : {"use_dora", "lora_bias", "fan_in_fan_out", "modules_to_save", "bias",
                          "trainable_token_indices", "use_qalora", "alora_invocation_tokens"})
    if (Json const value = fact(config, key); says_yes(value))
      fail(ErrorKind::source,
           "{}: {} = {}: only the two matrices of LoRA can be converted, not what this adds. {}",
           file, key, value.dump(), merge_first);
}

AdapterNames adapter_names(Checkpoint const& source, StoredView const& view,
                           std::vector<MapAdapter> const& forms, Json const& adapter_config) {
  bool const family = source.names == NameOwner::family;
  AdapterNames result;
  std::string fused;
  std::string apart;
  std::string first;
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    if (first.empty()) first = name;
    for (MapAdapter const& form : forms) {
      if (form.family != family || !contains(name, mark_of(form.a))) continue;
      for (auto const& [weight, word] : form.parts) {
        if (!contains(name, mark_of(form.a) + word + ".")) continue;
        apart = name;
        result.form = form.name;
      }
      // Experts, and single weights, are the same in both.
      if (apart != name && result.form.empty()) result.form = form.name;
      if (apart != name) fused = name;
    }
  });
  if (result.form.empty())
    fail(ErrorKind::source,
         "{}: '{}' is part of an adapter whose names no [adapter] of mcore.toml has. Add them to a "
         "copy of adapters.toml.",
         source.folder.string(), first);
  result.apart = !apart.empty();
  if (Json const targets = fact(adapter_config, "target_parameters"); targets.items() != nullptr)
    for (Json const& item : *targets.items())
      if (item.text() != nullptr) result.packed.push_back(*item.text());
  return result;
}

bool has_adapter_of(StoredView const& view, AdapterNames const& names, MapAdapter const& form,
                    std::string_view name) {
  auto const [module, word] = module_and_word(name);
  if (word != "weight")
    return std::ranges::any_of(names.packed, [&](std::string const& packed) {
      return module_and_word(packed).second == word;
    });
  std::string const wanted = adapter_name(form, name, AdapterMatrix::a, "");
  if (wanted.find_first_of("*?") == std::string::npos) return view.weights.contains(wanted);
  return std::ranges::any_of(
      view.weights, [&](auto const& stored) { return matches_glob(wanted, stored.first); });
}

void add_adapters(Model& model, Side const& side, MapFile const& core, AdapterNames const& names,
                  StoredShares const& shares, Checkpoint const& source) {
  auto const linear = linear_weights(core);
  AdapterFinder finder(model, side, linear, names);
  std::vector<std::vector<StoredName>> const all = shares.names(side);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    StoredShare const share = shares[i];
    finder.look(all[share.chunk], finder_over(share.tensors, source.stored), share.where);
  }
  if (!finder.found())
    fail(ErrorKind::source,
         "{}: holds an adapter (LoRA), and none of its {} tensors belongs to a weight of {}. The "
         "config is another model's: set source.config to that of the base model.",
         source.folder.string(), source.stored.tensors.size(), model.origin());
  finder.apply(model);
}

std::filesystem::path base_of_adapter(Json const& adapter_config) {
  Json const base = fact(adapter_config, "base_model_name_or_path");
  if (base.text() == nullptr || base.text()->empty()) return {};
  std::filesystem::path const path = *base.text();
  return sees_file(path / huggingface::config_name) ? path : std::filesystem::path();
}

}  // namespace reshard
