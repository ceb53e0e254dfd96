#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/ids.hpp"
#include "core/layout/pieces/piece.hpp"
#include "core/plan/blob_table.hpp"
#include "core/plan/tensor_pieces.hpp"
#include "core/plan/views/source_view.hpp"

namespace reshard {

/// All pieces of a checkpoint: the parts of logical tensors with their locations.
struct Catalog {
  std::vector<std::string> files;  ///< paths, for messages; after them one text for each view
  std::vector<SourceView>
      views;  ///< view v has the file number real_files() + v; only a source has any
  BlobTable blobs;
  std::vector<TensorPieces> tensors;  ///< by number of the logical tensor; one for each of the
                                      ///< model

  /// Weights whose pieces are their master weights, and the dtype of the weights themselves: a
  /// target that has no other weights takes these.
  std::vector<std::pair<TensorId, DType>> masters;

  /// Adds a stored tensor with its pieces. `copy` as in TensorPieces::is_copy.
  void add(Blob const& blob, std::vector<Piece> const& pieces, bool copy);
  void add(Blob const& blob, std::span<InternedPiece const> pieces, bool copy);
  /// Frees the spare capacity for further blobs and pieces.
  void shrink();

  /// Adds a computed tensor and returns its file number: a Blob of it has offset 0 and the view's
  /// dtype. A view that cannot be computed is an Error (check_view). Pre: all real files are in
  /// `files`.
  std::uint32_t add_view(SourceView view);

  /// Adds a view of a blob's first `elements`, row-major, in another dtype, and returns the
  /// view's blob. Pre: the blob is in a real file.
  Blob computed(Blob const& blob, Index elements, ViewKind kind, DType dtype, int constant = 0);
  /// Adds a computed tensor with the values of a blob's first `elements` in another dtype, and
  /// returns the number of its blob. Pre: the blob is not a computed one.
  std::uint32_t add_computed(std::uint32_t blob, Index elements, ViewKind kind, DType dtype,
                             int constant = 0);

  std::size_t real_files() const { return files.size() - views.size(); }
};

}  // namespace reshard
