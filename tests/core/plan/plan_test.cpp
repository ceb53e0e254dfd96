#include "core/plan/plan.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/plan/cells/replica_parts.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/compile.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

using test::SampleMesh;
using test::SampleModel;
using test::World;

/// A model with both of its sides' maps.
struct Fixture {
  MapFile core = test::map_file("mcore");
  MapFile family;
  Model model;
  Fixture(SampleModel const& sample)
      : family(test::map_file(sample.family)),
        model(family, core, {sample.config, "config.json", 0}) {
    apply_family(model, Side(model, family, {}));
  }
  Side local(SampleMesh const& at, char const* form = "grouped", char const* spec = "te") const {
    return Side(model, core,
                {true, at.mesh, {{"form", form}, {"spec", spec}}, {}, {}, "[target] layout"});
  }
  Side global() const { return Side(model, family, {}); }
};

void expect_same_files(test::Files const& got, test::Files const& expected,
                       Catalog const& catalog) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t f = 0; f < got.size(); ++f) {
    if (got[f] == expected[f]) continue;
    for (Blob const& blob : catalog.blobs)
      if (blob.file == f) {
        auto const first = static_cast<std::size_t>(
            std::mismatch(got[f].begin(), got[f].end(), expected[f].begin()).first -
            got[f].begin());
        if (blob.offset_bytes <= first)
          ADD_FAILURE() << "file " << f << " byte " << first << ", at or after " << blob.name.text()
                        << " at " << blob.offset_bytes;
      }
    return;
  }
}

/// Source to target by direct rounds of `ranks` ranks with little memory.
void reshard_direct(Fixture const& fixture, World const& source, World const& target, int ranks,
                    PlanLimits const& limits) {
  Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, limits);
  test::Files result = target.blank;
  std::vector<std::byte> staging;
  for (int rank = 0; rank < ranks; ++rank) {
    auto next = direct_rounds(plan, cells_of_rank(plan, rank, ranks), limits.staging_bytes);
    while (auto const round = next()) test::carry_out(*round, staging, source.files, result);
  }
  expect_same_files(result, target.files, target.catalog);
}

/// The messages of one round of every rank, handed over in memory.
void exchange_round(std::vector<RoundWork> const& rounds, test::Files const& source,
                    test::Files& result) {
  std::vector<std::vector<std::byte>> staging(rounds.size());
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    RoundWork packing = rounds[r];
    packing.writes.clear();
    for (Message const& send : rounds[r].sends)
      packing.copies.insert(packing.copies.end(), send.copies.begin(), send.copies.end());
    test::carry_out(packing, staging[r], source, result);
  }
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    for (Message const& receive : rounds[r].receives) {
      bool found = false;
      for (Message const& send : rounds[static_cast<std::size_t>(receive.peer)].sends) {
        if (send.peer != static_cast<int>(r)) continue;
        ASSERT_EQ(send.bytes, receive.bytes);
        std::memcpy(staging[r].data() + receive.at,
                    staging[static_cast<std::size_t>(receive.peer)].data() + send.at, send.bytes);
        found = true;
      }
      ASSERT_TRUE(found) << "rank " << r << " waits for rank " << receive.peer;
      for (StridedCopy const& copy : receive.copies) test::copy_strided_bytes(copy, staging[r]);
    }
    for (Extent const& write : rounds[r].writes)
      std::memcpy(result.at(write.file).data() + write.offset_bytes, staging[r].data() + write.at,
                  write.bytes);
  }
}

void reshard_by_exchange(Fixture const& fixture, World const& source, World const& target,
                         int ranks, PlanLimits const& limits) {
  Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, limits);
  auto const readers = balanced_readers(plan, source.files.size(), ranks);
  test::Files result = target.blank;
  std::vector<ExchangeRounds> each;
  for (int rank = 0; rank < ranks; ++rank)
    each.emplace_back(plan, readers, rank, ranks, 4 * limits.staging_bytes);
  for (;;) {
    std::vector<RoundWork> rounds;
    for (auto& rank : each)
      if (auto round = rank.next()) rounds.push_back(std::move(*round));
    ASSERT_TRUE(rounds.empty() || rounds.size() == each.size())
        << "ranks disagree on the number of rounds";
    if (rounds.empty()) break;
    exchange_round(rounds, source.files, result);
  }
  expect_same_files(result, target.files, target.catalog);
}

TEST(Plan, EveryLayoutBecomesEveryOther) {
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      SampleMesh const& from = meshes[i];
      SampleMesh const& to = meshes[(i * 5 + 3) % meshes.size()];
      SCOPED_TRACE(fmt::format("{} from {} to {}", sample.family, i, (i * 5 + 3) % meshes.size()));
      World const source = test::make_world(fixture.model, fixture.local(from), from, DType::bf16);
      World const target = test::make_world(fixture.model, fixture.local(to, "sequential", "local"),
                                            to, DType::bf16);
      reshard_direct(fixture, source, target, static_cast<int>(1 + i % 3), {2048, 32768});
      reshard_by_exchange(fixture, source, target, static_cast<int>(2 + i % 4), {2048, 32768});
      PlanLimits const aligned{2048, 32768, true, {128}};  // parts from 2048 bytes on are long
      reshard_direct(fixture, source, target, static_cast<int>(1 + i % 3), aligned);
      reshard_by_exchange(fixture, source, target, static_cast<int>(2 + i % 4), aligned);
      PlanLimits spread{2048, 32768};  // blocks with replicas become several cells
      spread.most_target_bytes = 3000;
      reshard_direct(fixture, source, target, static_cast<int>(1 + i % 3), spread);
      reshard_by_exchange(fixture, source, target, static_cast<int>(2 + i % 4), spread);
    }
  }
}

/// The same world with all of it in one file, in which shares of a tensor are neighbours, some way
/// apart: gaps differ from layer to layer.
World in_one_file(World const& world) {
  World one = world;
  one.files.assign(1, {});
  std::mt19937_64 random(7);
  BlobTable& blobs = one.catalog.blobs;
  std::vector<std::size_t> by_name(blobs.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::ranges::stable_sort(by_name, {}, [&](std::size_t b) { return blobs.name(b).text(); });
  for (std::size_t const placed : by_name) {
    Blob const blob = blobs[placed];
    std::vector<std::byte> const& from = world.files[blob.file];
    Blob const next = *std::ranges::min_element(world.catalog.blobs, {}, [&](Blob const& other) {
      bool const behind = other.file == blob.file && other.offset_bytes > blob.offset_bytes;
      return behind ? other.offset_bytes : std::uint64_t{1} << 60U;
    });
    bool const is_last = next.file != blob.file || next.offset_bytes <= blob.offset_bytes;
    std::uint64_t const end = is_last ? from.size() : next.offset_bytes;
    std::vector<std::byte>& to = one.files[0];
    to.resize(to.size() + 8 * (random() % 100), std::byte{0});
    auto const bytes = std::span(from).subspan(blob.offset_bytes, end - blob.offset_bytes);
    blobs.set(placed, {0, to.size(), blob.dtype, blob.name});
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  one.catalog.files = {"file"};
  return one;
}

/// What a cell needs depends on what lies between its pieces, which equal slices have each their
/// own of.
TEST(Plan, CellsKeepToTheirMemoryWhereverTheirPiecesAre) {
  std::ptrdiff_t different = 0;  // shapes whose cells need different memory
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    for (std::size_t i = 0; i < meshes.size(); ++i) {
      SampleMesh const& from = meshes[i];
      SampleMesh const& to = meshes[(i + 1) % meshes.size()];
      World const source =
          in_one_file(test::make_world(fixture.model, fixture.local(from), from, DType::bf16));
      World const target = test::make_world(fixture.model, fixture.local(to), to, DType::bf16);
      for (std::uint64_t const memory : {3'000U, 4'500U, 5'000U}) {
        PlanLimits const limits{2048, memory};
        Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, limits);
        std::map<std::uint32_t, std::set<std::uint64_t>> of_shape;
        for (Cell const& cell : plan.cells) {
          auto const regions = plan.regions_of(cell);
          EXPECT_LE(cell.staging_bytes, memory);
          if (staging_bound(regions, plan.dims) <= memory) continue;
          EXPECT_EQ(compile_round(regions, plan.dims).staging_bytes, cell.staging_bytes);
          of_shape[plan.cells.shape(cell.shape).first_region].insert(cell.staging_bytes);
        }
        different += std::ranges::count_if(
            of_shape, [](auto const& shape) { return shape.second.size() > 1; });
        reshard_direct(fixture, source, target, 2, limits);
      }
    }
  }
  EXPECT_GT(different, 10);
}

/// Cells are rows of a matrix, whichever side stores its columns apart: each column alone would be
/// read or written in runs of one element.
TEST(Plan, AMatrixOfColumnsIsCutIntoRows) {
  constexpr Index rows = 5000;
  constexpr Index columns = 4;
  std::vector<PlainTensor> const tensors{{"w", {rows, columns}}};
  Model const model(tensors, "test");
  auto const& axes = model.tensor(TensorId{0}).axes;
  auto const side = [&](bool is_apart) {
    Catalog catalog;
    catalog.files = {"file"};
    catalog.tensors.resize(1);
    Index const width = is_apart ? 1 : columns;
    for (Index c = 0; c < columns; c += width)
      catalog.add(
          {0, static_cast<std::uint64_t>(c * rows * 4), DType::f32, "w"},
          {{TensorId{0},
            {{axes[0].axis, rows, 1, 0, rows, width}, {axes[1].axis, columns, 1, c, width, 1}},
            {},
            0}},
          false);
    return catalog;
  };
  Catalog const apart = side(true);
  Catalog const whole = side(false);
  for (bool const is_source_apart : {true, false}) {
    Plan const plan = make_plan(model, is_source_apart ? apart : whole,
                                is_source_apart ? whole : apart, {16'384, 65'536});
    EXPECT_GT(plan.cells.size(), 1U);
    for (Cell const& cell : plan.cells) {
      std::set<std::uint64_t> columns_of_cell;
      for (Region const& region : plan.regions_of(cell))
        columns_of_cell.insert(is_source_apart ? region.dst_offset_bytes % 16
                                               : region.src_offset_bytes % 16);
      EXPECT_EQ(columns_of_cell.size(), 4U);
    }
  }
}

/// Five replicas of two source blocks of 10 bytes each.
TEST(Plan, ABlockWithManyReplicasIsSplitByTargetFiles) {
  std::vector<Region> regions;
  for (std::uint32_t const source : {0U, 1U})
    for (std::uint32_t const target : {4U, 3U, 2U, 1U, 0U})
      regions.push_back({source, target, 100, 10 * source, 10, 0, 0});
  std::vector<Region> const original = regions;

  ASSERT_EQ(by_replicas(regions, {}, 100).size(), 1U);
  EXPECT_EQ(regions.front().to, original.front().to) << "the order of one part stays";

  auto const parts = by_replicas(regions, {}, 40);
  ASSERT_EQ(parts.size(), 3U);
  std::size_t members = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    std::set<std::uint32_t> sources;
    for (Region const& region : parts[p]) {
      EXPECT_EQ(region.to * 3 / 5, p);
      sources.insert(region.src_file);
    }
    EXPECT_EQ(sources.size(), 2U) << "each part has all source bytes";
    members += parts[p].size();
  }
  EXPECT_EQ(members, regions.size());
  EXPECT_EQ(by_replicas(regions, {}, 1).size(), 5U) << "a replica stays in one part";
}

/// What is cut does not depend on the number of ranks, and cells grow with the job.
TEST(Plan, CellsGrowInAVeryLargeJob) {
  SampleModel const sample = test::sample_models().front();
  Fixture const fixture(sample);
  auto const mesh = test::sample_meshes(false).front();
  World const world = test::make_world(fixture.model, fixture.local(mesh), mesh, DType::bf16);
  auto const cells = [&](std::uint64_t least, std::uint64_t most) {
    PlanLimits limits{least, 32768};
    limits.most_cell_bytes = most;
    limits.usual_cells = 100;
    return make_plan(fixture.model, world.catalog, world.catalog, limits).cells.size();
  };
  EXPECT_EQ(cells(64, 64), cells(64, 0));
  EXPECT_LT(cells(64, 4096), cells(64, 64)) << "this model has more than 100 cells of 64 bytes";
}

TEST(Plan, IsTheSameWithAnyNumberOfThreads) {
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    auto const meshes = test::sample_meshes(fixture.model.axes().find("expert") >= 0);
    World const source =
        test::make_world(fixture.model, fixture.local(meshes.front()), meshes.front(), DType::bf16);
    World const target =
        test::make_world(fixture.model, fixture.local(meshes.back()), meshes.back(), DType::bf16);
    auto const made = [&](std::size_t threads) {
      return make_plan(fixture.model, source.catalog, target.catalog,
                       {.cell_bytes = 2048, .staging_bytes = 32768, .threads = threads});
    };
    Plan const one = made(1);
    Plan const four = made(4);
    EXPECT_EQ(one.tensor_bytes, four.tensor_bytes);
    EXPECT_EQ(one.source_bytes, four.source_bytes);
    EXPECT_EQ(one.target_bytes, four.target_bytes);
    EXPECT_EQ(one.replicas_dropped, four.replicas_dropped);
    EXPECT_EQ(one.joined_regions, four.joined_regions);
    ASSERT_EQ(one.cells.size(), four.cells.size());
    auto const places = [](Plan const& plan) {
      std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint64_t>> all;
      for (Cell const& cell : plan.cells)
        for (Region const& region : plan.regions_of(cell))
          all.emplace_back(region.src_file, region.src_offset_bytes, region.to,
                           region.dst_offset_bytes);
      return all;
    };
    EXPECT_EQ(places(one), places(four));
  }
}

/// Small pieces that lie near each other in a file are read together, with what is between them:
/// that counts, too.
TEST(Plan, ExchangeRoundsKeepToTheirMemoryWhereGapsAreReadAlong) {
  for (std::uint64_t const distance : {300U, 5'000U, 60'000U, 1'000'000U}) {
    Plan plan;
    constexpr std::uint32_t pieces = 4000;
    for (std::uint32_t i = 0; i < pieces; ++i) {
      Region const region{0, i % 2, i * distance, i * 10, 10, 0, 0};
      plan.add({.staging_bytes = staging_bound(std::span(&region, 1), plan.dims),
                .source_bytes = 10,
                .target_bytes = 10},
               std::span(&region, 1));
    }
    constexpr std::uint64_t limit = 256U << 10;
    std::vector<ExchangeRounds> each;
    for (int rank = 0; rank < 2; ++rank)
      each.emplace_back(plan, std::vector<int>{0}, rank, 2, limit);
    std::uint64_t const expected = each[0].count();
    std::uint64_t rounds = 0;
    for (;; ++rounds) {
      auto const reader = each[0].next();
      auto const writer = each[1].next();
      ASSERT_EQ(reader.has_value(), writer.has_value());
      if (!reader) break;
      EXPECT_LE(reader->staging_bytes, limit + 8192) << "distance " << distance;
      EXPECT_LE(writer->staging_bytes, limit + 8192);
    }
    EXPECT_EQ(rounds, expected);
    EXPECT_GT(rounds, 1U);
  }
}

TEST(Plan, WholeTensorsBecomeSharesAndBack) {
  for (SampleModel const& sample : test::sample_models()) {
    Fixture const fixture(sample);
    World const whole = test::make_global_world(fixture.model, fixture.global(), DType::f32);
    for (SampleMesh const& mesh : test::sample_meshes(fixture.model.axes().find("expert") >= 0)) {
      World const parts = test::make_world(fixture.model, fixture.local(mesh), mesh, DType::f32);
      reshard_direct(fixture, whole, parts, 2, {1000, 65536});
      reshard_direct(fixture, parts, whole, 3, {1U << 20, 4U << 20});
      reshard_by_exchange(fixture, parts, whole, 3, {1000, 65536});
    }
  }
}

TEST(Plan, LegacyGroupedExpertsBecomeWeightsPerExpert) {
  for (std::size_t const sample : {4U, 6U}) {
    Fixture const fixture(test::sample_models()[sample]);
    SampleMesh const from{{2, 1, 1, 4, 2}};
    SampleMesh const to{{4, 2, 1, 2, 1}};
    World const source =
        test::make_world(fixture.model, fixture.local(from, "flat"), from, DType::bf16);
    World const target =
        test::make_world(fixture.model, fixture.local(to, "grouped"), to, DType::bf16);
    reshard_direct(fixture, source, target, 2, {4096, 65536});
    reshard_by_exchange(fixture, source, target, 3, {4096, 65536});
  }
}

TEST(Plan, ReadsEverySourceByteOnceHoweverManyTargetsTakeIt) {
  Fixture const fixture(test::sample_models()[4]);
  SampleMesh const from{{1, 1, 1, 1, 1}};
  SampleMesh const to{{1, 1, 1, 8, 1}};
  World const source = test::make_world(fixture.model, fixture.local(from), from, DType::bf16);
  World const target = test::make_world(fixture.model, fixture.local(to), to, DType::bf16);
  Plan const plan = make_plan(fixture.model, source.catalog, target.catalog, {1U << 20, 8U << 20});
  std::uint64_t read = 0;
  std::uint64_t written = 0;
  auto next = direct_rounds(plan, cells_of_rank(plan, 0, 1), 8U << 20);
  while (auto const round = next()) {
    for (Extent const& extent : round->reads) read += extent.bytes;
    for (Extent const& extent : round->writes) written += extent.bytes;
  }
  EXPECT_LE(read, source.files[0].size());
  EXPECT_EQ(written, plan.target_bytes);
  EXPECT_GT(written, 2 * plan.source_bytes);
}

TEST(Plan, AMissingShareIsNamed) {
  Fixture const fixture(test::sample_models()[4]);
  SampleMesh const from{{2, 1, 1, 4, 1}};
  World source = test::make_world(fixture.model, fixture.local(from), from, DType::bf16);
  World const target = test::make_world(fixture.model, fixture.local({{1, 1, 1, 1, 1}}),
                                        {{1, 1, 1, 1, 1}}, DType::bf16);
  auto const gate = index(fixture.model.find_tensor("experts.gate").value());
  auto& pieces = source.catalog.tensors[gate];
  for (std::size_t i = pieces.size(); i-- > 0;)
    if (source.catalog.blobs[pieces.blob(i)].file == 1) pieces.erase(i);
  try {
    make_plan(fixture.model, source.catalog, target.catalog, {});
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(error.sentence().find("'experts.gate': nothing holds"), std::string::npos)
        << error.sentence();
    EXPECT_NE(error.sentence().find("expert 4:6"), std::string::npos) << error.sentence();
  }
}

TEST(Plan, ATensorWithoutAPlaceInTheTargetIsRefused) {
  Fixture const fixture(test::sample_models()[4]);
  SampleMesh const at{{1, 1, 1, 1, 1}};
  World const source = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
  Catalog target = source.catalog;
  target.tensors[index(fixture.model.find_tensor("router.weight").value())] = {};
  try {
    make_plan(fixture.model, source.catalog, target, {});
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(error.sentence().find("'router.weight' is in the source"), std::string::npos)
        << error.sentence();
  }
}

TEST(Plan, ATensorInTwoDtypesIsRefused) {
  Fixture const fixture(test::sample_models()[0]);
  SampleMesh const at{{2, 1, 1, 1, 2}};
  World source = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
  auto const q = index(fixture.model.find_tensor("attn.q").value());
  source.catalog.blobs.change(source.catalog.tensors[q].blob(0),
                              [](Blob& blob) { blob.dtype = DType::f16; });
  EXPECT_THROW(make_plan(fixture.model, source.catalog, source.catalog, {}), Error);
}

/// The pieces that are read have one dtype here.
TEST(Plan, AReplicaInAnotherDtypeIsRefused) {
  Fixture const fixture(test::sample_models()[0]);
  SampleMesh const at{{2, 1, 1, 1, 1}};
  auto const norm = index(fixture.model.find_tensor("attn.norm").value());
  for (bool const first : {true, false}) {
    World source = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
    TensorPieces const& pieces = source.catalog.tensors[norm];
    std::uint32_t const other = pieces.blob(first ? 0 : pieces.size() - 1);
    source.catalog.blobs.change(other, [](Blob& blob) { blob.dtype = DType::f64; });
    World const target = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
    try {
      make_plan(fixture.model, source.catalog, target.catalog, {});
      FAIL();
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      EXPECT_NE(error.sentence().find("F64"), std::string::npos) << error.sentence();
    }
  }
}

TEST(Plan, TooLittleMemoryIsSaidBeforeAnythingMoves) {
  Fixture const fixture(test::sample_models()[0]);
  SampleMesh const at{{1, 1, 1, 1, 1}};
  World const source = test::make_world(fixture.model, fixture.local(at), at, DType::bf16);
  try {
    make_plan(fixture.model, source.catalog, source.catalog, {1, 16});
    FAIL();
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
  }
}

TEST(Schedule, PartsOfRanksCoverThePlanAndAreBalanced) {
  Plan plan;
  for (std::uint32_t i = 0; i < 100; ++i) {
    Region const region{.dst_offset_bytes = 100 * i, .run_bytes = 100};
    plan.add({.staging_bytes = 10, .source_bytes = 100 + i % 7, .target_bytes = 100},
             std::span(&region, 1));
  }
  for (int ranks : {1, 2, 3, 4, 7, 100, 130}) {
    std::size_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      CellRange const range = cells_of_rank(plan, r, ranks);
      EXPECT_EQ(range.begin, std::min(next, plan.cells.size())) << ranks << " ranks, rank " << r;
      EXPECT_LE(range.end - range.begin, 100 / static_cast<std::size_t>(ranks) + 2);
      next = range.end;
    }
    EXPECT_EQ(next, plan.cells.size());
  }
}

/// A tensor of two layers, stored under these names.
MapFile map_with(std::string const& stored) {
  return parse_map_file(
      "let = { L = 2, M = 0 }\naxes = { hidden = 4, layer = 2 }\n"
      "tensors = { '' = [ 'a: layer hidden' ] }\nstored = { " +
          stored + " }",
      "m.toml");
}

TEST(Plan, ElementsThatTheTargetHoldsTwiceAreRefused) {
  MapFile const once = map_with("'a' = 'a: layer hidden'");
  MapFile const twice = map_with("'a' = 'a: layer hidden', 'b.{layer}' = 'a: hidden'");
  Model const model(once, once, {parse_json("{}", "facts"), "facts", 0});
  World const source = test::make_global_world(model, Side(model, once, {}), DType::bf16);
  World const target = test::make_global_world(model, Side(model, twice, {}), DType::bf16);
  test::expect_refused(ErrorKind::usage, "Limit one of the map's entries with `in` or `when`",
                       [&] { make_plan(model, source.catalog, target.catalog, PlanLimits{}); });
}

}  // namespace
}  // namespace reshard
