#pragma once

#include <string>
#include <vector>

#include "core/containers/file_frame.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

/// Of a torch zip file: everything but the storages' payloads, and those payloads that are known
/// before the job: a step, a loss scale.
class TorchFrame : public FileFrame {
 public:
  /// `payloads`: parallel to the plan's storages, "" where tensors of the job are written; or none.
  explicit TorchFrame(TorchFilePlan plan, std::vector<std::string> payloads = {});
  std::vector<SummedRecord> records() const override;
  std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                std::span<std::uint64_t const> digests) const override;

 private:
  TorchFilePlan plan_;
  std::vector<std::string> payloads_;
};

}  // namespace reshard
