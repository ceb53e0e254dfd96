#include "core/io/io_engines.hpp"

#include <algorithm>
#include <array>

#include "core/io/direct_io.hpp"
#include "core/io/posix_io.hpp"

namespace reshard {
namespace {

template <class Engine>
std::unique_ptr<FileIo> make() {
  return std::make_unique<Engine>();
}

constexpr std::array<IoEngine, 2> engines = {
    {{"posix", "nothing", make<PosixIo>},
     {"direct", "a file system that supports O_DIRECT; on others it works like posix",
      make<DirectIo>}}};

}  // namespace

std::span<IoEngine const> io_engines() { return engines; }

std::unique_ptr<FileIo> make_file_io(std::string_view name) {
  auto const found = std::ranges::find(engines, name, &IoEngine::name);
  RESHARD_EXPECT(found != engines.end());
  return found->make();
}

}  // namespace reshard
