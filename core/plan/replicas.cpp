#include "core/plan/replicas.hpp"

#include <unordered_map>

#include "core/base/mixed_bits.hpp"

namespace reshard {

// Were two boxes to collide, one would be missing from the tiling and the proof would refuse the
// checkpoint: nothing can go wrong unseen.
std::uint64_t box_hash(Piece const& piece) {
  std::uint64_t hash = 0;
  for (PieceDigit const& digit : piece.digits) {
    std::uint64_t part = mixed_bits(digit.axis + 1U);
    for (Index const value : {digit.mod, digit.div, digit.first, digit.count})
      part = mixed_bits(part + 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(value));
    hash += part;
  }
  return hash;
}

namespace {

/// One piece of each box, and for every piece which box it is; `no_box` for copies.
struct Boxes {
  static constexpr std::uint32_t no_box = 0xffffffffU;
  std::vector<std::uint32_t> chosen;
  std::vector<std::uint32_t> box_of;
  std::unordered_map<std::uint64_t, std::uint32_t> groups;  ///< box -> place in `chosen`
};

Boxes boxes_of(TensorPieces const& all, Catalog const& catalog) {
  Boxes result;
  auto& groups = result.groups;
  groups.reserve(all.pieces.size());
  result.box_of.assign(all.pieces.size(), Boxes::no_box);
  std::vector<std::uint32_t> load(catalog.files.size());  // file -> pieces chosen from it
  auto const file_of = [&](std::uint32_t piece) { return catalog.blobs[all.blobs[piece]].file; };
  for (std::uint32_t i = 0; i < all.pieces.size(); ++i) {
    if (all.copy[i]) continue;
    auto const [at, is_new] =
        groups.emplace(box_hash(all.pieces[i]), static_cast<std::uint32_t>(result.chosen.size()));
    result.box_of[i] = at->second;
    if (is_new) {
      result.chosen.push_back(i);
      ++load[file_of(i)];
      continue;
    }
    std::uint32_t& taken = result.chosen[at->second];
    if (load[file_of(i)] + 1 >= load[file_of(taken)]) continue;
    --load[file_of(taken)];
    ++load[file_of(i)];
    taken = i;
  }
  return result;
}

}  // namespace

std::vector<Replica> replicas(TensorPieces const& all, Catalog const& catalog) {
  Boxes const boxes = boxes_of(all, catalog);
  std::vector<Replica> result;
  for (std::uint32_t i = 0; i < all.pieces.size(); ++i) {
    bool const declared = boxes.box_of[i] == Boxes::no_box;
    auto const same = declared ? boxes.groups.find(box_hash(all.pieces[i])) : boxes.groups.end();
    if (declared && same == boxes.groups.end()) continue;
    std::uint32_t const taken = boxes.chosen[declared ? same->second : boxes.box_of[i]];
    if (taken != i) result.push_back({taken, i, declared});
  }
  return result;
}

Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog) {
  Boxes const boxes = boxes_of(all, catalog);
  std::vector<std::uint32_t> const& chosen = boxes.chosen;
  Distinct result;
  for (std::uint32_t const box : boxes.box_of) result.dropped += box == Boxes::no_box ? 0 : 1;
  result.dropped -= chosen.size();
  if (chosen.size() == all.pieces.size()) {
    result.pieces = all.pieces;
    result.blobs = all.blobs;
    return result;
  }
  result.own_pieces.reserve(chosen.size());
  for (std::uint32_t const i : chosen) {
    result.own_pieces.push_back(all.pieces[i]);
    result.own_blobs.push_back(all.blobs[i]);
  }
  result.pieces = result.own_pieces;
  result.blobs = result.own_blobs;
  return result;
}

}  // namespace reshard
