#include "stages/write/publish.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/threads/retry.hpp"
#include "core/base/threads/workers.hpp"
#include "core/transport/comm.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void sync_tree(fs::path const& root) {
  std::vector<fs::path> folders{root};
  std::error_code problem;
  for (TreeEntry const& entry : tree_of(root, problem))
    if (entry.type == fs::file_type::directory) folders.push_back(entry.path);
  if (problem) fail_errno(root, "list", problem.value());
  overlapped(folders.size(), [&](std::size_t i) { sync_directory(folders[i]); });
}

[[noreturn]] void refuse_renaming(fs::path const& path, int error_number, std::string_view next) {
  if (error_number == ENOSPC || error_number == EDQUOT) fail_errno(path, "rename", error_number);
  fail(ErrorKind::target, "{}: it or its contents cannot be renamed: {}. {}", path.string(),
       system_reason(error_number), next);
}

/// Makes a folder; a name that exists already is another run's.
void make_folder(fs::path const& path) {
  if (retried([&] { return ::mkdir(path.c_str(), 0777); }) != 0)
    refuse_making(path, errno, "Check the permissions of its parent.");
}

/// A leftover stays of its kind while it goes.
fs::path name_for(fs::path const& left, fs::path const& staging, fs::path const& journal) {
  auto const hidden = parse_hidden_name(left.filename().string());
  return hidden && hidden->kind == HiddenName::Kind::journal ? journal : staging;
}

constexpr std::string_view how_to_wait =
    "Wait until that run has ended, or choose another target.path.";

}  // namespace

LifeSign::LifeSign(fs::path file, double seconds)
    : file_(std::move(file)), seconds_(seconds), thread_([this] { run(); }) {}

LifeSign::~LifeSign() {
  std::lock_guard const lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void LifeSign::run() {
  std::unique_lock lock(mutex_);
  while (
      !changed_.wait_for(lock, std::chrono::duration<double>(seconds_), [&] { return ended_; })) {
    lock.unlock();
    bool const gone =
        ::utimensat(AT_FDCWD, file_.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
    lock.lock();
    if (gone) lost_ = true;
  }
}

Publication::Publication(fs::path const& target, ExistingTarget existing)
    : target_(ready_place(target, existing)),
      existing_(existing),
      token_(make_token()),
      staging_(staging_of(target_, token_)),
      journal_(journal_of(target_, token_)),
      old_(old_of(target_, token_)),
      lock_(target_, token_) {
  check_renaming();
  left_ = leftovers_of(target_);
  if (!is_locked()) {
    if (auto const sign = sign_of_life(left_, false, lock_.now_ns()))
      fail(ErrorKind::target,
           "{}: another job may be writing this target: its file system has no locks, and {}. {}",
           target_.string(), *sign, how_to_wait);
  }
  if (put_back_old(target_, left_)) left_ = leftovers_of(target_);
  check_target();
}

/// Tries the renaming of the end, before any byte is written.
void Publication::check_renaming() {
  fs::path const parent = target_.parent_path();
  std::error_code error;
  fs::directory_iterator const listed(parent, error);
  if (error)
    fail(
        ErrorKind::target,
        "{}: cannot be listed: {}. The folder of a target must be readable: change its permissions, or choose another target.path.",
        parent.string(), error.message());
  make_folder(staging_);
  int const refused = ::rename(staging_.c_str(), journal_.c_str()) != 0 ? errno : 0;
  struct stat made {};
  bool const seen = refused == 0 && ::lstat(journal_.c_str(), &made) == 0;
  auto const failure = capture([&] {
    if (refused != 0) refuse_renaming(parent, refused, "Choose another target.path.");
    sync_directory(journal_);
    sync_directory(parent);
  });
  ::rmdir(refused == 0 ? journal_.c_str() : staging_.c_str());
  if (failure) throw *failure;
  if (seen) user_ = made.st_uid;
}

bool Publication::is_own_folder(fs::path const& path) const {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == user_;
}

void Publication::remove_leftovers_but(Leftovers const& left) {
  // The lock excludes runs of this machine only, unless it extends to others.
  if (auto const sign = sign_of_life(left, is_locked(), lock_.now_ns()))
    fail(ErrorKind::target,
         "{}: another job may be writing this target, and would lose its work: {}. {}",
         target_.string(), *sign, how_to_wait);
  for (fs::path const& one : left.all())
    if (!discard(one, name_for(one, staging_, journal_)) && !is_locked())
      fail(ErrorKind::target, "{}: another job has just taken it. {}", one.string(), how_to_wait);
}

/// Marks the folders with our names as this run's.
void Publication::own() {
  ours_ = true;
  write_owner(journal_, this_owner(token_));
  auto const made = identity_of(staging_);
  if (!made)
    fail(ErrorKind::target, "{}: no longer exists: another job has taken it. {}", staging_.string(),
         how_to_wait);
  staged_ = *made;
  life_sign_.emplace(journal_ / owner_name);
}

void Publication::start_afresh() {
  remove_leftovers_but(left_);
  ours_ = true;
  make_folder(journal_);
  make_folder(staging_);
  own();
  check_alone();
}

/// Two jobs that start at the same moment without locks see each other only now.
void Publication::check_alone() const {
  if (is_locked()) return;
  Leftovers others = leftovers_of(target_);
  std::erase(others.staging, staging_);
  std::erase(others.journals, journal_);
  if (auto const sign = sign_of_life(others, false, lock_.now_ns()))
    fail(ErrorKind::target,
         "{}: another job has started to write this target at the same time: {}. {}",
         target_.string(), *sign, how_to_wait);
}

void Publication::go_on(fs::path const& journal, fs::path const& staging) {
  Leftovers others = left_;
  std::erase(others.staging, staging);
  std::erase(others.journals, journal);
  remove_leftovers_but(others);
  // The journal first: a run without its journal ends.
  for (auto const& [from, to] : {std::pair(journal, journal_), std::pair(staging, staging_)})
    if (::rename(from.c_str(), to.c_str()) != 0) refuse_renaming(from, errno, how_to_wait);
  kept_ = true;
  own();
}

bool Publication::is_owner() const {
  if (!ours_ || (life_sign_ && life_sign_->is_lost())) return false;
  auto const owner = read_owner(journal_);
  return owner && owner->token == token_ && identity_of(staging_) == staged_;
}

Publication::~Publication() {
  if (!ours_) return;
  if (kept_) {
    life_sign_.reset();
    Owner ended = this_owner(token_);
    ended.ended = true;
    if (is_there(journal_)) capture([&] { write_owner(journal_, ended); });
    return;
  }
  remove_own();
}

void Publication::remove_own() {
  life_sign_.reset();
  std::vector<fs::path> made{staging_};
  if (replaced_) made.push_back(old_);
  made.push_back(journal_);  // last, as it names the owner of the rest
  for (fs::path const& path : made) {
    std::error_code error;
    remove_folder(path, error);
    if (error && left_behind_.empty())
      left_behind_ = fmt::format("{}: could not be removed: {}. `reshard clean {}` removes it.",
                                 path.string(), error.message(), target_.string());
  }
}

bool Publication::check_target() const { return check_existing(target_, existing_); }

std::optional<Publication::Identity> Publication::identity_of(fs::path const& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev, status.st_ino};
}

void Publication::publish(Names names) {
  if (names == Names::perhaps_lost) sync_tree(staging_);
  if (!is_owner()) refuse_lost();
  move_into_place();
  kept_ = true;  // the old checkpoint, until the new one's name is durable
  auto const failure = capture([&] { sync_directory(target_.parent_path()); });
  if (failure)
    throw Error(
        ErrorKind::io,
        fmt::format(
            "{}: is complete and in place, but the system could not sync the rename: {} After "
            "a power failure the old state may return: then run again. The old target is kept "
            "beside it until then.",
            target_.string(), failure->sentence()));
  remove_own();
  ours_ = false;
}

bool Publication::is_in_place() const { return identity_of(target_) == staged_; }

namespace {

/// The kind of error of a failed rename.
ErrorKind kind_of_refusal(int error_number) {
  if (error_number == EIO || error_number == ESTALE) return ErrorKind::io;
  return error_number == ENOSPC || error_number == EDQUOT ? ErrorKind::resources
                                                          : ErrorKind::target;
}

}  // namespace

void Publication::refuse_lost() const {
  fail(
      ErrorKind::target,
      "{}: another job has taken over what this run wrote, or it was removed. Nothing was published: {}",
      staging_.string(), "find out what writes this target, then run again.");
}

void Publication::refuse_moving(int error_number) const {
  if (error_number == ENOENT && !is_there(staging_)) refuse_lost();
  fail(
      kind_of_refusal(error_number),
      "{}: cannot be renamed to {}: {}. Nothing was published, and what was written is kept: remove the cause, then run again, which will only "
      "rename "
      "it.",
      staging_.string(), target_.string(), system_reason(error_number));
}

void Publication::move_into_place() {
  if (!check_target()) {
    if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0)
      return;
    bool const without_flags = errno == EINVAL || errno == ENOSYS;
    if (without_flags && ::rename(staging_.c_str(), target_.c_str()) == 0) return;
    int const reason = errno;
    if (is_in_place()) return;  // a server may have done it and its answer been lost
    if (reason != EEXIST && reason != ENOTEMPTY) refuse_moving(reason);
    check_target();  // another program has just made it
  }
  if (!exchange()) replace_in_two_steps();
}

/// The old checkpoint takes the staging folder's name and is removed with it. False if the file
/// system cannot do that.
bool Publication::exchange() {
  if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0)
    return true;
  int const reason = errno;
  if (is_in_place()) return true;
  if (reason != EINVAL && reason != ENOSYS) refuse_moving(reason);
  return false;
}

void Publication::replace_in_two_steps() {
  replaced_ = true;
  if (::rename(target_.c_str(), old_.c_str()) != 0) refuse_moving(errno);
  kept_ = true;  // from here on it is the only copy, until the new one has its name for good
  if (::rename(staging_.c_str(), target_.c_str()) == 0) return;
  int const reason = errno;
  if (is_in_place()) return;
  if (::rename(old_.c_str(), target_.c_str()) == 0) refuse_moving(reason);
  fail(kind_of_refusal(reason),
       "{}: cannot be renamed to {}: {}. The old checkpoint is now {}, and cannot be renamed "
       "back: {}. Remove the cause, then run again: what was written is kept, and will only be "
       "renamed.",
       staging_.string(), target_.string(), system_reason(reason), old_.string(),
       system_reason(errno));
}

namespace {

fs::path existing_place(fs::path const& target) {
  if (target.empty())
    fail(ErrorKind::usage, "the path of the target is empty. Name the target.path of the job.");
  fs::path place = absolute_target(target);
  if (!is_there(place.parent_path()))
    fail(ErrorKind::target, "{}: is not there. Check the path of the target.",
         place.parent_path().string());
  return place;
}

}  // namespace

Cleaned remove_leftovers(fs::path const& target, WithoutLocks without_locks) {
  fs::path const place = existing_place(target);
  std::string const token = make_token();
  TargetLock const lock(place, token);
  Leftovers left = leftovers_of(place);
  if (!left.empty() && !lock.is_held() && without_locks == WithoutLocks::refuse)
    fail(ErrorKind::target,
         "{}: its file system has no locks, so a run may be writing it. Remove it by hand when "
         "no run is active.",
         left.all().front().string());
  if (auto const sign = sign_of_life(left, lock.is_held(), lock.now_ns()))
    fail(ErrorKind::target,
         "{}: a run may be writing this target: {}{}. Wait until then, or remove it by hand "
         "when no run is active.",
         place.string(), lock.is_held() ? "" : "its file system has no locks, and ", *sign);
  Cleaned cleaned;
  cleaned.put_back = put_back_old(place, left);
  if (cleaned.put_back) left = leftovers_of(place);
  for (fs::path const& one : left.all())
    cleaned.removed =
        discard(one, name_for(one, staging_of(place, token), journal_of(place, token))) ||
        cleaned.removed;
  return cleaned;
}

void put_back_replaced(fs::path const& target) {
  fs::path const place = absolute_target(target);
  if (is_there(place) || leftovers_of(place).old.empty()) return;
  TargetLock const lock(place, make_token());
  Leftovers const left = leftovers_of(place);
  if (!sign_of_life(left, lock.is_held(), lock.now_ns())) put_back_old(place, left);
}

}  // namespace reshard
