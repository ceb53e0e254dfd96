#include "core/plan/replicas.hpp"

#include <algorithm>
#include <unordered_map>

namespace reshard {
namespace {

/// The elements a piece holds, as text of its digits in axis order: equal keys are equal boxes.
std::string box_key(Piece const& piece) {
  std::vector<PieceDigit> digits = piece.digits;
  std::sort(digits.begin(), digits.end(), [](PieceDigit const& a, PieceDigit const& b) { return a.axis != b.axis ? a.axis < b.axis : a.div > b.div; });
  std::string key;
  key.reserve(digits.size() * 40);
  auto const append = [&key](Index value) { key.append(reinterpret_cast<char const*>(&value), sizeof value); };
  for (PieceDigit const& digit : digits) {
    append(digit.axis);
    append(digit.mod);
    append(digit.div);
    append(digit.first);
    append(digit.count);
  }
  return key;
}

}  // namespace

Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog) {
  std::unordered_map<std::string, std::size_t> known;  // box -> place in `groups`
  std::vector<std::vector<std::uint32_t>> groups;
  known.reserve(all.pieces.size());
  for (std::uint32_t i = 0; i < all.pieces.size(); ++i) {
    if (all.copy[i]) continue;
    auto const [at, is_new] = known.emplace(box_key(all.pieces[i]), groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(i);
  }
  Distinct result;
  std::unordered_map<std::uint32_t, std::uint32_t> load;  // file -> pieces chosen
  for (auto const& group : groups) {
    std::uint32_t chosen = group.front();
    if (group.size() > 1) {
      auto const lighter = [&](std::uint32_t a, std::uint32_t b) { return load[catalog.blobs[all.blobs[a]].file] < load[catalog.blobs[all.blobs[b]].file]; };
      chosen = *std::min_element(group.begin(), group.end(), lighter);
      ++load[catalog.blobs[all.blobs[chosen]].file];
    }
    result.pieces.push_back(all.pieces[chosen]);
    result.blobs.push_back(all.blobs[chosen]);
    result.dropped += group.size() - 1;
  }
  return result;
}

}  // namespace reshard
