#include "core/plan/catalog.hpp"

#include <utility>

#include "core/base/integers.hpp"

namespace reshard {

Index reach(Piece const& piece) {
  Index last = piece.offset;
  for (PieceDigit const& digit : piece.digits) last += (digit.count - 1) * digit.stride;
  for (PieceCopy const& copy : piece.copies) last += (copy.count - 1) * copy.stride;
  return last + 1;
}

void Catalog::add(Blob blob, std::vector<Piece> pieces, bool copy) {
  auto const number = static_cast<std::uint32_t>(blobs.size());
  blobs.push_back(std::move(blob));
  for (Piece& piece : pieces) {
    TensorPieces& all = tensors[index(piece.tensor)];
    all.pieces.push_back(std::move(piece));
    all.blobs.push_back(number);
    all.copy.push_back(copy);
  }
}

std::uint32_t Catalog::add_view(SourceView view) {
  RESHARD_EXPECT(view.stored.file < real_files());
  check_view(view, files[view.stored.file]);
  auto const number = narrow<std::uint32_t>(files.size());
  files.push_back(
      fmt::format("{}: '{}' as {}", files[view.stored.file], view.name, name(view.dtype)));
  views.push_back(std::move(view));
  return number;
}

Blob Catalog::computed(Blob const& blob, Index elements, ViewKind kind, DType dtype, int constant) {
  SourceView view;
  view.kind = kind;
  view.name = blob.name;
  view.stored = {blob.file, blob.offset_bytes, blob.dtype, {elements}};
  view.dtype = dtype;
  view.shape = {elements};
  view.constant = constant;
  return {add_view(std::move(view)), 0, dtype, blob.name};
}

std::uint32_t Catalog::add_computed(std::uint32_t blob, Index elements, ViewKind kind, DType dtype,
                                    int constant) {
  blobs.push_back(computed(Blob(blobs[blob]), elements, kind, dtype, constant));
  return narrow<std::uint32_t>(blobs.size() - 1);
}

}  // namespace reshard
