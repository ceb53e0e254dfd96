#include "core/plan/catalog.hpp"

#include <utility>

namespace reshard {

void Catalog::add(Blob blob, std::vector<Piece> pieces, bool copy) {
  auto const number = static_cast<std::uint32_t>(blobs.size());
  blobs.push_back(std::move(blob));
  for (Piece& piece : pieces) {
    TensorPieces& all = tensors[static_cast<std::size_t>(piece.tensor)];
    all.pieces.push_back(std::move(piece));
    all.blobs.push_back(number);
    all.copy.push_back(copy);
  }
}

}  // namespace reshard
