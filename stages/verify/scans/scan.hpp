#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "core/base/hash/sha256.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/transport/comm.hpp"

namespace reshard {

/// A file that was read from its first byte to its last.
struct ScannedFile {
  std::uint32_t file = 0;
  std::uint64_t bytes = 0;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

struct ScanOptions {
  std::uint64_t memory_bytes = std::uint64_t{64} << 20;  ///< of one rank
  std::size_t threads = 1;     ///< of this rank for computing; as many more read ahead of them
  bool file_hashes = false;    ///< size, XXH3 and CRC-64 of every file; each file is then read from
                               ///< its first byte to its last by one thread of one rank
  bool sha256 = false;         ///< with file_hashes: SHA-256 as well
  bool sha256_beside = false;  ///< SHA-256 on a thread of its own, if this rank has cores without a
                               ///< file; set by scan() itself
  /// The sizes of the files; if empty, rank 0 opens each file to get them.
  std::span<std::uint64_t const> sizes = {};
  bool past_cache = false;  ///< read from the device, not from the page cache, if the file system
                            ///< supports it (O_DIRECT)
  /// Bytes of files that file_hashes counts as zeros in the CRC-64: sorted, disjoint, in complete
  /// pages.
  std::span<FileSpan const> zeros = {};
  bool without_zeros = false;  ///< these are not read unless the work needs them
  /// Files that are not read, by number, with file_hashes: their FileHashes are zeros, and the work
  /// needs no bytes of them. Empty: none.
  std::vector<bool> without_files = {};
  /// Called repeatedly with the number of bytes that this rank has read; an exception ends the
  /// scan. May be empty.
  std::function<void(std::uint64_t)> watch = {};
  /// Called for every file after it was hashed, by the thread that did. May be empty.
  std::function<void(ScannedFile const&)> scanned = {};
};

/// The size and the hashes of a file.
struct FileHashes {
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;        ///< XXH3-64, seed 0: the output of `xxhsum -H3`
  std::uint64_t crc64 = 0;       ///< core/base/hash/crc64.hpp
  std::uint64_t read_bytes = 0;  ///< if fewer than the size, `xxh3` and `sha256` are not valid
  Sha256Digest sha256{};         ///< zeros unless it was requested
  friend bool operator==(FileHashes const&, FileHashes const&) = default;
};

class EarlyScan;

/// Whether all files were read completely.
bool are_whole(std::span<FileHashes const> files);

struct ScanResult {
  std::vector<std::uint64_t> shares;  ///< by ShareId
  std::vector<FileHashes> files;      ///< by file; empty without file_hashes
  std::uint64_t bytes_read = 0;       ///< of all ranks
  std::uint64_t bytes_early = 0;      ///< of these, by early scans
};

/// Reads files once, each in ascending order, and computes the share of every piece. The same
/// result on every rank; collective. work.regions count in `files`, which may be more. A file that
/// ends early is an Error of kind io. Files of the same work that `early` has begun on this rank
/// are not read again; nullptr: none.
ScanResult scan(Comm const& comm, std::span<std::filesystem::path const> files,
                DigestWork const& work, ScanOptions const& options, EarlyScan* early = nullptr);

/// Each digest, from the shares of its pieces; 0 for those without pieces.
std::vector<std::uint64_t> tensor_digests(DigestWork const& work,
                                          std::span<std::uint64_t const> shares);

/// The shares that differ from their `same_as`.
std::vector<ShareId> differing_replicas(DigestWork const& work,
                                        std::span<std::uint64_t const> shares);

}  // namespace reshard
