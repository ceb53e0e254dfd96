#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/rank_parts.hpp"

namespace reshard {

/// Where the ranks of a job say which parts (RankParts) they do. Each part is given once, to
/// whoever asks first.
class PartClaims {
 public:
  virtual ~PartClaims() = default;
  /// Whether the part is this rank's now; false: another one has it.
  virtual bool claim(std::size_t part) = 0;
  /// What has been claimed, as far as this rank can see: some may be missing. In any order.
  virtual std::vector<std::size_t> claimed() = 0;
};

/// Which parts one rank does: its own, first to last; then parts of the rank of which most is left,
/// last to first, until none is left. So no rank is idle while another has a part that it has not
/// begun. next() is called by one thread; the counts are for any.
class HandOut {
 public:
  /// What it is given outlives it. `claims` is not asked where each rank has one part, and may be
  /// null then.
  HandOut(Plan const& plan, RankParts const& parts, int rank, PartClaims* claims);

  /// The next part that this rank does; nothing when there is none.
  std::optional<std::size_t> next();

  /// Payload that this rank does, as far as that is known: its own parts but those that others are
  /// known to do, and the others' that it does.
  std::uint64_t planned_bytes() const { return planned_bytes_; }
  /// Cells of other ranks that this one does, and their payload.
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
  std::vector<std::uint64_t> left_;  ///< by rank: weight of what is not gone
  bool is_stale_ = true;      ///< what is claimed was not looked at since a claim was refused
  bool was_refused_ = false;  ///< once at least
  bool has_begun_ = false;
  std::atomic<std::uint64_t> planned_bytes_ = 0;
  std::atomic<std::uint64_t> cells_of_others_ = 0;
  std::atomic<std::uint64_t> bytes_of_others_ = 0;
};

}  // namespace reshard
