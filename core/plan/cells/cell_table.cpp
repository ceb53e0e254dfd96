#include "core/plan/cells/cell_table.hpp"

#include "core/base/tables/integers.hpp"

namespace reshard {

std::uint32_t CellTable::with_staging(std::uint32_t shape, std::uint64_t staging_bytes) {
  if (shapes_[shape].staging_bytes == staging_bytes) return shape;
  auto const [found, is_new] =
      staged_.emplace(std::pair(shape, staging_bytes), narrow<std::uint32_t>(shapes_.size()));
  if (is_new) {
    CellShape changed = shapes_[shape];
    changed.staging_bytes = staging_bytes;
    shapes_.push_back(changed);
  }
  return found->second;
}

void CellTable::add(std::uint32_t shape, std::uint32_t first_place, DigestId digest,
                    std::uint64_t digest_bytes) {
  records_.push_back({shape, first_place, digest, static_cast<std::uint32_t>(digest_bytes),
                      static_cast<std::uint32_t>(digest_bytes >> 32U)});
}

}  // namespace reshard
