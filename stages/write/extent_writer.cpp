#include "stages/write/extent_writer.hpp"

#include <vector>

#include <sys/uio.h>

namespace reshard {
namespace {

constexpr BatchRules rules{.most_bytes = std::uint64_t{8} << 20, .tail = TailPage::apart};

}  // namespace

void ExtentWriter::write(std::span<Extent const> extents, std::byte* staging) {
  std::vector<Extent> sorted = by_place(extents);
  for (Extent const& extent : sorted) {
    if (observer_) observer_(extent.file, extent.offset_bytes, {staging + extent.at, extent.bytes});
    stats_.bytes += extent.bytes;
  }
  if (edges_ != nullptr) sorted = edges_->keep(sorted, staging);
  for (ExtentBatch const& batch : batches_of(sorted, rules)) write_batch(batch, staging);
}

void ExtentWriter::write_batch(ExtentBatch const& batch, std::byte* staging) {
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  files_.open(batch.file)->write_parts_at(batch.offset_bytes, parts);
  stats_.calls += 1;
}

}  // namespace reshard
