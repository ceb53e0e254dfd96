#include "core/base/files/file_range.hpp"

#include <algorithm>

namespace reshard {

FileRange::FileRange(File const& file)
    : file_(file), size_bytes_(file.size_bytes()), whole_(true) {}

FileRange::FileRange(File const& file, std::uint64_t offset_bytes, std::uint64_t size_bytes)
    : file_(file), offset_bytes_(offset_bytes), size_bytes_(size_bytes) {
  std::uint64_t const all = file.size_bytes();
  if (offset_bytes > all || size_bytes > all - offset_bytes)
    fail(ErrorKind::source,
         "{}: {} bytes needed at offset {}, the file has {}. It is truncated: compare its size "
         "with the original.",
         file.path().string(), size_bytes, offset_bytes, all);
}

std::string FileRange::name() const {
  if (whole_) return file_.path().string();
  return fmt::format("{}, bytes [{}, {})", file_.path().string(), offset_bytes_,
                     offset_bytes_ + size_bytes_);
}

std::size_t FileRange::read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  std::uint64_t const left = size_bytes_ - std::min(offset_bytes, size_bytes_);
  return file_.read_some_at(offset_bytes_ + offset_bytes,
                            into.first(std::min<std::uint64_t>(left, into.size())));
}

void FileRange::read_at(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (std::size_t const got = read_some_at(offset_bytes, into); got != into.size())
    fail(ErrorKind::source,
         "{}: {} bytes needed at offset {}, which ends after {}. It is truncated: compare its size "
         "with the original.",
         name(), into.size(), offset_bytes, got);
}

}  // namespace reshard
