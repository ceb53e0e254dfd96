#include "core/containers/stored_tensors.hpp"

#include <utility>

namespace reshard {

void StoredTensors::push_back(StoredTensor tensor, std::uint32_t file) {
  tensor.first_chunk -= static_cast<std::uint32_t>(size());
  bool const repeats = runs_.add(file, [&](std::size_t at) {
    StoredTensor const& one = entries_[at];
    return one.name == tensor.name && one.dtype == tensor.dtype && one.shape == tensor.shape &&
           one.first_chunk == tensor.first_chunk && one.chunk_count == tensor.chunk_count;
  });
  if (!repeats) entries_.push_back(std::move(tensor));
}

void StoredTensors::repeat(std::size_t first, std::size_t count, std::uint32_t first_chunk,
                           std::uint32_t file) {
  if (count > 0 && first_chunk - size() == std::size_t{(*this)[first].first_chunk} - first)
    return runs_.repeat(first, count, file);
  for (std::size_t t = first; t < first + count; ++t) {
    StoredTensor tensor = (*this)[t];
    tensor.first_chunk = first_chunk++;
    push_back(std::move(tensor), file);
  }
}

void StoredTensors::set(std::size_t at, StoredTensor tensor) {
  if (!runs_.is_plain())
    entries_ = runs_.take_all([&](std::size_t t) { return StoredTensor(stored(t)); });
  tensor.first_chunk -= static_cast<std::uint32_t>(at);
  entries_[at] = std::move(tensor);
}

}  // namespace reshard
