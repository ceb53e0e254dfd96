#include "core/containers/torch/torch_frame.hpp"

namespace reshard {

std::vector<SummedRecord> TorchFrame::records() const {
  std::vector<SummedRecord> records;
  for (ZipRecord const& storage : plan_.storages)
    records.push_back({storage.payload_offset_bytes, storage.size_bytes});
  return records;
}

std::vector<FileSegment> TorchFrame::rest(std::span<std::uint32_t const> crc32,
                                          std::span<std::uint64_t const>) const {
  return render_torch_file(plan_, crc32);
}

}  // namespace reshard
