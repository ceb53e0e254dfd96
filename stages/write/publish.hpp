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

/// Touches a file again and again, on a thread of its own, so that others see that its run is
/// active.
class LifeSign {
 public:
  explicit LifeSign(std::filesystem::path file, double seconds = life_sign_seconds);
  ~LifeSign();
  LifeSign(LifeSign const&) = delete;
  LifeSign& operator=(LifeSign const&) = delete;
  /// Whether the file has gone: another run has taken its folder.
  bool is_lost() const { return lost_; }

 private:
  void run();
  std::filesystem::path file_;
  double seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::atomic<bool> lost_ = false;
  std::jthread thread_;  // last: it uses what is above
};

/// Whether the names in folders have reached the device, so that a power failure leaves them.
enum class Names { perhaps_lost, durable };

/// A target that is built under a hidden name beside its place and takes its name only when
/// complete. At any moment the target's name shows nothing, the old complete checkpoint or the new
/// complete one. Used by one rank; stages/write/leftovers.hpp has the names.
///
/// The token in the names of its folders is this run's alone. Another run that takes the folders
/// over gives them its own token: then every further open and the renaming at the end find nothing,
/// whether locks work or not.
class Publication {
 public:
  /// Makes sure, as far as can be said beforehand, that the target can be published: its folder can
  /// be listed, written and renamed in, the target is no mount point and may be renamed. Takes the
  /// lock. An old checkpoint that a killed run left without its name gets it back. What earlier
  /// jobs left otherwise is there until start_afresh() or go_on(). Error of kind target when
  /// another job writes the target, or may: without locks, when something has changed within
  /// quiet_seconds.
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

  /// What earlier jobs left.
  Leftovers const& leftovers() const { return left_; }
  /// Whether this is a folder (no link to one) that this user made.
  bool is_own_folder(std::filesystem::path const& path) const;
  /// Removes what earlier jobs left and makes an empty staging folder and an empty journal folder.
  /// Error of kind target when a run on another machine may be filling them.
  void start_afresh();
  /// Takes over a journal and a staging folder of the leftovers, under new names; the other
  /// leftovers are removed.
  void go_on(std::filesystem::path const& journal, std::filesystem::path const& staging);
  /// Whether the destructor leaves staging folder and journal to the next run.
  void keep(bool kept) { kept_ = kept; }
  /// Whether staging folder and journal are still this run's.
  bool is_owner() const;

  /// Makes every directory below staging durable where that is still to be done, then gives the
  /// target its name, in one step where the file system has one. What it cannot do is an Error of
  /// kind target or io; once the target has its name, nothing is removed any more unless that is
  /// durable.
  void publish(Names names = Names::perhaps_lost);
  /// After publish(): what could not be removed, as a sentence; "" when nothing is left.
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
  uid_t user_ = 0;  ///< as this file system sees it
  Identity staged_;
  bool ours_ = false;  // what has our names
  bool kept_ = false;
  bool replaced_ = false;  ///< the old target may have got its hidden name
  std::string left_behind_;
  std::optional<LifeSign> life_sign_;
};

/// What to do on a file system without locks, where only its changes distinguish a run that is
/// active from one that has ended.
enum class WithoutLocks {
  refuse,
  when_quiet,  ///< refuse what has changed within quiet_seconds
};

/// What remove_leftovers() has done.
struct Cleaned {
  bool removed = false;
  bool put_back = false;  ///< the target: a killed run had taken its name to replace it
};

/// Removes what interrupted runs left beside a target. Error of kind target while a job writes it,
/// or may.
Cleaned remove_leftovers(std::filesystem::path const& target, WithoutLocks without_locks);

/// Gives a checkpoint that a killed run was replacing its name back, when that is missing; looks
/// only, when it is not.
void put_back_replaced(std::filesystem::path const& target);

}  // namespace reshard
