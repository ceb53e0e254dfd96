#include "core/formats/targets/target_job.hpp"

#include <algorithm>

#include "core/formats/format.hpp"
#include "core/formats/run/state_inventory.hpp"

namespace reshard {

Index MappedTarget::count(char const* word) const {
  Json const value = model.value(word);
  return value.integer() == nullptr ? 0 : *value.integer();
}

std::vector<std::pair<std::string, std::string>> NamedTarget::made_objects() const {
  auto made = source.format->made_objects(source);
  std::erase_if(made, [this](auto const& one) {
    return !one.first.starts_with(request.read.prefix) ||
           (request.read.drop_optimizer && is_optimizer_key(one.first));
  });
  return made;
}

std::vector<SourceBox> boxes_of(Checkpoint const& source, NamedTensor const& tensor) {
  if (tensor.scalar) {
    ItemPlace const& item = source.state.scalars[tensor.number].item;
    return {{{}, item.file, item.offset_bytes, {}}};
  }
  StoredTable const& stored = source.stored;
  StoredTensor const& one = stored.tensors[tensor.number];
  std::vector<SourceBox> boxes;
  boxes.reserve(one.chunk_count);
  for (std::size_t c = one.first_chunk; c < one.first_chunk + one.chunk_count; ++c) {
    StoredChunk const chunk = stored.chunks[c];
    TensorBox box{{stored.offsets(chunk).begin(), stored.offsets(chunk).end()}, {}};
    for (std::size_t d = 0; d < box.begin.size(); ++d)
      box.end.push_back(box.begin[d] + stored.sizes(chunk)[d]);
    auto const strides = stored.strides.find(c);
    boxes.push_back({std::move(box), chunk.item.file, stored.payload_offset_bytes(c),
                     strides == stored.strides.end() ? std::vector<Index>() : strides->second});
  }
  return boxes;
}

std::string NamedTarget::target_key(std::string_view key) const {
  return request.options.dcp.prefix + std::string(key);
}

std::string NamedTarget::renamed(std::string const& key) const {
  return target_key(std::string_view(key).substr(request.read.prefix.size()));
}

Piece NamedTarget::piece(std::size_t tensor, TensorBox const& box,
                         std::vector<Index> const& strides) const {
  Piece piece{TensorId(tensor), {}, {}, 0};
  auto const& axes = model.tensors()[tensor].axes;
  for (std::size_t d = 0; d < axes.size(); ++d)
    piece.digits.push_back({axes[d].axis, model.axes()[axes[d].axis].size, 1, box.begin[d],
                            box.end[d] - box.begin[d], strides[d]});
  return piece;
}

std::vector<Index> row_major(TensorBox const& box) {
  std::vector<Index> strides(box.begin.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;)
    strides[d - 1] = strides[d] * std::max<Index>(box.end[d] - box.begin[d], 1);
  return strides;
}

}  // namespace reshard
