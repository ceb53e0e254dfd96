#include "core/io/shared_extents.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t xfs_magic = 0x58465342;  // "XFSB"

/// The struct of XFS_IOC_FSGEOMETRY_V1 (man 2 ioctl_xfs_fsgeometry): words of 32 bits up to
/// `flags`, which are behind blocksize, rtextsize, agblocks, agcount, logblocks, sectsize,
/// inodesize, imaxpct, four counts of 64 bits, a UUID of 16 bytes, sunit, swidth and the version.
struct XfsGeometry {
  std::array<std::uint32_t, 8> sizes;
  std::array<std::uint64_t, 4> counts;
  std::array<std::uint8_t, 16> uuid;
  std::uint32_t sunit;
  std::uint32_t swidth;
  std::int32_t version;
  std::uint32_t flags;
  std::array<std::uint32_t, 3> more;
};
static_assert(sizeof(XfsGeometry) == 112);
constexpr std::uint32_t xfs_shares_extents = 1U << 20;

bool xfs_can_share(int descriptor) {
  XfsGeometry geometry{};
  return ::ioctl(descriptor, _IOR('X', 100, XfsGeometry), &geometry) == 0 &&
         (geometry.flags & xfs_shares_extents) != 0;
}

}  // namespace

std::optional<std::uint64_t> clone_block_at(fs::path path) {
  std::error_code ignored;
  path = fs::absolute(path, ignored);
  int descriptor = -1;
  while ((descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
    bool const missing = errno == ENOENT || errno == ENOTDIR;
    if (!missing || !path.has_parent_path() || path == path.parent_path()) return std::nullopt;
    path = path.parent_path();
  }
  struct statfs system {};
  bool can = false;
  if (::fstatfs(descriptor, &system) == 0) {
    auto const kind = static_cast<std::uint64_t>(system.f_type);
    can = kind == BTRFS_SUPER_MAGIC || (kind == xfs_magic && xfs_can_share(descriptor));
  }
  ::close(descriptor);
  if (!can) return std::nullopt;
  return static_cast<std::uint64_t>(system.f_bsize);
}

CloneAnswer clone_range(FileClone const& clone) {
  file_clone_range const range{.src_fd = clone.from.descriptor(),
                               .src_offset = clone.from_bytes,
                               .src_length = clone.bytes,
                               .dest_offset = clone.to_bytes};
  int error = 0;
  do {
    error = ::ioctl(clone.to.descriptor(), FICLONERANGE, &range) == 0 ? 0 : errno;
  } while (error == EINTR);
  switch (error) {
    case 0: return CloneAnswer::cloned;
    case EOPNOTSUPP:
    case ENOTTY:
    case ENOSYS: return CloneAnswer::never_between;
    case EINVAL:
    case EXDEV:
    case EPERM:
    case EACCES:
    case EBADF:
    case ETXTBSY: return CloneAnswer::refused;
    default:
      fail_errno(
          clone.to.path(),
          fmt::format("clone of {} from {}", human_bytes(clone.bytes), clone.from.path().string()),
          error);
  }
}

}  // namespace reshard
