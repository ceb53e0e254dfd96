#include "core/plan/equal/replicas.hpp"

#include <bit>
#include <utility>

#include "core/base/hash/mixed_bits.hpp"

namespace reshard {

namespace {

/// Numbers of boxes by their hash, at most half full.
class BoxTable {
 public:
  static constexpr std::uint32_t no_box = 0xffffffffU;

  explicit BoxTable(std::size_t most) : slots_(std::bit_ceil(2 * most + 1), no_box) {}

  std::uint32_t find(std::uint64_t hash) const { return slots_[slot_of(hash)]; }
  /// The number of the box, which is added if it is not known.
  std::uint32_t number_of(std::uint64_t hash) {
    std::uint32_t& slot = slots_[slot_of(hash)];
    if (slot == no_box) {
      slot = static_cast<std::uint32_t>(hashes_.size());
      hashes_.push_back(hash);
    }
    return slot;
  }

 private:
  std::size_t slot_of(std::uint64_t hash) const {
    std::size_t const mask = slots_.size() - 1;
    std::size_t at = mixed_bits(hash) & mask;
    while (slots_[at] != no_box && hashes_[slots_[at]] != hash) at = (at + 1) & mask;
    return at;
  }

  std::vector<std::uint32_t> slots_;
  std::vector<std::uint64_t> hashes_;  ///< by number
};

/// One piece of each box, by number of the box.
struct Boxes {
  std::vector<std::uint32_t> chosen;
  std::uint64_t dropped = 0;
  BoxTable table;
};

Boxes boxes_of(TensorPieces const& all, Catalog const& catalog) {
  Boxes result{{}, 0, BoxTable(all.size())};
  std::vector<std::uint32_t> load(catalog.files.size());  // file -> pieces chosen from it
  auto const file_of = [&](std::uint32_t piece) { return catalog.blobs.file(all.blob(piece)); };
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    if (all.is_copy(i)) continue;
    std::uint32_t const box = result.table.number_of(all.box(i));
    if (box == result.chosen.size()) {
      result.chosen.push_back(i);
      ++load[file_of(i)];
      continue;
    }
    ++result.dropped;
    std::uint32_t& taken = result.chosen[box];
    if (load[file_of(i)] + 1 >= load[file_of(taken)]) continue;
    --load[file_of(taken)];
    ++load[file_of(i)];
    taken = i;
  }
  return result;
}

}  // namespace

std::vector<std::uint32_t> Distinct::blobs() const {
  std::vector<std::uint32_t> result;
  result.reserve(size());
  for (std::uint32_t const i : chosen) result.push_back(all->blob(i));
  return result;
}

std::vector<Replica> replicas(TensorPieces const& all, Catalog const& catalog) {
  Boxes const boxes = boxes_of(all, catalog);
  std::vector<Replica> result;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    std::uint32_t const box = boxes.table.find(all.box(i));
    if (box == BoxTable::no_box) continue;
    std::uint32_t const taken = boxes.chosen[box];
    if (taken != i) result.push_back({taken, i, all.is_copy(i)});
  }
  return result;
}

Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog) {
  Boxes boxes = boxes_of(all, catalog);
  return {&all, std::move(boxes.chosen), boxes.dropped};
}

}  // namespace reshard
