#pragma once

#include <filesystem>

namespace reshard {

/// What to do when the target's name is taken.
enum class ExistingTarget { refuse, replace };

/// A target that is built under a hidden name beside its place and takes its name only when complete. At any moment the target's name
/// shows nothing, the old complete checkpoint or the new complete one. Used by one rank.
///
///   /data/out       the target
///   /data/.out.part the staging folder, on the same file system
///   /data/.out.lock held by the job that writes; a second job is an Error of kind target
class Publication {
 public:
  /// Takes the lock, clears what a killed job left and makes the empty staging folder.
  Publication(std::filesystem::path const& target, ExistingTarget existing);
  /// Removes the staging folder when nothing was published, and the lock.
  ~Publication();
  Publication(Publication const&) = delete;
  Publication& operator=(Publication const&) = delete;

  std::filesystem::path const& staging() const { return staging_; }

  /// Makes every directory below staging durable, then gives the target its name, in one step where the file system has one.
  void publish();

 private:
  /// Names only; once it is done, the destructor cleans up after a failure of the rest.
  explicit Publication(std::filesystem::path const& target);
  void take_lock();
  void check_target() const;
  void move_into_place();

  std::filesystem::path target_;
  std::filesystem::path staging_;
  std::filesystem::path lock_;
  ExistingTarget existing_ = ExistingTarget::refuse;
  bool ours_ = false;  // the staging folder: no other job is writing this target
  int lock_descriptor_ = -1;
};

/// The staging folder of a target: what other ranks write into.
std::filesystem::path staging_of(std::filesystem::path const& target);
/// And where its lock is.
std::filesystem::path lock_of(std::filesystem::path const& target);

}  // namespace reshard
