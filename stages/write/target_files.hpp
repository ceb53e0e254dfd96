#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/formats/dcp/file_items.hpp"
#include "core/formats/torch_zip/torch_file.hpp"

namespace reshard {

/// A target file that has zip records or a header around its tensors.
struct TargetLayout {
  std::filesystem::path path;  ///< in the staging folder
  std::uint64_t size_bytes = 0;
  std::shared_ptr<TorchFilePlan const> torch;   ///< zip; else nullptr
  std::string header;                           ///< safetensors: the first bytes
  std::shared_ptr<dcp::FileItems const> items;  ///< .distcp; else nullptr
};

/// The CRC-32 of every zip record of a job, gathered from the pieces as they are written by any rank.
class RecordChecksums {
 public:
  explicit RecordChecksums(std::span<TargetLayout const> files);

  /// Adds bytes [offset_bytes, +bytes.size()) of a file; bytes outside of records (a safetensors file) count for nothing.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);

  /// What the ranks xor together: one word per record.
  std::span<std::uint32_t> shares() { return shares_; }
  /// The checksums of one file's records, once the shares of all ranks are in.
  std::vector<std::uint32_t> of_file(std::uint32_t file) const;

 private:
  struct Record {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t number = 0;  ///< in the file's storages or tensor items
  };
  static std::vector<Record> records_of(TargetLayout const& file);
  std::vector<std::vector<Record>> records_;  ///< by file, by offset
  std::vector<std::size_t> first_share_;      ///< by file
  std::vector<std::uint32_t> shares_;
};

/// Makes the file with its folders at full size, with its header.
void create_target_file(TargetLayout const& layout);
/// Writes what surrounds the tensors of a zip file, then syncs the file.
void finish_target_file(TargetLayout const& layout, std::span<std::uint32_t const> crc32);

}  // namespace reshard
