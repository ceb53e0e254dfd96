#include "stages/verify/scan_file.hpp"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "core/base/activity.hpp"
#include "stages/verify/scan_window.hpp"

namespace reshard {

ScanFile::ScanFile(std::filesystem::path const& path, ScanSource source)
    : file_(File::open_for_reading(path, ErrorKind::io)), size_bytes_(file_.size_bytes()) {
  file_.expect_sequential_reads();
  if (source == ScanSource::cache) return;
  direct_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

ScanFile::~ScanFile() { leave_direct(); }

void ScanFile::leave_direct() {
  if (direct_ >= 0) ::close(direct_);
  direct_ = -1;
}

void ScanFile::expect_bytes(std::uint64_t needed) const {
  if (size_bytes_ < needed) fail_short(size_bytes_, needed);
}

void ScanFile::fail_short(std::uint64_t size_bytes, std::uint64_t needed) const {
  fail(
      ErrorKind::io,
      "{}: ends at byte {}, {} are needed. It was cut short: compare its size with the original, then run again.",
      file_.path().string(), size_bytes, needed);
}

void ScanFile::read(std::uint64_t offset_bytes, std::span<std::byte> into) {
  std::size_t const direct =
      direct_ >= 0
          ? read_directly(offset_bytes, into.first(into.size() / scan_page_bytes * scan_page_bytes))
          : 0;
  std::size_t const got = direct + file_.read_some_at(offset_bytes + direct, into.subspan(direct));
  if (got < into.size()) fail_short(offset_bytes + got, offset_bytes + into.size());
}

/// How many bytes came; what is missing can only be read through the cache.
std::size_t ScanFile::read_directly(std::uint64_t offset_bytes, std::span<std::byte> into) {
  FileStep const step("reading", file_.path());
  std::size_t done = 0;
  while (done < into.size()) {
    ssize_t const got = ::pread(direct_, into.data() + done, into.size() - done,
                                static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EINVAL)
      fail_errno(file_.path(),
                 fmt::format("read of {} bytes at offset {}", into.size(), offset_bytes), errno);
    if (got < 0) leave_direct();  // places or lengths that this file system does not take
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace reshard
