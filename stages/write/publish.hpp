#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <sys/types.h>

#include "stages/write/leftovers.hpp"
#include "stages/write/target_lock.hpp"
#include "stages/write/target_place.hpp"

namespace reshard {

/// Touches a file at intervals, on a thread of its own, as a sign that its run is active.
class LifeSign {
 public:
  explicit LifeSign(std::filesystem::path file, double seconds = life_sign_seconds);
  ~LifeSign();
  LifeSign(LifeSign const&) = delete;
  LifeSign& operator=(LifeSign const&) = delete;
  /// Whether the file is missing: another run has taken its folder.
  bool is_lost() const { return lost_; }

 private:
  void run();
  std::filesystem::path file_;
  double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<bool> lost_ = false;
  std::jthread thread_;  // last member: the thread uses those above
};

/// Whether the names in folders have reached the device and survive a power failure.
enum class Names { perhaps_lost, durable };

/// A target that is built under a hidden name next to its place and gets its name only when
/// complete. At any moment the target's name is free, or that of the old complete checkpoint or of
/// the new complete one. Used by one rank; stages/write/leftovers.hpp has the names.
///
/// The token in the names of its folders is unique to this run. Another run that takes the folders
/// over renames them to its own token: then every further open and the renaming at the end fail,
/// with or without locks.
class Publication {
 public:
  /// Checks, as far as possible beforehand, that the target can be published: its folder can be
  /// listed, written and renamed in, the target is no mount point and may be renamed. Takes the
  /// lock. Restores the name of an old checkpoint that a killed run left without it. Other
  /// leftovers stay until start_afresh() or go_on(). An Error of kind target if another job writes
  /// the target, or may: without locks, if a leftover has changed within quiet_seconds.
  Publication(std::filesystem::path const& target, ExistingTarget existing);
  /// Removes the staging folder and the journal, unless they are to be kept, and the lock.
  ~Publication();
  Publication(Publication const&) = delete;
  Publication& operator=(Publication const&) = delete;

  std::string const& token() const { return token_; }
  std::filesystem::path const& staging() const { return staging_; }
  std::filesystem::path const& journal() const { return journal_; }
  /// False on a file system without locks.
  bool is_locked() const { return lock_.is_held(); }

  /// The leftovers of earlier jobs.
  Leftovers const& leftovers() const { return left_; }
  /// Whether this is a folder (not a link to one) that this user made.
  bool is_own_folder(std::filesystem::path const& path) const;
  /// Removes the leftovers of earlier jobs and makes an empty staging folder and an empty journal
  /// folder. An Error of kind target if a run on another machine may be filling them.
  void start_afresh();
  /// Takes over a journal and a staging folder of the leftovers, under new names; the other
  /// leftovers are removed.
  void go_on(std::filesystem::path const& journal, std::filesystem::path const& staging);
  /// Whether the destructor leaves staging folder and journal to the next run.
  void keep(bool kept) { kept_ = kept; }
  /// Whether staging folder and journal are still this run's.
  bool is_owner() const;

  /// Syncs every directory below staging unless `names` are durable, then gives the target its
  /// name, in one step if the file system supports it. Failures are Errors of kind target or io;
  /// once the target has its name, other paths are removed only if the name is durable.
  void publish(Names names = Names::perhaps_lost);
  /// After publish(): a sentence about paths that could not be removed; "" if there are none.
  std::string const& left_behind() const { return left_behind_; }

 private:
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(Identity const&, Identity const&) = default;
  };
  static std::optional<Identity> identity_of(std::filesystem::path const& path);

  bool check_target() const;
  void check_renaming();
  void check_alone() const;
  void remove_leftovers_but(Leftovers const& left);
  void own();
  void move_into_place();
  bool exchange();
  void replace_in_two_steps();
  bool is_in_place() const;
  [[noreturn]] void refuse_moving(int error_number) const;
  [[noreturn]] void refuse_lost() const;
  void remove_own();

  std::filesystem::path target_;
  ExistingTarget existing_;
  std::string token_;
  std::filesystem::path staging_;
  std::filesystem::path journal_;
  std::filesystem::path old_;
  TargetLock lock_;
  Leftovers left_;
  uid_t user_ = 0;  ///< user id on this file system
  Identity staged_;
  bool ours_ = false;  // whether the folders with our names are this run's
  bool kept_ = false;
  bool replaced_ = false;  ///< the old target may have got its hidden name
  std::string left_behind_;
  std::optional<LifeSign> life_sign_;
};

/// The behaviour on a file system without locks, where only changes distinguish an active run from
/// one that has ended.
enum class WithoutLocks {
  refuse,
  when_quiet,  ///< refuse leftovers that have changed within quiet_seconds
};

/// The result of remove_leftovers().
struct Cleaned {
  bool removed = false;
  bool put_back = false;  ///< the target: a killed run had taken its name to replace it
};

/// Removes the leftovers of interrupted runs next to a target. An Error of kind target while a job
/// writes it, or may.
Cleaned remove_leftovers(std::filesystem::path const& target, WithoutLocks without_locks);

/// Restores the name of a checkpoint that a killed run was replacing, if the name is free; else
/// changes nothing.
void put_back_replaced(std::filesystem::path const& target);

}  // namespace reshard
