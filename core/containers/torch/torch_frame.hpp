#pragma once

#include "core/containers/file_frame.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

/// Of a torch zip file: everything but the storages' payloads.
class TorchFrame : public FileFrame {
 public:
  explicit TorchFrame(TorchFilePlan plan) : plan_(std::move(plan)) {}
  std::vector<SummedRecord> records() const override;
  std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                std::span<std::uint64_t const> digests) const override;

 private:
  TorchFilePlan plan_;
};

}  // namespace reshard
