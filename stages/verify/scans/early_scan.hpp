#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "stages/verify/scans/lane_scan.hpp"

namespace reshard {

/// Reads files of a rank back, one after the other on a thread of its own, while others are still
/// written. Its results go into scan().
class EarlyScan {
 public:
  struct Parts {
    std::vector<std::filesystem::path> files;
    /// The work of the scan. Called once, on the thread, at the first file.
    std::function<std::shared_ptr<DigestWork const>()> work;
    ScanOptions options;  ///< of one thread, with file_hashes; `watch` is not called
  };
  /// The results, for scan().
  struct Found {
    std::vector<std::uint64_t> shares;  ///< by ShareId; empty if no file was read
    std::vector<FoundFile> files;
  };

  explicit EarlyScan(Parts parts);
  /// Abandons the file under way.
  ~EarlyScan();
  EarlyScan(EarlyScan const&) = delete;
  EarlyScan& operator=(EarlyScan const&) = delete;

  /// Adds a file whose bytes were passed to the system. `finish` completes and syncs it, on the
  /// thread, before it is read. Each file once.
  void add(std::uint32_t file, std::function<void()> finish);
  /// Throws the first error so far.
  void check();
  /// Ends the list of files; those that were not begun are left out, and no file is written after
  /// this. Throws the first error.
  void end();
  /// The files that were begun. After end().
  std::set<std::uint32_t> const& begun() const { return begun_; }
  /// After end(): waits until the begun files are read, and throws the first error. `meanwhile` is
  /// called repeatedly.
  Found wait(std::function<void()> const& meanwhile);
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Task {
    std::uint32_t file = 0;
    std::function<void()> finish;
  };
  void run();
  void read_all();
  bool begin_next(Task& task);
  void read(std::uint32_t file);

  Parts parts_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<bool> stopped_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  std::set<std::uint32_t> begun_;
  bool finishing_ = false;
  bool ended_ = false;
  bool done_ = false;
  std::exception_ptr failure_;

  // The thread's:
  std::shared_ptr<DigestWork const> work_;
  std::unique_ptr<RegionsByFile> regions_;
  std::unique_ptr<LaneScan> lane_;
  std::jthread thread_;  // last member: the thread uses those above
};

/// By file: whether a scan of any rank has begun it; the same on every rank. Collective; after
/// end().
std::vector<bool> begun_early(Comm const& comm, EarlyScan const* mine, std::size_t files);

}  // namespace reshard
