#pragma once

#include <memory>
#include <utility>

#include "core/io/file_io.hpp"
#include "core/io/write_cache.hpp"

namespace reshard {

/// A file that is read and written through the page cache.
class PosixFile : public IoFile {
 public:
  PosixFile(File file, std::shared_ptr<WriteCache> cache)
      : IoFile(std::move(file)), cache_(std::move(cache)) {}
  ~PosixFile() override { cache_->forget(file()); }

  void read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const override {
    file().read_parts_at(offset_bytes, parts);
  }
  std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    return file().read_some_at(offset_bytes, into);
  }
  void write_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const override {
    cache_->write(file(), offset_bytes, parts);
  }
  void close() override {
    cache_->forget(file());
    IoFile::close();
  }

 private:
  std::shared_ptr<WriteCache> cache_;
};

/// Reads and writes through the page cache, and keeps few written pages in it.
class PosixIo final : public FileIo {
 public:
  explicit PosixIo(WriteMode mode = WriteMode::automatic)
      : cache_(std::make_shared<WriteCache>(mode)) {}

  std::string_view name() const override { return "posix"; }
  IoAlignment alignment() const override { return {}; }
  std::unique_ptr<IoFile> open_for_reading(std::filesystem::path const& path,
                                           ErrorKind missing = ErrorKind::source) override;
  std::unique_ptr<IoFile> open_for_writing(std::filesystem::path const& path) override;
  std::unique_ptr<IoFile> adopt(File file) override;
  std::string_view write_mode() const override { return name_of(cache_->mode()); }

 private:
  std::shared_ptr<WriteCache> cache_;
};

}  // namespace reshard
