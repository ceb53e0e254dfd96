#include "core/containers/torch/torch_frame.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/hash/crc32.hpp"

namespace reshard {

TorchFrame::TorchFrame(TorchFilePlan plan, std::vector<std::string> payloads)
    : plan_(std::move(plan)), payloads_(std::move(payloads)) {
  plan_.pickle_bytes.shrink_to_fit();
  plan_.storages.shrink_to_fit();
  if (std::ranges::all_of(payloads_, &std::string::empty)) payloads_ = {};
  RESHARD_EXPECT(payloads_.empty() || payloads_.size() == plan_.storages.size());
  for (std::size_t i = 0; i < payloads_.size(); ++i)
    RESHARD_EXPECT(payloads_[i].empty() || payloads_[i].size() == plan_.storages[i].size_bytes);
}

std::vector<SummedRecord> TorchFrame::records() const {
  std::vector<SummedRecord> records;
  for (std::size_t i = 0; i < plan_.storages.size(); ++i)
    if (payloads_.empty() || payloads_[i].empty())
      records.push_back({plan_.storages[i].payload_offset_bytes, plan_.storages[i].size_bytes});
  return records;
}

std::vector<FileSegment> TorchFrame::rest(std::span<std::uint32_t const> crc32s,
                                          std::span<std::uint64_t const>) const {
  if (payloads_.empty()) return render_torch_file(plan_, crc32s);
  std::vector<std::uint32_t> all;
  std::vector<FileSegment> known;
  for (std::size_t i = 0, next = 0; i < payloads_.size(); ++i) {
    if (payloads_[i].empty()) {
      all.push_back(crc32s[next++]);
      continue;
    }
    all.push_back(crc32(std::as_bytes(std::span(payloads_[i]))));
    known.push_back(
        {.offset_bytes = plan_.storages[i].payload_offset_bytes, .bytes = payloads_[i]});
  }
  std::vector<FileSegment> segments = render_torch_file(plan_, all);
  segments.insert(segments.end(), known.begin(), known.end());
  std::ranges::sort(segments, {}, &FileSegment::offset_bytes);
  return segments;
}

std::shared_ptr<TorchFrame const> TorchFrames::shared(TorchFilePlan plan,
                                                      std::vector<std::string> payloads) {
  auto frame = std::make_shared<TorchFrame const>(std::move(plan), std::move(payloads));
  auto const [begin, end] = known_.equal_range(frame->hash());
  for (auto one = begin; one != end; ++one)
    if (*one->second == *frame) return one->second;
  return known_.emplace(frame->hash(), std::move(frame))->second;
}

}  // namespace reshard
