// What one format alone promises.

#include <algorithm>

#include "core/formats/inspect_lines.hpp"
#include "tests/core/formats/contents.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST(LogicalHdf5, SaysWhatModelItHolds) {
  ScratchFolder const scratch("logical_hdf5");
  auto const makers = sample_makers();
  auto const maker = std::ranges::find(makers, "logical_hdf5", &SampleMaker::name);
  maker->make(scratch.path() / "sample");
  Checkpoint const checkpoint = opened(scratch.path() / "sample");
  EXPECT_EQ(checkpoint.names, NameOwner::logical);
  EXPECT_EQ(checkpoint.logical.map, "sample");
  EXPECT_EQ(checkpoint.logical.vocab, 50);
  EXPECT_EQ(checkpoint.logical.prediction_layers, 1);
  EXPECT_EQ(checkpoint.model.config_text, "{\"model_type\": \"sample\"}\n");
  EXPECT_TRUE(checkpoint.model.config_inside);
  EXPECT_EQ(args_of(checkpoint).dump(), R"({"num_layers": 2})");
  EXPECT_EQ(checkpoint.logical.digests.size(), checkpoint.stored.tensors.size());
  for (std::size_t t = 0; t < checkpoint.logical.labels.size(); ++t)
    EXPECT_EQ(checkpoint.logical.labels[t].axes.size(),
              checkpoint.stored.tensors[t].shape.size() == 2 ? 2U : 0U);
  EXPECT_EQ(format_of(FormatId::hdf5).model_files(checkpoint)->config_text,
            checkpoint.model.config_text);
}

/// Files of other programs beside the items travel along, what the format itself puts there does
/// not.
TEST(DcpSource, KnowsWhatLiesBesideItsItems) {
  ScratchFolder const scratch("beside_items");
  for (SampleMaker const& maker : sample_makers()) {
    if (maker.name != "torch_dist" && maker.name != "dcp") continue;
    bool const megatrons = maker.name == "torch_dist";
    fs::path const folder = scratch.path() / maker.name;
    maker.make(folder);
    write_text_file(folder / "notes.txt", "text");
    write_text_file(folder / "integrity.json", "{}");
    Checkpoint const checkpoint = opened(folder);
    EXPECT_EQ(checkpoint.chunked.side_files,
              (std::vector<std::string>{megatrons ? "huggingface" : "config.json", "notes.txt"}));
    EXPECT_EQ(checkpoint.chunked.has_common_file, megatrons);
    EXPECT_EQ(checkpoint.chunked.common != nullptr, megatrons);
    EXPECT_EQ(format_of(FormatId::torch_dist).run_record(checkpoint).has_value(), megatrons);
    EXPECT_EQ(args_of(checkpoint).find("num_layers") != nullptr, megatrons);
  }
}

TEST(DcpSource, SaysWhatItsStateIs) {
  ScratchFolder const scratch("described_state");
  for (SampleMaker const& maker : sample_makers()) {
    bool const megatrons = maker.name == "torch_dist" || maker.name == "fsdp_dtensor";
    if (!megatrons && maker.name != "dcp") continue;
    std::string const with_state = megatrons
                                       ? "exp_avg: stored with its weights, and resharded like them"
                                       : "in files of single ranks; can only be dropped";
    for (auto const& [make, says] :
         {std::pair{maker.make, std::string("none")}, {maker.make_with_state, with_state}}) {
      fs::path const folder = scratch.path() / fmt::format("{} {}", maker.name, says);
      make(folder);
      Inspection const found = maker.format->describe(folder, {});
      EXPECT_TRUE(found.sound) << found.text;
      Json const* optimizer = found.json.find("optimizer");
      ASSERT_NE(optimizer, nullptr) << maker.name;
      EXPECT_EQ(*optimizer->text(), says);
      EXPECT_EQ(found.json.find("layers") != nullptr, megatrons);
    }
  }
}

TEST(Inspect, FindingsAreALineEach) {
  EXPECT_EQ(inspect_findings({}, {}), "mismatches        -\n");
  EXPECT_EQ(inspect_findings(std::vector<std::string>{"one", "\x1b[31mtwo"},
                             std::vector<std::string>{"three"}),
            "mismatches        one\n"
            "                  \\u001b[31mtwo\n"
            "notes             three\n");
}

/// What an index does not name is no part of the checkpoint, and a warning says so.
TEST(HuggingFaceSource, HoldsWhatItsIndexNames) {
  ScratchFolder const scratch("index_names");
  SampleMaker const maker = sample_makers().at(1);
  ASSERT_EQ(maker.format->id(), FormatId::huggingface);
  SampleCheckpoint const sample = maker.make(scratch.path() / "sample");
  Json index = parse_json(read_text_file(sample.written_last, 1 << 20), "index");
  Json map = *index.find("weight_map");
  std::string const left_out = map.members()->front().first;
  map.members()->erase(map.members()->begin());
  write_text_file(sample.written_last, Json().set("weight_map", map).dump());
  Checkpoint const checkpoint = opened(sample.path);
  auto expected = by_name(sample.tensors);
  expected.erase(left_out);
  expect_same(contents(checkpoint), expected);
  ASSERT_EQ(checkpoint.warnings.size(), 1U);
  EXPECT_NE(checkpoint.warnings.front().find(left_out), std::string::npos);
  EXPECT_EQ(checkpoint.index.promised.size(), expected.size());
}

}  // namespace
}  // namespace reshard::test
