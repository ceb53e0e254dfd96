#include "stages/verify/scan.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/crc64.hpp"
#include "core/base/integers.hpp"
#include "core/base/workers.hpp"
#include "core/base/xxh3.hpp"
#include "core/io/io_engines.hpp"
#include "stages/verify/scan_digest.hpp"
#include "stages/verify/scan_file.hpp"
#include "stages/verify/scan_ring.hpp"
#include "stages/verify/scan_share.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t smallest_window = 4 * scan_page_bytes;
constexpr std::uint64_t largest_window = std::uint64_t{4}
                                         << 20;  // larger ones do not stay in the processor's cache
constexpr std::uint64_t largest_window_past_cache = std::uint64_t{16}
                                                    << 20;  // one request: devices prefer it large
constexpr std::uint64_t most_buffers = 4;
constexpr std::size_t opened_ahead = 16;  ///< files of one thread: small ones are read fast

/// The regions of each file, by number.
class RegionsByFile {
 public:
  RegionsByFile(DigestWork const& work, std::size_t files) : first_(files + 1), bytes_(files) {
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

  std::span<std::uint32_t const> of(std::uint32_t file) const {
    return {numbers_.data() + first_[file], first_[file + 1] - first_[file]};
  }
  std::span<std::uint64_t const> bytes() const { return bytes_; }

 private:
  std::vector<std::size_t> first_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint32_t> numbers_;
};

/// What a rank found out about a file that it read.
struct FoundFile {
  std::uint64_t file = 0;
  FileHashes hashes;
};

std::span<FileSpan const> spans_of(std::span<FileSpan const> spans, std::uint32_t file) {
  auto const first =
      std::ranges::partition_point(spans, [&](FileSpan const& span) { return span.file < file; });
  auto const last =
      std::ranges::partition_point(spans, [&](FileSpan const& span) { return span.file <= file; });
  return {first, last};
}

/// Hashes one file, from front to back. What is left out must be in `zeros`.
class FileHasher {
 public:
  explicit FileHasher(std::span<FileSpan const> zeros = {}) : zeros_(zeros) {}

  void add(std::uint64_t offset_bytes, std::span<std::byte const> bytes) {
    crc64_ = crc64_shifted(crc64_, offset_bytes - at_);
    at_ = offset_bytes;
    read_bytes_ += bytes.size();
    while (!bytes.empty()) {
      std::span const part = bytes.first(next_part(bytes.size()));
      xxh3_.add(part);
      crc64_ = in_zeros_ ? crc64_shifted(crc64_, part.size()) : crc64(part, crc64_);
      at_ += part.size();
      bytes = bytes.subspan(part.size());
    }
  }
  FileHashes hashes() const {
    return {.size_bytes = at_, .xxh3 = xxh3_.value(), .crc64 = crc64_, .read_bytes = read_bytes_};
  }

 private:
  /// How many bytes from at_ on are alike in counting or not; says which.
  std::size_t next_part(std::size_t most) {
    constexpr std::size_t slice = std::size_t{128}
                                  << 10;  // is still in the nearest cache when it is used again
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
  std::uint64_t crc64_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t read_bytes_ = 0;
};

/// Reads the windows of a rank's files into a ring.
class Reading {
 public:
  Reading(std::span<std::filesystem::path const> files, DigestWork const& work,
          RegionsByFile const& regions, ScanOptions const& options, std::uint64_t window_bytes,
          ScanRing& ring)
      : io_(make_file_io(options.past_cache ? "direct" : "posix")),
        files_(files),
        work_(work),
        regions_(regions),
        options_(options),
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
      opened[i] = std::make_unique<ScanFile>(*io_, files_[shares[i].file]);
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
                        options_.file_hashes ? ScanExtent::whole : ScanExtent::wanted,
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
    return options_.without_zeros ? spans_of(options_.zeros, file) : std::span<FileSpan const>();
  }

  std::shared_ptr<FileBlocks const> blocks_of_share(FileShare const& share) const {
    FileBlocks blocks = blocks_of(work_, regions_.of(share.file), window_bytes_ / 4);
    keep_share(blocks, share.begin, share.end);
    return std::make_shared<FileBlocks const>(std::move(blocks));
  }

  std::unique_ptr<FileIo> io_;
  std::span<std::filesystem::path const> files_;
  DigestWork const& work_;
  RegionsByFile const& regions_;
  ScanOptions const& options_;
  std::uint64_t window_bytes_;
  ScanRing& ring_;
};

/// Tells how many bytes the threads of a rank have read, by the thread that asked for the scan.
class ReadBytes {
 public:
  explicit ReadBytes(std::function<void(std::uint64_t)> const& watch) : watch_(watch) {}
  void add(std::uint64_t bytes) {
    std::uint64_t const now = bytes_ += bytes;
    if (watch_ && std::this_thread::get_id() == asking_) watch_(now);
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::function<void(std::uint64_t)> const& watch_;
  std::thread::id asking_ = std::this_thread::get_id();
  std::atomic<std::uint64_t> bytes_ = 0;
};

/// What one thread of a rank finds out. Another one reads ahead of it.
class LaneScan {
 public:
  LaneScan(DigestWork const& work, ReadBytes& bytes_read)
      : work_(work), shares_(work.shares.size()), bytes_read_(bytes_read) {}

  void run(std::span<std::filesystem::path const> files, DigestWork const& work,
           ScanOptions const& options, RegionsByFile const& regions,
           std::span<FileShare const> mine) {
    std::uint64_t const memory_bytes = options.memory_bytes / options.threads;
    std::uint64_t const pages = memory_bytes / 2 / scan_page_bytes;
    std::uint64_t const largest = options.past_cache ? largest_window_past_cache : largest_window;
    std::uint64_t const window_bytes =
        std::clamp(pages * scan_page_bytes, smallest_window, largest);
    ScanRing ring(std::clamp<std::uint64_t>(memory_bytes / window_bytes, 2, most_buffers),
                  window_bytes);
    Reading const reading(files, work, regions, options, window_bytes, ring);
    std::jthread const reader([&] { reading.read_all(mine); });
    Stopper const stopper{ring};  // goes first
    while (auto const filled = ring.take()) {
      if (options.file_hashes) hash(*filled, options);
      add(*filled);
      std::uint64_t const bytes = filled->window.end - filled->window.fresh;
      ring.give_back();
      bytes_read_.add(bytes);
    }
  }

  std::span<std::uint64_t> shares() { return shares_; }
  std::vector<FoundFile> const& found() const { return found_; }

 private:
  struct Stopper {
    ScanRing& ring;
    ~Stopper() { ring.stop(); }
  };

  void add(FilledWindow const& filled) {
    ScanWindow const& window = filled.window;
    for (ScanBlock const& block : window.blocks) {
      std::byte const* const from = filled.bytes + (block.from - window.begin);
      shares_[index(block.share)] ^=
          digest_.share(work_.share(block.share), block, filled.blocks->dims_of(block), from);
    }
  }

  void hash(FilledWindow const& filled, ScanOptions const& options) {
    ScanWindow const& window = filled.window;
    if (window.fresh == 0) hasher_ = FileHasher(spans_of(options.zeros, filled.file));
    hasher_.add(window.fresh,
                {filled.bytes + (window.fresh - window.begin), window.end - window.fresh});
    if (window.end == filled.file_bytes) found_.push_back({filled.file, hasher_.hashes()});
  }

  DigestWork const& work_;
  std::vector<std::uint64_t> shares_;
  BlockDigest digest_;
  FileHasher hasher_;
  std::vector<FoundFile> found_;
  ReadBytes& bytes_read_;
};

/// What one rank finds out.
class RankScan {
 public:
  RankScan(DigestWork const& work, ScanOptions const& options)
      : work_(work), options_(options), bytes_read_(options.watch), shares_(work.shares.size()) {}

  void run(std::span<std::filesystem::path const> files, std::span<std::uint64_t const> sizes,
           int rank, int ranks) {
    RegionsByFile const regions(work_, files.size());
    auto const mine = options_.file_hashes ? share_of_files(sizes, rank, ranks)
                                           : share_of_bytes(regions.bytes(), rank, ranks);
    Workers workers(options_.threads);
    workers.run(options_.threads, [&](std::size_t l, std::size_t) {
      auto const lane = narrow<int>(l);
      auto const lanes = narrow<int>(options_.threads);
      LaneScan scan(work_, bytes_read_);
      scan.run(files, work_, options_, regions,
               options_.file_hashes ? lane_of_files(mine, sizes, lane, lanes)
                                    : lane_of_bytes(mine, lane, lanes));
      std::lock_guard const lock(mutex_);
      for (std::size_t i = 0; i < shares_.size(); ++i) shares_[i] ^= scan.shares()[i];
      found_.insert(found_.end(), scan.found().begin(), scan.found().end());
    });
  }

  std::span<std::uint64_t> shares() { return shares_; }
  std::vector<FoundFile> const& found() const { return found_; }
  std::uint64_t bytes_read() const { return bytes_read_.bytes(); }

 private:
  DigestWork const& work_;
  ScanOptions const& options_;
  ReadBytes bytes_read_;
  std::mutex mutex_;  ///< of what follows
  std::vector<std::uint64_t> shares_;
  std::vector<FoundFile> found_;
};

std::string bytes_from(auto const& values) {
  std::string bytes(values.size() * sizeof(values[0]), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> values_from(std::string const& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// As rank 0 sees them, on every rank: all must share the files in the same way.
std::vector<std::uint64_t> sizes_of(Comm const& comm,
                                    std::span<std::filesystem::path const> files) {
  std::vector<std::uint64_t> sizes;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    for (std::filesystem::path const& file : files)
      sizes.push_back(File::open_for_reading(file, ErrorKind::io).size_bytes());
  });
  return values_from<std::uint64_t>(comm.broadcast(bytes_from(sizes), 0));
}

std::vector<FileHashes> gathered(Comm const& comm, std::vector<FoundFile> const& mine,
                                 std::size_t files) {
  std::vector<FileHashes> all(files);
  for (std::string const& bytes : comm.all_gather(bytes_from(mine)))
    for (FoundFile const& found : values_from<FoundFile>(bytes)) all[found.file] = found.hashes;
  return all;
}

}  // namespace

ScanResult scan(Comm const& comm, std::span<std::filesystem::path const> files,
                DigestWork const& work, ScanOptions const& options) {
  std::vector<std::uint64_t> const sizes =
      options.file_hashes && options.sizes.empty()
          ? sizes_of(comm, files)
          : std::vector<std::uint64_t>(options.sizes.begin(), options.sizes.end());
  RankScan rank(work, options);
  together(comm, [&] { rank.run(files, sizes, comm.rank(), comm.size()); });
  ScanResult result;
  comm.xor_all(rank.shares());
  result.shares.assign(rank.shares().begin(), rank.shares().end());
  if (options.file_hashes) result.files = gathered(comm, rank.found(), files.size());
  result.bytes_read =
      static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(rank.bytes_read())));
  return result;
}

std::vector<std::uint64_t> tensor_digests(DigestWork const& work,
                                          std::span<std::uint64_t const> shares) {
  std::vector<std::uint64_t> digests(work.tensor_bytes.size());
  for (std::size_t i = 0; i < work.shares.size(); ++i)
    if (work.shares[i].same_as == ShareId(i)) digests[index(work.shares[i].digest)] ^= shares[i];
  return digests;
}

std::vector<ShareId> differing_replicas(DigestWork const& work,
                                        std::span<std::uint64_t const> shares) {
  std::vector<ShareId> differing;
  for (std::size_t i = 0; i < work.shares.size(); ++i)
    if (shares[i] != shares[index(work.shares[i].same_as)]) differing.push_back(ShareId(i));
  return differing;
}

}  // namespace reshard
