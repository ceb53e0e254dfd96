#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/shared_text.hpp"
#include "core/containers/file_frame.hpp"

namespace reshard::dcp {

/// A tensor item of a .distcp file that is to be written.
struct PlannedItem {
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  DType dtype = DType::u8;
  std::vector<Index> shape;
};

/// The content of one .distcp file except for payloads and copied objects: the frames of its items,
/// and objects with known bytes (those of modules without state are all the same), by offset.
struct FileItems {
  std::vector<PlannedItem> tensors;
  std::vector<std::pair<std::uint64_t, SharedText>> objects;
};

/// FileItems as a FileFrame.
class ItemsFrame : public FileFrame {
 public:
  explicit ItemsFrame(FileItems items) : items_(std::move(items)) {}
  /// The payloads of the tensors.
  std::vector<SummedRecord> records() const override;
  /// The tail of an item and the head of the next one are one segment.
  std::vector<FileSegment> rest(std::span<std::uint32_t const> crc32,
                                std::span<std::uint64_t const> digests) const override;

 private:
  FileItems items_;
};

}  // namespace reshard::dcp
