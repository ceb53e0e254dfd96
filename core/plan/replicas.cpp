#include "core/plan/replicas.hpp"

#include <unordered_map>
#include <utility>

namespace reshard {

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
  groups.reserve(all.size());
  result.box_of.assign(all.size(), Boxes::no_box);
  std::vector<std::uint32_t> load(catalog.files.size());  // file -> pieces chosen from it
  auto const file_of = [&](std::uint32_t piece) { return catalog.blobs[all.blob(piece)].file; };
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    if (all.is_copy(i)) continue;
    auto const [at, is_new] =
        groups.emplace(all.box(i), static_cast<std::uint32_t>(result.chosen.size()));
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
    bool const declared = boxes.box_of[i] == Boxes::no_box;
    auto const same = declared ? boxes.groups.find(all.box(i)) : boxes.groups.end();
    if (declared && same == boxes.groups.end()) continue;
    std::uint32_t const taken = boxes.chosen[declared ? same->second : boxes.box_of[i]];
    if (taken != i) result.push_back({taken, i, declared});
  }
  return result;
}

Distinct distinct_pieces(TensorPieces const& all, Catalog const& catalog) {
  Boxes boxes = boxes_of(all, catalog);
  Distinct result{&all, std::move(boxes.chosen), 0};
  for (std::uint32_t const box : boxes.box_of) result.dropped += box == Boxes::no_box ? 0 : 1;
  result.dropped -= result.chosen.size();
  return result;
}

}  // namespace reshard
