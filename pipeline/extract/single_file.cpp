#include "pipeline/extract/single_file.hpp"

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/io/file_set.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {

namespace fs = std::filesystem;

SingleFile::SingleFile(TargetLayout layout, ExistingTarget existing, Comm const& comm)
    : place_(absolute_target(layout.path)),
      existing_(existing),
      comm_(comm),
      layout_(std::move(layout)) {
  layout_.path = staging_of(place_, comm.broadcast(comm.rank() == 0 ? make_token() : "", 0));
  try {
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      check_place();
      make_folders(place_.parent_path());
      made_ = true;
      create_target_file(layout_).close();
    });
  } catch (Error const&) {
    if (made_) static_cast<void>(::unlink(layout_.path.c_str()));
    throw;
  }
}

SingleFile::~SingleFile() {
  if (made_) static_cast<void>(::unlink(layout_.path.c_str()));
}

void SingleFile::check_place() const {
  std::error_code ignored;
  fs::file_status const status = fs::symlink_status(place_, ignored);
  if (!fs::exists(status)) return;
  if (existing_ == ExistingTarget::refuse)
    fail(ErrorKind::target, "{}: exists already. Choose another path, or replace it with --force.",
         place_.string());
  if (!fs::is_regular_file(status))
    fail(ErrorKind::target,
         "{}: is not a regular file, and is not replaced. Choose another path, or remove it.",
         place_.string());
}

void SingleFile::rename() const {
  if (existing_ == ExistingTarget::refuse) {
    if (::renameat2(AT_FDCWD, layout_.path.c_str(), AT_FDCWD, place_.c_str(), RENAME_NOREPLACE) ==
        0)
      return;
    check_place();  // another program may have made it meanwhile
  }
  rename_path(layout_.path, place_);
}

void SingleFile::publish(std::span<FileSegment const> held) {
  together(comm_, [&] {
    if (comm_.rank() != 0) return;
    FileSet file({layout_.path}, FileSet::Access::write);
    finish_target_file(file, 0, layout_, {}, held);
    file.close();
    rename();
    made_ = false;
    sync_directory(place_.parent_path());
  });
}

}  // namespace reshard
