#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/source_model.hpp"
#include "core/formats/targets/target.hpp"
#include "core/layout/pieces/placement.hpp"

namespace reshard {

/// A target whose tensors get their names from a map. Borrows everything.
struct MappedTarget {
  Checkpoint const& source;
  PlanRequest const& request;
  Model const& model;
  SourceModel const& read;                          ///< without its model and catalogue
  std::vector<std::optional<DType>> const& dtypes;  ///< by logical tensor, as in the source
  RunRecord const* record = nullptr;  ///< the run's record of a source with args; may be nullptr

  /// A number of the model, such as "L"; 0 if it has none.
  Index count(char const* word) const;
};

/// A box of a source tensor and its bytes.
struct SourceBox {
  TensorBox box;
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::vector<Index> strides;  ///< in elements; empty: row-major of the box
};

/// A stored tensor that keeps its name.
struct NamedTensor {
  SharedText key;  ///< without source.prefix
  DType dtype = DType::u8;
  SharedShape shape;
  std::uint32_t number = 0;  ///< in StoredTable::tensors, or in StoredState::scalars
  bool scalar = false;
  std::optional<DType> stored = std::nullopt;  ///< the boxes' dtype, if values are rounded
  bool cast = false;                           ///< values are rounded because of target.dtype
};

/// The places of its elements.
std::vector<SourceBox> boxes_of(Checkpoint const& source, NamedTensor const& tensor);

/// A target whose tensors keep the source's names; they are the logical tensors of `model`, in this
/// order, with an axis for each dimension. Borrows everything.
struct NamedTarget {
  Checkpoint const& source;
  PlanRequest const& request;
  Model const& model;
  std::vector<NamedTensor> const& tensors;
  std::vector<StoredObject const*> const& objects;  ///< the objects to take over
  std::optional<huggingface::Folder> reference;     ///< model files for a Hugging Face folder

  /// Values that are not objects of a source file (Format::made_objects()) and that the job takes
  /// over: names of the source, and bytes.
  std::vector<std::pair<std::string, std::string>> made_objects() const;
  /// The name in the target of a tensor's key.
  std::string target_key(std::string_view key) const;
  /// The name in the target of a key of the source.
  std::string renamed(std::string const& key) const;
  /// The box as a piece of tensor `tensor`.
  Piece piece(std::size_t tensor, TensorBox const& box, std::vector<Index> const& strides) const;
};

/// Strides of a box in row-major order.
std::vector<Index> row_major(TensorBox const& box);

}  // namespace reshard
