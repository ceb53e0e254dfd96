#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "core/base/error.hpp"

namespace reshard {

class Sight;

/// A file as it was at some time: when two stamps differ, it was changed or replaced in between.
/// Device numbers are comparable on one node only: network file systems number theirs on each node.
/// FUSE file systems may number inodes on each node, too: there the inode is 0.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;
  friend bool operator==(FileStamp const&, FileStamp const&) = default;
};

/// An open regular file with positioned, complete transfers: short transfers are finished, requests
/// are split below 1 GiB. Calls that a signal has interrupted are made again. Every failure is an
/// Error of kind io (resources for a full disk or quota) with the path, the offset and the system's
/// reason. Transfers at disjoint places may run in several threads. A file that is opened for
/// writing cannot be read: a network file system then sends exactly the bytes that were written,
/// never the rest of their page, which another node may have written meanwhile. A file that is
/// opened for reading under a Sight is read through it, and must not outlive it.
class File {
 public:
  /// Opens an existing regular file for reading. A missing or special file is an Error of kind
  /// `missing`.
  static File open_for_reading(std::filesystem::path const& path,
                               ErrorKind missing = ErrorKind::source);
  /// Creates (or empties) a file for writing.
  static File create(std::filesystem::path const& path);
  /// Opens an existing file for writing.
  static File open_for_writing(std::filesystem::path const& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(File const&) = delete;
  File& operator=(File const&) = delete;
  /// Written files are closed by close(); the destructor closes them only after a failure, and
  /// drops the error of close(2).
  ~File();

  std::filesystem::path const& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t size_bytes() const;
  FileStamp stamp() const;

  /// Fills `into` from `offset_bytes`; the end of the file inside the range is an Error of kind
  /// source (the file is cut short).
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> into) const;
  /// Reads the bytes from `offset_bytes` on, at most `into.size()`; returns their number, which is
  /// less only at the end of the file.
  std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const;
  void write_at(std::uint64_t offset_bytes, std::span<std::byte const> bytes) const;
  /// As read_at(), into several buffers in turn.
  void read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const;

  enum class Cache { keep, drop };
  /// As write_at(), from several buffers in turn. Cache::drop writes to the device soon and frees
  /// the page cache by itself (RWF_DONTCACHE); returns false without writing if the system cannot
  /// do that.
  [[nodiscard]] bool write_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts,
                                    Cache cache) const;
  /// Begins to write the range to the device. False if the file system does not support it.
  [[nodiscard]] bool begin_write_back(std::uint64_t offset_bytes, std::uint64_t bytes) const;
  /// Waits until the range is on the device and drops it from the page cache. The size and other
  /// metadata are not synced: see sync().
  void finish_write_back(std::uint64_t offset_bytes, std::uint64_t bytes) const;
  /// A hint: this file is read mostly from front to back.
  void expect_sequential_reads() const;
  /// Sets the size; new bytes read as zero.
  void resize(std::uint64_t size_bytes) const;
  /// Data and size reach the device before this returns.
  void sync() const;
  /// Ends the use of a written file: a network file system may report only here that it could not
  /// store the data, which counts as a failed write-back. The descriptor is closed in any case.
  void close();

 private:
  File(int descriptor, std::filesystem::path path)
      : descriptor_(descriptor), path_(std::move(path)) {}
  static File open_here(std::filesystem::path const& path, ErrorKind missing);
  FileStamp stamp_here() const;
  std::size_t read_here(std::uint64_t offset_bytes, std::span<std::byte> into) const;

  int descriptor_ = -1;
  std::filesystem::path path_;
  Sight* sight_ = nullptr;
  FileStamp seen_;  ///< set if the file was opened under a Sight
};

/// The stamp of the file at a path, links followed, as its server has it now: by statx, or by
/// opening the file if statx cannot ask the server. Not for threads that have a Sight. A missing or
/// special file is an Error of kind io.
FileStamp stamp_of(std::filesystem::path const& path);

/// Whether a sync, a write-back or a close of this process has ever failed. Written bytes may then
/// be lost, and a later sync of the same file through another descriptor may succeed nevertheless.
bool write_back_has_failed();

/// The text of the file; a file larger than `limit_bytes` is an Error of kind source.
std::string read_text_file(std::filesystem::path const& path, std::uint64_t limit_bytes);
/// Creates the file with exactly these bytes, syncs and closes it.
void write_text_file(std::filesystem::path const& path, std::string_view text);
/// Makes a folder and those above it, as far as they are missing.
void make_folders(std::filesystem::path const& path);
/// Gives a file or folder another name on the same file system; a file that has that name already
/// is replaced.
void rename_path(std::filesystem::path const& from, std::filesystem::path const& to);
/// Makes the names inside a directory durable.
void sync_directory(std::filesystem::path const& path);

/// "12.0 MiB", "3 B".
std::string human_bytes(std::uint64_t bytes);

/// The unit in which human_bytes() states a number of bytes.
struct ByteUnit {
  std::string_view name;  ///< "MiB"
  double bytes = 1;
};
ByteUnit unit_of(std::uint64_t bytes);
/// "1.42 GiB/s": in a given unit, for a line that has it already. 0 where no time is known.
std::string rate_text(std::uint64_t bytes, double seconds, ByteUnit unit);
/// An Error about what the system refused to do: kind resources for a full disk, quota or limit,
/// else io.
[[noreturn]] void fail_errno(std::filesystem::path const& path, std::string_view doing,
                             int error_number);
/// The system's text for an errno value.
std::string system_reason(int error_number);

}  // namespace reshard
