#include "core/containers/stored_table.hpp"

#include <algorithm>
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

IndexLists::Id IndexLists::add(std::span<Index const> list) {
  std::uint64_t const hash = hash_of(list);
  Id const known = table_.id(hash, [&](Id id) { return std::ranges::equal((*this)[id], list); });
  if (known != IdTable::none) return known;
  if (size() >= IdTable::none)
    fail(ErrorKind::resources, "more than {} different offsets and sizes of chunks cannot be held.",
         size());
  table_.make_room([this](Id id) { return hash_of((*this)[id]); });
  auto const id = static_cast<Id>(size());
  values_.insert(values_.end(), list.begin(), list.end());
  begin_.push_back(values_.size());
  table_.add(hash, id);
  return id;
}

void StoredTable::add_whole(SharedText name, DType dtype, std::vector<Index> shape,
                            ItemPlace const& item, std::vector<Index> tensor_strides) {
  auto const chunk = narrow<std::uint32_t>(chunks.size());
  if (!tensor_strides.empty()) strides[chunk] = std::move(tensor_strides);
  chunks.push_back({lists.add(std::vector<Index>(shape.size(), 0)), lists.add(shape), item});
  payload_offset_bytes.push_back(item.offset_bytes);
  tensors.push_back({std::move(name), dtype, std::move(shape), chunk, 1});
}

}  // namespace reshard
