#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/plan/equal/digest_work.hpp"
#include "stages/verify/scans/scan.hpp"
#include "stages/verify/scans/scan_digest.hpp"
#include "stages/verify/scans/scan_share.hpp"

namespace reshard {

struct FilledWindow;
class FileHasher;
class Workers;

/// The regions of each file, by number.
class RegionsByFile {
 public:
  RegionsByFile(DigestWork const& work, std::size_t files);

  std::span<std::uint32_t const> of(std::uint32_t file) const {
    return {numbers_.data() + first_[file], first_[file + 1] - first_[file]};
  }
  std::span<std::uint64_t const> bytes() const { return bytes_; }

 private:
  std::vector<std::size_t> first_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint32_t> numbers_;
};

/// The findings of a rank about a file that it read.
struct FoundFile {
  std::uint64_t file = 0;
  FileHashes hashes;
};

/// The task of the scanning threads. Borrows everything.
struct ScanTask {
  std::span<std::filesystem::path const> files;
  DigestWork const& work;
  RegionsByFile const& regions;
  ScanOptions const& options;
};

/// The scan of one thread of a rank. Another thread reads ahead of it.
class LaneScan {
 public:
  /// Called after every range with its bytes; an exception ends the scan.
  using BytesRead = std::function<void(std::uint64_t bytes)>;

  LaneScan(ScanTask const& task, BytesRead bytes_read);
  ~LaneScan();
  LaneScan(LaneScan const&) = delete;
  LaneScan& operator=(LaneScan const&) = delete;

  /// Scans these shares, and adds to the earlier findings.
  void run(std::span<FileShare const> mine);

  std::span<std::uint64_t const> shares() const { return shares_; }  ///< by ShareId
  std::vector<FoundFile> const& found() const { return found_; }

 private:
  void add(FilledWindow const& filled);
  void hash(FilledWindow const& filled, Workers& workers);

  ScanTask task_;
  BytesRead bytes_read_;
  std::vector<std::uint64_t> shares_;
  BlockDigest digest_;
  std::unique_ptr<FileHasher> hasher_;
  std::chrono::steady_clock::time_point began_;  ///< of the file under way
  std::vector<FoundFile> found_;
};

}  // namespace reshard
