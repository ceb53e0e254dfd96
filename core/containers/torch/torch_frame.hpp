#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/containers/file_frame.hpp"
#include "core/containers/torch/torch_file.hpp"

namespace reshard {

/// The frame of a torch zip file: all bytes but the storages' payloads, and the payloads that are
/// known before the job: a step, a loss scale.
class TorchFrame : public FileFrame {
 public:
  /// `payloads`: parallel to the plan's storages, "" for tensors of the job; or empty.
  explicit TorchFrame(TorchFilePlan plan, std::vector<std::string> payloads = {});
  std::vector<SummedRecord> records() const override;
  std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                std::span<std::uint64_t const> digests) const override;

  friend bool operator==(TorchFrame const& a, TorchFrame const& b) {
    return a.plan_ == b.plan_ && a.payloads_ == b.payloads_;
  }
  /// Equal frames have equal hashes.
  std::size_t hash() const { return std::hash<std::string>()(plan_.pickle_bytes); }

 private:
  TorchFilePlan plan_;
  std::vector<std::string> payloads_;  ///< empty if there are none
};

/// Equal frames of several files, stored once: shards that differ only in their weights, such as
/// those of expert ranks, have the same frame.
class TorchFrames {
 public:
  /// The frame, or the equal one that was made before.
  std::shared_ptr<TorchFrame const> shared(TorchFilePlan plan, std::vector<std::string> payloads);

 private:
  std::unordered_multimap<std::size_t, std::shared_ptr<TorchFrame const>> known_;
};

}  // namespace reshard
