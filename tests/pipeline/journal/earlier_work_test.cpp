#include "pipeline/journal/earlier_work.hpp"

#include <gtest/gtest.h>
#include <linux/magic.h>

#include "core/base/files/file.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

TEST(LocalFileSystem, NetworkOnesAreNot) {
  for (std::uint64_t const type :
       {std::uint64_t{EXT4_SUPER_MAGIC}, std::uint64_t{TMPFS_MAGIC},
        std::uint64_t{OVERLAYFS_SUPER_MAGIC}, std::uint64_t{BTRFS_SUPER_MAGIC},
        std::uint64_t{0x58465342}, std::uint64_t{0x2fc12fc1}})
    EXPECT_TRUE(is_local_file_system(type)) << type;
  // BTRFS_SUPER_MAGIC has its highest bit set: statfs may give it as a negative number.
  EXPECT_TRUE(is_local_file_system(
      static_cast<std::uint64_t>(static_cast<std::int32_t>(BTRFS_SUPER_MAGIC))));
  constexpr std::uint64_t lustre = 0x0bd00bd0;
  constexpr std::uint64_t gpfs = 0x47504653;
  for (std::uint64_t const type : {std::uint64_t{NFS_SUPER_MAGIC}, std::uint64_t{FUSE_SUPER_MAGIC},
                                   lustre, gpfs, std::uint64_t{0}})
    EXPECT_FALSE(is_local_file_system(type)) << type;
}

}  // namespace
}  // namespace reshard
