#include "stages/verify/scans/scan_file.hpp"

#include <fcntl.h>

namespace reshard {

ScanFile::ScanFile(FileIo& io, std::filesystem::path const& path)
    : file_(io.open_for_reading(path, ErrorKind::io)), size_bytes_(file_->file().size_bytes()) {
  bool const cached = io.alignment().file_bytes == 1;
  // Where an engine cannot go past the page cache after all, it shall find as little there as can
  // be.
  if (!cached) ::posix_fadvise(file_->file().descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

void ScanFile::expect_bytes(std::uint64_t needed) const {
  if (size_bytes_ < needed) fail_short(size_bytes_, needed);
}

void ScanFile::fail_short(std::uint64_t size_bytes, std::uint64_t needed) const {
  fail(ErrorKind::io,
       "{}: ends at byte {}, {} are needed. It was truncated: compare its size with the original, "
       "then run again.",
       file_->file().path().string(), size_bytes, needed);
}

void ScanFile::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  std::size_t const got = file_->read_some_at(offset_bytes, into);
  if (got < into.size()) fail_short(offset_bytes + got, offset_bytes + into.size());
}

}  // namespace reshard
