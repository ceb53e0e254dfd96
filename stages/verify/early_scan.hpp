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

#include "stages/verify/lane_scan.hpp"

namespace reshard {

/// Reads files of a rank back, one after the other on a thread of its own, while others are still
/// written. What it finds goes into scan().
class EarlyScan {
 public:
  struct Parts {
    std::vector<std::filesystem::path> files;
    /// What is looked at. Called once, on the thread, when the first file comes.
    std::function<std::shared_ptr<DigestWork const>()> work;
    ScanOptions options;  ///< of one thread, with file_hashes; `watch` is not called
  };
  /// What was found, as it goes into the result of scan().
  struct Found {
    std::vector<std::uint64_t> shares;  ///< by ShareId; empty where nothing was read
    std::vector<FoundFile> files;
  };

  explicit EarlyScan(Parts parts);
  /// Gives up what is under way.
  ~EarlyScan();
  EarlyScan(EarlyScan const&) = delete;
  EarlyScan& operator=(EarlyScan const&) = delete;

  /// A file whose bytes are with the system. `finish` completes and syncs it, on the thread, before
  /// it is read. Each file once.
  void add(std::uint32_t file, std::function<void()> finish);
  /// Throws what has failed so far.
  void check();
  /// No more files come, and those that were not begun are left out: nothing is written to any file
  /// after this. Throws what has failed.
  void end();
  /// Those that were begun. After end().
  std::set<std::uint32_t> const& begun() const { return begun_; }
  /// After end(): waits until those are read, and throws what has failed. `meanwhile` is called
  /// again and again.
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
  std::jthread thread_;  // last: it uses what is above
};

/// Which of so many files the scans of all ranks have begun; on every rank. Collective; after
/// end().
std::vector<bool> begun_early(Comm const& comm, EarlyScan const* mine, std::size_t files);

}  // namespace reshard
