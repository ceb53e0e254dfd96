#include "core/formats/dcp/unflatten.hpp"

#include <unordered_map>

#include <fmt/ranges.h>

#include "core/layout/pieces/flat_boxes.hpp"

namespace reshard::dcp {
namespace {

using Shape = std::vector<Index>;

class Unflattener {
 public:
  Unflattener(Checkpoint& checkpoint, std::vector<std::pair<std::string, Shape>> const& shapes)
      : checkpoint_(checkpoint), stored_(checkpoint.stored) {
    for (auto const& [key, shape] : shapes) shapes_.emplace(key, &shape);
  }

  void run() {
    for (std::size_t t = 0; t < stored_.tensors.size(); ++t) {
      StoredTensor tensor = stored_.tensors[t];
      auto const found = shapes_.find(tensor.name);
      auto const first = narrow<std::uint32_t>(chunks_.size());
      if (found == shapes_.end())
        keep(tensor);
      else
        unfold(tensor, *found->second);
      tensor.first_chunk = first;
      tensor.chunk_count = narrow<std::uint32_t>(chunks_.size()) - first;
      stored_.tensors.set(t, std::move(tensor));
    }
    stored_.chunks = std::move(chunks_);
    stored_.payload_offsets = std::move(payloads_);
    stored_.strides = std::move(strides_);
    checkpoint_.chunked.flattened = true;
  }

 private:
  void keep(StoredTensor const& tensor) {
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      if (auto const strided = stored_.strides.find(c); strided != stored_.strides.end())
        strides_[chunks_.size()] = strided->second;
      chunks_.push_back(stored_.chunks[c]);
      payloads_.push_back(stored_.payload_offset_bytes(c));
    }
  }

  [[noreturn]] void refuse(StoredTensor const& tensor, Shape const& whole) const {
    fail(
        ErrorKind::source,
        "{}: '{}' is stored as [{}], which cannot be the fragments of a tensor of shape [{}]. The file is damaged: save it again.",
        checkpoint_.place, tensor.name, fmt::join(tensor.shape, ", "), fmt::join(whole, ", "));
  }

  void unfold(StoredTensor& tensor, Shape const& whole) {
    std::size_t const rank = whole.size();
    if (rank == 0 || tensor.shape.size() != rank + 1) refuse(tensor, whole);
    Shape fragment(rank);
    Index volume = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      if (whole[d] <= 0 || tensor.shape[d] <= 0 || whole[d] % tensor.shape[d] != 0)
        refuse(tensor, whole);
      fragment[d] = whole[d] / tensor.shape[d];
      volume =
          checked_mul(volume, fragment[d], ErrorKind::source, "the size of '" + tensor.name + "'");
    }
    if (volume != tensor.shape[rank]) refuse(tensor, whole);
    auto const element = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      if (stored_.strides.contains(c)) refuse(tensor, whole);
      add_boxes(stored_.chunks[c], stored_.payload_offset_bytes(c), fragment, element);
    }
    tensor.shape = whole;
  }

  void add_boxes(StoredChunk const& chunk, std::uint64_t payload, Shape const& fragment,
                 std::uint64_t element) {
    IndexLists& lists = stored_.lists;
    std::size_t const rank = fragment.size();
    Shape const at(lists[chunk.offsets].begin(), lists[chunk.offsets].end());
    Shape const count(lists[chunk.sizes].begin(), lists[chunk.sizes].end());
    for (std::size_t d = 0; d < rank; ++d) RESHARD_EXPECT(count[d] >= 0);
    for (FlatBox const& flat : flat_boxes(fragment, at[rank], at[rank] + count[rank])) {
      Shape offsets(rank);
      Shape sizes(rank);
      for (std::size_t d = 0; d < rank; ++d) {
        if (count[d] != 1)
          fail(
              ErrorKind::source,
              "{}: a chunk of a flattened tensor covers {} fragments, expected 1. The file is damaged: save it again.",
              checkpoint_.place, count[d]);
        offsets[d] = at[d] * fragment[d] + flat.box.begin[d];
        sizes[d] = flat.box.end[d] - flat.box.begin[d];
      }
      chunks_.push_back({lists.add(offsets), lists.add(sizes), chunk.item});
      payloads_.push_back(payload + static_cast<std::uint64_t>(flat.offset) * element);
    }
  }

  Checkpoint& checkpoint_;
  StoredTable& stored_;
  std::unordered_map<std::string_view, Shape const*> shapes_;
  StoredChunks chunks_;
  std::vector<std::uint64_t> payloads_;
  std::map<std::size_t, Shape> strides_;
};

}  // namespace

void unflatten(Checkpoint& checkpoint, std::vector<std::pair<std::string, Shape>> const& shapes) {
  if (!shapes.empty()) Unflattener(checkpoint, shapes).run();
}

}  // namespace reshard::dcp
