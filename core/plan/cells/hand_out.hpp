#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/cells/rank_parts.hpp"

namespace reshard {

/// The claims of the ranks of a job on parts (RankParts): each part goes to the rank that claims it
/// first.
class PartClaims {
 public:
  virtual ~PartClaims() = default;
  /// Claims a part for this rank; false: another rank has it.
  virtual bool claim(std::size_t part) = 0;
  /// The claimed parts known to this rank, in any order; some may be missing.
  virtual std::vector<std::size_t> claimed() = 0;
};

/// The parts that one rank does (work stealing): its own, first to last; then parts of the rank
/// with the most work left, last to first, until none is left. So no rank is idle while another has
/// a part that it has not begun. next() is called by one thread, the counts by any.
class HandOut {
 public:
  /// All arguments outlive it. `claims` is not used if each rank has one part, and may be nullptr
  /// then.
  HandOut(Plan const& plan, RankParts const& parts, int rank, PartClaims* claims);

  /// The next part for this rank; nullopt if there is none.
  std::optional<std::size_t> next();

  /// Payload bytes of this rank, as far as known: its own parts without those claimed by others,
  /// plus those that it has claimed of others.
  std::uint64_t planned_bytes() const { return planned_bytes_; }
  /// The number of other ranks' cells that this one does, and their payload bytes.
  std::uint64_t cells_of_others() const { return cells_of_others_; }
  std::uint64_t bytes_of_others() const { return bytes_of_others_; }

 private:
  std::optional<std::size_t> next_own() const;
  std::optional<std::size_t> next_of_others() const;
  bool is_free(std::size_t part) const { return !gone_[part]; }
  bool take(std::size_t part);
  void note_gone(std::size_t part);
  void look();
  std::uint64_t bytes_of(std::size_t part) const;

  Plan const& plan_;
  RankParts const& parts_;
  int rank_;
  PartClaims* claims_;
  std::vector<bool> gone_;           ///< by part: done by this rank, or known to be another's
  std::vector<std::uint64_t> left_;  ///< by rank: weight of the parts that are not gone
  bool is_stale_ = true;             ///< claimed() was not read since a claim was refused
  bool was_refused_ = false;         ///< once at least
  bool has_begun_ = false;
  std::atomic<std::uint64_t> planned_bytes_ = 0;
  std::atomic<std::uint64_t> cells_of_others_ = 0;
  std::atomic<std::uint64_t> bytes_of_others_ = 0;
};

}  // namespace reshard
