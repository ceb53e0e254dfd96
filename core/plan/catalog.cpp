#include "core/plan/catalog.hpp"

#include <utility>

#include "core/base/integers.hpp"

namespace reshard {

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

}  // namespace reshard
