#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// Replicas of at least this size are not compared, as reading them would cost time.
inline constexpr std::uint64_t largest_small_replica_bytes = std::uint64_t{1} << 20;

struct ReplicaFindings {
  std::uint64_t compared = 0;       ///< over all ranks
  std::vector<std::string> faults;  ///< a sentence each, the same on every rank
};

/// Fills a buffer with bytes [offset_bytes, +bytes) of a file of the catalogue, views included.
using CatalogReader =
    std::function<void(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> into)>;

/// Compares the small replicated pieces of a source (norms, biases, routers), each with the one
/// that a plan reads. Every rank reads a share of them. Collective.
ReplicaFindings compare_small_replicas(Model const& model, Catalog const& catalog,
                                       CatalogReader const& read, Comm const& comm);

/// Bytes of a file of the catalogue.
struct CopySpan {
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
  friend auto operator<=>(CopySpan const&, CopySpan const&) = default;
};
/// Whether two spans are known to have equal bytes without being read.
using KnownEqual = std::function<bool(CopySpan const&, CopySpan const&)>;

/// Compares declared copies (a tied output layer) with their originals, of any size and division,
/// in slices of some MiB. Every rank reads a share of each. Optimizer state, elements below a byte
/// and copies with another dtype are left out. Collective.
ReplicaFindings compare_copies(
    Model const& model, Catalog const& catalog, CatalogReader const& read, Comm const& comm,
    KnownEqual const& known_equal = [](CopySpan const&, CopySpan const&) { return false; });

/// Whether the catalogue has declared copies.
bool has_copies(Catalog const& catalog);

}  // namespace reshard
