#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace reshard {

/// The lock `.NAME.lock` of a target, held until the end of the scope. Used by one rank.
class TargetLock {
 public:
  /// Error of kind target while another job holds it. `token` is in the file for as long as
  /// this job holds it.
  TargetLock(std::filesystem::path const& target, std::string token);
  ~TargetLock();
  TargetLock(TargetLock const&) = delete;
  TargetLock& operator=(TargetLock const&) = delete;

  /// False on a file system without locks.
  bool is_held() const { return is_held_; }
  /// The time of the file system when the lock was taken, nanoseconds since 1970: what it dates
  /// changes by.
  std::int64_t now_ns() const { return now_ns_; }

 private:
  bool open_and_lock();
  void sign();

  std::filesystem::path path_;
  std::string target_;
  std::string token_;
  int descriptor_ = -1;
  bool is_held_ = false;
  std::int64_t now_ns_ = 0;
};

}  // namespace reshard
