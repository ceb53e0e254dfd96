#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace reshard {

/// The lock `.NAME.lock` of a target, held until the end of the scope. Used by one rank.
class TargetLock {
 public:
  /// An Error of kind target while another job holds it. The file contains `token` for as long as
  /// this job holds it.
  TargetLock(std::filesystem::path const& target, std::string token);
  ~TargetLock();
  TargetLock(TargetLock const&) = delete;
  TargetLock& operator=(TargetLock const&) = delete;

  /// False on a file system without locks.
  bool is_held() const { return is_held_; }
  /// The time when the lock was taken, by the clock of the file system (that of its time stamps),
  /// in nanoseconds since 1970.
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
