#include "stages/plan/change/carried_parts.hpp"

#include <algorithm>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// A pattern of all that stands behind a prefix, such as "vision_tower.*", has layers of its own.
bool is_apart(std::string_view pattern) {
  std::size_t const star = pattern.find('*');
  return star == std::string_view::npos || star + 1 == pattern.size();
}

/// Of a stored name, by the map's `keep` and the names of trainers for that.
bool is_apart(MapFile const& map, std::string_view name) {
  auto const fits = [&](std::string const& stored, std::string const& pattern) {
    return is_apart(pattern) && matches_glob(stored, name);
  };
  if (std::ranges::any_of(map.keep, [&](auto const& one) { return fits(one, one); })) return true;
  return std::ranges::any_of(map.kept, [&](MapKept const& trainer) {
    return std::ranges::any_of(trainer.names, [&](MapKeptName const& one) {
      return !one.family.empty() && fits(one.trainer, one.family.front());
    });
  });
}

}  // namespace

void check_carried_parts(SourceModel const& read, ModelChanges const& changes, Index vocab,
                         std::string const& keys) {
  Model const& model = *read.model;
  MapFile const& map = read.names.maps.family ? *read.names.maps.family : read.names.maps.core;
  int const expert = model.axes().find("expert");
  Index const experts = expert < 0 ? 0 : model.axes()[static_cast<AxisId>(expert)].size;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    LogicalTensor const& tensor = model.tensors()[t];
    TensorPieces const& pieces = read.stored.catalog.tensors[t];
    if (!std::string_view(tensor.name).starts_with("kept.") || pieces.empty()) continue;
    std::string_view const name = read.stored.catalog.blobs[pieces.blob(0)].name;
    auto const counts = [&](Index size) {
      return std::ranges::any_of(tensor.axes, [&](LogicalAxis const& axis) {
        return model.axes()[axis.axis].size == size;
      });
    };
    bool const changes_layers =
        !changes.keep_layers.empty() || (!changes.keep_experts.empty() && counts(experts));
    bool const of_layers = changes_layers && !is_apart(map, name);
    bool const of_depths =
        changes.mtp != PredictionLayers::keep && name.find("mtp.") != std::string_view::npos;
    bool const of_tokens = changes.vocab_size > 0 && counts(vocab);
    if (of_layers || of_depths || of_tokens)
      fail(ErrorKind::usage,
           "[model] unmapped = \"keep\": '{}' is carried as it is, and belongs to what {} would "
           "change. Set it to \"drop\", or remove that.",
           name, keys);
  }
}

}  // namespace reshard
