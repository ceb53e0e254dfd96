#include "pipeline/verify/self_check/element_finder.hpp"

#include <algorithm>

namespace reshard {
namespace {

std::vector<Index> row_major(std::span<Index const> sizes) {
  std::vector<Index> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

bool same_axes(std::vector<ElementRule::Named> const& a, std::vector<ElementRule::Named> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& x, auto const& y) {
    return x.axis == y.axis && x.mod == y.mod && x.div == y.div;
  });
}

void append(std::string& key, Index value) {
  key.append(reinterpret_cast<char const*>(&value), sizeof value);
}

}  // namespace

std::optional<ElementPlace> place_in_file(Checkpoint const& checkpoint,
                                          StoredElements const& tensor, std::vector<Index> index) {
  StoredTable const& table = checkpoint.stored;
  StoredTensor const& stored = table.tensors[tensor.stored];
  int const width = bits(stored.dtype);
  if (width % 8 != 0) return std::nullopt;
  if (stored.shape.size() != tensor.shape.size() ||
      !std::equal(stored.shape.begin() + (stored.shape.empty() ? 0 : 1), stored.shape.end(),
                  tensor.shape.begin() + (stored.shape.empty() ? 0 : 1))) {
    // The file has another view of the same bytes: the index in that one.
    std::vector<Index> const from = row_major(tensor.shape);
    std::vector<Index> const to = row_major(stored.shape);
    Index flat = 0;
    for (std::size_t d = 0; d < index.size(); ++d) flat += index[d] * from[d];
    index.assign(stored.shape.size(), 0);
    for (std::size_t d = 0; d < index.size(); ++d) {
      index[d] = flat / to[d];
      flat %= to[d];
    }
  }
  for (std::size_t c = stored.first_chunk; c < stored.first_chunk + stored.chunk_count; ++c) {
    StoredChunk const& chunk = table.chunks[c];
    auto const begin = table.offsets(chunk);
    auto const sizes = table.sizes(chunk);
    bool inside = true;
    for (std::size_t d = 0; inside && d < index.size(); ++d)
      inside = index[d] >= begin[d] && index[d] < begin[d] + sizes[d];
    if (!inside) continue;
    auto const known = table.strides.find(c);
    std::vector<Index> const strides =
        known == table.strides.end() ? row_major(sizes) : known->second;
    Index at = 0;
    for (std::size_t d = 0; d < index.size(); ++d) at += (index[d] - begin[d]) * strides[d];
    std::uint64_t const offset = table.payload_offset_bytes(c) +
                                 narrow<std::uint64_t>(at) * narrow<std::uint64_t>(width / 8);
    return ElementPlace{tensor.stored, std::move(index), chunk.item.file,
                        offset,        stored.dtype,     tensor.add};
  }
  return std::nullopt;
}

ElementFinder::ElementFinder(Checkpoint const& checkpoint, ElementTable const& table)
    : checkpoint_(checkpoint), table_(table) {
  for (bool const copies : {false, true})
    for (std::size_t i = 0; i < table.tensors.size(); ++i)
      if (table.tensors[i].copy == copies) add(i);
}

void ElementFinder::add(std::size_t number) {
  StoredElements const& stored = table_.tensors[number];
  std::string key;
  for (ElementRule::Named const& named : stored.rule.named) append(key, named.value);
  for (std::string const& tensor : stored.tensors) {
    std::vector<Group>& groups = groups_[tensor];
    auto group = std::ranges::find_if(
        groups, [&](Group const& known) { return same_axes(known.counted, stored.rule.named); });
    if (group == groups.end()) {
      groups.push_back({stored.rule.named, {}});
      group = groups.end() - 1;
    }
    group->by_values[key].push_back(number);
  }
}

std::optional<std::string> ElementFinder::key_of(Group const& group, AxisTable const& axes,
                                                 LogicalElement const& element) {
  std::string key;
  for (ElementRule::Named const& counted : group.counted) {
    Index at = element.at[counted.axis];
    if (at < 0 && axes[counted.axis].size == 1) at = 0;
    if (at < 0) return std::nullopt;
    append(key, (counted.mod == 0 ? at : at % counted.mod) / counted.div);
  }
  return key;
}

std::optional<ElementPlace> ElementFinder::find(std::string const& tensor,
                                                LogicalElement const& element) const {
  auto const known = groups_.find(tensor);
  if (known == groups_.end()) return std::nullopt;
  for (Group const& group : known->second) {
    auto const key = key_of(group, table_.axes, element);
    if (!key) continue;
    auto const held = group.by_values.find(*key);
    if (held == group.by_values.end()) continue;
    for (std::size_t const number : held->second) {
      StoredElements const& stored = table_.tensors[number];
      auto index = place_of(stored.rule, table_.axes, element);
      if (!index) continue;
      if (auto place = place_in_file(checkpoint_, stored, std::move(*index))) return place;
    }
  }
  return std::nullopt;
}

std::vector<std::string> ElementFinder::parts_of(std::string const& tensor) const {
  std::vector<std::string> parts;
  std::string const front = tensor + ".";
  for (auto at = groups_.lower_bound(front); at != groups_.end(); ++at) {
    if (!at->first.starts_with(front)) break;
    if (at->first.ends_with(".values"))
      parts.insert(parts.begin(), at->first);
    else
      parts.push_back(at->first);
  }
  if (!parts.empty() && !parts.front().ends_with(".values")) parts.clear();
  return parts;
}

}  // namespace reshard
