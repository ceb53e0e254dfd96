#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/uio.h>

#include "core/base/files/file.hpp"

namespace reshard {

/// A regular file that an engine has opened, for reading or for writing. Transfers at disjoint
/// places may run in several threads. Errors are those of File, in its words.
class IoFile {
 public:
  explicit IoFile(File file) : file_(std::move(file)) {}
  virtual ~IoFile() = default;
  IoFile(IoFile const&) = delete;
  IoFile& operator=(IoFile const&) = delete;

  /// The same file through the page cache: for path, size, stamp and small transfers.
  File const& file() const { return file_; }

  /// Fills the parts in turn from `offset_bytes`. The end of the file inside the range is an Error
  /// of kind source.
  virtual void read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const = 0;
  /// Reads the bytes from `offset_bytes` on, at most `into.size()`, and returns their number. An
  /// engine that bypasses the page cache does so here for any size.
  virtual std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const = 0;
  /// Writes the parts in turn from `offset_bytes` on.
  virtual void write_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const = 0;

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> into) const {
    iovec const part{into.data(), into.size()};
    read_parts_at(offset_bytes, {&part, 1});
  }
  void write_at(std::uint64_t offset_bytes, std::span<std::byte const> bytes) const {
    iovec const part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    write_parts_at(offset_bytes, {&part, 1});
  }

  /// Written data and the size reach the device before this returns.
  virtual void sync() const { file_.sync(); }
  /// Ends the use of a written file, see File::close().
  virtual void close() { file_.close(); }

 private:
  File file_;
};

/// The alignment of transfers that need no bounce buffer: offset and length are multiples of
/// `file_bytes`, the memory begins at a multiple of `memory_bytes`. Powers of two; 1: no
/// requirement.
struct IoAlignment {
  std::uint64_t file_bytes = 1;
  std::uint64_t memory_bytes = 1;
};

/// A way to read and write files. Every engine carries out every transfer, and files get the same
/// bytes. Thread safe. Files may outlive their engine.
class FileIo {
 public:
  virtual ~FileIo() = default;

  /// Its word in job files, see io_engines().
  virtual std::string_view name() const = 0;
  virtual IoAlignment alignment() const = 0;
  /// Opens an existing regular file. A missing or special file is an Error of kind `missing`.
  virtual std::unique_ptr<IoFile> open_for_reading(std::filesystem::path const& path,
                                                   ErrorKind missing = ErrorKind::source) = 0;
  /// Opens an existing file.
  virtual std::unique_ptr<IoFile> open_for_writing(std::filesystem::path const& path) = 0;
  /// As open_for_writing(), for a file that the caller has just created and holds open.
  virtual std::unique_ptr<IoFile> adopt(File file) = 0;
  /// The way of large writes, for reports.
  virtual std::string_view write_mode() const = 0;
  /// The reason for which bytes of a file are not moved in the engine's own way: "PATH: REASON"; ""
  /// if all are.
  virtual std::string fallback() const { return ""; }
};

}  // namespace reshard
