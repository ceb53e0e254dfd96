#include "core/io/posix_io.hpp"

namespace reshard {

std::unique_ptr<IoFile> PosixIo::open_for_reading(std::filesystem::path const& path,
                                                  ErrorKind missing) {
  File file = File::open_for_reading(path, missing);
  file.expect_sequential_reads();
  return std::make_unique<PosixFile>(std::move(file), cache_);
}

std::unique_ptr<IoFile> PosixIo::open_for_writing(std::filesystem::path const& path) {
  return adopt(File::open_for_writing(path));
}

std::unique_ptr<IoFile> PosixIo::adopt(File file) {
  return std::make_unique<PosixFile>(std::move(file), cache_);
}

}  // namespace reshard
