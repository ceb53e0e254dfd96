#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/containers/dcp/item.hpp"
#include "core/containers/dcp/items_frame.hpp"
#include "core/formats/targets/target.hpp"
#include "core/layout/pieces/placement.hpp"

namespace reshard {

/// A box of a target tensor with its pieces, and the number of its .distcp file.
struct TargetBox {
  TensorBox box;
  std::vector<Piece> pieces;
  std::uint32_t file = 0;
};

/// Lays out the .distcp files of a target, item after item in the order in which they are added,
/// and its `.metadata`.
class DcpTarget {
 public:
  /// Files go into `folder` (relative to the target) of `job`, which must outlive this object.
  DcpTarget(TargetDraft& job, std::filesystem::path folder);

  /// An object whose bytes are copied from a source file.
  void add_object(std::string const& key, std::uint32_t file, ItemPlace const& item);
  /// The same of a box of a tensor (StoredObject::tensor).
  void add_object(std::string const& key, ObjectTensor const& tensor, std::uint32_t file,
                  ItemPlace const& item);
  /// An object made here.
  void add_object(std::string const& key, std::uint32_t file, SharedText bytes);
  /// Pre: the boxes tile the tensor; a tensor without elements has one. `copy` as in
  /// TensorPieces::is_copy.
  void add_tensor(std::string const& key, DType dtype, std::vector<Index> const& shape,
                  std::span<TargetBox> boxes, bool copy);

  /// Adds files and `.metadata` to the job; returns the objects to copy. `planner_data` may be
  /// absent (an empty dict is written).
  std::vector<OpaqueCopy> finish(
      std::optional<std::vector<std::pair<std::string, dcp::Path>>> planner_data);

 private:
  ItemPlace copy(std::uint32_t file, ItemPlace const& item);
  std::uint64_t place(std::uint32_t file, std::uint64_t bytes);
  std::uint64_t place(std::uint32_t file, dcp::ItemLayout const& item);

  struct OpenFile {
    std::uint64_t size_bytes = 0;
    std::uint32_t number = 0;  ///< in the job's files, once it has an item
    dcp::FileItems items;
  };
  OpenFile& file_at(std::uint32_t file);

  TargetDraft& job_;
  std::filesystem::path folder_;
  std::vector<OpenFile> files_;
  dcp::Metadata metadata_;
  std::vector<OpaqueCopy> opaque_;
};

}  // namespace reshard
