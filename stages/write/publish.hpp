#pragma once

#include <filesystem>

namespace reshard {

/// What to do when the target's name is taken; `keep`: nothing, because nothing is published.
enum class ExistingTarget { refuse, replace, keep };

/// A target that is built under a hidden name beside its place and takes its name only when complete. At any moment the target's name
/// shows nothing, the old complete checkpoint or the new complete one. Used by one rank.
///
///   /data/out         the target
///   /data/.out.part   the staging folder, on the same file system
///   /data/.out.resume the journal of the runs that fill it
///   /data/.out.lock   held by the job that writes; a second job is an Error of kind target
class Publication {
 public:
  /// Takes the lock. What an earlier job left is there until start_afresh() or go_on().
  Publication(std::filesystem::path const& target, ExistingTarget existing);
  /// Removes the staging folder and the journal, unless they are to be kept, and the lock.
  ~Publication();
  Publication(Publication const&) = delete;
  Publication& operator=(Publication const&) = delete;

  std::filesystem::path const& staging() const { return staging_; }
  std::filesystem::path const& journal() const { return journal_; }
  /// False on a file system without locks: then other jobs may write this target.
  bool is_locked() const { return lock_descriptor_ >= 0; }

  /// Whether an earlier job left a staging folder.
  bool has_leftovers() const;
  /// Removes what an earlier job left and makes the empty staging folder.
  void start_afresh();
  /// Takes over what an earlier job left.
  void go_on() { ours_ = true; }
  /// Whether the destructor leaves staging folder and journal to the next run.
  void keep(bool kept) { kept_ = kept; }

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
  std::filesystem::path journal_;
  ExistingTarget existing_ = ExistingTarget::refuse;
  bool ours_ = false;  // what is in the staging folder
  bool kept_ = false;
  int lock_descriptor_ = -1;
};

/// The staging folder of a target: what other ranks write into.
std::filesystem::path staging_of(std::filesystem::path const& target);
/// And where its lock is, and its journal.
std::filesystem::path lock_of(std::filesystem::path const& target);
std::filesystem::path journal_of(std::filesystem::path const& target);

/// What to do on a file system without locks, where a run that is alive cannot be told from one that is over. While it reads back it changes nothing.
enum class WithoutLocks {
  refuse,
  when_quiet,  ///< refuse what has changed in the last hour
};

/// Removes what interrupted runs left beside a target: staging folder and journal. False when there was nothing. Error of kind target while a job
/// writes it, or may.
bool remove_leftovers(std::filesystem::path const& target, WithoutLocks without_locks);

}  // namespace reshard
