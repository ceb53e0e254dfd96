#include "core/plan/equal/shared_pages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "core/plan/cells/rank_parts.hpp"
#include "core/plan/cells/schedule.hpp"
#include "tests/support/plan_world.hpp"

namespace reshard {
namespace {

using test::SampleMesh;
using test::SampleModel;
using test::World;

constexpr PageLimits fine{64, 4096, 4096};

using Page = std::pair<std::uint32_t, std::uint64_t>;

/// What happens to the pages of target files while all ranks write.
struct Seen {
  std::map<Page, std::set<int>> writers;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_held = 0;

  std::size_t contested() const {
    std::size_t count = 0;
    for (auto const& [page, ranks] : writers) count += ranks.size() > 1 ? 1U : 0U;
    return count;
  }
};

bool is_held(std::vector<FileSpan> const& held, std::uint32_t file, std::uint64_t offset) {
  auto const at = std::ranges::partition_point(held, [&](FileSpan const& s) {
    return s.file < file || (s.file == file && s.end <= offset);
  });
  return at != held.end() && at->file == file && at->begin <= offset;
}

/// Adds what one writer does with these cells.
void carry_out(Plan const& plan, CellRange cells, std::vector<FileSpan> const& held, int writer,
               PageLimits const& limits, std::uint64_t staging_bytes, Seen& seen) {
  auto next = direct_rounds(plan, cells, staging_bytes);
  while (auto const round = next())
    for (Extent const& write : round->writes)
      for (std::uint64_t at = write.offset_bytes; at < write.offset_bytes + write.bytes;) {
        std::uint64_t const end =
            std::min(at / limits.page_bytes * limits.page_bytes + limits.page_bytes,
                     write.offset_bytes + write.bytes);
        bool const kept_back = is_held(held, write.file, at);
        (kept_back ? seen.bytes_held : seen.bytes_written) += end - at;
        if (!kept_back) seen.writers[{write.file, at / limits.page_bytes}].insert(writer);
        at = end;
      }
}

Seen carry_out(Plan const& plan, int ranks, PageLimits const& limits, std::uint64_t staging_bytes) {
  RankCells const cells(plan, ranks);
  std::vector<std::vector<FileSpan>> written;
  for (int r = 0; r < ranks; ++r) written.push_back(written_pages(plan, cells.of(r), limits));
  Seen seen;
  for (int r = 0; r < ranks; ++r)
    carry_out(plan, cells.of(r), pages_of_lower_ranks(written, static_cast<std::size_t>(r), limits),
              r, limits, staging_bytes, seen);
  return seen;
}

/// Each part by a rank of its own.
Seen carry_out(Plan const& plan, RankParts const& parts, std::uint64_t staging_bytes) {
  std::vector<std::vector<FileSpan>> written;
  for (std::size_t part = 0; part < parts.count(); ++part)
    written.push_back(written_pages(plan, parts.cells(part), fine));
  auto const held = pages_of_lower_writers(written, UINT64_MAX);
  Seen seen;
  for (std::size_t part = 0; part < parts.count(); ++part)
    carry_out(plan, parts.cells(part), held->at(part), static_cast<int>(part), fine, staging_bytes,
              seen);
  return seen;
}

TEST(SharedPages, NoPageHasTwoWritersInAnyLayout) {
  for (SampleModel const& sample : test::sample_models()) {
    MapFile const core = test::map_file("mcore");
    MapFile const family = test::map_file(sample.family);
    Model model(family, core, {sample.config, "config.json", 0});
    apply_family(model, Side(model, family, {}));
    auto const side = [&](SampleMesh const& at, char const* form, char const* spec) {
      return Side(model, core,
                  {true, at.mesh, {{"form", form}, {"spec", spec}}, {}, {}, "[target] layout"});
    };
    auto const meshes = test::sample_meshes(model.axes().find("expert") >= 0);
    for (std::size_t i = 0; i < meshes.size(); i += 4) {
      SampleMesh const& to = meshes[(i * 5 + 3) % meshes.size()];
      SCOPED_TRACE(fmt::format("{} from {} to {}", sample.family, i, (i * 5 + 3) % meshes.size()));
      World const source =
          test::make_world(model, side(meshes[i], "grouped", "te"), meshes[i], DType::bf16);
      World const target =
          test::make_world(model, side(to, "sequential", "local"), to, DType::bf16);
      Plan const plan = make_plan(model, source.catalog, target.catalog, {2048, 32768});
      for (int ranks : {1, 2, 7}) {
        Seen const seen = carry_out(plan, ranks, fine, 32768);
        EXPECT_EQ(seen.contested(), 0U) << ranks << " ranks";
        EXPECT_EQ(seen.bytes_written + seen.bytes_held, plan.target_bytes);
        EXPECT_LT(seen.bytes_held, ranks == 1 ? 1 : plan.target_bytes / 2) << ranks << " ranks";
      }
      Seen const seen = carry_out(plan, RankParts(plan, 3, {.least_weight = 4096}), 32768);
      EXPECT_EQ(seen.contested(), 0U) << "parts of 3 ranks";
      EXPECT_EQ(seen.bytes_written + seen.bytes_held, plan.target_bytes);
    }
  }
}

/// A matrix of rows * columns elements of 16 bytes; each cell takes `width` columns of all rows:
/// its bytes lie between those of the others.
void add_transposed(Plan& plan, std::uint32_t file, std::uint64_t at, std::uint64_t rows,
                    std::uint64_t columns, std::uint64_t width) {
  for (std::uint64_t c = 0; c < columns; c += width) {
    CellShape cell;
    cell.source_bytes = cell.target_bytes = rows * width * 16;
    cell.staging_bytes = 4 * cell.source_bytes;
    Region const region{file,
                        file,
                        at + c * rows * 16,
                        at + c * 16,
                        width * 16,
                        static_cast<std::uint32_t>(plan.dims.size()),
                        1};
    plan.dims.push_back(
        {rows, static_cast<std::int64_t>(width * 16), static_cast<std::int64_t>(columns * 16)});
    plan.add(cell, std::span(&region, 1));
    plan.target_bytes += cell.target_bytes;
  }
}

void add_run(Plan& plan, std::uint32_t file, std::uint64_t at, std::uint64_t bytes) {
  CellShape cell;
  cell.staging_bytes = cell.source_bytes = cell.target_bytes = bytes;
  Region const region{file, file, at, at, bytes, 0, 0};
  plan.add(cell, std::span(&region, 1));
  plan.target_bytes += bytes;
}

TEST(SharedPages, ATransposedTensorGoesToOneRankWhereThatCostsLittle) {
  Plan plan;
  for (std::uint64_t i = 0; i < 40; ++i)
    add_transposed(plan, 0, 8 + i * 16384, 32, 32, 4);  // a cut would fall into number 13 and 26
  Seen const seen = carry_out(plan, 3, fine, 1U << 20);
  EXPECT_EQ(seen.contested(), 0U);
  EXPECT_LE(seen.bytes_held, 2U * 64U) << "only the pages at the two cuts";
}

/// One that all ranks must share: pages beyond the limit are written by several, and no more than
/// those.
TEST(SharedPages, ATransposedTensorThatRanksShareIsTheException) {
  Plan plan;
  add_transposed(plan, 0, 8, 256, 64, 8);
  EXPECT_EQ(carry_out(plan, 2, fine, 1U << 20).contested(), 0U) << "all can be kept back";
  PageLimits limits = fine;
  limits.most_pages = 100;
  std::size_t const pages = 256 * 64 * 16 / 64;
  EXPECT_LE(carry_out(plan, 2, limits, 1U << 20).contested(), pages + 1 - 100);
}

TEST(SharedPages, OfAllWritersAreThoseOfEach) {
  std::mt19937_64 random(7);
  PageLimits limits = fine;
  limits.most_pages = 1U << 20;
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::vector<FileSpan>> written(1 + random() % 6);
    std::uint64_t bytes = 0;
    for (auto& spans : written) {
      for (std::uint64_t count = random() % 8; count > 0; --count) {
        std::uint64_t const page = random() % 30;
        spans.push_back(
            {static_cast<std::uint32_t>(random() % 2), page * 64, (page + 1 + random() % 5) * 64});
      }
      spans = united(std::move(spans));
    }
    auto const all = pages_of_lower_writers(written, UINT64_MAX);
    for (std::size_t writer = 0; writer < written.size(); ++writer) {
      auto const expected = united(pages_of_lower_ranks(written, writer, limits));
      EXPECT_EQ(united(all->at(writer)), expected) << turn << " " << writer;
      for (FileSpan const& span : expected) bytes += span.end - span.begin;
    }
    EXPECT_TRUE(pages_of_lower_writers(written, bytes));
    if (bytes > 0) {
      EXPECT_FALSE(pages_of_lower_writers(written, bytes - 1)) << "more than may be kept";
    }
  }
}

TEST(SharedPages, ManyStretchesAreUnitedNotLost) {
  Plan plan;
  for (std::uint64_t i = 0; i < 5000; ++i)
    add_run(plan, static_cast<std::uint32_t>(i % 2), i * 1000, 40);
  for (std::size_t most : {64UL, 100'000UL}) {
    auto const spans = written_pages(plan, {0, plan.cells.size()}, {64, most, 1024});
    EXPECT_LE(spans.size(), most);
    for (Cell const& cell : plan.cells) {
      Region const region = plan.first_region_of(cell);
      EXPECT_TRUE(is_held(spans, region.to, region.dst_offset_bytes));
      EXPECT_TRUE(is_held(spans, region.to, region.dst_offset_bytes + region.run_bytes - 1));
    }
  }
}

/// The cuts as they were first defined: cell by cell, for each rank.
std::size_t first_cell(Plan const& plan, int rank, int ranks) {
  std::uint64_t total = 0;
  for (Cell const& cell : plan.cells) total += cell.target_bytes + cell.source_bytes;
  auto const part = static_cast<std::uint64_t>(static_cast<double>(total) * rank / ranks);
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    if (before >= part) return i;
    before += plan.cells[i].target_bytes + plan.cells[i].source_bytes;
  }
  return plan.cells.size();
}

TEST(RankCells, AreBalancedByBytes) {
  std::mt19937_64 random(3);
  for (int turn = 0; turn < 200; ++turn) {
    Plan plan;
    std::uint64_t at = 0;
    for (std::uint64_t cells = random() % 60; cells > 0; --cells) {
      std::uint64_t const bytes = random() % 5 == 0 ? 0 : random() % 5000;
      add_run(plan, 0, at, bytes);
      at += bytes;
    }
    int const ranks = static_cast<int>(1 + random() % 70);
    RankCells const cells(plan, ranks);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(cells.of(r).begin, first_cell(plan, r, ranks)) << turn;
      EXPECT_EQ(cells.of(r).end, r + 1 < ranks ? first_cell(plan, r + 1, ranks) : plan.cells.size())
          << turn;
    }
  }
}

TEST(RankCells, KeepBalanceWhereTensorsAreTransposed) {
  std::mt19937_64 random(5);
  for (int turn = 0; turn < 100; ++turn) {
    Plan plan;
    std::uint64_t largest = 0;
    for (std::uint64_t i = 0; i < 30; ++i) {
      std::uint64_t const rows = 1 + random() % 64;
      add_transposed(plan, 0, i << 20, rows, 64, 4);
      largest = std::max(largest, 2 * rows * 64);  // of one cell
    }
    int const ranks = static_cast<int>(2 + random() % 12);
    RankCells const cells(plan, ranks);
    std::size_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(cells.of(r).begin, next);
      next = cells.of(r).end;
      std::uint64_t bytes = 0;
      for (std::size_t i = cells.of(r).begin; i < next; ++i)
        bytes += plan.cells[i].target_bytes + plan.cells[i].source_bytes;
      EXPECT_LE(bytes, 2 * plan.target_bytes / static_cast<std::uint64_t>(ranks) * 5 / 4 + largest)
          << turn;
    }
    EXPECT_EQ(next, plan.cells.size());
  }
}

/// One pass over the cells and a search for each rank; ranks times cells would be ten billion steps
/// here.
TEST(RankCells, OfManyRanksCostOnePass) {
  Plan plan;
  for (std::uint64_t i = 0; i < 100'000; ++i) add_run(plan, 0, i * 16, 16);
  auto const begin = std::chrono::steady_clock::now();
  RankCells const cells(plan, 100'000);
  EXPECT_EQ(cells.of(99'999).end, plan.cells.size());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

}  // namespace
}  // namespace reshard
