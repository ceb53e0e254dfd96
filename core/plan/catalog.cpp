#include "core/plan/catalog.hpp"

#include <utility>

#include "core/base/tables/integers.hpp"

namespace reshard {

void Catalog::add(Blob const& blob, std::vector<Piece> const& pieces, bool copy) {
  std::uint32_t const number = blobs.add(blob);
  for (Piece const& piece : pieces) tensors[index(piece.tensor)].add(piece, number, copy);
}

void Catalog::add(Blob const& blob, std::span<InternedPiece const> pieces, bool copy) {
  std::uint32_t const number = blobs.add(blob);
  for (InternedPiece const& piece : pieces) tensors[index(piece.tensor)].add(piece, number, copy);
}

void Catalog::shrink() {
  blobs.shrink();
  for (TensorPieces& tensor : tensors) tensor.shrink();
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
  return blobs.add(computed(blobs[blob], elements, kind, dtype, constant));
}

}  // namespace reshard
