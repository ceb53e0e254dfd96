#include "stages/write/target_place.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Checks that an existing folder can be renamed: only within its file system, and in a sticky
/// folder only by its owners.
void check_movable(fs::path const& target) {
  struct statx there {};
  struct statx parent {};
  auto const look = [](fs::path const& path, struct statx& into) {
    return ::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &into) == 0;
  };
  if (!look(target, there) || !look(target.parent_path() / ".", parent)) return;
  bool const other_device =
      there.stx_dev_major != parent.stx_dev_major || there.stx_dev_minor != parent.stx_dev_minor;
  bool const mounted =
      (there.stx_attributes_mask & there.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  if (other_device || mounted)
    fail(ErrorKind::target,
         "{}: is a mount point, or on another file system than its folder, so a new checkpoint "
         "cannot be renamed to it. Choose a target.path below it.",
         target.string());
  uid_t const user = ::geteuid();
  if ((parent.stx_mode & S_ISVTX) != 0 && user != 0 && user != there.stx_uid &&
      user != parent.stx_uid)
    fail(
        ErrorKind::target,
        "{}: belongs to user {}, and its folder lets only the owner of a name change it (sticky bit), so user {} cannot replace it. Choose another "
        "target.path, or ask that user to remove it.",
        target.string(), there.stx_uid, user);
}

constexpr std::string_view where_from = "Check target.path.";
constexpr std::string_view what_to_permit = "Check the permissions of its parent.";

/// The length of the longest name that a run makes next to the target.
std::size_t longest_name(fs::path const& target) {
  std::string const token = make_token();
  return std::max({staging_of(target, token).filename().string().size(),
                   journal_of(target, token).filename().string().size(),
                   old_of(target, token).filename().string().size()});
}

}  // namespace

void refuse_making(fs::path const& path, int error_number, std::string_view next) {
  if (error_number == ENOSPC || error_number == EDQUOT) fail_errno(path, "create", error_number);
  if (error_number == ENAMETOOLONG)
    next = "The names of a run's folders are longer than the target's: choose a shorter one.";
  if (error_number == EISDIR || error_number == ELOOP)
    next = "A lock is a regular file: remove what is there, or choose another target.path.";
  if (error_number == EROFS) next = "Choose a target.path on a file system that can be written.";
  fail(ErrorKind::target, "{}: cannot be created: {}. {}", path.string(),
       system_reason(error_number), next);
}

bool check_existing(fs::path const& target, ExistingTarget existing) {
  std::error_code ignored;
  fs::file_type const type = fs::symlink_status(target, ignored).type();
  if (type == fs::file_type::not_found) return false;
  if (existing == ExistingTarget::refuse)
    fail(
        ErrorKind::target,
        "{}: exists already. Choose another target.path, or set target.replace = true to replace it.",
        target.string());
  if (type != fs::file_type::directory)
    fail(ErrorKind::target,
         "{}: exists and is not a directory, so target.replace does not apply. Remove it or choose "
         "another target.path.",
         target.string());
  return true;
}

fs::path ready_place(fs::path const& target, ExistingTarget existing) {
  fs::path place = absolute_target(target);
  std::error_code error;
  fs::create_directories(place.parent_path(), error);
  if (error) refuse_making(place.parent_path(), error.value(), where_from);
  if (check_existing(place, existing)) check_movable(place);
  return place;
}

void look_at_place(fs::path const& target, ExistingTarget existing) {
  fs::path const place = absolute_target(target);
  fs::path there = place.parent_path();
  while (!is_there(there) && there.has_relative_path()) there = there.parent_path();
  if (std::error_code unknown; !fs::is_directory(there, unknown))
    refuse_making(place.parent_path(), unknown ? unknown.value() : ENOTDIR, where_from);
  // Permissions to make and rename a folder, and to list the entries next to it.
  if (::faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    refuse_making(place, errno, what_to_permit);
  if (there == place.parent_path() && ::faccessat(AT_FDCWD, there.c_str(), R_OK, AT_EACCESS) != 0)
    fail(
        ErrorKind::target,
        "{}: cannot be listed: {}. The folder of a target must be readable: change its permissions, or choose another target.path.",
        there.string(), system_reason(errno));
  long const longest = ::pathconf(there.c_str(), _PC_NAME_MAX);
  if (longest > 0 && longest_name(place) > static_cast<std::size_t>(longest))
    refuse_making(place, ENAMETOOLONG, where_from);
  if (check_existing(place, existing)) check_movable(place);
}

}  // namespace reshard
