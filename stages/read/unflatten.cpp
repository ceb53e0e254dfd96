#include "stages/read/unflatten.hpp"

#include <unordered_map>

#include <fmt/ranges.h>

#include "core/layout/flat_boxes.hpp"

namespace reshard {
namespace {

using Shape = std::vector<Index>;

class Unflattener {
 public:
  explicit Unflattener(DcpCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (auto const& [key, shape] : checkpoint.metadata.flattened) shapes_.emplace(key, &shape);
  }

  void run() {
    dcp::Metadata& metadata = checkpoint_.metadata;
    for (dcp::StoredTensor& tensor : metadata.tensors) {
      auto const found = shapes_.find(tensor.name);
      auto const first = narrow<std::uint32_t>(chunks_.size());
      if (found == shapes_.end())
        keep(tensor);
      else
        unfold(tensor, *found->second);
      tensor.first_chunk = first;
      tensor.chunk_count = narrow<std::uint32_t>(chunks_.size()) - first;
    }
    metadata.chunks = std::move(chunks_);
    metadata.flattened.clear();
    checkpoint_.payload_offset_bytes = std::move(payloads_);
    checkpoint_.strides = std::move(strides_);
    checkpoint_.flattened = true;
  }

 private:
  void keep(dcp::StoredTensor const& tensor) {
    for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      if (auto const strided = checkpoint_.strides.find(c); strided != checkpoint_.strides.end())
        strides_[chunks_.size()] = strided->second;
      chunks_.push_back(checkpoint_.metadata.chunks[c]);
      payloads_.push_back(checkpoint_.payload_offset_bytes[c]);
    }
  }

  [[noreturn]] void refuse(dcp::StoredTensor const& tensor, Shape const& whole) const {
    fail(
        ErrorKind::source,
        "{}: '{}' is stored as [{}], which cannot be the fragments of a tensor of shape [{}]. The file is damaged: save it again.",
        (checkpoint_.directory.folder / dcp::metadata_name).string(), tensor.name,
        fmt::join(tensor.shape, ", "), fmt::join(whole, ", "));
  }

  void unfold(dcp::StoredTensor& tensor, Shape const& whole) {
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
      if (checkpoint_.strides.contains(c)) refuse(tensor, whole);
      add_boxes(checkpoint_.metadata.chunks[c], checkpoint_.payload_offset_bytes[c], fragment,
                element);
    }
    tensor.shape = whole;
  }

  void add_boxes(dcp::Chunk const& chunk, std::uint64_t payload, Shape const& fragment,
                 std::uint64_t element) {
    dcp::IndexLists& lists = checkpoint_.metadata.lists;
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
              (checkpoint_.directory.folder / dcp::metadata_name).string(), count[d]);
        offsets[d] = at[d] * fragment[d] + flat.box.begin[d];
        sizes[d] = flat.box.end[d] - flat.box.begin[d];
      }
      chunks_.push_back({lists.add(offsets), lists.add(sizes), chunk.item});
      payloads_.push_back(payload + static_cast<std::uint64_t>(flat.offset) * element);
    }
  }

  DcpCheckpoint& checkpoint_;
  std::unordered_map<std::string_view, Shape const*> shapes_;
  std::vector<dcp::Chunk> chunks_;
  std::vector<std::uint64_t> payloads_;
  std::map<std::size_t, Shape> strides_;
};

}  // namespace

void unflatten(DcpCheckpoint& checkpoint) {
  if (!checkpoint.metadata.flattened.empty()) Unflattener(checkpoint).run();
}

}  // namespace reshard
