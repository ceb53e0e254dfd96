#include "core/plan/blob_table.hpp"

#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {

std::uint32_t BlobTable::add(Blob const& blob) {
  auto const number = narrow<std::uint32_t>(size());
  std::uint32_t const kind = kind_of(blob);
  bool const repeats = runs_.add(blob.file, [&](std::size_t at) {
    return kinds_[at] == kind && places_[at].offset_bytes == blob.offset_bytes;
  });
  if (repeats) return number;
  kinds_.push_back(kind);
  places_.add({blob.offset_bytes, blob.file});
  return number;
}

void BlobTable::set(std::size_t i, Blob const& blob) {
  if (!runs_.is_plain()) {
    FilePlaces places;
    places.reserve(size());
    for (std::size_t b = 0; b < size(); ++b) places.add(place(b));
    places_ = std::move(places);
    kinds_ = runs_.take_all([&](std::size_t b) { return kinds_[runs_[b].entry]; });
  }
  kinds_[i] = kind_of(blob);
  places_.set(i, {blob.offset_bytes, blob.file});
}

void BlobTable::shrink() {
  runs_.shrink();
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
