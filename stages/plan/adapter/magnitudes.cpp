#include "stages/plan/adapter/magnitudes.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/quant/low_rank.hpp"

namespace reshard {
namespace {

constexpr std::string_view word = ".lora_magnitude_vector";
constexpr std::string_view end = ".weight";

std::string without_end(std::string_view name) {
  if (name.ends_with(end)) name.remove_suffix(end.size());
  return std::string(name);
}

bool is_magnitude(std::string_view name) { return name.find(word) != std::string_view::npos; }

}  // namespace

std::string magnitude_name(std::string_view b) {
  constexpr std::string_view of_b = ".lora_B";
  std::size_t const at = b.rfind(of_b);
  if (at == std::string_view::npos) return {};
  return std::string(b.substr(0, at)) + std::string(word) + without_end(b.substr(at + of_b.size()));
}

Magnitudes::Magnitudes(Checkpoint const& adapter) : adapter_(adapter) {
  for (std::size_t t = 0; t < adapter.stored.tensors.size(); ++t)
    if (std::string const name(adapter.stored.tensors.name(t).text()); is_magnitude(name))
      places_.emplace(without_end(name), t);
}

Checkpoint Magnitudes::others() const {
  Checkpoint result = adapter_;
  result.stored.tensors.keep_if(
      [](StoredTensor const& tensor) { return !is_magnitude(tensor.name.text()); });
  return result;
}

FactorPiece Magnitudes::beside(FactorPiece const& b, Blob const& blob, Index rank) const {
  std::string const name = magnitude_name(blob.name);
  auto const found = places_.find(name);
  if (found == places_.end())
    fail(ErrorKind::source,
         "{}: has '{}' and no '{}', the magnitude of the same module (DoRA). The file is "
         "incomplete: restore it.",
         adapter_.place, blob.name, name);
  StoredTable const& stored = adapter_.stored;
  StoredTensor const& magnitude = stored.tensors[found->second];
  if (!quant::mergeable(magnitude.dtype))
    fail(ErrorKind::source,
         "{}: '{}' is {}, expected magnitudes of F32, BF16 or F16. Merge it with peft.",
         adapter_.place, name, reshard::name(magnitude.dtype));
  // The rows of B that lie there.
  Index first = 0;
  Index rows = magnitude.shape.empty() ? 0 : magnitude.shape.front();
  for (StoredTensor const& tensor : stored.tensors) {
    if (tensor.name.text() != blob.name) continue;
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      StoredChunk const chunk = stored.chunks[c];
      if (chunk.item.file != blob.file || stored.payload_offset_bytes(c) != blob.offset_bytes)
        continue;
      first = stored.offsets(chunk)[0];
      rows = stored.sizes(chunk)[0];
    }
  }
  FactorPiece result = b;
  result.dtype = magnitude.dtype;
  PieceDigits digits;
  bool whole = b.piece.offset % rank == 0;
  for (PieceDigit digit : b.piece.digits) {
    bool const of_rank = digit.axis == rank_axis;
    whole = whole && (of_rank ? digit.count == rank && (digit.stride == 1 || rank == 1)
                              : digit.stride % rank == 0);
    if (of_rank) continue;
    digit.stride /= rank;
    digits.push_back(digit);
  }
  result.piece.digits = digits;
  result.piece.offset = b.piece.offset / rank;
  for (std::size_t c = magnitude.first_chunk; c < magnitude.first_chunk + magnitude.chunk_count;
       ++c) {
    StoredChunk const chunk = stored.chunks[c];
    if (!whole || magnitude.shape.size() != 1 || stored.offsets(chunk)[0] != first ||
        stored.sizes(chunk)[0] != rows)
      continue;
    result.file = b.file - blob.file + chunk.item.file;
    result.offset_bytes = stored.payload_offset_bytes(c);
    return result;
  }
  fail(ErrorKind::source,
       "{}: '{}' is cut otherwise than '{}'. Convert the checkpoint to DCP with target.chunks = "
       "\"whole\" first.",
       adapter_.place, name, blob.name);
}

}  // namespace reshard
