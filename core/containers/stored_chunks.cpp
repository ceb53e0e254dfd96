#include "core/containers/stored_chunks.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace reshard {

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

}  // namespace reshard
