#include "stages/verify/scans/scan.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/threads/workers.hpp"
#include "stages/verify/scans/early_scan.hpp"
#include "stages/verify/scans/lane_scan.hpp"
#include "stages/verify/scans/scan_share.hpp"

namespace reshard {
namespace {

/// Reports the bytes read by the threads of a rank, on the thread that called scan().
class ReadBytes {
 public:
  ReadBytes(std::function<void(std::uint64_t)> const& watch, EarlyScan const* early)
      : watch_(watch), early_(early) {}
  void add(std::uint64_t bytes) {
    std::uint64_t const now = bytes_ += bytes;
    if (std::this_thread::get_id() == asking_) tell(now);
  }
  void tell(std::uint64_t bytes) const {
    if (watch_) watch_(bytes + (early_ != nullptr ? early_->bytes_read() : 0));
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::function<void(std::uint64_t)> const& watch_;
  EarlyScan const* early_;
  std::thread::id asking_ = std::this_thread::get_id();
  std::atomic<std::uint64_t> bytes_ = 0;
};

/// The scan of one rank.
class RankScan {
 public:
  RankScan(DigestWork const& work, ScanOptions const& options, EarlyScan* early)
      : work_(work),
        options_(options),
        early_(early),
        bytes_read_(options.watch, early),
        shares_(work.shares.size()) {}

  void run(std::span<std::filesystem::path const> files, std::span<std::uint64_t const> sizes,
           std::vector<bool> const& left_out, int rank, int ranks) {
    RegionsByFile const regions(work_, files.size());
    auto const mine = options_.file_hashes ? share_of_files(sizes, rank, ranks, left_out)
                                           : share_of_bytes(regions.bytes(), rank, ranks);
    ScanOptions options = options_;
    options.sha256_beside = 2 * mine.size() <= options.threads;
    Workers workers(options_.threads);
    workers.run(options_.threads, [&](std::size_t l, std::size_t) {
      auto const lane = narrow<int>(l);
      auto const lanes = narrow<int>(options_.threads);
      LaneScan scan({files, work_, regions, options},
                    [this](std::uint64_t bytes) { bytes_read_.add(bytes); });
      scan.run(options_.file_hashes ? lane_of_files(mine, sizes, lane, lanes)
                                    : lane_of_bytes(mine, lane, lanes));
      add(scan.shares(), scan.found());
    });
    if (early_ == nullptr) return;
    EarlyScan::Found const early = early_->wait([this] { bytes_read_.tell(bytes_read_.bytes()); });
    add(early.shares, early.files);
  }

  std::span<std::uint64_t> shares() { return shares_; }
  std::vector<FoundFile> const& found() const { return found_; }
  std::uint64_t bytes_read() const { return bytes_read_.bytes(); }

 private:
  void add(std::span<std::uint64_t const> shares, std::span<FoundFile const> found) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = 0; i < shares.size(); ++i) shares_[i] ^= shares[i];
    found_.insert(found_.end(), found.begin(), found.end());
  }

  DigestWork const& work_;
  ScanOptions const& options_;
  EarlyScan* early_;
  ReadBytes bytes_read_;
  std::mutex mutex_;  ///< of the members below
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

bool are_whole(std::span<FileHashes const> files) {
  return std::ranges::all_of(
      files, [](FileHashes const& file) { return file.read_bytes == file.size_bytes; });
}

ScanResult scan(Comm const& comm, std::span<std::filesystem::path const> files,
                DigestWork const& work, ScanOptions const& options, EarlyScan* early) {
  RESHARD_EXPECT(early == nullptr || options.file_hashes);
  std::vector<std::uint64_t> const sizes =
      options.file_hashes && options.sizes.empty()
          ? sizes_of(comm, files)
          : std::vector<std::uint64_t>(options.sizes.begin(), options.sizes.end());
  std::vector<bool> left_out =
      options.file_hashes ? begun_early(comm, early, files.size()) : std::vector<bool>();
  left_out.resize(files.size(), false);
  for (std::size_t f = 0; f < options.without_files.size(); ++f)
    if (options.without_files[f]) left_out[f] = true;
  RankScan rank(work, options, early);
  together(comm, [&] { rank.run(files, sizes, left_out, comm.rank(), comm.size()); });
  ScanResult result;
  comm.xor_all(rank.shares());
  result.shares.assign(rank.shares().begin(), rank.shares().end());
  if (options.file_hashes) result.files = gathered(comm, rank.found(), files.size());
  auto const total = [&](std::uint64_t mine) {
    return static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(mine)));
  };
  result.bytes_early = total(early != nullptr ? early->bytes_read() : 0);
  result.bytes_read = total(rank.bytes_read()) + result.bytes_early;
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
