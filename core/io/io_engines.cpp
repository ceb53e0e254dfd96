#include "core/io/io_engines.hpp"

#include <algorithm>
#include <array>

#include "core/io/direct_io.hpp"
#include "core/io/posix_io.hpp"

namespace reshard {
namespace {

std::unique_ptr<FileIo> make_posix() { return std::make_unique<PosixIo>(); }
std::unique_ptr<FileIo> make_direct() { return std::make_unique<DirectIo>("direct", call_mover()); }
std::unique_ptr<FileIo> make_uring() { return std::make_unique<DirectIo>("uring", uring_mover()); }

constexpr std::array<IoEngine, 3> engines = {
    {{"posix", "nothing", make_posix},
     {"direct", "a file system that supports O_DIRECT; on others it works like posix", make_direct},
     {"uring", "what direct needs, and io_uring; without that it works like direct", make_uring}}};

}  // namespace

std::span<IoEngine const> io_engines() { return engines; }

std::unique_ptr<FileIo> make_file_io(std::string_view name) {
  auto const found = std::ranges::find(engines, name, &IoEngine::name);
  RESHARD_EXPECT(found != engines.end());
  return found->make();
}

}  // namespace reshard
