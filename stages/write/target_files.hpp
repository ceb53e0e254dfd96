#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/file_segment.hpp"
#include "core/containers/file_frame.hpp"
#include "core/io/file_set.hpp"

namespace reshard {

/// A target file and its frame around the tensors.
struct TargetLayout {
  std::filesystem::path path;  ///< in the staging folder
  std::uint64_t size_bytes = 0;
  std::shared_ptr<FileFrame const> frame;
};

/// The numbers of changed sums: a round changes a few of perhaps a million.
class TouchedSums {
 public:
  void note(std::size_t number);
  /// The numbers noted since the last call, sorted.
  std::vector<std::size_t> take();

 private:
  void sort();
  std::vector<std::size_t> numbers_;
  std::size_t sorted_ = 0;  ///< their number after the last sort
};

/// The CRC-32 of every record that a frame takes, combined from the pieces as they are written by
/// any rank.
class RecordChecksums {
 public:
  /// `known`: known checksums, by number of the share; the bytes of these records are not counted.
  /// Empty: none is known.
  explicit RecordChecksums(std::span<TargetLayout const> files,
                           std::vector<std::optional<std::uint32_t>> known = {});

  /// Adds bytes [offset_bytes, +bytes.size()) of a file; bytes outside of records (a safetensors
  /// file) are not counted. Any thread.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);

  /// One word per record, to be combined over the ranks by xor.
  std::span<std::uint32_t> shares() { return shares_; }
  /// Numbers of the shares that add() has changed since the last call, sorted.
  std::vector<std::size_t> take_touched() { return touched_.take(); }
  /// The checksums of one file's records, once the shares of all ranks are combined.
  std::vector<std::uint32_t> of_file(std::uint32_t file) const;

 private:
  struct Record {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t number = 0;  ///< among the frame's records
  };
  static std::vector<Record> records_of(TargetLayout const& file);
  TouchedSums touched_;
  std::vector<std::vector<Record>> records_;  ///< by file, by offset
  std::vector<std::size_t> first_share_;      ///< by file
  std::unique_ptr<std::mutex> mutex_ =
      std::make_unique<std::mutex>();  ///< of touched_ and shares_, while add() is called
  std::vector<std::uint32_t> shares_;
  std::vector<std::optional<std::uint32_t>> known_;
};

/// The CRC-64 of a file from those of its blocks, `block_bytes` each, the last one shorter.
std::uint64_t crc64_of_blocks(std::span<std::uint64_t const> blocks, std::uint64_t size_bytes,
                              std::uint64_t block_bytes);

/// The CRC-64 (core/base/hash/crc64.hpp) of every file of a job, or of every block of them. Every
/// byte is written once, by any rank, or counts as zero.
class FileDigests {
 public:
  /// `block_bytes`: a sum for each block of a file, the last one shorter; 0: one for each file.
  explicit FileDigests(std::span<TargetLayout const> files, std::uint64_t block_bytes = 0);
  /// Adds bytes [offset_bytes, +bytes.size()) of a file. Any thread.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);
  /// Adds a complete block, whose CRC-64 is known. Any thread.
  void add_block(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t crc64);
  /// One word per block, by file, to be combined over the ranks by xor.
  std::span<std::uint64_t> shares() { return shares_; }
  /// The CRC-64s of one file's blocks.
  std::span<std::uint64_t const> blocks_of(std::uint32_t file) const;
  /// The CRC-64 of each file, once the shares of all ranks are combined.
  std::vector<std::uint64_t> of_files() const;
  /// Numbers of the shares that add() has changed since the last call, sorted.
  std::vector<std::size_t> take_touched() { return touched_.take(); }

 private:
  std::uint64_t block_bytes_of(std::uint32_t file) const;

  TouchedSums touched_;
  std::uint64_t block_bytes_;
  std::vector<std::uint64_t> size_bytes_;
  std::vector<std::size_t> first_share_;  ///< by file
  std::unique_ptr<std::mutex> mutex_ =
      std::make_unique<std::mutex>();  ///< of touched_ and shares_, while add() is called
  std::vector<std::uint64_t> shares_;
};

/// Creates the file at full size, with its header, and returns it open for writing. Pre: its folder
/// exists.
[[nodiscard]] File create_target_file(TargetLayout const& layout);
/// As create_target_file(), for a file that an earlier run has created and partly written: restores
/// the initial bytes around the payloads.
[[nodiscard]] File reopen_target_file(TargetLayout const& layout);
/// The final bytes around the payloads, the header included, without overlap.
std::vector<FileSegment> frame_of(TargetLayout const& layout, std::span<std::uint32_t const> crc32,
                                  std::span<std::uint64_t const> digests);
/// Writes a frame except the header, and payload that was held back, then syncs the file: through
/// the descriptor of the set that wrote the rest of it, if that is still open.
void finish_target_file(FileSet& files, std::uint32_t number, TargetLayout const& layout,
                        std::span<FileSegment const> frame, std::span<FileSegment const> held = {});
/// Syncs the written data of the file.
void sync_target_file(TargetLayout const& layout);

}  // namespace reshard
