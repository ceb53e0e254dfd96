#include "core/containers/stored_table.hpp"

#include <cstring>
#include <random>

#include "core/base/error.hpp"

namespace reshard {

std::uint64_t const hash_seed = [] {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source() | 1;
}();

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = hash_seed ^ text.size();
  while (text.size() >= sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    hash = hash_step(hash, word);
    text.remove_prefix(sizeof word);
  }
  std::uint64_t rest = 0;
  if (!text.empty()) std::memcpy(&rest, text.data(), text.size());
  return hash_step(hash_step(hash, rest), hash_seed);
}

void StoredTable::add_whole(SharedText name, DType dtype, SharedShape shape, ItemPlace const& item,
                            std::vector<Index> tensor_strides) {
  auto const chunk = narrow<std::uint32_t>(chunks.size());
  if (!tensor_strides.empty()) strides[chunk] = std::move(tensor_strides);
  std::vector<Index> const& sizes = shape.sizes();
  chunks.push_back({lists.add(std::vector<Index>(sizes.size(), 0)), lists.add(sizes), item});
  if (!payload_offsets.empty()) payload_offsets.push_back(item.offset_bytes);
  tensors.push_back({std::move(name), dtype, shape, chunk, 1}, item.file);
}

void StoredTable::repeat(std::size_t first, std::size_t count, std::uint32_t file) {
  RESHARD_EXPECT(payload_offsets.empty() && rounded.empty());
  if (count == 0) return;
  std::size_t const first_chunk = tensors[first].first_chunk;
  std::size_t const here = chunks.size();
  for (std::size_t t = first; t < first + count; ++t) {
    StoredTensor const& tensor = tensors[t];
    RESHARD_EXPECT(tensor.chunk_count == 1 && tensor.first_chunk == first_chunk + (t - first));
  }
  narrow<std::uint32_t>(here + count);
  tensors.repeat(first, count, static_cast<std::uint32_t>(here), file);
  chunks.repeat(first_chunk, count, file);
  auto strided = strides.lower_bound(first_chunk);
  for (; strided != strides.end() && strided->first < first_chunk + count; ++strided)
    strides.emplace(here + (strided->first - first_chunk), strided->second);
}

void StoredTable::forget_tensors() {
  StoredTable left;
  left.objects = std::move(objects);
  *this = std::move(left);
}

void StoredTable::reserve(std::size_t more) { tensors.reserve(tensors.size() + more); }

std::optional<ItemPlace> short_item(StoredTable const& stored, StoredTensor const& tensor) {
  for (StoredChunk const& chunk : stored.chunks_of(tensor)) {
    std::uint64_t bytes = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    for (Index const extent : stored.sizes(chunk)) bytes *= static_cast<std::uint64_t>(extent);
    if (chunk.item.size_bytes < bytes) return chunk.item;
  }
  return std::nullopt;
}

}  // namespace reshard
