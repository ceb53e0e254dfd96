#include "pipeline/run/path/round_terms.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "core/plan/cells/round_sizes.hpp"

namespace reshard {
namespace {

/// By how much a round's staging may outgrow the plan: on a device the programs are stored beside
/// the bytes (they weigh something where pieces are tiny), and the stored bytes of computed values,
/// too.
double growth(RoundTerms const& terms) {
  return terms.on_device ? 1 + staging_growth(terms.views) : 1;
}

std::uint64_t round_bytes(RoundTerms const& terms) {
  return static_cast<std::uint64_t>(
      static_cast<double>(std::min(usual_round_bytes, terms.most_staging_bytes)) / growth(terms));
}

std::uint64_t exchange_round_bytes(RoundTerms const& terms) {
  std::uint64_t const memory = terms.on_device ? terms.round_memory_bytes : terms.memory_bytes;
  return static_cast<std::uint64_t>(static_cast<double>(memory) / 4 / growth(terms));
}

/// A part is worth a claim: several rounds, of which each reads and writes about as much as it
/// stages.
constexpr std::uint64_t least_part_rounds = 2;

PartLimits part_limits(RoundTerms const& terms) {
  return {.least_weight = 2 * least_part_rounds * round_bytes(terms)};
}

ExchangeRounds exchange_rounds(RoundTerms const& terms) {
  return {terms.plan, readers_of_files(terms), terms.rank, terms.ranks,
          exchange_round_bytes(terms)};
}

}  // namespace

RankParts parts_of(RoundTerms const& terms) {
  return terms.handing_out && !terms.exchanging
             ? RankParts(terms.plan, terms.ranks, part_limits(terms))
             : RankParts(terms.plan, terms.ranks);
}

CellRange own_cells(RoundTerms const& terms) {
  return cells_of_rank(terms.plan, terms.rank, terms.ranks);
}

std::vector<int> readers_of_files(RoundTerms const& terms) {
  return balanced_readers(terms.plan, terms.source_files + terms.views.size(), terms.ranks);
}

std::uint64_t arena_bytes(RoundTerms const& terms) {
  return std::max(arena_bytes(terms, own_cells(terms)), arena_bytes_of_parts(terms));
}

std::uint64_t arena_bytes_of_parts(RoundTerms const& terms) {
  RankParts const parts = parts_of(terms);
  std::uint64_t most = 0;
  for (std::size_t part = 0; part < parts.count() && !parts.are_whole(); ++part)
    most = std::max(most, arena_bytes(terms, parts.cells(part)));
  return most;
}

std::uint64_t arena_bytes(RoundTerms const& terms, CellRange cells) {
  // An exchanging rank may read for every other: the whole plan counts, messages too.
  if (terms.exchanging) cells = {0, terms.plan.cells.size()};
  std::uint64_t factor = terms.exchanging ? 3 : 1;
  factor *= static_cast<std::uint64_t>(std::ceil(growth(terms)));
  return staging_arena_bytes(terms.plan, cells, terms.memory_bytes, factor);
}

std::vector<std::uint64_t> rounds_of_ranks(RoundTerms const& terms) {
  auto const ranks = static_cast<std::size_t>(terms.ranks);
  if (terms.exchanging) return std::vector<std::uint64_t>(ranks, exchange_rounds(terms).count());
  std::vector<std::uint64_t> rounds(ranks, 0);
  RankParts const parts = parts_of(terms);
  for (std::size_t part = 0; part < parts.count(); ++part) {
    CellRange cells = parts.cells(part);
    for (; cells.begin < cells.end; ++rounds[static_cast<std::size_t>(parts.rank(part))])
      cells.begin = round_end(terms.plan, cells, round_bytes(terms));
  }
  return rounds;
}

std::uint64_t count_rounds(RoundTerms const& terms) {
  if (terms.exchanging) return exchange_rounds(terms).count();
  std::vector<std::uint64_t> const rounds = rounds_of_ranks(terms);
  return std::reduce(rounds.begin(), rounds.end());
}

RoundCounts counts_of(RoundTerms const& terms) { return {arena_bytes(terms), count_rounds(terms)}; }

RoundSource rounds_of(RoundTerms const& terms) {
  if (!terms.exchanging) return direct_rounds(terms.plan, own_cells(terms), round_bytes(terms));
  auto exchange = std::make_shared<ExchangeRounds>(exchange_rounds(terms));
  return [exchange] { return exchange->next(); };
}

PartRounds::PartRounds(RoundTerms const& terms, RankParts const& parts, HandOut& hand_out)
    : plan_(terms.plan), parts_(parts), hand_out_(hand_out), round_bytes_(round_bytes(terms)) {
  RESHARD_EXPECT(!terms.exchanging);
}

std::optional<RoundWork> PartRounds::next() {
  while (left_.empty()) {
    auto const part = hand_out_.next();
    if (!part) return std::nullopt;
    left_ = parts_.cells(*part);
    of_part_ = direct_rounds(plan_, left_, round_bytes_);
  }
  auto round = of_part_();
  RESHARD_EXPECT(round);
  left_.begin = round->cells.end;
  return round;
}

}  // namespace reshard
