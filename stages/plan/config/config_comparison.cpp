#include "stages/plan/config/config_comparison.hpp"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/model_files.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/source/facts/model_class.hpp"
#include "stages/plan/source/facts/stated_args.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* neither = "neither has a config.json";

std::string text_of(Json const& value) {
  return value.is_null() ? std::string() : shown_value(value);
}

/// One name for what transformers has called otherwise.
std::string common_key(std::string const& key) {
  for (std::string_view const outer : {"rope_scaling.", "rope_parameters."})
    if (key.starts_with(outer))
      return "rope." +
             (key.ends_with(".type") ? std::string("rope_type") : key.substr(outer.size()));
  return key == "rope_theta" || key == "partial_rotary_factor" ? "rope." + key : key;
}

/// Numbers by their value.
bool equal(Json const& a, Json const& b) {
  if (a.integer() != nullptr && b.real() != nullptr)
    return static_cast<double>(*a.integer()) == *b.real();
  if (a.real() != nullptr && b.integer() != nullptr) return equal(b, a);
  if (a.items() == nullptr || b.items() == nullptr) return a == b;
  return std::ranges::equal(*a.items(), *b.items(), equal);
}

/// Every member that two configs have otherwise, unless it is known to change nothing: by [neutral]
/// with both values, or because no arg and no size that depends on it becomes another one with the
/// other's value.
class Comparer {
 public:
  Comparer(MapFile const& family, MapFile const& core, Json const& a, Json const& b)
      : a_(family, core, a), b_(family, core, b) {
    for (ConfigMember const& member : a_.all()) both_[common_key(member.key)].first = &member;
    for (ConfigMember const& member : b_.all()) both_[common_key(member.key)].second = &member;
  }

  std::vector<ConfigDifference> run() const {
    std::vector<ConfigDifference> result;
    for (auto const& [key, pair] : both_) {
      auto const [a, b] = pair;
      Json const in_a = a == nullptr ? Json() : a->value;
      Json const in_b = b == nullptr ? Json() : b->value;
      if (equal(in_a, in_b) || !differs(a, b)) continue;
      result.push_back({a != nullptr ? a->key : b->key, text_of(in_a), text_of(in_b)});
    }
    return result;
  }

 private:
  bool differs(ConfigMember const* a, ConfigMember const* b) const {
    Json const in_a = a == nullptr ? Json() : a->value;
    Json const in_b = b == nullptr ? Json() : b->value;
    if ((a == nullptr || a_.neutral(*a, in_a)) && (b == nullptr || b_.neutral(*b, in_b)))
      return false;
    if ((a != nullptr ? a : b)->kept) return true;
    bool const held_a = a != nullptr && a_.held(*a);
    bool const held_b = b != nullptr && b_.held(*b);
    if (!held_a && !held_b) return true;
    return (held_a && a_.differs_with(a->path, in_b)) || (held_b && b_.differs_with(b->path, in_a));
  }

  ConfigMembers a_;
  ConfigMembers b_;
  std::map<std::string, std::pair<ConfigMember const*, ConfigMember const*>> both_;
};

/// Two descriptions of a model, compared by the map of its family.
class DescribedModels {
 public:
  DescribedModels(ModelDescription const& a, ModelDescription const& b, MapChoice const& maps)
      : a_(a), b_(b), maps_(maps) {}

  std::vector<ConfigDifference> run() {
    if (a_.config.is_null())
      by_args(b_.config, a_.args, false);
    else if (b_.config.is_null())
      by_args(a_.config, b_.args, true);
    else
      by_config();
    if (!a_.args.is_null() && !b_.args.is_null()) by_both_args();
    return std::move(result_);
  }

 private:
  void add(std::string const& key, Json const& in_a, Json const& in_b) {
    auto const same = [&](ConfigDifference const& known) { return known.key == key; };
    if (std::ranges::none_of(result_, same)) result_.push_back({key, text_of(in_a), text_of(in_b)});
  }

  void by_args(Json const& config, Json const& args, bool config_is_a) {
    auto const between = [&](std::string const& key, Json const& of_config, Json const& of_args) {
      add(key, config_is_a ? of_config : of_args, config_is_a ? of_args : of_config);
    };
    if (maps_.family->config.empty()) {
      Json const made = args_from_config(*maps_.family, maps_.core, config);
      for (ArgDifference const& one : differing_args(*maps_.family, maps_.core, made, args))
        between("args." + one.name, one.first, one.second);
      for (ArgDifference const& one : untold_args(*maps_.family, maps_.core, config, args))
        between("args." + one.name, one.first, one.second);
      return;
    }
    ConfigRevision const revision = revised_config(*maps_.family, maps_.core, config, args, "");
    for (huggingface::ConfigPatch const& change : revision.changes) {
      Json const* old = &config;
      for (std::string const& name : change.path) old = old == nullptr ? nullptr : old->find(name);
      between(fmt::format("{}", fmt::join(change.path, ".")), old == nullptr ? Json() : *old,
              change.value.value_or(Json()));
    }
    for (ArgDifference const& one : revision.untold)
      between("args." + one.name, one.first, one.second);
  }

  void by_config() {
    std::map<std::string, std::pair<Json, Json>> untold;
    Json const config_a =
        current_config(a_, [&](ArgDifference const& one) { untold[one.name].first = one.second; });
    Json const config_b =
        current_config(b_, [&](ArgDifference const& one) { untold[one.name].second = one.second; });
    result_ = Comparer(*maps_.family, maps_.core, config_a, config_b).run();
    if (result_.empty()) by_made_args(config_a, config_b);
    for (auto const& [name, values] : untold)
      if (!equal(values.first, values.second)) add("args." + name, values.first, values.second);
  }

  /// Compares members that say a thing only together, by the args made of them.
  void by_made_args(Json const& config_a, Json const& config_b) {
    Json const a = args_from_config(*maps_.family, maps_.core, config_a);
    Json const b = args_from_config(*maps_.family, maps_.core, config_b);
    for (ArgDifference const& one : differing_args(*maps_.family, maps_.core, a, b))
      add("args." + one.name, one.first, one.second);
  }

  /// The copied config brought up to date after training continued; args that it cannot express go
  /// to `note`.
  template <class Note>
  Json current_config(ModelDescription const& side, Note&& note) const {
    if (side.args.is_null() || maps_.family->config.empty()) return side.config;
    ConfigRevision const revision =
        revised_config(*maps_.family, maps_.core, side.config, side.args, "");
    for (ArgDifference const& one : revision.untold) note(one);
    return huggingface::patched_config(side.config, revision.changes);
  }

  /// Args that the family makes show in the configs made of them, unless the family cannot make
  /// one.
  void by_both_args() {
    bool const untold = result_.empty();
    for (ArgDifference const& one : differing_function_args(maps_.core, a_.args, b_.args))
      if (untold || !makes_arg(*maps_.family, one.name))
        add("args." + one.name, one.first, one.second);
    if (!untold || !maps_.family->config.empty()) return;
    for (ArgDifference const& one : differing_args(*maps_.family, maps_.core, a_.args, b_.args))
      add("args." + one.name, one.first, one.second);
  }

  ModelDescription const& a_;
  ModelDescription const& b_;
  MapChoice const& maps_;
  std::vector<ConfigDifference> result_;
};

std::string type_of(Json const& config) {
  Json const* type = config.find("model_type");
  return type == nullptr || type->text() == nullptr ? "" : *type->text();
}

/// Megatron against Megatron without any config.json.
ConfigComparison compare_args(Json const& a, Json const& b, MapLibrary const& library) {
  MapChoice const maps = library.choose("auto", Json(), Json(), false);
  ConfigComparison result;
  for (ArgDifference const& one : differing_function_args(maps.core, a, b))
    result.differences.push_back({"args." + one.name, text_of(one.first), text_of(one.second)});
  return result;
}

Json const& first_config(ModelDescription const& a, ModelDescription const& b) {
  return a.config.is_null() ? b.config : a.config;
}

ConfigComparison compare(ModelDescription const& a, ModelDescription const& b,
                         MapChoice const& maps) {
  if (maps.family->args.empty()) return {{}, fmt::format("{} has no [args]", maps.family->name)};
  if (a.config.is_null() || b.config.is_null()) {
    if ((a.config.is_null() ? a.args : b.args).is_null())
      return {{},
              fmt::format("{} has neither a config.json nor args", a.config.is_null() ? "a" : "b")};
    return {DescribedModels(a, b, maps).run(), ""};
  }
  std::string const in_a = type_of(a.config);
  std::string const in_b = type_of(b.config);
  auto const& types = maps.family->model_types;
  if (in_a != in_b && std::find(types.begin(), types.end(), in_b) == types.end())
    return {{{"model_type", text_of(Json(in_a)), text_of(Json(in_b))}}, ""};
  return {DescribedModels(a, b, maps).run(), ""};
}

}  // namespace

ModelDescription describe_model(Checkpoint const& checkpoint, fs::path const& config,
                                MapLibrary const& library) {
  ModelDescription result;
  if (checkpoint.model.config_inside) result.config = checkpoint.model.config;
  if (auto const files = files_of(checkpoint, config);
      files && (result.config.is_null() || !config.empty())) {
    result.config = files->config;
    result.adapter = files->adapter;
  }
  result.args = stated_args(checkpoint, library);
  return result;
}

namespace {

/// Adds different scales of two adapters; the tensors state the ranks. Null, false and an empty
/// pattern are alike. A comparison that was not made is made by it, where both have a file.
ConfigComparison with_adapters(ConfigComparison result, Json const& a, Json const& b) {
  if (a.members() == nullptr || b.members() == nullptr) return result;
  auto const value = [](Json const& config, char const* key) {
    Json const said = fact(config, key);
    bool const none = said == Json(false) || (said.members() != nullptr && said.members()->empty());
    return none ? Json() : said;
  };
  for (char const* key : {"lora_alpha", "use_rslora", "alpha_pattern", "fan_in_fan_out"})
    if (Json const first = value(a, key), second = value(b, key); first != second)
      result.differences.push_back(
          {fmt::format("adapter_config.{}", key), shown_value(first), shown_value(second)});
  if (result.not_compared == neither) result.not_compared.clear();
  return result;
}

/// A hybrid model of pairs as a GPTModel, where the other description, or else the family, is one.
ModelDescription in_class_of(ModelDescription description, ModelDescription const& other,
                             MapFile const* family) {
  bool const gpt = other.args.is_null() ? family != nullptr && !is_hybrid(*family)
                                        : !megatron::hybrid_pattern(other.args);
  Json args = gpt ? gpt_args(description.args) : Json();
  if (!args.is_null()) description.args = std::move(args);
  return description;
}

ConfigComparison compare_models(ModelDescription const& a, ModelDescription const& b,
                                MapLibrary const& library) {
  bool const both_args = !a.args.is_null() && !b.args.is_null();
  if (a.config.is_null() && b.config.is_null() && !both_args) return {{}, neither};
  try {
    if (a.config.is_null() && b.config.is_null())
      return compare_args(in_class_of(a, b, nullptr).args, in_class_of(b, a, nullptr).args,
                          library);
    MapChoice const maps = library.choose("auto", first_config(a, b), Json(), true);
    MapFile const* const family = maps.family ? &*maps.family : nullptr;
    return compare(in_class_of(a, b, family), in_class_of(b, a, family), maps);
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return {{}, error.sentence()};
  }
}

}  // namespace

ConfigComparison compare_configs(ModelDescription const& a, ModelDescription const& b,
                                 MapLibrary const& library) {
  return with_adapters(compare_models(a, b, library), a.adapter, b.adapter);
}

ConfigComparison compare_configs_by(MapChoice const& maps, ModelDescription const& a,
                                    ModelDescription const& b) {
  ConfigComparison const models = a.config.is_null() && b.config.is_null()
                                      ? ConfigComparison{{}, neither}
                                      : compare(a, b, maps);
  return with_adapters(models, a.adapter, b.adapter);
}

}  // namespace reshard
