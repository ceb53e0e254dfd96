#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/files/file.hpp"
#include "core/mapping/sides/side.hpp"
#include "tests/support/sample_models.hpp"

namespace reshard {
namespace {

using Shape = std::vector<Index>;

/// One case of torch_dist_names.json, which torch_dist_names.py writes with megatron-core.
struct SavedModel {
  std::string name;
  Json args;
  std::map<std::string, Json> options;
  test::MeshSizes mesh;
  std::map<std::string, Shape> tensors;
  Json::Array ranks;
};

Index number(Json const& json, std::string_view key) { return *json.find(key)->integer(); }

Shape numbers(Json const& json) {
  Shape result;
  for (Json const& item : *json.items()) result.push_back(*item.integer());
  return result;
}

std::vector<SavedModel> saved_models() {
  Json const file = parse_json(
      read_text_file(std::string(RESHARD_SOURCE_DIR) + "/tests/core/mapping/torch_dist_names.json",
                     1U << 20),
      "saved models");
  std::vector<SavedModel> result;
  for (Json const& json : *file.items()) {
    SavedModel saved;
    saved.name = *json.find("name")->text();
    saved.args = *json.find("args");
    for (auto const& [key, value] : *json.find("options")->members())
      saved.options.emplace(key, value);
    Shape const mesh = numbers(*json.find("mesh"));
    saved.mesh = {static_cast<int>(mesh[0]), 1, 1, static_cast<int>(mesh[1]),
                  static_cast<int>(mesh[2])};
    for (auto const& [key, value] : *json.find("tensors")->members())
      saved.tensors.emplace(key, numbers(value));
    if (Json const* ranks = json.find("ranks")) saved.ranks = *ranks->items();
    result.push_back(std::move(saved));
  }
  return result;
}

/// The side of a saved model; what its names do not show is no part of the model.
struct Opened {
  Opened(SavedModel const& saved, MapFile const& core)
      : model(core, core, {saved.args, "args", 0}),
        side(model, core, {false, saved.mesh, saved.options, {}, {}, "test", true}) {
    apply_present(model, core);
    std::set<TensorId> found;
    for (StoredName const& name : side.names(nullptr))
      if (saved.tensors.contains(name.name))
        for (TensorId const tensor : side.tensors(name.entry)) found.insert(tensor);
    for (TensorId const tensor : side.optional_tensors())
      if (!found.contains(tensor)) model.set_exists(tensor, false);
    names = side.names(nullptr);
    if (saved.name.starts_with("mamba"))  // a stack of layers without the model around it
      std::erase_if(names,
                    [](StoredName const& name) { return !name.name.starts_with("decoder."); });
  }

  Model model;
  Side side;
  std::vector<StoredName> names;
};

TEST(TorchDist, NamesAndShapesAreThoseThatMegatronSaves) {
  MapFile const core = test::map_file("mcore");
  for (SavedModel const& saved : saved_models()) {
    SCOPED_TRACE(saved.name);
    Opened const opened(saved, core);
    std::map<std::string, Shape> ours;
    for (StoredName const& name : opened.names) ours.emplace(name.name, opened.side.shape(name));
    for (auto const& [name, shape] : saved.tensors)
      EXPECT_EQ(ours.contains(name) ? ours[name] : Shape{}, shape) << name;
    for (auto const& [name, shape] : ours)
      EXPECT_TRUE(saved.tensors.contains(name)) << name << " is not in Megatron's checkpoint";
  }
}

/// Whether a chunk lies in the rows of a rank, in every dimension.
bool lies_in(Shape const& begin, Shape const& size, std::vector<std::vector<Run>> const& rows) {
  for (std::size_t d = 0; d < begin.size(); ++d)
    if (std::none_of(rows[d].begin(), rows[d].end(), [&](Run const& run) {
          return run.begin <= begin[d] && begin[d] + size[d] <= run.end;
        }))
      return false;
  return true;
}

Index volume(std::vector<std::vector<Run>> const& rows) {
  Index result = 1;
  for (std::vector<Run> const& dimension : rows) result *= extent(dimension);
  return result;
}

TEST(TorchDist, RowsOfARankAreTheChunksThatMegatronSavesThere) {
  MapFile const core = test::map_file("mcore");
  int ranks = 0;
  for (SavedModel const& saved : saved_models()) {
    SCOPED_TRACE(saved.name);
    Opened const opened(saved, core);
    for (Json const& rank : saved.ranks) {
      ++ranks;
      SidePlace const place{saved.mesh.mesh().at({{"tp", number(rank, "tp")},
                                                  {"ep", number(rank, "ep")},
                                                  {"etp", number(rank, "etp")}}),
                            nullptr};
      for (StoredName const& name : opened.names) {
        auto const rows = opened.side.rank_rows(name, place);
        Json const* chunks = rank.find("chunks")->find(name.name);
        Index saved_elements = 0;
        if (chunks != nullptr)
          for (Json const& chunk : *chunks->items()) {
            Shape const begin = numbers((*chunk.items())[0]);
            Shape const size = numbers((*chunk.items())[1]);
            EXPECT_TRUE(lies_in(begin, size, rows)) << name.name << " of rank " << rank.dump();
            saved_elements += checked_volume(size, ErrorKind::internal, name.name);
          }
        EXPECT_EQ(volume(rows), saved_elements)
            << name.name << ", " << opened.side.place_text(place);
      }
    }
  }
  EXPECT_GE(ranks, 20);
}

}  // namespace
}  // namespace reshard
