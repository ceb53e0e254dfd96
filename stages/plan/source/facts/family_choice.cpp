#include "stages/plan/source/facts/family_choice.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/shapes.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/model.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

/// A family's reading of args.
struct Reading {
  std::set<std::string, std::less<>> tensors;
  std::size_t untold = 0;  ///< args that its config.json cannot hold
};

class FamilyChooser {
 public:
  FamilyChooser(MapChoice const& maps, PlanRequest const& request, Json const& args)
      : core_(maps.core),
        request_(request),
        args_(args),
        described_(core_, core_, {args, "args", request.read.true_vocab_size}) {}

  /// Nothing for a family that has no config.json of such args, or other sizes.
  std::optional<Reading> reading(MapFile const& family) const {
    std::optional<Reading> result;
    auto const refused = refusal_of([&] {
      Json const config = config_from_args(family, described_);
      Model const model(family, core_, {config, "config.json", request_.read.true_vocab_size});
      if (axis_conflict(model, described_, args_)) return;
      Reading read;
      for (std::size_t t = 0; t < model.tensors().size(); ++t)
        if (model.exists(TensorId(t)) && model.volume(model.tensors()[t]) > 0)
          read.tensors.insert(model.tensors()[t].name);
      read.untold = untold_args(family, core_, config, args_).size();
      result = std::move(read);
    });
    return refused ? std::nullopt : result;
  }

  /// The other families of the same tensors that can hold all of the args.
  std::vector<MapFile> others(MapFile const& chosen, Reading const& own) const {
    std::vector<MapFile> result;
    for (MapFile& family : request_.read.library.families()) {
      if (family.name == chosen.name || family.config.empty() || !family.facts.empty()) continue;
      if (asks_own_arg(family) && !matches_args(family, args_)) continue;
      auto const read = reading(family);
      if (read && read->untold == 0 && read->tensors == own.tensors)
        result.push_back(std::move(family));
    }
    return result;
  }

  /// Whether the condition of a family asks an argument that no Megatron has, and which therefore
  /// names a family; `stated`: one that the args have.
  bool asks_own_arg(MapFile const& family, bool stated = false) const {
    return std::ranges::any_of(family.match_args.keys(), [&](std::string const& key) {
      return std::ranges::count(core_.own_args, key) > 0 &&
             (!stated || !fact(args_, key).is_null());
    });
  }

 private:
  MapFile const& core_;
  PlanRequest const& request_;
  Json const& args_;
  Model described_;
};

/// The model_type of the folder at the end of "run_config.yaml: hf_model_id = /models/GLM-5".
Json type_of_origin(std::string const& origin) {
  std::filesystem::path const folder = value_of_origin(origin);
  if (!folder.is_absolute() || !sees_file(folder / huggingface::config_name)) return {};
  return fact(described_by(folder).config, "model_type");
}

std::vector<std::string> names_of(std::vector<MapFile> const& families) {
  std::vector<std::string> names;
  for (MapFile const& family : families)
    names.push_back(std::filesystem::path(family.name).stem().string());
  return names;
}

}  // namespace

FamilyChoice settled_family(MapChoice const& maps, PlanRequest const& request, Json const& args,
                            std::string const& origin) {
  MapFile const& chosen = *maps.family;
  FamilyChoice result;
  if (Json const type = type_of_origin(origin); type.text() != nullptr) {
    for (MapFile& family : request.read.library.families())
      if (std::ranges::count(family.model_types, *type.text()) > 0 && !family.config.empty() &&
          family.facts.empty()) {
        if (family.name != chosen.name) result.family = std::move(family);
        return result;
      }
  }
  FamilyChooser const chooser(maps, request, args);
  if (chooser.asks_own_arg(chosen, true)) return result;
  auto const own = chooser.reading(chosen);
  if (!own || (own->untold == 0 && origin.empty())) return result;
  std::vector<MapFile> others = chooser.others(chosen, *own);
  if (others.empty()) return result;
  if (own->untold > 0 && others.size() == 1) {
    result.family = std::move(others.front());
    return result;
  }
  result.warning = fmt::format(
      "config.json is made from the checkpoint's args, and families of one structure fit them: {}, "
      "{}. {} is taken{}. Set source.config to the model's own config.json, or name its map with "
      "model.map",
      std::filesystem::path(chosen.name).stem().string(), listed(names_of(others), 8),
      std::filesystem::path(chosen.name).stem().string(),
      origin.empty() ? std::string() : fmt::format(" ({})", origin));
  return result;
}

}  // namespace reshard
