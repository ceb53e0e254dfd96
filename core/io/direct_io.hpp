#pragma once

#include <memory>

#include "core/io/block_mover.hpp"
#include "core/io/file_io.hpp"

namespace reshard {

/// The alignment of direct transfers, see FileIo::alignment(). Also a page: no page is written
/// partly through the page cache and partly past it at the same time.
inline constexpr std::uint64_t direct_block_bytes = 4096;

class DirectFiles;

/// Reads and writes past the page cache (O_DIRECT). Unaligned transfers go through aligned memory
/// of the engine, at most a few MiB per thread. The incomplete blocks at the ends of a write, and
/// transfers below 64 KiB, go through the page cache; the kernel keeps both views of a file
/// consistent. If a file system refuses O_DIRECT, at once or for some transfer, the file is used as
/// by PosixIo, and fallback() returns the reason.
class DirectIo final : public FileIo {
 public:
  /// `name` is its word in job files; `mover` moves the bytes that bypass the page cache.
  DirectIo(std::string_view name, std::unique_ptr<BlockMover> mover);

  std::string_view name() const override { return name_; }
  IoAlignment alignment() const override { return {direct_block_bytes, direct_block_bytes}; }
  std::unique_ptr<IoFile> open_for_reading(std::filesystem::path const& path,
                                           ErrorKind missing = ErrorKind::source) override;
  std::unique_ptr<IoFile> open_for_writing(std::filesystem::path const& path) override;
  std::unique_ptr<IoFile> adopt(File file) override;
  /// The name; that of PosixIo if a file was refused.
  std::string_view write_mode() const override;
  std::string fallback() const override;

 private:
  std::string_view name_;
  std::shared_ptr<DirectFiles> files_;
};

}  // namespace reshard
