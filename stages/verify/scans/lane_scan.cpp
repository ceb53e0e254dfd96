#include "stages/verify/scans/lane_scan.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/hash/crc64.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/io_engines.hpp"
#include "stages/verify/scans/scan_file.hpp"
#include "stages/verify/scans/scan_ring.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t smallest_window = 4 * scan_page_bytes;
constexpr std::uint64_t largest_window = std::uint64_t{4}
                                         << 20;  // larger ones do not stay in the processor's cache
constexpr std::uint64_t largest_window_past_cache = std::uint64_t{16}
                                                    << 20;  // one request: devices prefer it large
constexpr std::uint64_t most_buffers = 4;
constexpr std::size_t opened_ahead = 16;  ///< files of one thread: small ones are read fast

std::span<FileSpan const> spans_of(std::span<FileSpan const> spans, std::uint32_t file) {
  auto const first =
      std::ranges::partition_point(spans, [&](FileSpan const& span) { return span.file < file; });
  auto const last =
      std::ranges::partition_point(spans, [&](FileSpan const& span) { return span.file <= file; });
  return {first, last};
}

}  // namespace

/// Hashes one file, from front to back. Skipped bytes must be in `zeros`.
class FileHasher {
 public:
  FileHasher() = default;
  FileHasher(std::span<FileSpan const> zeros, bool sha256) : zeros_(zeros) {
    if (sha256) sha256_.emplace();
  }

  enum class Sums { all, without_sha256 };

  void add(std::uint64_t offset_bytes, std::span<std::byte const> bytes, Sums sums) {
    crc64_ = crc64_shifted(crc64_, offset_bytes - at_);
    at_ = offset_bytes;
    read_bytes_ += bytes.size();
    while (!bytes.empty()) {
      std::span const part = bytes.first(next_part(bytes.size()));
      xxh3_.add(part);
      if (sha256_ && sums == Sums::all) sha256_->add(part);
      crc64_ = in_zeros_ ? crc64_shifted(crc64_, part.size()) : crc64(part, crc64_);
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
  }
  /// Adds bytes to the SHA-256 only; concurrently with add() on another thread.
  void add_sha256(std::span<std::byte const> bytes) { sha256_->add(bytes); }
  FileHashes hashes() const {
    return {.size_bytes = at_,
            .xxh3 = xxh3_.value(),
            .crc64 = crc64_,
            .read_bytes = read_bytes_,
            .sha256 = sha256_ ? sha256_->digest() : Sha256Digest{}};
  }

 private:
  /// The number of bytes from at_ on, at most `most`, that all count or all count as zeros.
  std::size_t next_part(std::size_t most) {
    constexpr std::size_t slice = std::size_t{128}
                                  << 10;  // still in the nearest cache at its second use
    std::uint64_t part = std::min(slice, most);
    while (!zeros_.empty() && zeros_.front().end <= at_) zeros_ = zeros_.subspan(1);
    in_zeros_ = !zeros_.empty() && zeros_.front().begin <= at_;
    if (!zeros_.empty())
      part = std::min(part, (in_zeros_ ? zeros_.front().end : zeros_.front().begin) - at_);
    return static_cast<std::size_t>(part);
  }

  std::span<FileSpan const> zeros_;
  bool in_zeros_ = false;
  Xxh3 xxh3_;
  std::optional<Sha256> sha256_;
  std::uint64_t crc64_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t read_bytes_ = 0;
};

namespace {

/// Reads the windows of a rank's files into a ring.
class Reading {
 public:
  Reading(ScanTask const& task, std::uint64_t window_bytes, ScanRing& ring)
      : io_(make_file_io(task.options.past_cache ? "direct" : "posix")),
        task_(task),
        window_bytes_(window_bytes),
        ring_(ring) {}

  void read_all(std::span<FileShare const> mine) const {
    try {
      while (!mine.empty() && read_files(mine.first(std::min(mine.size(), opened_ahead))))
        mine = mine.subspan(std::min(mine.size(), opened_ahead));
      ring_.end(nullptr);
    } catch (...) {
      ring_.end(std::current_exception());
    }
  }

 private:
  /// False when no more is needed.
  bool read_files(std::span<FileShare const> shares) const {
    std::vector<std::unique_ptr<ScanFile>> opened(shares.size());
    overlapped(shares.size(), [&](std::size_t i) {
      opened[i] = std::make_unique<ScanFile>(*io_, task_.files[shares[i].file]);
    });
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (!read_file(shares[i], *opened[i])) return false;
      opened[i].reset();
    }
    return true;
  }

  bool read_file(FileShare const& share, ScanFile const& file) const {
    std::shared_ptr<FileBlocks const> const blocks = blocks_of_share(share);
    std::uint64_t needed = 0;
    for (ScanBlock const& block : blocks->blocks) needed = std::max(needed, block.end);
    file.expect_bytes(needed);
    ScanWindows windows(*blocks, file.size_bytes(), window_bytes_,
                        task_.options.file_hashes ? ScanExtent::whole : ScanExtent::wanted,
                        skipped_of(share.file));
    std::byte const* before = nullptr;  // the last window
    std::uint64_t before_begin = 0;
    while (auto window = windows.next()) {
      std::byte* const buffer = ring_.free_buffer();
      if (buffer == nullptr) return false;
      std::uint64_t const kept = window->fresh - window->begin;
      if (kept > 0) std::memcpy(buffer, before + (window->begin - before_begin), kept);
      file.read(window->fresh, {buffer + kept, window->end - window->fresh});
      before = buffer;
      before_begin = window->begin;
      ring_.give({.file = share.file,
                  .file_bytes = file.size_bytes(),
                  .blocks = blocks,
                  .window = std::move(*window),
                  .bytes = buffer});
    }
    return true;
  }

  std::span<FileSpan const> skipped_of(std::uint32_t file) const {
    return task_.options.without_zeros ? spans_of(task_.options.zeros, file)
                                       : std::span<FileSpan const>();
  }

  std::shared_ptr<FileBlocks const> blocks_of_share(FileShare const& share) const {
    FileBlocks blocks = blocks_of(task_.work, task_.regions.of(share.file), window_bytes_ / 4);
    keep_share(blocks, share.begin, share.end);
    return std::make_shared<FileBlocks const>(std::move(blocks));
  }

  std::unique_ptr<FileIo> io_;
  ScanTask const& task_;
  std::uint64_t window_bytes_;
  ScanRing& ring_;
};

struct Stopper {
  ScanRing& ring;
  ~Stopper() { ring.stop(); }
};

}  // namespace

RegionsByFile::RegionsByFile(DigestWork const& work, std::size_t files)
    : first_(files + 1), bytes_(files) {
  for (ShareRegion const& region : work.regions) {
    RESHARD_EXPECT(region.src_file < files && index(region.to) < work.shares.size());
    ++first_[region.src_file + 1];
    bytes_[region.src_file] +=
        bytes_of(region, {work.dims.data() + region.first_dim, region.dim_count});
  }
  for (std::size_t file = 0; file < files; ++file) first_[file + 1] += first_[file];
  numbers_.resize(work.regions.size());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for (std::size_t i = 0; i < work.regions.size(); ++i)
    numbers_[next[work.regions[i].src_file]++] = narrow<std::uint32_t>(i);
}

LaneScan::LaneScan(ScanTask const& task, BytesRead bytes_read)
    : task_(task),
      bytes_read_(std::move(bytes_read)),
      shares_(task.work.shares.size()),
      hasher_(std::make_unique<FileHasher>()) {}

LaneScan::~LaneScan() = default;

void LaneScan::run(std::span<FileShare const> mine) {
  ScanOptions const& options = task_.options;
  Workers workers(!mine.empty() && options.sha256 && options.sha256_beside ? 2 : 1);
  std::uint64_t const memory_bytes = options.memory_bytes / options.threads;
  std::uint64_t const pages = memory_bytes / 2 / scan_page_bytes;
  std::uint64_t const largest = options.past_cache ? largest_window_past_cache : largest_window;
  std::uint64_t const window_bytes = std::clamp(pages * scan_page_bytes, smallest_window, largest);
  ScanRing ring(std::clamp<std::uint64_t>(memory_bytes / window_bytes, 2, most_buffers),
                window_bytes);
  Reading const reading(task_, window_bytes, ring);
  std::jthread const reader([&] { reading.read_all(mine); });
  Stopper const stopper{ring};  // goes first
  while (auto const filled = ring.take()) {
    if (options.file_hashes)
      hash(*filled, workers);
    else
      add(*filled);
    std::uint64_t const bytes = filled->window.end - filled->window.fresh;
    ring.give_back();
    bytes_read_(bytes);
  }
}

void LaneScan::add(FilledWindow const& filled) {
  ScanWindow const& window = filled.window;
  for (ScanBlock const& block : window.blocks) {
    std::byte const* const from = filled.bytes + (block.from - window.begin);
    shares_[index(block.share)] ^=
        digest_.share(task_.work.share(block.share), block, filled.blocks->dims_of(block), from);
  }
}

/// SHA-256 takes more time than all else together, and cannot be cut into parts of a file.
void LaneScan::hash(FilledWindow const& filled, Workers& workers) {
  ScanOptions const& options = task_.options;
  ScanWindow const& window = filled.window;
  if (window.fresh == 0) {
    *hasher_ = FileHasher(spans_of(options.zeros, filled.file), options.sha256);
    began_ = std::chrono::steady_clock::now();
  }
  std::span const fresh{filled.bytes + (window.fresh - window.begin), window.end - window.fresh};
  bool const beside = workers.count() > 1;
  workers.run(beside ? 2 : 1, [&](std::size_t item, std::size_t) {
    if (item == 1) return hasher_->add_sha256(fresh);
    hasher_->add(window.fresh, fresh,
                 beside ? FileHasher::Sums::without_sha256 : FileHasher::Sums::all);
    add(filled);
  });
  if (window.end != filled.file_bytes) return;
  found_.push_back({filled.file, hasher_->hashes()});
  if (options.scanned)
    options.scanned({filled.file, filled.file_bytes, began_, std::chrono::steady_clock::now()});
}

}  // namespace reshard
