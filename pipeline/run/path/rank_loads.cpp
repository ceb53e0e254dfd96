#include "pipeline/run/path/rank_loads.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "core/plan/cells/cell_cuts.hpp"
#include "pipeline/run/path/round_terms.hpp"

namespace reshard {
namespace {

using PerRank = std::vector<std::uint64_t>;

RankSpread spread_of(PerRank const& figures) {
  auto const least = std::ranges::min_element(figures);
  auto const most = std::ranges::max_element(figures);
  return {*least, std::reduce(figures.begin(), figures.end()) / figures.size(), *most,
          static_cast<int>(most - figures.begin())};
}

/// Adds what each rank reads of a cell.
void add_reads(Plan const& plan, Cell const& cell, std::vector<int> const& readers,
               PerRank& read_bytes) {
  std::map<int, std::uint64_t> by_reader;
  std::uint64_t in_all = 0;
  for (Region const& region : plan.regions_of(cell)) {
    std::uint64_t const bytes = bytes_of(region, plan.dims_of(region));
    by_reader[readers[region.src_file]] += bytes;
    in_all += bytes;
  }
  for (auto const& [reader, bytes] : by_reader)
    if (in_all > 0)
      read_bytes[static_cast<std::size_t>(reader)] +=
          static_cast<std::uint64_t>(static_cast<double>(cell.source_bytes) *
                                     (static_cast<double>(bytes) / static_cast<double>(in_all)));
}

}  // namespace

RankLoads rank_loads(RoundTerms const& terms) {
  Plan const& plan = terms.plan;
  auto const ranks = static_cast<std::size_t>(terms.ranks);
  std::vector<int> const readers = terms.exchanging ? readers_of_files(terms) : std::vector<int>();
  PerRank read(ranks, 0);
  PerRank written(ranks, 0);
  PerRank staging(ranks, 0);
  RankCells const parts(plan, terms.ranks);
  std::uint64_t const handed_out = arena_bytes_of_parts(terms);
  for (std::size_t r = 0; r < ranks; ++r) {
    CellRange const cells = parts.of(static_cast<int>(r));
    written[r] = target_bytes_of(plan, cells);
    for (std::size_t i = cells.begin; i < cells.end; ++i)
      if (terms.exchanging)
        add_reads(plan, plan.cells[i], readers, read);
      else
        read[r] += plan.cells[i].source_bytes;
    staging[r] = std::max(arena_bytes(terms, cells), handed_out);
  }
  PerRank const rounds = rounds_of_ranks(terms);
  return {spread_of(read), spread_of(written), spread_of(rounds), spread_of(staging)};
}

SentBytes sent_bytes(RoundTerms const& terms, std::vector<std::string> const& hosts) {
  SentBytes sent;
  if (!terms.exchanging) return sent;
  Plan const& plan = terms.plan;
  std::vector<int> const readers = readers_of_files(terms);
  RankCells const parts(plan, terms.ranks);
  for (int writer = 0; writer < terms.ranks; ++writer) {
    CellRange const cells = parts.of(writer);
    for (std::size_t i = cells.begin; i < cells.end; ++i)
      for (Region const& region : plan.regions_of(plan.cells[i])) {
        int const reader = readers[region.src_file];
        if (reader == writer) continue;
        std::uint64_t const bytes = bytes_of(region, plan.dims_of(region));
        sent.in_all += bytes;
        bool const apart = !hosts.empty() && hosts[static_cast<std::size_t>(reader)] !=
                                                 hosts[static_cast<std::size_t>(writer)];
        if (apart) sent.between_hosts += bytes;
      }
  }
  return sent;
}

Json loads_json(RankLoads const& loads) {
  auto const json = [](RankSpread const& spread) {
    return Json().set("min", spread.least).set("mean", spread.mean).set("max", spread.most);
  };
  Json out;
  return out.set("read_bytes", json(loads.read_bytes))
      .set("written_bytes", json(loads.written_bytes))
      .set("rounds", json(loads.rounds))
      .set("staging_bytes", json(loads.staging_bytes));
}

}  // namespace reshard
