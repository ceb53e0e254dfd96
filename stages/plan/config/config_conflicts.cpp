#include "stages/plan/config/config_conflicts.hpp"

#include "core/base/text/text.hpp"
#include "core/formats/model_files.hpp"
#include "stages/plan/config/config_members.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_keys_shown = 20;

/// A value that is the usual one is not among the differences, and may still be stated.
std::string stated(std::string const& value, Json const& config, std::string const& key) {
  if (!value.empty()) return value;
  Json const found = fact(config, key);
  return found.is_null() ? "absent" : shown_value(found);
}

std::string listed_differences(ConfigComparison const& found, Json const& a, Json const& b) {
  std::vector<std::string> keys;
  for (ConfigDifference const& one : found.differences)
    keys.push_back(fmt::format("{} is {} and {}", one.key, stated(one.a, a, one.key),
                               stated(one.b, b, one.key)));
  return listed(keys, most_keys_shown);
}

bool names_a_family(PlanRequest const& request) {
  return request.read.map != "auto" && request.read.map != "mcore" && request.read.map != "none";
}

MapChoice maps_for(Json const& config, PlanRequest const& request) {
  return request.read.library.choose(names_a_family(request) ? request.read.map : "auto", config,
                                     Json(), true);
}

/// By the map that the job names, which may be for a model_type that no other map knows.
ConfigComparison compared(ModelDescription const& a, ModelDescription const& b,
                          PlanRequest const& request) {
  if (!names_a_family(request)) return compare_configs(a, b, request.read.library);
  ConfigComparison result;
  if (auto const failed = refusal_of([&] {
        result =
            compare_configs_by(maps_for(a.config.is_null() ? b.config : a.config, request), a, b);
      }))
    result.not_compared = failed->sentence();
  return result;
}

/// The first axis to which two configs give other sizes; layers for multi-token prediction do not
/// count, as the checkpoint decides about them.
std::optional<AxisConflict> size_conflict(Json const& a, Json const& b,
                                          PlanRequest const& request) {
  MapChoice const maps = maps_for(a, request);
  auto const model = [&](Json const& config) {
    return Model(*maps.family, maps.core, {config, "config.json", request.read.true_vocab_size, 0});
  };
  Json stated;
  return axis_conflict(model(a), model(b), stated.set("vocab_size", 1));
}

}  // namespace

std::string config_name_of(huggingface::Folder const& folder) {
  return (folder.path / huggingface::config_name).string();
}

std::string contradiction(NamedDescription const& counts, NamedDescription const& other,
                          std::string const& outcome, PlanRequest const& request) {
  if (counts.model.config == other.model.config && counts.model.args == other.model.args) return "";
  ConfigComparison const found = compared(counts.model, other.model, request);
  if (!found.not_compared.empty())
    return fmt::format(
        "{} and {} differ, and whether this changes the model was not checked: "
        "{}{} {}",
        counts.name, other.name, found.not_compared, found.not_compared.ends_with('.') ? "" : ".",
        outcome);
  if (found.differences.empty()) return "";
  return fmt::format("{} and {} contradict each other: {}. {}", counts.name, other.name,
                     listed_differences(found, counts.model.config, other.model.config), outcome);
}

std::vector<std::string> config_warnings(Checkpoint const& source, Json const& args,
                                         PlanRequest const& request) {
  std::vector<std::string> result;
  auto const compare = [&](NamedDescription const& counts, NamedDescription const& other,
                           std::string const& outcome) {
    std::string text = contradiction(counts, other, outcome, request);
    if (!text.empty()) result.push_back(std::move(text));
  };
  bool const inside_counts = source.model.config_inside && !source.model.config.is_null();
  if (request.read.config.empty() && !inside_counts) return result;
  auto const own = files_of(source);
  if (!own || own->config.is_null()) return result;
  if (!request.read.config.empty()) {
    huggingface::Folder const named = described_by(request.read.config);
    compare({{named.config, args}, fmt::format("source.config ({})", request.read.config.string())},
            {{own->config, args}, "the source's own config.json"}, "source.config is used");
    return result;
  }
  if (auto const beside = model_files_beside(source.folder))
    compare({{source.model.config, args}, "the config.json inside the HDF5 container"},
            {{beside->config, args}, config_name_of(*beside)},
            fmt::format("The one inside is used: if the other is right, name it with {}",
                        format_of(request.target.format).target().names == NameOwner::family
                            ? "target.reference"
                            : "source.config"));
  return result;
}

std::vector<std::string> reference_warnings(ModelDescription own,
                                            huggingface::Folder const& reference,
                                            PlanRequest const& request) {
  if (own.config.is_null() && own.args.is_null()) return {};
  if (reference.config.is_null()) return {};  // the folder of an adapter
  std::string const name = fmt::format("target.reference ({})", config_name_of(reference));
  constexpr char const* source = "the source";
  if (!own.config.is_null() && own.args.is_null()) {
    std::optional<AxisConflict> conflict;
    refusal_of([&] {
      conflict = size_conflict(own.config, reference.config, request);
    });  // what no map describes is reported below
    if (conflict)
      fail(
          ErrorKind::source,
          "{} is the config of another model: the axis {} has {} there and {} in the source ({}). Give the folder of this model.",
          name, conflict->axis, conflict->by_args, conflict->by_config,
          listed_differences(compared({reference.config, {}}, {own.config, {}}, request),
                             reference.config, own.config));
  }
  if (!own.args.is_null())
    refusal_of([&] {
      own.args = completed_args(own.args, maps_for(reference.config, request), reference.config);
    });
  std::string text = contradiction(
      {{reference.config, {}}, name}, {std::move(own), source},
      "The target gets the config.json of target.reference unchanged: leave the key out if the "
      "source is right",
      request);
  return text.empty() ? std::vector<std::string>() : std::vector{std::move(text)};
}

Json completed_args(Json args, MapChoice const& maps, Json const& config) {
  for (auto& [key, value] :
       Model(*maps.family, maps.core, {config, "config.json"}).evaluate(maps.family->args))
    if (args.find(key) == nullptr) args.set(key, std::move(value));
  return args;
}

}  // namespace reshard
