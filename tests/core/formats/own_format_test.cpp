// A format that only this test knows: a folder of raw files with an index. Code that is for all
// formats needs nothing but the interface.

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/files/sight.hpp"
#include "core/formats/format.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/plan/identity_plan.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/read_only_format.hpp"
#include "tests/support/sample_models.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/written_target.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* index_name = "raw.json";

/// {"tensors": {"a.weight": {"file": "0.raw", "dtype": "BF16", "shape": [2, 3]}}}, each file one
/// tensor.
class RawFormat final : public test::ReadOnlyFormat {
 public:
  FormatId id() const override { return FormatId::automatic; }
  std::string_view family() const override { return "raw"; }
  bool probe(fs::path const& path) const override { return sees_file(path / index_name); }

  Checkpoint open(fs::path const& path, OpenChoice const& /*choice*/,
                  HeaderExchange const& exchange) const override {
    Checkpoint checkpoint;
    checkpoint.format = this;
    checkpoint.root = checkpoint.folder = path;
    checkpoint.place = path.string();
    Json index;
    exchange.together_seeing([&] {
      index = parse_json(read_text_file(path / index_name, 1 << 20), index_name);
      for (auto const& [name, tensor] : *index.find("tensors")->members())
        checkpoint.files.push_back(path / *tensor.find("file")->text());
    });
    shared_headers(checkpoint, exchange, [](File const& /*file*/) { return HeaderBytes(); });
    std::uint32_t file = 0;
    for (auto const& [name, tensor] : *index.find("tensors")->members()) {
      std::vector<Index> shape;
      for (Json const& extent : *tensor.find("shape")->items()) shape.push_back(*extent.integer());
      auto const bytes = static_cast<std::uint64_t>(checkpoint.stamps.taken[file].bytes);
      checkpoint.stored.add_whole(name, DType::bf16, shape, {file++, 0, bytes});
    }
    return checkpoint;
  }

  Inspection describe(fs::path const& path, megatron::UserSizes const& /*sizes*/) const override {
    Inspection result;
    result.json.set("path", path.string()).set("format", family()).set("mismatches", Json::array());
    return result;
  }
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override {
    Json const index =
        parse_json(read_text_file(checkpoint.folder / index_name, 1 << 20), index_name);
    Json const* const config = index.find("config");
    if (config == nullptr) return std::nullopt;
    huggingface::Folder folder;
    folder.path = checkpoint.folder;
    folder.config = *config;
    folder.config_text = config->dump(2) + "\n";
    return folder;
  }
};

RawFormat const raw;

class OwnFormat : public testing::Test {
 protected:
  void add(std::string const& name, std::vector<Index> const& shape) {
    Json extents = Json::array();
    Index elements = 1;
    for (Index const extent : shape) {
      extents.push(extent);
      elements *= extent;
    }
    std::string const file = fmt::format("{}.raw", bytes_.size());
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * 2);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>((i * 5 + bytes_.size() * 17) % 251);
    File::create(folder_ / file).write_at(0, bytes);
    bytes_[name] = bytes;
    tensors_.set(name, Json().set("file", file).set("shape", extents));
  }

  /// A whole small llama.
  void add_llama() {
    config_ = test::sample_models().front().config;
    MapFile const family = test::map_file("llama");
    MapFile const core = test::map_file("mcore");
    Model const model(family, core, {config_, "config.json", 0});
    Side const side(model, family, {});
    for (StoredName const& name : side.names(nullptr)) add(name.name, side.shape(name));
  }

  Checkpoint opened(HeaderExchange const& exchange = LoneReader()) const {
    Json index = Json().set("tensors", tensors_);
    if (!config_.is_null()) index.set("config", config_);
    if (!fs::exists(folder_ / index_name)) write_text_file(folder_ / index_name, index.dump());
    return raw.open(folder_, {}, exchange);
  }

  /// Plans and writes the target, and reads it again: the bytes of every tensor by name.
  std::map<std::string, std::vector<std::byte>> written(PlanRequest request) const {
    Checkpoint const source = opened();
    request.read.library = MapLibrary({fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"});
    JobPlan const plan = make_job_plan(source, request, PlanLimits{});
    fs::path const target = scratch_.path() / "target";
    test::write_target(plan, test::bytes_of_files(source.files), target);
    return contents(open_checkpoint(target, FormatId::automatic, {}, LoneReader()));
  }

  static std::map<std::string, std::vector<std::byte>> contents(Checkpoint const& checkpoint) {
    auto const files = test::bytes_of_files(checkpoint.files);
    std::map<std::string, std::vector<std::byte>> result;
    for (std::size_t t = 0; t < checkpoint.stored.tensors.size(); ++t)
      result[checkpoint.stored.tensors[t].name] = test::gathered(checkpoint.stored, t, files).bytes;
    return result;
  }

  ScratchFolder scratch_{"own_format"};
  fs::path const folder_ = scratch_.path();
  Json tensors_ = Json::object();
  Json config_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

TEST_F(OwnFormat, IsViewedAndHasNoState) {
  add("a.weight", {2, 3});
  add("b.weight", {4});
  Checkpoint const source = opened();
  EXPECT_EQ(view_of(source).weights, (StoredView::Table{{"a.weight", 0}, {"b.weight", 1}}));
  EXPECT_EQ(raw.view(source, "a.").weights, (StoredView::Table{{"weight", 0}}));
  EXPECT_EQ(raw.view(source, "a.").unread, std::vector<std::string>{"b.weight"});
  EXPECT_FALSE(raw.inventory(source, view_of(source)).optimizer);
  EXPECT_FALSE(raw.run_record(source));
  EXPECT_EQ(args_of(source), Json());
}

TEST_F(OwnFormat, IsOfSourcesAlone) {
  EXPECT_FALSE(raw.target().written);
  for (Format const* one : all_formats())
    EXPECT_EQ(one->target().written, one->id() != FormatId::fsdp_ranks) << one->name();
}

TEST_F(OwnFormat, IsReadByAnyNumberOfRanks) {
  for (char const* name : {"a", "b", "c", "d"}) add(name, {3});
  Checkpoint const alone = opened();
  auto const errors = test::RankThreads(3).run([&](HeaderExchange const& exchange) {
    Checkpoint const together = opened(exchange);
    EXPECT_EQ(together.stamps.taken, alone.stamps.taken);
    EXPECT_EQ(together.stamps.rank, (std::vector<int>{0, 1, 2, 0}));
  });
  for (auto const& error : errors) EXPECT_FALSE(error);
}

TEST_F(OwnFormat, IsListedUnderItsNames) {
  add("a.weight", {2, 3});
  JobPlan const plan = identity_catalogue(opened(), {});
  ASSERT_EQ(plan.model->tensors().size(), 1U);
  EXPECT_EQ(plan.model->tensors()[0].name, "a.weight");
}

TEST_F(OwnFormat, IsListedByItsModel) {
  add_llama();
  PlanRequest request;
  request.read.library = MapLibrary({fs::path(RESHARD_SOURCE_DIR) / "configs" / "models"});
  JobPlan const plan = catalogue(opened(), request);
  EXPECT_EQ(plan.map_name, "llama.toml");
  EXPECT_EQ(plan.source.blobs.size(), bytes_.size());
}

TEST_F(OwnFormat, GoesIntoADcpFolderUnderItsNames) {
  add("a.weight", {2, 3});
  add("b.weight", {4});
  PlanRequest request;
  request.target.format = FormatId::dcp;
  request.read.map = "none";
  EXPECT_EQ(written(request), bytes_);
}

TEST_F(OwnFormat, GoesIntoAHuggingFaceFolderByItsMap) {
  add_llama();
  PlanRequest request;
  request.target.format = FormatId::huggingface;
  request.options.huggingface.shard_bytes = 10'000;
  EXPECT_EQ(written(request), bytes_);
  EXPECT_TRUE(fs::exists(scratch_.path() / "target" / "config.json"));
}

}  // namespace
}  // namespace reshard
