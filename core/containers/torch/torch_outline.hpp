#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/file_range.hpp"
#include "core/containers/torch/pickle_outline.hpp"

namespace reshard {

/// What a torch zip file has around its tensors, which others are compared with. The files of many
/// ranks differ in checksums and in few values of their pickles. A file that compares equal would
/// be read as this one by read_torch_file(), but for these; of all others that function has to say
/// what they are.
class TorchOutline {
 public:
  /// What a file has that compares equal.
  struct Own {
    std::vector<std::uint32_t> crc32;  ///< of its records, in order of place; 0: not computed
    pickle::Outline::Values values;    ///< of the free paths
  };

  /// `free` as of pickle::Outline. Pre: read_torch_file() accepts the file, and it is no legacy
  /// one.
  TorchOutline(FileRange const& file, std::span<pickle::Outline::Path const> free);

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// The number of the record whose payload begins there. Pre: there is one.
  std::size_t record_at(std::uint64_t offset_bytes) const;

  /// Nothing where the file differs in more.
  std::optional<Own> compare(FileRange const& file) const;

 private:
  /// Bytes of the file, which are at another place of what is read of it.
  struct Stretch {
    std::uint64_t offset_bytes = 0;
    std::size_t size_bytes = 0;
    std::size_t at = 0;
  };
  /// [begin, end) of what is read.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  struct Record {
    std::uint64_t payload_offset_bytes = 0;
    std::size_t listed_crc_at = 0;    ///< its CRC-32 in the directory
    std::vector<std::size_t> crc_at;  ///< where else it stands
    std::uint32_t crc32 = 0;
    bool compared = false;  ///< the payload
  };

  void choose_stretches(std::vector<Part> needed);
  std::size_t place(std::uint64_t offset_bytes) const;
  std::span<std::byte const> tail(std::span<std::byte const> image) const;
  bool read(FileRange const& file, std::span<std::byte> image) const;

  std::uint64_t file_bytes_ = 0;
  std::vector<Stretch> stretches_;
  std::string image_;
  std::vector<Part> equal_;  ///< what is compared byte by byte
  std::vector<Record> records_;
  Part pickle_part_;
  std::size_t pickle_record_ = 0;
  std::optional<pickle::Outline> pickle_;
};

}  // namespace reshard
