#include "core/io/direct_io.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/base/threads/activity.hpp"
#include "core/base/threads/retry.hpp"
#include "core/io/parts_cursor.hpp"
#include "core/io/posix_io.hpp"

namespace reshard {
namespace {

/// Fewer bytes in a row are not worth a request of their own past the page cache.
constexpr std::uint64_t least_direct_bytes = std::uint64_t{64} << 10;
constexpr std::size_t buffer_bytes = std::size_t{4} << 20;
/// File systems with larger blocks are used through the page cache.
constexpr std::uint64_t most_block_bytes = std::uint64_t{1} << 20;

std::uint64_t whole_below(std::uint64_t bytes, std::uint64_t block) {
  return bytes / block * block;
}
std::uint64_t whole_above(std::uint64_t bytes, std::uint64_t block) {
  return whole_below(bytes + block - 1, block);
}

struct FreeAligned {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t{most_block_bytes});
  }
};
using Buffer = std::unique_ptr<std::byte[], FreeAligned>;

Buffer new_buffer() {
  return Buffer(
      static_cast<std::byte*>(::operator new[](buffer_bytes, std::align_val_t{most_block_bytes})));
}

/// The alignment that a file system requires of direct transfers of a file; nullopt if it supports
/// none.
std::optional<IoAlignment> asked_by(File const& file) {
#ifdef STATX_DIOALIGN
  struct statx facts {};
  if (retried([&] {
        return ::statx(file.descriptor(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts);
      }) == 0 &&
      (facts.stx_mask & STATX_DIOALIGN) != 0) {
    if (facts.stx_dio_offset_align == 0) return std::nullopt;
    return IoAlignment{std::max<std::uint64_t>(facts.stx_dio_offset_align, direct_block_bytes),
                       std::max<std::uint64_t>(facts.stx_dio_mem_align, 1)};
  }
#else
  static_cast<void>(file);
#endif
  return IoAlignment{direct_block_bytes, direct_block_bytes};
}

}  // namespace

/// The shared state of an engine's files: memory for unaligned transfers, and the first refusal.
class DirectFiles {
 public:
  explicit DirectFiles(std::unique_ptr<BlockMover> mover) : mover_(std::move(mover)) {}

  /// A buffer on loan.
  class Loan {
   public:
    explicit Loan(DirectFiles& from) : from_(from), buffer_(from.take_buffer()) {}
    ~Loan() { from_.give_back(std::move(buffer_)); }
    Loan(Loan const&) = delete;
    Loan& operator=(Loan const&) = delete;
    std::span<std::byte> bytes() { return {buffer_.get(), buffer_bytes}; }

   private:
    DirectFiles& from_;
    Buffer buffer_;
  };

  std::shared_ptr<WriteCache> const& cache() const { return cache_; }
  BlockMover& mover() { return *mover_; }
  void note_refusal(std::filesystem::path const& path, std::string_view reason) {
    std::lock_guard const lock(mutex_);
    if (refusal_.empty()) refusal_ = fmt::format("{}: {}", path.string(), reason);
  }
  std::string refusal() const {
    std::lock_guard const lock(mutex_);
    return refusal_;
  }

 private:
  Buffer take_buffer() {
    std::lock_guard const lock(mutex_);
    if (free_.empty()) return new_buffer();
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void give_back(Buffer buffer) {
    std::lock_guard const lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::unique_ptr<BlockMover> mover_;
  std::shared_ptr<WriteCache> cache_ = std::make_shared<WriteCache>(WriteMode::automatic);
  mutable std::mutex mutex_;
  std::vector<Buffer> free_;
  std::string refusal_;
};

namespace {

/// Throws an Error unless both are the same file.
void check_same(File const& one, File const& other) {
  FileStamp const a = one.stamp();
  FileStamp const b = other.stamp();
  if (a.inode == b.inode && a.device == b.device) return;
  fail(ErrorKind::io,
       "{}: was replaced by another file while it was opened: inode {} against {}. Run again "
       "when no program changes it.",
       one.path().string(), a.inode, b.inode);
}

/// A file with a descriptor that bypasses the page cache, and a second one through it for the other
/// transfers, opened when it is needed.
class DirectFile final : public IoFile {
 public:
  DirectFile(File direct, std::function<File()> reopen, IoAlignment asked,
             std::shared_ptr<DirectFiles> shared)
      : IoFile(std::move(direct)),
        reopen_(std::move(reopen)),
        asked_(asked),
        shared_(std::move(shared)) {}

  void read_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const override {
    PartsCursor cursor(parts);
    if (bytes_of(parts) >= least_direct_bytes) read_directly(offset_bytes, parts, cursor);
    std::uint64_t const done = cursor.done_bytes();
    if (done < bytes_of(parts)) cached().read_parts_at(offset_bytes + done, cursor.rest());
  }

  std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const override {
    iovec const part{into.data(), into.size()};
    PartsCursor cursor({&part, 1});
    read_directly(offset_bytes, {&part, 1}, cursor);
    std::size_t const done = cursor.done_bytes();
    if (done == into.size() || offset_bytes + done >= file().size_bytes()) return done;
    return done + cached().read_some_at(offset_bytes + done, into.subspan(done));
  }

  void write_parts_at(std::uint64_t offset_bytes, std::span<iovec const> parts) const override {
    std::uint64_t const bytes = bytes_of(parts);
    std::uint64_t const first = whole_above(offset_bytes, asked_.file_bytes);
    std::uint64_t const last = whole_below(offset_bytes + bytes, asked_.file_bytes);
    PartsCursor cursor(parts);
    if (last > first && last - first >= least_direct_bytes) {
      write_cached(offset_bytes, cursor.take(first - offset_bytes));
      std::vector<iovec> const middle = cursor.take(last - first);
      std::uint64_t const end = write_directly(first, middle);
      if (end < last) {
        PartsCursor refused(middle);
        refused.take(end - first);
        write_cached(end, refused.rest());
      }
    }
    std::uint64_t const done = cursor.done_bytes();
    write_cached(offset_bytes + done, cursor.rest());
  }

  /// Through the descriptor that pages were written with, if there are any.
  void sync() const override {
    PosixFile const* const written = opened_.load();
    written != nullptr ? written->sync() : IoFile::sync();
  }

  void close() override {
    IoFile::close();
    if (cached_) cached_->close();
  }

 private:
  PosixFile const& cached() const {
    std::call_once(once_, [this] {
      File opened = reopen_();
      check_same(opened, file());
      opened.expect_sequential_reads();
      cached_ = std::make_unique<PosixFile>(std::move(opened), shared_->cache());
      opened_ = cached_.get();
    });
    return *cached_;
  }

  /// Less than all where the file ends, or where direct transfers are refused.
  void read_directly(std::uint64_t offset_bytes, std::span<iovec const> parts,
                     PartsCursor& cursor) const {
    if (refused_) return;
    for (TransferStep const& step : transfer_steps(offset_bytes, parts, asked_.file_bytes,
                                                   asked_.memory_bytes, least_direct_bytes)) {
      std::uint64_t const bytes = step.end - step.begin;
      std::uint64_t const done = step.memory == nullptr
                                     ? read_over_buffer(step, cursor)
                                     : read_blocks(step.begin, {step.memory, bytes});
      if (step.memory != nullptr) cursor.take(done);
      if (done < bytes) return;
    }
  }

  std::uint64_t read_over_buffer(TransferStep const& step, PartsCursor& cursor) const {
    DirectFiles::Loan loan(*shared_);
    for (std::uint64_t at = step.begin; at < step.end;) {
      std::uint64_t const base = whole_below(at, asked_.file_bytes);
      std::uint64_t const wanted =
          std::min<std::uint64_t>(whole_above(step.end, asked_.file_bytes) - base, buffer_bytes);
      std::uint64_t const got = read_blocks(base, loan.bytes().first(wanted));
      std::uint64_t const end = std::min(base + got, step.end);
      if (end <= at) return at - step.begin;
      cursor.fill(loan.bytes().subspan(at - base, end - at));
      at = end;
      if (got < wanted) return at - step.begin;
    }
    return step.end - step.begin;
  }

  /// Up to where the writes went.
  std::uint64_t write_directly(std::uint64_t offset_bytes, std::span<iovec const> parts) const {
    if (refused_) return offset_bytes;
    PartsCursor cursor(parts);
    std::uint64_t at = offset_bytes;
    for (TransferStep const& step : transfer_steps(offset_bytes, parts, asked_.file_bytes,
                                                   asked_.memory_bytes, least_direct_bytes)) {
      if (step.memory == nullptr) {
        at += write_over_buffer(step, cursor);
      } else {
        at += write_blocks(step.begin, {step.memory, step.end - step.begin});
        cursor.take(step.end - step.begin);
      }
      if (at < step.end) break;
    }
    return at;
  }

  std::uint64_t write_over_buffer(TransferStep const& step, PartsCursor& cursor) const {
    DirectFiles::Loan loan(*shared_);
    std::uint64_t at = step.begin;
    while (at < step.end) {
      auto const bytes = loan.bytes().first(std::min<std::uint64_t>(step.end - at, buffer_bytes));
      cursor.gather(bytes);
      std::uint64_t const put = write_blocks(at, bytes);
      at += put;
      if (put < bytes.size()) break;
    }
    return at - step.begin;
  }

  void write_cached(std::uint64_t offset_bytes, std::vector<iovec> const& parts) const {
    if (!parts.empty()) cached().write_parts_at(offset_bytes, parts);
  }

  /// Pre: memory, place and length are as the file requires. Returns how many bytes were read.
  std::uint64_t read_blocks(std::uint64_t offset_bytes, std::span<std::byte> into) const {
    FileStep const step("reading", file().path());
    return whole_blocks(into.size(), "read", offset_bytes, [&](std::size_t done) {
      return shared_->mover().read(file().descriptor(), offset_bytes + done, into.subspan(done));
    });
  }

  std::uint64_t write_blocks(std::uint64_t offset_bytes, std::span<std::byte const> bytes) const {
    FileStep const step("writing", file().path());
    return whole_blocks(bytes.size(), "write", offset_bytes, [&](std::size_t done) {
      return shared_->mover().write(file().descriptor(), offset_bytes + done, bytes.subspan(done));
    });
  }

  /// Repeats a short transfer for as long as it ends between blocks. Refused bytes are left to the
  /// page cache.
  template <class Call>
  std::uint64_t whole_blocks(std::size_t bytes, std::string_view doing, std::uint64_t offset_bytes,
                             Call const& call) const {
    std::size_t done = 0;
    while (done < bytes && done % asked_.file_bytes == 0) {
      MovedBytes const moved = call(done);
      done += moved.bytes;
      if (moved.bytes > 0) continue;
      if (moved.error != 0 && moved.error != EINVAL && moved.error != EOPNOTSUPP)
        fail_errno(file().path(), fmt::format("{} at offset {}", doing, offset_bytes + done),
                   moved.error);
      if (moved.error != 0) refuse(doing, moved.error);
      break;
    }
    return done;
  }

  void refuse(std::string_view doing, int error_number) const {
    refused_ = true;
    shared_->note_refusal(file().path(), fmt::format("its file system refuses a direct {} ({})",
                                                     doing, system_reason(error_number)));
  }

  std::function<File()> reopen_;
  IoAlignment asked_;
  std::shared_ptr<DirectFiles> shared_;
  mutable std::atomic<bool> refused_ = false;
  mutable std::once_flag once_;
  mutable std::unique_ptr<PosixFile> cached_;
  mutable std::atomic<PosixFile const*> opened_ = nullptr;  ///< cached_, for who did not ask for it
};

/// A DirectFile if possible, else a PosixFile. `reopen` opens the file again.
std::unique_ptr<IoFile> past_cache(std::shared_ptr<DirectFiles> const& shared, File file,
                                   std::function<File()> reopen) {
  auto const refused = [&](std::string_view reason) {
    shared->note_refusal(file.path(), reason);
    file.expect_sequential_reads();
    return std::make_unique<PosixFile>(std::move(file), shared->cache());
  };
  std::optional<IoAlignment> const asked = asked_by(file);
  if (!asked) return refused("its file system does not support direct transfers");
  if (asked->file_bytes > most_block_bytes || asked->memory_bytes > most_block_bytes)
    return refused(fmt::format("its file system requires blocks of {}",
                               human_bytes(std::max(asked->file_bytes, asked->memory_bytes))));
  int const flags = ::fcntl(file.descriptor(), F_GETFL);
  if (flags < 0 || ::fcntl(file.descriptor(), F_SETFL, flags | O_DIRECT) != 0)
    return refused(
        fmt::format("its file system does not support O_DIRECT ({})", system_reason(errno)));
  return std::make_unique<DirectFile>(std::move(file), std::move(reopen), *asked, shared);
}

}  // namespace

DirectIo::DirectIo(std::string_view name, std::unique_ptr<BlockMover> mover)
    : name_(name), files_(std::make_shared<DirectFiles>(std::move(mover))) {}

std::unique_ptr<IoFile> DirectIo::open_for_reading(std::filesystem::path const& path,
                                                   ErrorKind missing) {
  auto const open = [path, missing] { return File::open_for_reading(path, missing); };
  return past_cache(files_, open(), open);
}

std::unique_ptr<IoFile> DirectIo::open_for_writing(std::filesystem::path const& path) {
  return adopt(File::open_for_writing(path));
}

std::unique_ptr<IoFile> DirectIo::adopt(File file) {
  std::filesystem::path const path = file.path();
  return past_cache(files_, std::move(file), [path] { return File::open_for_writing(path); });
}

std::string_view DirectIo::write_mode() const {
  return files_->refusal().empty() ? name_ : name_of(files_->cache()->mode());
}

std::string DirectIo::fallback() const {
  std::string const refusal = files_->refusal();
  return refusal.empty() ? files_->mover().fallback() : refusal;
}

}  // namespace reshard
