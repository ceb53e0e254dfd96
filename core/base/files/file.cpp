#include "core/base/files/file.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files/sight.hpp"
#include "core/base/threads/activity.hpp"
#include "core/base/threads/retry.hpp"

namespace reshard {
namespace {

constexpr std::size_t largest_request = std::size_t{1} << 30;
constexpr std::size_t most_parts = 1024;  // IOV_MAX of Linux

// Since Linux 6.14 (include/uapi/linux/fs.h); older headers do not name it, older kernels answer
// EOPNOTSUPP.
constexpr int rwf_dontcache = 0x80;

ErrorKind kind_of_errno(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return ErrorKind::resources;
    default: return ErrorKind::io;
  }
}

/// The parts of a vectored transfer that are still to come.
class PartsLeft {
 public:
  explicit PartsLeft(std::span<iovec const> parts) : parts_(parts.begin(), parts.end()) { skip(0); }
  bool empty() const { return first_ == parts_.size(); }
  iovec const* data() const { return parts_.data() + first_; }
  int count() const { return static_cast<int>(std::min(parts_.size() - first_, most_parts)); }
  std::uint64_t bytes_done() const { return done_; }

  void skip(std::size_t bytes) {
    done_ += bytes;
    while (first_ < parts_.size() && bytes >= parts_[first_].iov_len)
      bytes -= parts_[first_++].iov_len;
    if (first_ == parts_.size()) return;
    parts_[first_].iov_base = static_cast<std::byte*>(parts_[first_].iov_base) + bytes;
    parts_[first_].iov_len -= bytes;
  }

 private:
  std::vector<iovec> parts_;
  std::size_t first_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

std::string system_reason(int error_number) { return std::strerror(error_number); }

void fail_errno(std::filesystem::path const& path, std::string_view doing, int error_number) {
  auto const kind = kind_of_errno(error_number);
  char const* next = kind == ErrorKind::resources ? "Free space or raise the limit, then run again."
                                                  : "Check the file system, then run again.";
  fail(kind, "{}: {} failed: {}. {}", path.string(), doing, system_reason(error_number), next);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      sight_(other.sight_),
      seen_(other.seen_) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
    sight_ = other.sight_;
    seen_ = other.seen_;
  }
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::open_for_reading(std::filesystem::path const& path, ErrorKind missing) {
  Sight* const sight = current_sight();
  if (sight == nullptr) return open_here(path, missing);
  File file(-1, path);
  std::string const stamp = sight->see("open " + path.string(), [&] {
    file = open_here(path, missing);
    FileStamp const found = file.stamp_here();
    return std::string(reinterpret_cast<char const*>(&found), sizeof found);
  });
  RESHARD_EXPECT(stamp.size() == sizeof file.seen_);
  std::memcpy(&file.seen_, stamp.data(), stamp.size());
  file.sight_ = sight;
  return file;
}

File File::open_here(std::filesystem::path const& path, ErrorKind missing) {
  FileStep const step("opening", path);
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  int const descriptor =
      retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) {
    if (errno == ENXIO)
      fail(missing, "{}: is not a regular file. Name a file.",
           path.string());  // a socket, a terminal
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG ||
        errno == EACCES)
      fail(missing, "{}: cannot be opened: {}. Check the path and its permissions.", path.string(),
           system_reason(errno));
    fail_errno(path, "open", errno);
  }
  File file(descriptor, path);
  struct stat status {};
  if (retried([&] { return ::fstat(descriptor, &status); }) != 0) fail_errno(path, "stat", errno);
  if (!S_ISREG(status.st_mode))
    fail(missing, "{}: is not a regular file. Name a file.", path.string());
  OpenedFiles::note(path, [&] { return file.stamp_here(); });
  return file;
}

File File::create(std::filesystem::path const& path) {
  FileStep const step("creation", path);
  int const descriptor =
      retried([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
  if (descriptor < 0) fail_errno(path, "create", errno);
  return {descriptor, path};
}

File File::open_for_writing(std::filesystem::path const& path) {
  FileStep const step("opening", path);
  int const descriptor = retried([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC); });
  if (descriptor < 0) fail_errno(path, "open for writing", errno);
  return {descriptor, path};
}

std::uint64_t File::size_bytes() const {
  if (sight_ != nullptr) return static_cast<std::uint64_t>(seen_.bytes);
  struct stat status {};
  if (retried([&] { return ::fstat(descriptor_, &status); }) != 0) fail_errno(path_, "stat", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

std::size_t File::read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  if (sight_ == nullptr) return read_here(offset_bytes, into);
  RESHARD_EXPECT(sight_ == current_sight());
  std::string const bytes =
      sight_->see(fmt::format("read {}+{} {}", offset_bytes, into.size(), path_.string()), [&] {
        return std::string(reinterpret_cast<char const*>(into.data()),
                           read_here(offset_bytes, into));
      });
  std::copy_n(reinterpret_cast<std::byte const*>(bytes.data()), bytes.size(), into.data());
  return bytes.size();
}

std::size_t File::read_here(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  FileStep const step("reading", path_);
  std::size_t done = 0;
  while (done < into.size()) {
    std::size_t const want = std::min(into.size() - done, largest_request);
    ssize_t const got =
        ::pread(descriptor_, into.data() + done, want, static_cast<off_t>(offset_bytes + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail_errno(path_, fmt::format("read of {} bytes at offset {}", want, offset_bytes + done),
                 errno);
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void File::read_at(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  std::size_t const got = read_some_at(offset_bytes, into);
  if (got != into.size())
    fail(ErrorKind::source,
         "{}: {} bytes needed at offset {}, the file ends after {}. It is truncated: compare its "
         "size with the original.",
         path_.string(), into.size(), offset_bytes, got);
}

void File::write_at(std::uint64_t offset_bytes, std::span<std::byte const> bytes) const {
  FileStep const step("writing", path_);
  std::size_t done = 0;
  while (done < bytes.size()) {
    std::size_t const want = std::min(bytes.size() - done, largest_request);
    ssize_t const put =
        ::pwrite(descriptor_, bytes.data() + done, want, static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      fail_errno(path_, fmt::format("write of {} bytes at offset {}", want, offset_bytes + done),
                 put < 0 ? errno : EIO);
    done += static_cast<std::size_t>(put);
  }
}

void File::read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const {
  RESHARD_EXPECT(sight_ == nullptr);
  FileStep const step("reading", path_);
  PartsLeft left(parts);
  while (!left.empty()) {
    ssize_t const got = ::preadv(descriptor_, left.data(), left.count(),
                                 static_cast<off_t>(offset_bytes + left.bytes_done()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail_errno(path_, fmt::format("read at offset {}", offset_bytes + left.bytes_done()), errno);
    if (got == 0)
      fail(ErrorKind::source,
           "{}: more bytes needed at offset {}, where the file ends. It is truncated: compare its "
           "size with the original.",
           path_.string(), offset_bytes + left.bytes_done());
    left.skip(static_cast<std::size_t>(got));
  }
}

bool File::write_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts,
                          Cache cache) const {
  FileStep const step("writing", path_);
  int const flags = cache == Cache::drop ? rwf_dontcache : 0;
  PartsLeft left(parts);
  while (!left.empty()) {
    off_t const at = static_cast<off_t>(offset_bytes + left.bytes_done());
    ssize_t const put = ::pwritev2(descriptor_, left.data(), left.count(), at, flags);
    if (put < 0 && errno == EINTR) continue;
    bool const unknown =
        put < 0 && flags != 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS);
    if (unknown && left.bytes_done() == 0) return false;
    if (put <= 0) fail_errno(path_, fmt::format("write at offset {}", at), put < 0 ? errno : EIO);
    left.skip(static_cast<std::size_t>(put));
  }
  return true;
}

namespace {

std::atomic<bool> lost_writes = false;

[[noreturn]] void fail_write_back(std::filesystem::path const& path, std::string const& what,
                                  int error_number) {
  lost_writes = true;
  fail_errno(path, what, error_number);
}

}  // namespace

bool write_back_has_failed() { return lost_writes; }

bool File::begin_write_back(std::uint64_t offset_bytes, std::uint64_t bytes) const {
  FileStep const step("write-back", path_);
  auto const offset = static_cast<off_t>(offset_bytes);
  auto const begin = [&] {
    return ::sync_file_range(descriptor_, offset, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  };
  if (retried(begin) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ESPIPE || errno == EOPNOTSUPP) return false;
  fail_write_back(path_, fmt::format("write-back of {} bytes at offset {}", bytes, offset_bytes),
                  errno);
}

void File::finish_write_back(std::uint64_t offset_bytes, std::uint64_t bytes) const {
  FileStep const step("write-back", path_);
  auto const offset = static_cast<off_t>(offset_bytes);
  // A failed write-back is reported once per descriptor: it must not be dropped here, a later fsync
  // would not repeat it.
  unsigned const all =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (retried([&] {
        return ::sync_file_range(descriptor_, offset, static_cast<off_t>(bytes), all);
      }) != 0)
    fail_write_back(path_, fmt::format("write-back of {} bytes at offset {}", bytes, offset_bytes),
                    errno);
  ::posix_fadvise(descriptor_, offset, static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

void File::expect_sequential_reads() const {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

void File::resize(std::uint64_t size_bytes) const {
  FileStep const step("resizing", path_);
  if (retried([&] { return ::ftruncate(descriptor_, static_cast<off_t>(size_bytes)); }) != 0)
    fail_errno(path_, fmt::format("resize to {} bytes", size_bytes), errno);
}

void File::sync() const {
  FileStep const step("fsync", path_);
  if (retried([&] { return ::fsync(descriptor_); }) != 0) fail_write_back(path_, "fsync", errno);
}

void File::close() {
  FileStep const step("closing", path_);
  int const descriptor = std::exchange(descriptor_, -1);
  // After EINTR Linux has closed the descriptor: its number may belong to another file by now.
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR)
    fail_write_back(path_, "close", errno);
}

std::string read_text_file(std::filesystem::path const& path, std::uint64_t limit_bytes) {
  File const file = File::open_for_reading(path);
  std::uint64_t const size = file.size_bytes();
  if (size > limit_bytes)
    fail(ErrorKind::source,
         "{}: {} bytes, at most {} are read from such a file. It is not the kind of file that its "
         "name suggests.",
         path.string(), size, limit_bytes);
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_file(std::filesystem::path const& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.sync();
  file.close();
}

void make_folders(std::filesystem::path const& path) {
  auto const make = [&] {
    FileStep const step("creation", path);
    return retried([&] { return ::mkdir(path.c_str(), 0777); }) == 0 ? 0 : errno;
  };
  int reason = make();
  if (reason == ENOENT && path.has_parent_path() && path.parent_path() != path) {
    make_folders(path.parent_path());
    reason = make();
  }
  std::error_code ignored;
  if (reason != 0 && (reason != EEXIST || !std::filesystem::is_directory(path, ignored)))
    fail_errno(path, "create", reason);
}

void rename_path(std::filesystem::path const& from, std::filesystem::path const& to) {
  FileStep const step("renaming", from);
  bool interrupted = false;
  while (::rename(from.c_str(), to.c_str()) != 0) {
    if (errno == ENOENT && interrupted) return;  // the interrupted call had done it
    if (errno != EINTR)
      fail_errno(from, fmt::format("rename to {}", to.filename().string()), errno);
    interrupted = true;
  }
}

void sync_directory(std::filesystem::path const& path) {
  FileStep const step("fsync", path);
  int const descriptor =
      retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) fail_errno(path, "open directory", errno);
  int const result = retried([&] { return ::fsync(descriptor); });
  int const reason = errno;
  ::close(descriptor);
  if (result != 0 && reason != EINVAL) fail_errno(path, "fsync of directory", reason);
}

ByteUnit unit_of(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  ByteUnit unit{names[0], 1};
  for (std::size_t n = 1; n < names.size() && static_cast<double>(bytes) >= 1024 * unit.bytes; ++n)
    unit = {names[n], 1024 * unit.bytes};
  return unit;
}

std::string human_bytes(std::uint64_t bytes) {
  ByteUnit const unit = unit_of(bytes);
  if (unit.bytes == 1) return fmt::format("{} B", bytes);
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string rate_text(std::uint64_t bytes, double seconds, ByteUnit unit) {
  double const rate = seconds <= 0 ? 0 : static_cast<double>(bytes) / seconds / unit.bytes;
  if (rate >= 10'000) {  // of a moment
    auto const per_second = static_cast<std::uint64_t>(rate * unit.bytes);
    return human_bytes(per_second) + "/s";
  }
  int const decimals = rate == 0 || rate >= 100 ? 0 : rate >= 10 ? 1 : rate >= 1 ? 2 : 3;
  return fmt::format("{:.{}f} {}/s", rate, decimals, unit.name);
}

}  // namespace reshard
