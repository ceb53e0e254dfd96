#include "core/plan/blob_table.hpp"

#include "core/base/integers.hpp"

namespace reshard {

std::uint32_t BlobTable::add(Blob const& blob) {
  auto const number = narrow<std::uint32_t>(kinds_.size());
  kinds_.push_back(kind_of(blob));
  places_.add({blob.offset_bytes, blob.file});
  return number;
}

void BlobTable::set(std::size_t i, Blob const& blob) {
  kinds_[i] = kind_of(blob);
  places_.set(i, {blob.offset_bytes, blob.file});
}

void BlobTable::shrink() {
  places_.shrink();
  kinds_.shrink_to_fit();
  known_.shrink_to_fit();
  number_of_ = {};
}

std::uint32_t BlobTable::kind_of(Blob const& blob) {
  if (number_of_.empty())
    for (std::size_t k = 0; k < known_.size(); ++k)
      number_of_.emplace(known_[k], narrow<std::uint32_t>(k));
  auto const [found, is_new] =
      number_of_.emplace(Kind{blob.name, blob.dtype}, narrow<std::uint32_t>(known_.size()));
  if (is_new) known_.push_back(found->first);
  return found->second;
}

}  // namespace reshard
