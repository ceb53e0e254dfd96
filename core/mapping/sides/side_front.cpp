#include "core/mapping/sides/side_front.hpp"

#include <algorithm>

namespace reshard {
namespace {

Index extent_of(FrontAxis const& axis) { return extent(axis.runs); }

bool is_in_front(StoredName const& name, AxisId axis) {
  return std::any_of(name.front.begin(), name.front.end(),
                     [&](FrontAxis const& front) { return front.axis == axis; });
}

/// Indices [first, first + count) of an axis, which are at `position` and behind.
struct Part {
  Index position = 0;
  Index first = 0;
  Index count = 0;
};

/// Parts of the axes that positions [begin, end) of a dimension count.
std::vector<Part> parts_of(std::vector<Run> const& runs, Index begin, Index end) {
  std::vector<Part> parts;
  Index at = 0;
  for (Run const& run : runs) {
    Index const low = std::max(begin, at);
    Index const past = at + (run.end - run.begin);
    if (low < std::min(end, past))
      parts.push_back({low, run.begin + (low - at), std::min(end, past) - low});
    at = past;
  }
  return parts;
}

/// The positions that the indices of `held` have among `runs`.
std::vector<Run> positions_of(std::vector<Run> const& runs, Run const& held) {
  std::vector<Run> rows;
  Index at = 0;
  for (Run const& run : runs) {
    Index const low = std::max(run.begin, held.begin);
    Index const past = std::min(run.end, held.end);
    if (low < past && !rows.empty() && rows.back().end == at + (low - run.begin))
      rows.back().end += past - low;
    else if (low < past)
      rows.push_back({at + (low - run.begin), at + (past - run.begin), false});
    at += run.end - run.begin;
  }
  return rows;
}

}  // namespace

std::vector<Index> SideFront::shape(StoredName const& name, std::span<Index const> inner) {
  std::vector<Index> result;
  for (FrontAxis const& axis : name.front) result.push_back(extent_of(axis));
  result.insert(result.end(), inner.begin(), inner.end());
  return result;
}

std::vector<Piece> SideFront::cross(StoredName const& name, std::vector<Piece> inner_pieces,
                                    std::span<Index const> begin, std::span<Index const> end,
                                    std::span<Index const> inner) const {
  Index stride = checked_volume(inner, ErrorKind::source, name.name);
  std::vector<Piece> result = std::move(inner_pieces);
  for (std::size_t f = name.front.size(); f-- > 0;) {
    FrontAxis const& axis = name.front[f];
    if (begin[f] < 0 || end[f] < begin[f] || end[f] > extent_of(axis))
      fail(
          ErrorKind::source,
          "'{}': a box takes [{}, {}) of dimension {}, which has {} elements. The checkpoint's metadata disagrees with the model.",
          name.name, begin[f], end[f], f, extent_of(axis));
    std::vector<Piece> next;
    for (Part const& part : parts_of(axis.runs, begin[f], end[f]))
      for (Piece const& piece : result) {
        next.push_back(piece);
        next.back().offset += (part.position - begin[f]) * stride;
        next.back().digits.push_back(
            {axis.axis, model_.axes()[axis.axis].size, 1, part.first, part.count, stride});
      }
    result = std::move(next);
    stride = checked_mul(stride, end[f] - begin[f], ErrorKind::source, name.name);
  }
  return result;
}

PieceDigits SideFront::name_digits(SideEntry const& entry, StoredName const& name,
                                   SidePlace const& place) const {
  PieceDigits digits;
  for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
    AxisId const axis = entry.name_axes[i].axis;
    if (!entry.name_axes[i].of_tensor || is_in_front(name, axis)) continue;
    if (auto const& part = entry.name_axes[i].part) {
      if (part->count() > 1)
        digits.push_back({axis, part->mod, part->div, name.positions[i], 1, 0});
      continue;
    }
    AxisRule const* rule = shares_.rule_of(entry, axis);
    Index first = name.positions[i];
    if (rule != nullptr)
      first += shares_.positions(entry, axis) * shares_.mesh_rank(rule->mesh, place);
    digits.push_back({axis, model_.axes()[axis].size, 1, first, 1, 0});
  }
  return digits;
}

void SideFront::add_name_digits(SideEntry const& entry, StoredName const& name,
                                SidePlace const& place, std::vector<Piece>& pieces) const {
  PieceDigits const digits = name_digits(entry, name, place);
  for (Piece& piece : pieces) piece.digits = PieceDigits(piece.digits.numbers(), digits.numbers());
}

std::vector<std::vector<Run>> SideFront::rank_rows(
    SideEntry const& entry, StoredName const& name, SidePlace const& place,
    std::vector<std::vector<Run>> const& inner) const {
  std::vector<std::vector<Run>> result;
  for (FrontAxis const& axis : name.front) {
    AxisRule const* rule = shares_.rank_rule_of(entry, axis.axis);
    if (rule == nullptr)
      result.push_back({{0, extent_of(axis), false}});
    else
      result.push_back(positions_of(axis.runs, shares_.rank_run(*rule, axis.axis, place)));
  }
  result.insert(result.end(), inner.begin(), inner.end());
  for (std::size_t i = 0; i < entry.name_axes.size(); ++i) {
    AxisId const axis = entry.name_axes[i].axis;
    AxisRule const* rule = shares_.rank_rule_of(entry, axis);
    if (rule == nullptr || is_in_front(name, axis)) continue;
    Run const held = shares_.rank_run(*rule, axis, place);
    if (name.positions[i] < held.begin || name.positions[i] >= held.end)
      return std::vector<std::vector<Run>>(result.size());
  }
  return result;
}

}  // namespace reshard
