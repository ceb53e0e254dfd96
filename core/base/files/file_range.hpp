#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/base/files/file.hpp"

namespace reshard {

/// A part of an open file that is read like a separate file: offsets count from its start, and no
/// byte outside of it is read. Borrows the file.
class FileRange {
 public:
  /// The complete file, with its current size.
  FileRange(File const& file);
  /// [offset_bytes, +size_bytes) of the file; a range that leaves the file is an Error of kind
  /// source.
  FileRange(File const& file, std::uint64_t offset_bytes, std::uint64_t size_bytes);

  std::uint64_t offset_bytes() const { return offset_bytes_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  /// For messages: the path, and of a part also its offset and size.
  std::string name() const;

  /// Fills `into` from `offset_bytes` of the range; its end in between is an Error of kind source.
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> into) const;
  /// Reads the bytes of the range from `offset_bytes` on, at most `into.size()`; returns their
  /// number.
  std::size_t read_some_at(std::uint64_t offset_bytes, std::span<std::byte> into) const;

 private:
  File const& file_;
  std::uint64_t offset_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
  bool whole_ = false;
};

}  // namespace reshard
