#include "stages/plan/config/config_comparison.hpp"

#include <algorithm>
#include <map>

#include "core/formats/megatron/args.hpp"
#include "core/formats/megatron/writer.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/carried_files.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/source/run_record.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::string text_of(Json const& value) { return value.is_null() ? std::string() : shown_value(value); }

/// One name for what transformers has called otherwise.
std::string common_key(std::string const& key) {
  for (std::string_view const outer : {"rope_scaling.", "rope_parameters."})
    if (key.starts_with(outer)) return "rope." + (key.ends_with(".type") ? std::string("rope_type") : key.substr(outer.size()));
  return key == "rope_theta" || key == "partial_rotary_factor" ? "rope." + key : key;
}

class Comparer {
 public:
  Comparer(MapFile const& family, MapFile const& core, Json const& a, Json const& b) : a_(family, core, a), b_(family, core, b) {
    for (ConfigMember const& member : a_.members()) both_[common_key(member.key)].first = &member;
    for (ConfigMember const& member : b_.members()) both_[common_key(member.key)].second = &member;
  }

  std::vector<ConfigDifference> run() const {
    std::vector<ConfigDifference> result;
    for (auto const& [key, pair] : both_) {
      auto const [a, b] = pair;
      Json const in_a = a == nullptr ? Json() : a->value;
      Json const in_b = b == nullptr ? Json() : b->value;
      if (in_a == in_b || !differs(a, b)) continue;
      result.push_back({a != nullptr ? a->key : b->key, text_of(in_a), text_of(in_b)});
    }
    return result;
  }

 private:
  /// A member that args hold may be left out where it says what is usual.
  bool differs(ConfigMember const* a, ConfigMember const* b) const {
    if (a != nullptr && a_.held(*a)) return a_.differs_with(a->path, b == nullptr ? Json() : b->value);
    if (b != nullptr && b_.held(*b)) return b_.differs_with(b->path, a == nullptr ? Json() : a->value);
    return true;
  }

  ConfigMembers a_;
  ConfigMembers b_;
  std::map<std::string, std::pair<ConfigMember const*, ConfigMember const*>> both_;
};

Json family_args(MapChoice const& maps, Json const& config) {
  Json args = Json::object();
  for (auto& [key, value] : Model(*maps.family, maps.core, {config, "config.json"}).evaluate(maps.family->args)) args.set(key, std::move(value));
  return args;
}

std::vector<ConfigDifference> by_args(MapChoice const& maps, Json const& config, Json const& args, bool config_is_a) {
  std::vector<ConfigDifference> result;
  auto const add = [&](std::string const& key, Json const& of_config, Json const& of_args) {
    result.push_back({key, text_of(config_is_a ? of_config : of_args), text_of(config_is_a ? of_args : of_config)});
  };
  if (maps.family->config.empty()) {
    for (ArgDifference const& one : differing_args(*maps.family, maps.core, family_args(maps, config), args))
      add("args." + one.name, one.first, one.second);
    return result;
  }
  for (huggingface::ConfigPatch const& change : revised_config(*maps.family, maps.core, config, args, "").changes) {
    Json const* old = &config;
    for (std::string const& name : change.path) old = old == nullptr ? nullptr : old->find(name);
    add(fmt::format("{}", fmt::join(change.path, ".")), old == nullptr ? Json() : *old, change.value.value_or(Json()));
  }
  return result;
}

std::string type_of(Json const& config) {
  Json const* type = config.find("model_type");
  return type == nullptr || type->text() == nullptr ? "" : *type->text();
}

/// What the carried config became when training went on.
Json current_config(MapChoice const& maps, ModelDescription const& side) {
  if (side.args.is_null() || side.config.is_null()) return side.config;
  if (maps.family->config.empty()) return side.config;
  return huggingface::patched_config(side.config, revised_config(*maps.family, maps.core, side.config, side.args, "").changes);
}

Json const& first_config(ModelDescription const& a, ModelDescription const& b) { return a.config.is_null() ? b.config : a.config; }

ConfigComparison compare(ModelDescription const& a, ModelDescription const& b, MapChoice const& maps) {
  Json const& config = first_config(a, b);
  if (maps.family->args.empty()) return {{}, fmt::format("{} has no [args]", maps.family->name)};
  if (a.config.is_null() || b.config.is_null()) {
    Json const& args = a.config.is_null() ? a.args : b.args;
    if (args.is_null()) return {{}, fmt::format("{} has neither a config.json nor args", a.config.is_null() ? "a" : "b")};
    return {by_args(maps, config, args, b.config.is_null()), ""};
  }
  std::string const in_a = type_of(a.config);
  std::string const in_b = type_of(b.config);
  auto const& types = maps.family->model_types;
  if (in_a != in_b && std::find(types.begin(), types.end(), in_b) == types.end())
    return {{{"model_type", text_of(Json(in_a)), text_of(Json(in_b))}}, ""};
  return {Comparer(*maps.family, maps.core, current_config(maps, a), current_config(maps, b)).run(), ""};
}

}  // namespace

ModelDescription describe_model(SourceCheckpoint const& checkpoint, fs::path const& config) {
  ModelDescription result;
  if (checkpoint.logical) {
    result.config = checkpoint.logical->config;
    result.args = checkpoint.logical->args;
  }
  if (checkpoint.dcp) result.config = checkpoint.dcp->config;
  if (auto const files = files_of(checkpoint, config); files && (result.config.is_null() || !config.empty())) result.config = files->config;
  if (checkpoint.megatron) result.args = checkpoint.megatron->headers.front().args;
  if (checkpoint.dcp && checkpoint.dcp->flavour != dcp::Flavour::plain)
    if (auto const record = run_record(checkpoint)) result.args = megatron::args_as_json(record->document(), megatron::find_args(record->document()));
  return result;
}

ConfigComparison compare_configs(ModelDescription const& a, ModelDescription const& b, std::vector<fs::path> const& map_folders) {
  if (a.config.is_null() && b.config.is_null()) return {{}, "neither has a config.json"};
  try {
    return compare(a, b, choose_maps("auto", map_folders, first_config(a, b), Json(), true));
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    return {{}, error.sentence()};
  }
}

ConfigComparison compare_configs_by(MapChoice const& maps, ModelDescription const& a, ModelDescription const& b) {
  if (a.config.is_null() && b.config.is_null()) return {{}, "neither has a config.json"};
  return compare(a, b, maps);
}

}  // namespace reshard
