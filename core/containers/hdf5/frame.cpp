#include "core/containers/hdf5/frame.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/file.hpp"

namespace reshard::hdf5 {
namespace {

constexpr std::uint64_t block_bytes = 4096;
constexpr char const* place = "the skeleton of an HDF5 file, in memory";

std::string read_range(int descriptor, ByteRange span) {
  std::string bytes(span.end - span.begin, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    ssize_t const got = ::pread(descriptor, bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(span.begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail_errno(place, "read", got < 0 ? errno : EIO);
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

/// Appends the nonzero bytes as segments. Segments with few zeros between them become one, but not
/// across `free_from`, the end of a dataset.
void append_nonzero(std::vector<FileSegment>& frame, std::uint64_t free_from,
                    std::uint64_t offset_bytes, std::string_view bytes) {
  std::size_t const first = bytes.find_first_not_of('\0');
  if (first == std::string_view::npos) return;
  std::size_t const end = bytes.find_last_not_of('\0') + 1;
  std::uint64_t const begin = offset_bytes + first;
  bool const joins = !frame.empty() && frame.back().offset_bytes >= free_from &&
                     begin - (frame.back().offset_bytes + frame.back().bytes.size()) < block_bytes;
  if (!joins) frame.push_back({begin, {}});
  frame.back().bytes.resize(begin - frame.back().offset_bytes, '\0');
  frame.back().bytes += bytes.substr(first, end - first);
}

}  // namespace

SparseMemory::SparseMemory() : descriptor_(::memfd_create("reshard-hdf5", MFD_CLOEXEC)) {
  if (descriptor_ < 0) fail_errno(place, "create", errno);
}

SparseMemory::~SparseMemory() { ::close(descriptor_); }

std::string SparseMemory::path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

std::uint64_t SparseMemory::size_bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_errno(place, "stat", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

std::uint64_t SparseMemory::next(std::uint64_t from, int whence) const {
  off_t const at = ::lseek(descriptor_, static_cast<off_t>(from), whence);
  if (at < 0 && errno == ENXIO) return size_bytes();  // only a hole is left
  if (at < 0) fail_errno(place, "lseek", errno);
  return static_cast<std::uint64_t>(at);
}

std::vector<FileSegment> SparseMemory::written_outside(std::vector<ByteRange> datasets) const {
  std::ranges::sort(datasets, {}, &ByteRange::begin);
  std::vector<FileSegment> frame;
  std::uint64_t const size = size_bytes();
  std::uint64_t free_from = 0;
  auto dataset = datasets.begin();
  for (std::uint64_t at = next(0, SEEK_DATA); at < size;) {
    for (; dataset != datasets.end() && dataset->begin <= at; ++dataset)
      free_from = std::max(free_from, dataset->end);
    if (at >= free_from) {
      std::uint64_t const stop = dataset == datasets.end() ? size : std::min(size, dataset->begin);
      std::uint64_t const end =
          std::min({next(at, SEEK_HOLE), stop, (at / block_bytes + 1) * block_bytes});
      append_nonzero(frame, free_from, at, read_range(descriptor_, {at, end}));
      at = end;
    } else {
      at = free_from;
    }
    if (at < size) at = next(at, SEEK_DATA);
  }
  return frame;
}

}  // namespace reshard::hdf5
