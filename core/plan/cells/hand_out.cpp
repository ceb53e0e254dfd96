#include "core/plan/cells/hand_out.hpp"

#include "core/base/error.hpp"
#include "core/plan/cells/cell_cuts.hpp"

namespace reshard {

HandOut::HandOut(Plan const& plan, RankParts const& parts, int rank, PartClaims* claims)
    : plan_(plan),
      parts_(parts),
      rank_(rank),
      claims_(claims),
      gone_(parts.count(), false),
      left_(static_cast<std::size_t>(parts.ranks()), 0) {
  RESHARD_EXPECT(claims != nullptr || parts.are_whole());
  for (int r = 0; r < parts.ranks(); ++r) {
    auto const [begin, end] = parts.of_rank(r);
    for (std::size_t part = begin; part < end; ++part) {
      if (r == rank) planned_bytes_ += bytes_of(part);
      if (part == begin)
        gone_[part] = true;
      else
        left_[static_cast<std::size_t>(r)] += parts.weight(part);
    }
  }
}

std::optional<std::size_t> HandOut::next() {
  if (!has_begun_) {
    has_begun_ = true;
    return parts_.of_rank(rank_).begin;
  }
  for (;;) {
    std::optional<std::size_t> part = next_own();
    if (is_stale_ && (!part || was_refused_)) {
      look();
      continue;
    }
    if (!part) part = next_of_others();
    if (!part) return std::nullopt;
    if (take(*part)) return part;
    is_stale_ = was_refused_ = true;
  }
}

std::optional<std::size_t> HandOut::next_own() const {
  auto const [begin, end] = parts_.of_rank(rank_);
  for (std::size_t part = begin; part < end; ++part)
    if (is_free(part)) return part;
  return std::nullopt;
}

/// Of equally busy ranks each prefers the next after itself, so that ranks that end together choose
/// different ones.
std::optional<std::size_t> HandOut::next_of_others() const {
  int const ranks = parts_.ranks();
  int busiest = -1;
  std::uint64_t most = 0;
  for (int step = 1; step < ranks; ++step) {
    int const r = (rank_ + step) % ranks;
    if (left_[static_cast<std::size_t>(r)] <= most) continue;
    most = left_[static_cast<std::size_t>(r)];
    busiest = r;
  }
  if (busiest < 0) return std::nullopt;
  auto const [begin, end] = parts_.of_rank(busiest);
  for (std::size_t part = end; part > begin; --part)
    if (is_free(part - 1)) return part - 1;
  return std::nullopt;
}

bool HandOut::take(std::size_t part) {
  bool const mine = claims_->claim(part);
  bool const own = parts_.rank(part) == rank_;
  note_gone(part);
  if (own && !mine) planned_bytes_ -= bytes_of(part);
  if (own || !mine) return mine;
  planned_bytes_ += bytes_of(part);
  bytes_of_others_ += bytes_of(part);
  cells_of_others_ += parts_.cells(part).size();
  return true;
}

void HandOut::note_gone(std::size_t part) {
  gone_[part] = true;
  left_[static_cast<std::size_t>(parts_.rank(part))] -= parts_.weight(part);
}

void HandOut::look() {
  is_stale_ = false;
  if (parts_.are_whole()) return;
  for (std::size_t const part : claims_->claimed()) {
    if (part >= gone_.size() || gone_[part]) continue;
    note_gone(part);
    if (parts_.rank(part) == rank_) planned_bytes_ -= bytes_of(part);
  }
}

std::uint64_t HandOut::bytes_of(std::size_t part) const {
  return target_bytes_of(plan_, parts_.cells(part));
}

}  // namespace reshard
