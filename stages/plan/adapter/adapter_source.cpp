#include "stages/plan/adapter/adapter_source.hpp"

#include <algorithm>
#include <set>

#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "stages/plan/source/catalog/source_names.hpp"

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
    fail(
        ErrorKind::source,
        "{}: '{}' belongs to a DoRA adapter, whose magnitudes no Megatron name describes. Merge it "
        "in a job of its own, whose source is the base model: name this folder in source.adapter, "
        "set model.adapter = \"merge\", and convert the result.",
        place, name);
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

/// The meaning of a matrix's name.
struct MatrixName {
  std::string module;   ///< of the base model: "model.layers.0.mlp.up_proj"
  bool packed = false;  ///< behind wrappers of other parameters
};

MatrixName read_name(MapAdapter const& form, std::string_view name) {
  MatrixName result;
  if (name.starts_with(form.prefix)) name.remove_prefix(form.prefix.size());
  std::size_t end = std::string_view::npos;
  for (std::string const& pattern : {form.a, form.b})
    end = std::min(end, name.rfind(mark_of(pattern)));
  result.module = name.substr(0, end);
  constexpr std::string_view wrapper = ".base_layer";
  while (result.module.ends_with(wrapper)) {
    result.module.resize(result.module.size() - wrapper.size());
    result.packed = true;
  }
  return result;
}

/// The Error about a matrix that belongs to no weight of the model.
[[noreturn]] void fail_unclaimed(std::string const& place, std::string const& tensor,
                                 Side const& side, std::vector<StoredName> const& weights,
                                 AdapterNames const& names, MapAdapter const& form) {
  MatrixName const matrix = read_name(form, tensor);
  std::vector<std::string> known;
  bool parameters = false;
  for (StoredName const& weight : weights) {
    known.push_back(weight.name);
    auto const [module, word] = module_and_word(weight.name);
    if (module != matrix.module + ".") continue;
    if (word.starts_with("weight") && weight.copy)
      fail(ErrorKind::source,
           "{}: '{}' adapts '{}', which is tied to the embedding: with the adapter both would "
           "change. Merge it with peft, into a model whose output layer is its own "
           "(tie_word_embeddings = false).",
           place, tensor, matrix.module);
    if (word.starts_with("weight") && !side.part(weight.entry).empty())
      fail(ErrorKind::source,
           "{}: '{}' adapts '{}', which is quantised in the base, and an adapter is merged into "
           "weights of F32, BF16 or F16 only. Dequantise the base in a separate job first "
           "(model.quant = \"dequantise-bf16\"), and name that job's target as the source.",
           place, tensor, matrix.module);
    if (word.starts_with("weight"))
      fail(ErrorKind::source,
           "{}: '{}' adapts '{}', which no map describes as a linear layer. Merge it with "
           "peft, or name a map that stores this weight as [out, in].",
           place, tensor, matrix.module);
    parameters = parameters || !word.starts_with("bias");
  }
  if (parameters || matrix.packed)
    fail(ErrorKind::source,
         "{}: '{}' adapts a parameter of '{}', and target_parameters of {} ({}) does not list "
         "it. The two files belong to different adapters: copy both from one.",
         place, tensor, matrix.module, huggingface::adapter_config_name,
         names.packed.empty() ? "empty" : listed(names.packed));
  if (side.keeps(matrix.module + ".weight"))
    fail(ErrorKind::source,
         "{}: '{}' adapts '{}', a part of the model that the map copies as it is (`keep`), so its "
         "adapter cannot be converted. Merge it with peft.",
         place, tensor, matrix.module);
  std::string const near = nearest(matrix.module + ".weight", known);
  fail(ErrorKind::source,
       "{}: '{}' adapts '{}', which the model does not have{}. Name the adapter of this base "
       "(source.config names the base), or a map that describes this weight.",
       place, tensor, matrix.module,
       near.empty() ? std::string() : fmt::format(" ('{}' is the nearest)", near));
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
  std::string copied;
  auto const least = [](std::string& so_far, std::string const& name) {
    so_far = so_far.empty() ? name : std::min(so_far, name);
  };
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    ++all;
    if (contains(name, ".to_wrap.")) least(wrapped, name);
    if (name.ends_with(".base_layer.weight")) least(copied, name);
    if (!is_adapter(name)) return least(other, name);
    ++adapters;
    if (contains(name, ".lora_magnitude_vector") || contains(name, ".lora_embedding_") ||
        contains(name, ".bias"))
      least(odd, name);
  });
  if (!wrapped.empty())
    fail(
        ErrorKind::source,
        "{}: '{}' is a weight that an adapter (LoRA) is wrapped around. Merge the adapter into its "
        "base model first (Megatron-Bridge: its script that merges LoRA), and convert the result.",
        place, wrapped);
  if (adapters == 0) return false;
  if (!odd.empty()) refuse_kind(place, odd);
  bool const peft = source.model.beside && !source.model.beside->adapter.is_null();
  if (peft && !copied.empty())
    fail(ErrorKind::source,
         "{}: holds '{}', a copy of a weight of the base model, which may differ from the base's "
         "own. Save the adapter without it: save_pretrained(…, save_embedding_layers=False).",
         place, copied);
  if (adapters < all && peft)
    fail(ErrorKind::source,
         "{}: holds an adapter (LoRA) and '{}', which is not a matrix of an adapter "
         "(modules_to_save, or another kind of adapter). {}",
         place, other, merge_first);
  return adapters == all;
}

AdapterNames adapter_names(Checkpoint const& source, StoredView const& view,
                           std::vector<MapAdapter> const& forms, std::vector<std::string> packed) {
  bool const family = source.names == NameOwner::family;
  AdapterNames result;
  result.packed = std::move(packed);
  std::string fused;
  std::string apart;
  std::string first;
  each_stored(source, view, [&](std::string const& name, std::vector<Index> const&) {
    if (first.empty()) first = name;
    for (MapAdapter const& form : forms) {
      if (form.family != family || !name.starts_with(form.prefix) ||
          !contains(name, mark_of(form.a)))
        continue;
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
  return result;
}

bool has_adapter_of(StoredView const& view, AdapterNames const& names, MapAdapter const& form,
                    std::string_view name, std::function<bool(std::string_view)> const& base) {
  auto const [module, word] = module_and_word(name);
  auto const stored = [&view](std::string const& wanted) {
    if (wanted.find_first_of("*?") == std::string::npos) return view.weights.contains(wanted);
    return std::ranges::any_of(view.weights,
                               [&](auto const& one) { return matches_glob(wanted, one.first); });
  };
  bool const there = word == "weight" ? stored(adapter_name(form, name, AdapterMatrix::a, ""))
                                      : means_module_of(names.packed, name);
  if (there || !base) return there;
  if (stored(form.prefix + std::string(module) + "*")) return false;
  // Maps ask for a norm or an embedding to tell how a part of the model is called.
  std::size_t const dot = module.substr(0, std::max<std::size_t>(module.size(), 1) - 1).rfind('.');
  bool const pattern = name.find_first_of("*?") != std::string_view::npos;
  if (word != "weight" || pattern || dot == std::string_view::npos) return base(name);
  if (stored(form.prefix + std::string(module.substr(0, dot + 1)) + "*")) return true;
  return !stored(form.prefix + std::string(module.substr(0, module.find('.') + 1)) + "*") &&
         base(name);
}

LinearWeights adaptable_weights(MapChoice const& maps, bool family_names) {
  LinearWeights result = linear_weights(maps.core);
  // Layers that Megatron does not have are linear where transformers has them, out x in.
  if (family_names && maps.family) result.merge(linear_weights(*maps.family, true));
  return result;
}

void add_adapters(Model& model, Side const& side, LinearWeights const& linear,
                  AdapterNames const& names, StoredShares const& shares, Checkpoint const& source,
                  huggingface::LoraConfig const* config) {
  MapAdapter const& form = adapter_form(model.adapter_forms(), names.form);
  AdapterFinder finder(model, side, linear, names);
  std::vector<std::vector<StoredName>> const all = shares.names(side);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    StoredShare const share = shares[i];
    std::set<std::string, std::less<>> taken;
    for (AdapterPair& pair :
         finder.look(all[share.chunk], finder_over(share.tensors, source.stored), share.where)) {
      if (config != nullptr) config->check(pair.module, pair.rank);
      taken.insert(std::move(pair.a));
      taken.insert(std::move(pair.b));
    }
    std::string left;
    for (auto const& [name, at] : share.tensors)
      if (!taken.contains(name) && !side.dropped(name) && (left.empty() || name < left))
        left = name;
    if (!left.empty()) fail_unclaimed(share.where, left, side, all[share.chunk], names, form);
  }
  if (!finder.found())
    fail(ErrorKind::source,
         "{}: holds an adapter (LoRA), and the map leaves out all of its {} tensors (drop). Name a "
         "map that has them with model.map.",
         source.folder.string(), source.stored.tensors.size());
  finder.apply(model);
}

std::filesystem::path base_of_adapter(Json const& adapter_config) {
  Json const base = fact(adapter_config, "base_model_name_or_path");
  if (base.text() == nullptr || base.text()->empty()) return {};
  std::filesystem::path const path = *base.text();
  return sees_file(path / huggingface::config_name) ? path : std::filesystem::path();
}

}  // namespace reshard
