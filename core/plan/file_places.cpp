#include "core/plan/file_places.hpp"

namespace reshard {

void FilePlaces::add(FilePlaces const& others) {
  std::uint64_t const shift = wide_.size();
  for (std::uint64_t const word : others.words_)
    words_.push_back(word < first_wide ? word : word + shift);
  wide_.insert(wide_.end(), others.wide_.begin(), others.wide_.end());
}

std::uint64_t FilePlaces::word_of(FilePlace const& place) {
  if (place.offset_bytes < offset_end && place.file < first_wide >> offset_bits)
    return std::uint64_t{place.file} << offset_bits | place.offset_bytes;
  wide_.push_back(place);
  return first_wide + (wide_.size() - 1);
}

}  // namespace reshard
