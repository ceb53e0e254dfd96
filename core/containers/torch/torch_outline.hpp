#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/file_range.hpp"
#include "core/containers/torch/pickle/pickle_outline.hpp"

namespace reshard {

/// The bytes of a torch zip file around its tensors, for comparison with other files. The files of
/// many ranks differ in checksums and in few values of their pickles. For a file that compares
/// equal, read_torch_file() would return the same except for these; all others must be read by that
/// function.
class TorchOutline {
 public:
  /// The own values of a file that compares equal.
  struct Own {
    std::vector<std::uint32_t> crc32;  ///< of its records, in order of place; 0: not computed
    pickle::Outline::Values values;    ///< of the free paths
  };

  /// `free` as for pickle::Outline. Pre: read_torch_file() accepts the file, which is not a legacy
  /// one.
  TorchOutline(FileRange const& file, std::span<pickle::Outline::Path const> free);

  std::uint64_t file_bytes() const { return file_bytes_; }
  /// The number of the record whose payload begins there. Pre: there is one.
  std::size_t record_at(std::uint64_t offset_bytes) const;

  /// nullopt if the file differs in more.
  std::optional<Own> compare(FileRange const& file) const;

 private:
  /// A range of the file that is read, and its offset in the read bytes.
  struct Stretch {
    std::uint64_t offset_bytes = 0;
    std::size_t size_bytes = 0;
    std::size_t at = 0;
  };
  /// [begin, end) of the read bytes.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  struct Record {
    std::uint64_t payload_offset_bytes = 0;
    std::size_t listed_crc_at = 0;    ///< its CRC-32 in the directory
    std::vector<std::size_t> crc_at;  ///< the places of its other copies
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
  std::vector<Part> equal_;  ///< parts that are compared byte by byte
  std::vector<Record> records_;
  Part pickle_part_;
  std::size_t pickle_record_ = 0;
  std::optional<pickle::Outline> pickle_;
};

}  // namespace reshard
