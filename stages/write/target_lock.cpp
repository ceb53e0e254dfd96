#include "stages/write/target_lock.hpp"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/files/file_time.hpp"
#include "core/base/threads/retry.hpp"
#include "stages/write/leftovers.hpp"
#include "stages/write/target_place.hpp"

namespace reshard {
namespace {

constexpr int most_attempts = 16;

std::string content_of(int descriptor) {
  std::array<char, 64> bytes{};
  ssize_t const got = ::pread(descriptor, bytes.data(), bytes.size(), 0);
  return {bytes.data(), got < 0 ? 0 : static_cast<std::size_t>(got)};
}

}  // namespace

TargetLock::TargetLock(std::filesystem::path const& target, std::string token)
    : path_(lock_of(target)), target_(target.string()), token_(std::move(token)) {
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    if (!open_and_lock()) continue;
    sign();
    return;
  }
  fail(ErrorKind::target,
       "{}: the lock keeps changing owners: other jobs write this target. Wait for them, or choose "
       "another target.path.",
       path_.string());
}

/// False: its holder removed it between our open and our lock.
bool TargetLock::open_and_lock() {
  // Another user of the folder could put a link there: it is not followed.
  descriptor_ = retried([&] {
    return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  });
  if (descriptor_ < 0) refuse_making(path_, errno, "Check the permissions of its folder.");
  if (retried([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) != 0) {
    int const reason = errno;
    if (reason == ENOLCK || reason == ENOSYS || reason == EOPNOTSUPP) return true;
    ::close(std::exchange(descriptor_, -1));
    if (reason == EWOULDBLOCK)
      fail(
          ErrorKind::target,
          "{}: another job is writing this target ({} is locked). Wait for it, or choose another target.path.",
          target_, path_.string());
    fail(ErrorKind::io, "{}: cannot be locked: {}. Check the file system.", path_.string(),
         system_reason(reason));
  }
  struct stat held {};
  struct stat named {};
  is_held_ = ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
             held.st_ino == named.st_ino;
  if (!is_held_) ::close(std::exchange(descriptor_, -1));
  return is_held_;
}

/// Writes the token, which identifies the owner if locks do not extend to every job. A full disk is
/// ignored here; later writes report it.
void TargetLock::sign() {
  struct stat status {};
  bool const is_new = ::fstat(descriptor_, &status) == 0 && status.st_size == 0;
  if (!is_new) (void)!::ftruncate(descriptor_, 0);
  (void)!::pwrite(descriptor_, token_.data(), token_.size(), 0);
  (void)::futimens(descriptor_, nullptr);
  if (::fstat(descriptor_, &status) == 0) now_ns_ = nanoseconds_since_1970(status.st_mtim);
}

TargetLock::~TargetLock() {
  if (descriptor_ < 0) return;
  struct stat own {};
  struct stat named {};
  bool const same = ::fstat(descriptor_, &own) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                    own.st_ino == named.st_ino;
  std::string const content = content_of(descriptor_);
  // Another job may hold it too: on another machine, or where there are no locks.
  if (same && (content.empty() || content == token_)) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace reshard
