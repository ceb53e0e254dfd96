#include "core/containers/dcp/items_frame.hpp"

#include "core/containers/dcp/item.hpp"

namespace reshard::dcp {

std::vector<SummedRecord> ItemsFrame::records() const {
  std::vector<SummedRecord> records;
  for (PlannedItem const& item : items_.tensors) {
    ItemLayout const layout = item_layout(item.dtype, item.shape);
    records.push_back({item.offset_bytes + layout.payload_offset_bytes, layout.payload_bytes});
  }
  return records;
}

std::vector<FileSegment> ItemsFrame::rest(std::span<std::uint32_t const> crc32,
                                          std::span<std::uint64_t const>) const {
  std::vector<FileSegment> segments;
  auto const add = [&](std::uint64_t offset, std::string const& bytes) {
    if (segments.empty() || offset != segments.back().offset_bytes + segments.back().bytes.size())
      segments.push_back({offset, {}});
    segments.back().bytes += bytes;
  };
  for (auto const& [offset, bytes] : items_.objects) add(offset, bytes);
  for (std::size_t i = 0; i < items_.tensors.size(); ++i) {
    PlannedItem const& item = items_.tensors[i];
    ItemLayout const layout = item_layout(item.dtype, item.shape);
    ItemFrame const around = item_frame(item.dtype, item.shape, crc32[i]);
    add(item.offset_bytes, around.head);
    add(item.offset_bytes + layout.payload_offset_bytes + layout.payload_bytes, around.tail);
  }
  return segments;
}

}  // namespace reshard::dcp
