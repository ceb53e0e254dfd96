#include "core/formats/wrapped/wrapped_model.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/model_files.hpp"

namespace reshard {
namespace {

using Kind = WrappedName::Kind;

constexpr std::size_t most_shown = 6;

bool is_of_model(Kind kind) {
  return kind == Kind::plain || kind == Kind::base || kind == Kind::original ||
         kind == Kind::trained;
}

/// The tensors of a wrapped model, and how each is called.
class Wrapped {
 public:
  Wrapped(Checkpoint& source, WrappedChoice const& choice) : source_(source), choice_(choice) {
    StoredView const view = source.format->view(source, choice.prefix);
    has_state_ =
        !view.states.empty() || !view.fixed_state.empty() || source.state.inventory.optimizer;
    for (auto const& [key, at] : view.weights) {
      WrappedName name = parse_wrapped(key);
      name.before = choice.prefix + name.before;
      is_wrapped_ = is_wrapped_ || name.kind == Kind::base || name.kind == Kind::original ||
                    (choice.use == AdapterUse::only && name.kind == Kind::matrix);
      names_.emplace(at, std::move(name));
    }
  }

  bool is_wrapped() const { return is_wrapped_; }

  void take() {
    check_names();
    check_state();
    config_ = wrapped_config(source_, names_, choice_);
    if (choice_.use == AdapterUse::only) return take_adapter();
    if (choice_.use == AdapterUse::drop) {
      check_biases();
      check_bases();
    }
    if (choice_.use == AdapterUse::merge) check_merge();
    Checkpoint adapter = source_;
    replace_table(source_, [this](WrappedName const& name) { return base_name(name); });
    rename_paths();
    source_.others.without_adapter = true;
    if (choice_.use == AdapterUse::drop) return;
    describe(adapter);
    replace_table(adapter, [](WrappedName const& name) {
      return name.kind == Kind::matrix || name.kind == Kind::magnitude ? name.peft : std::string();
    });
    clear_rest(adapter);
    source_.others.adapter = std::make_shared<Checkpoint const>(std::move(adapter));
  }

 private:
  std::string stored(std::size_t at) const { return source_.stored.tensors.name(at).text(); }

  /// Tensors beside a wrapped layer in its module are of an adapter of another kind.
  void check_names() const {
    std::set<std::string, std::less<>> modules;
    std::set<std::string> befores;
    std::set<std::string> adapters;
    for (auto const& [at, name] : names_) {
      if (!name.wrapped.empty()) modules.insert(name.before + name.wrapped);
      if (name.rooted) befores.insert(name.before);
      if (!name.adapter.empty()) adapters.insert(name.adapter);
    }
    std::vector<std::string> odd;
    for (auto const& [at, name] : names_) {
      bool bad = name.kind == Kind::unknown;
      std::string const full = name.before + name.base;
      for (std::size_t dot = full.find('.');
           name.kind == Kind::plain && !bad && dot != std::string::npos;
           dot = full.find('.', dot + 1))
        bad = modules.contains(std::string_view(full).substr(0, dot));
      if (bad) odd.push_back(stored(at));
    }
    if (!odd.empty())
      fail(ErrorKind::source,
           "{}: {} of a model that peft has wrapped {} not understood: {}. Only LoRA is. Merge the "
           "adapter with peft (merge_and_unload), and save the result.",
           source_.place, counted(odd.size(), "name"), agreeing(odd.size(), "is", "are"),
           listed(odd, most_shown));
    if (adapters.size() > 1)
      fail(ErrorKind::source,
           "{}: holds several adapters ({}), and a job takes one. Delete the others with peft "
           "(delete_adapter), and save again.",
           source_.place, fmt::join(adapters, ", "));
    if (befores.size() > 1)
      fail(ErrorKind::usage,
           "{}: holds several models that peft has wrapped, behind '{}'. Set source.prefix to the "
           "one that is meant.",
           source_.place, fmt::join(befores, "', '"));
  }

  void check_state() const {
    if (has_state_ && !choice_.drop_optimizer)
      fail(ErrorKind::usage,
           "{}: holds optimizer state of the adapter, which belongs to the wrapped model. Set "
           "source.optimizer = \"drop\".",
           source_.place);
  }

  Json const* stated(std::string_view member) const {
    Json const* const found = config_.json.find(member);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  void check_biases() const {
    if (config_.json.is_null()) return;
    Json const* const bias = stated("bias");
    if (bias != nullptr && bias->text() != nullptr && *bias->text() != "none")
      fail(ErrorKind::source,
           "{}: bias = {} in its {}: biases of the base model itself were trained, so it does not "
           "hold the base model any more. Merge the adapter (model.adapter = \"merge\"), or use "
           "the base model that the run started from.",
           source_.place, bias->dump(), huggingface::adapter_config_name);
  }

  /// Where names are kept, nothing else knows which weights there should be.
  void check_bases() const {
    std::set<std::string, std::less<>> held;
    for (auto const& [at, name] : names_)
      if (name.kind == Kind::base) held.insert(name.before + name.wrapped);
    for (auto const& [at, name] : names_)
      if (name.kind == Kind::matrix && !held.contains(name.before + name.wrapped))
        fail(ErrorKind::source,
             "{}: holds '{}' and no weight of the base model that it belongs to. The save leaves "
             "out weights, or a file is of another one: take the adapter alone "
             "(model.adapter = \"only\"), and the base model that the run started from.",
             source_.place, stored(at));
  }

  void check_merge() const {
    std::vector<std::string> odd;
    for (auto const& [at, name] : names_)
      if (name.kind == Kind::further) odd.push_back(stored(at));
    if (!odd.empty())
      fail(ErrorKind::source,
           "{}: holds {}, of an embedding, a bias or single tokens, which are not merged. Merge "
           "the adapter with peft (merge_and_unload); model.adapter = \"drop\" takes the base "
           "model, \"only\" the adapter.",
           source_.place, listed(odd, most_shown));
  }

  // --- tables

  /// "" for what the base model has not.
  std::string base_name(WrappedName const& name) const {
    Kind const left_out = choice_.use == AdapterUse::merge ? Kind::original : Kind::trained;
    if (!is_of_model(name.kind) || (name.kind == left_out && has_trained_)) return {};
    return name.before + name.base;
  }

  template <class NameOf>
  void replace_table(Checkpoint& of, NameOf const& name_of) {
    has_trained_ = std::ranges::any_of(
        names_, [](auto const& one) { return one.second.kind == Kind::trained; });
    StoredTensors kept;
    std::map<std::size_t, DType> rounded;
    auto& all = of.stored.tensors;
    for (std::size_t t = 0; t < all.size(); ++t) {
      auto const known = names_.find(t);
      bool const own = known != names_.end();
      if (!own && &of != &source_) continue;
      std::string name = own ? name_of(known->second) : std::string(all.name(t).text());
      if (name.empty()) continue;
      if (auto const found = of.stored.rounded.find(t); found != of.stored.rounded.end())
        rounded.emplace(kept.size(), found->second);
      StoredTensor renamed = all[t];
      renamed.name = SharedText(std::move(name));
      kept.push_back(std::move(renamed));
    }
    all = std::move(kept);
    of.stored.rounded = std::move(rounded);
  }

  void rename_paths() {
    if (!source_.chunked.paths) return;
    std::vector<std::pair<std::string, dcp::Path>> renamed;
    for (auto& [key, path] : *source_.chunked.paths) {
      std::string const prefix = choice_.prefix;
      WrappedName name = parse_wrapped(key);
      bool const own = name.rooted || name.kind != Kind::plain;
      if (own && key.starts_with(prefix) && !path.empty()) {
        std::string const text = base_name(name);
        if (text.empty()) continue;
        key = text;
        if (auto* const last = std::get_if<std::string>(&path.back()))
          *last = parse_wrapped(*last).base;
      }
      renamed.emplace_back(std::move(key), std::move(path));
    }
    source_.chunked.paths = std::move(renamed);
  }

  static void clear_rest(Checkpoint& adapter) {
    adapter.stored.objects.clear();
    adapter.state.scalars.clear();
    adapter.chunked.paths.reset();
    adapter.chunked.looks.clear();
    adapter.state.inventory = {};
    adapter.state.torch_optimizer.reset();
    adapter.state.deepspeed.reset();
  }

  /// Modules that were trained as a whole are those of the base model by now; biases are in place.
  void describe(Checkpoint& adapter) const {
    huggingface::Folder files;
    files.path = config_.folder;
    files.adapter = config_.json;
    files.adapter.set("modules_to_save", Json());
    Json const* const bias = stated("bias");
    if (bias != nullptr) files.adapter.set("bias", "none");
    adapter.model.beside = std::move(files);
  }

  void take_adapter() {
    huggingface::Folder files = files_of(source_).value_or(huggingface::Folder());
    files.adapter = config_.json;
    files.adapter_text = config_.text;
    files.path = config_.folder;
    files.weight_map.clear();
    files.sidecars.clear();
    Checkpoint adapter = source_;
    replace_table(adapter, [](WrappedName const& name) {
      return is_of_model(name.kind) && name.kind != Kind::trained ? std::string() : name.peft;
    });
    clear_rest(adapter);
    adapter.model.beside = std::move(files);
    check_factors(adapter);
    source_ = std::move(adapter);
  }

  struct Factors {
    std::optional<StoredTensor> a;
    std::optional<StoredTensor> b;
    bool magnitude = false;
  };

  /// Both factors of each product, in the rank that the config states, and magnitudes of DoRA.
  void check_factors(Checkpoint const& adapter) const {
    std::map<std::string, Factors> modules;
    for (StoredTensor const& tensor : adapter.stored.tensors) {
      std::string const name(tensor.name.text());
      std::size_t const at = name.rfind(".lora_");
      if (at == std::string::npos) continue;
      std::string const part = name.substr(at + 6);
      if (part == "A.weight") modules[name.substr(0, at)].a = tensor;
      if (part == "B.weight") modules[name.substr(0, at)].b = tensor;
      if (part.starts_with("magnitude_vector")) modules[name.substr(0, at)].magnitude = true;
    }
    Json const* const dora = stated("use_dora");
    bool const normalised = dora != nullptr && dora->boolean() != nullptr && *dora->boolean();
    Json const* const patterns = stated("rank_pattern");
    bool const one_rank =
        stated("r") != nullptr && (patterns == nullptr || *patterns == Json::object());
    std::int64_t const* const stated_rank = one_rank ? stated("r")->integer() : nullptr;
    for (auto const& [name, module] : modules) {
      bool const pair = module.a && module.b;
      if (!pair || module.magnitude != normalised)
        fail(ErrorKind::source,
             "{}: '{}' has {}, and its {} states use_dora = {}. The adapter is incomplete, or the "
             "file is of another one: restore both from one save.",
             source_.place, name,
             !pair              ? "one of lora_A and lora_B"
             : module.magnitude ? "a lora_magnitude_vector"
                                : "no lora_magnitude_vector",
             huggingface::adapter_config_name, normalised);
      if (module.a->shape.size() != 2 || module.b->shape.size() != 2) continue;
      Index const rank = module.a->shape[0];
      if (module.b->shape[1] != rank)
        fail(
            ErrorKind::source,
            "{}: '{}' has a lora_A of rank {} and a lora_B of rank {}. Restore both from one save.",
            source_.place, name, rank, module.b->shape[1]);
      if (stated_rank != nullptr && *stated_rank != rank)
        fail(
            ErrorKind::source,
            "{}: '{}' has a lora_A of rank {}, and its {} states r = {}. Restore both from one save.",
            source_.place, name, rank, huggingface::adapter_config_name, *stated_rank);
    }
  }

  Checkpoint& source_;
  WrappedChoice const& choice_;
  WrappedNames names_;
  bool is_wrapped_ = false;
  bool has_state_ = false;
  bool has_trained_ = false;
  WrappedConfig config_;
};

bool may_be_wrapped(Checkpoint const& source) {
  return source.names == NameOwner::family && source.storage != Storage::shares;
}

}  // namespace

std::string wrapped_weight(Checkpoint const& source) {
  std::string first;
  if (!may_be_wrapped(source)) return first;
  for (StoredTensor const& tensor : source.stored.tensors) {
    std::string const name(tensor.name.text());
    if (!first.empty() && first <= name) continue;
    if (name.find(".base_layer.") == std::string::npos &&
        name.find(".original_module.") == std::string::npos)
      continue;
    Kind const kind = parse_wrapped(name).kind;
    if (kind == Kind::base || kind == Kind::original) first = name;
  }
  return first;
}

bool take_wrapped(Checkpoint& source, WrappedChoice const& choice) {
  if (choice.use == AdapterUse::keep || !may_be_wrapped(source)) return false;
  Wrapped wrapped(source, choice);
  if (!wrapped.is_wrapped()) return false;
  wrapped.take();
  return true;
}

}  // namespace reshard
