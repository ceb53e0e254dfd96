#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/text/json.hpp"

namespace reshard {

struct RoundTerms;

/// Of a figure over the ranks.
struct RankSpread {
  std::uint64_t least = 0;
  std::uint64_t mean = 0;
  std::uint64_t most = 0;
  int busiest = 0;  ///< the first rank with the most
};

/// How a plan's work is spread over the ranks: bytes of the model that a rank reads, payload that
/// it writes, its rounds, and the staging memory that it takes.
struct RankLoads {
  RankSpread read_bytes;
  RankSpread written_bytes;
  RankSpread rounds;
  RankSpread staging_bytes;
};

/// For all ranks of the terms, computed by one process; RoundTerms::rank counts for nothing. Where
/// ranks exchange, bytes of a cell that come from several files count for their readers by the
/// files' shares of the cell.
RankLoads rank_loads(RoundTerms const& terms);

/// Payload that ranks send each other.
struct SentBytes {
  std::uint64_t in_all = 0;
  std::uint64_t between_hosts = 0;
};

/// For all ranks of the terms; `hosts` are theirs, in rank order, or none where they are not known.
/// 0 where ranks do not exchange: each reads and writes by itself.
SentBytes sent_bytes(RoundTerms const& terms, std::vector<std::string> const& hosts);

/// {"read_bytes": {"min", "mean", "max"}, "written_bytes", "rounds", "staging_bytes"}
Json loads_json(RankLoads const& loads);

}  // namespace reshard
