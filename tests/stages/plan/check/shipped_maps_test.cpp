#include <algorithm>
#include <filesystem>
#include <ostream>
#include <regex>
#include <set>
#include <type_traits>

#include <gtest/gtest.h>

#include "core/base/capture.hpp"
#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/mapping/maps/map_file.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/check/map_check.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_config_bytes = 1U << 20;

fs::path maps_folder() { return fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"; }

std::vector<fs::path> files_in(fs::path const& folder, std::string const& extension) {
  std::vector<fs::path> files;
  for (auto const& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> maps() { return files_in(maps_folder(), ".toml"); }

/// "" where no shipped map lists the model_type.
std::string map_for(Json const& config) {
  std::string name;
  capture(
      [&] { name = MapLibrary({maps_folder()}).choose("auto", config, {}, true).family->name; });
  return fs::path(name).stem().string();
}

/// A config.json, or the text model's own inside of one.
struct PublishedModel {
  std::string name;
  Json config;
  std::string type;
};

/// So that a failure names the model and not its bytes.
void PrintTo(PublishedModel const& model, std::ostream* out) { *out << model.name; }

std::string model_type(Json const& config) {
  Json const* type = config.find("model_type");
  return type == nullptr || type->text() == nullptr ? "" : *type->text();
}

/// Experts are alike: a map that is right for some of them is right for hundreds. As many stay as
/// one token of any of these models asks for.
std::string with_few_experts(std::string const& config) {
  static std::regex const count(
      R"re("(n_routed_experts|num_experts|num_local_experts)": *(3[3-9]|[4-9]\d|\d{3,})\b)re");
  return std::regex_replace(config, count, R"("$1": 32)");
}

std::vector<PublishedModel> read_published_models() {
  std::vector<PublishedModel> models;
  for (fs::path const& path :
       files_in(fs::path(RESHARD_SOURCE_DIR) / "tests" / "data" / "configs", ".json")) {
    std::string const text = with_few_experts(read_text_file(path, largest_config_bytes));
    Json const config = parse_json(text, path.string());
    models.push_back({path.stem().string(), config, model_type(config)});
  }
  for (std::size_t i = 0, count = models.size(); i < count; ++i) {
    Json const* inner = models[i].config.find("text_config");
    std::string const type = inner == nullptr ? "" : model_type(*inner);
    bool const own = std::any_of(models.begin(), models.end(),
                                 [&](PublishedModel const& model) { return model.type == type; });
    if (!type.empty() && !own && !map_for(*inner).empty())
      models.push_back({models[i].name + "_inside", *inner, type});
  }
  return models;
}

/// tests/data/configs: config.json of published models, as far as maps ask for it. A text model
/// inside of one counts for itself where its family has no config of its own.
std::vector<PublishedModel> const& published_models() {
  static std::vector<PublishedModel> const models = read_published_models();
  return models;
}

template <class Param>
std::string test_name(testing::TestParamInfo<Param> const& info) {
  std::string name;
  if constexpr (std::is_same_v<Param, fs::path>)
    name = info.param.stem().string();
  else
    name = info.param.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char letter) { return std::isalnum(static_cast<unsigned char>(letter)) == 0; }, '_');
  return name;
}

class PublishedConfig : public testing::TestWithParam<PublishedModel> {};

TEST_P(PublishedConfig, ProvesTheMapOfItsFamily) {
  std::string const map = map_for(GetParam().config);
  ASSERT_NE(map, "") << "no map lists model_type '" << GetParam().type << "'";
  try {
    MapCheck const found = check_map({map, MapLibrary({maps_folder()}), GetParam().config, {}});
    for (std::string const& error : found.errors) ADD_FAILURE() << error;
    EXPECT_FALSE(found.tensors.empty());
  } catch (Error const& error) {
    FAIL() << error.sentence();
  }
}
INSTANTIATE_TEST_SUITE_P(Configs, PublishedConfig, testing::ValuesIn(published_models()),
                         test_name<PublishedModel>);

class ShippedMap : public testing::TestWithParam<fs::path> {};

TEST_P(ShippedMap, NeedsNoModelToBeRead) {
  try {
    check_map({GetParam().stem().string(), MapLibrary({maps_folder()}), {}, {}});
  } catch (Error const& error) {
    FAIL() << error.sentence();
  }
}

TEST_P(ShippedMap, HasAConfigWhenItIsAFamily) {
  MapFile const map = load_map_file(GetParam());
  if (map.model_types.empty()) GTEST_SKIP() << "no family";
  std::vector<PublishedModel> const& all = published_models();
  EXPECT_TRUE(std::any_of(all.begin(), all.end(),
                          [&](PublishedModel const& model) {
                            return std::ranges::count(map.model_types, model.type) > 0 &&
                                   (map.axes.empty() ||
                                    map_for(model.config) == GetParam().stem().string());
                          }))
      << "put the config.json of a published model of " << GetParam().filename()
      << " into tests/data/configs";
}
INSTANTIATE_TEST_SUITE_P(Maps, ShippedMap, testing::ValuesIn(maps()), test_name<fs::path>);

TEST(ShippedMaps, NoModelTypeIsOfTwoFamilies) {
  std::set<std::string> seen;
  for (fs::path const& path : maps()) {
    MapFile const map = load_map_file(path);
    if (map.axes.empty()) continue;           // names alone, which a job asks for by name
    if (!map.match_config.empty()) continue;  // for some of its type
    for (std::string const& type : map.model_types)
      EXPECT_TRUE(seen.insert(type).second) << type << " in " << path;
  }
}

}  // namespace
}  // namespace reshard
