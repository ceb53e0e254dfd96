#include "stages/write/publish.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

fs::path hidden(fs::path const& target, std::string_view ending) {
  return target.parent_path() / fmt::format(".{}.{}", target.filename().string(), ending);
}

fs::path absolute_target(fs::path const& target) {
  fs::path path = fs::absolute(target).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a trailing slash
  if (path.filename().empty()) fail(ErrorKind::target, "{}: cannot be a target. Name a folder below it.", target.string());
  return path;
}

void sync_tree(fs::path const& root) {
  for (auto const& entry : fs::recursive_directory_iterator(root))
    if (entry.is_directory()) sync_directory(entry.path());
  sync_directory(root);
}

/// A full disk is a matter of resources, anything else one of the target.
[[noreturn]] void refuse_making(fs::path const& path, int error_number, std::string_view next) {
  if (error_number == ENOSPC || error_number == EDQUOT) fail_errno(path, "create", error_number);
  fail(ErrorKind::target, "{}: cannot be made: {}. {}", path.string(), system_reason(error_number), next);
}

void remove_left(fs::path const& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::target, "{}: left by an earlier job, cannot be removed: {}. Remove it, then run again.", path.string(), error.message());
}

bool is_there(fs::path const& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

constexpr std::chrono::hours quiet_time{1};

/// Of a folder and all that lies in it; what is not there is as old as can be.
fs::file_time_type last_change(fs::path const& root) {
  std::error_code error;
  fs::file_time_type newest = fs::last_write_time(root, error);
  for (fs::recursive_directory_iterator it(root, error); !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code vanished;
    newest = std::max(newest, fs::last_write_time(it->path(), vanished));
  }
  return newest;
}

/// What cannot be locked is another job's, unless it may be taken for abandoned.
void check_abandoned(Publication const& unlocked, WithoutLocks without_locks) {
  fs::path const staging = unlocked.staging();
  if (without_locks == WithoutLocks::refuse)
    fail(ErrorKind::target, "{}: its file system has no locks, so a run may be writing it. Remove it when no run is alive.", staging.string());
  auto const newest = std::max(last_change(staging), last_change(unlocked.journal()));
  if (newest == fs::file_time_type::min() || newest + quiet_time <= fs::file_time_type::clock::now()) return;
  fail(ErrorKind::target,
       "{}: its file system has no locks, and it or {} has changed in the last hour, so a run may be writing it. Wait until nothing has changed for "
       "an hour, or remove both by hand when no run is alive.",
       staging.string(), unlocked.journal().string());
}

}  // namespace

fs::path staging_of(fs::path const& target) { return hidden(absolute_target(target), "part"); }
fs::path lock_of(fs::path const& target) { return hidden(absolute_target(target), "lock"); }
fs::path journal_of(fs::path const& target) { return hidden(absolute_target(target), "resume"); }

Publication::Publication(fs::path const& target)
    : target_(absolute_target(target)), staging_(hidden(target_, "part")), lock_(hidden(target_, "lock")), journal_(hidden(target_, "resume")) {}

Publication::Publication(fs::path const& target, ExistingTarget existing) : Publication(target) {
  existing_ = existing;
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) refuse_making(target_.parent_path(), error.value(), "Check target.path.");
  check_target();
  take_lock();
}

bool Publication::has_leftovers() const { return is_there(staging_); }

void Publication::start_afresh() {
  ours_ = true;
  remove_left(journal_);
  remove_left(staging_);
  std::error_code error;
  fs::create_directory(staging_, error);
  if (error) refuse_making(staging_, error.value(), "Check the permissions of its parent.");
}

Publication::~Publication() {
  std::error_code ignored;
  if (ours_ && !kept_) {
    fs::remove_all(journal_, ignored);  // first: without it nobody goes on with what is left of the rest
    fs::remove_all(staging_, ignored);
  }
  if (lock_descriptor_ < 0) return;
  fs::remove(lock_, ignored);
  ::close(lock_descriptor_);
}

void Publication::check_target() const {
  if (existing_ == ExistingTarget::keep || !is_there(target_)) return;
  if (existing_ == ExistingTarget::refuse)
    fail(ErrorKind::target, "{}: exists already. Choose another target.path, or set target.replace = true to replace it.", target_.string());
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(target_, ignored)))
    fail(ErrorKind::target, "{}: exists and is no directory, so target.replace does not apply. Remove it or choose another target.path.",
         target_.string());
}

void Publication::take_lock() {
  for (int attempt = 0; attempt < 16; ++attempt) {
    int const descriptor = ::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) refuse_making(lock_, errno, "Check the permissions of its folder.");
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      int const reason = errno;
      ::close(descriptor);
      if (reason == EWOULDBLOCK)
        fail(ErrorKind::target, "{}: another job is writing this target ({} is locked). Wait for it, or choose another target.path.",
             target_.string(), lock_.string());
      if (reason != ENOLCK && reason != ENOSYS && reason != EOPNOTSUPP)
        fail(ErrorKind::io, "{}: cannot be locked: {}. Check the file system.", lock_.string(), system_reason(reason));
      return;  // a file system without locks: the staging folder's name alone keeps jobs apart
    }
    struct stat held {};
    struct stat named {};
    if (::fstat(descriptor, &held) == 0 && ::stat(lock_.c_str(), &named) == 0 && held.st_ino == named.st_ino) {
      lock_descriptor_ = descriptor;
      return;
    }
    ::close(descriptor);  // its holder removed it between our open and our lock
  }
  fail(ErrorKind::target, "{}: the lock changes hands all the time: other jobs write this target. Wait for them, or choose another target.path.",
       lock_.string());
}

bool remove_leftovers(fs::path const& target, WithoutLocks without_locks) {
  if (target.empty()) fail(ErrorKind::usage, "the path of the target is empty. Name the target.path of the job.");
  fs::path const place = absolute_target(target);
  if (!is_there(place.parent_path())) fail(ErrorKind::target, "{}: is not there. Check the path of the target.", place.parent_path().string());
  Publication publication(place, ExistingTarget::keep);
  bool const found = publication.has_leftovers() || is_there(publication.journal());
  if (found && !publication.is_locked()) check_abandoned(publication, without_locks);
  publication.go_on();  // its end removes them
  return found;
}

void Publication::publish() {
  sync_tree(staging_);
  move_into_place();
  kept_ = false;
  sync_directory(target_.parent_path());
}

void Publication::move_into_place() {
  check_target();
  if (!is_there(target_)) {
    if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0) return;
    bool const without_flags = errno == EINVAL || errno == ENOSYS;
    if (without_flags && ::rename(staging_.c_str(), target_.c_str()) == 0) return;
    if (errno != EEXIST)
      fail(ErrorKind::target, "{}: cannot be renamed to {}: {}. Nothing was published: check the permissions of its folder, then run again.",
           staging_.string(), target_.string(), system_reason(errno));
    check_target();  // somebody has just made it
  }
  // The old checkpoint takes the staging folder's name and is removed with it.
  if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS)
    fail(ErrorKind::target, "{}: cannot take the place of {}: {}. Nothing was published: check the permissions of its folder, then run again.",
         staging_.string(), target_.string(), system_reason(errno));
  fs::path const old = hidden(target_, "old");
  std::error_code error;
  fs::remove_all(old, error);
  if (::rename(target_.c_str(), old.c_str()) != 0 || ::rename(staging_.c_str(), target_.c_str()) != 0)
    fail(ErrorKind::target, "{}: cannot be replaced: {}. The old checkpoint is there or in {}: check the permissions of the folder, then run again.",
         target_.string(), system_reason(errno), old.string());
  fs::remove_all(old, error);
}

}  // namespace reshard
