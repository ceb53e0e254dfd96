#include "stages/read/extent_reader.hpp"

#include <vector>

namespace reshard {
namespace {

// Plain cached requests of many MiB: of what was tried (announcing the next request with
// POSIX_FADV_WILLNEED, several threads, RWF_DONTCACHE) only the last was faster than that with
// POSIX_FADV_SEQUENTIAL, by a tenth, and it makes ranks of a host that share a source file read it
// again.
constexpr BatchRules rules{.most_bytes = std::uint64_t{16} << 20, .tail = TailPage::joined};

}  // namespace

void ExtentReader::read(std::span<Extent const> extents, std::byte* staging) {
  for (ExtentBatch const& batch : batches_of(by_place(extents), rules)) read_batch(batch, staging);
}

void ExtentReader::read_batch(ExtentBatch const& batch, std::byte* staging) {
  if (batch.file >= files_.size()) return compute_batch(batch, staging);
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  files_.open(batch.file)->read_parts_at(batch.offset_bytes, parts);
  stats_.bytes += batch.bytes;
  stats_.calls += 1;
}

void ExtentReader::compute_batch(ExtentBatch const& batch, std::byte* staging) {
  std::uint64_t offset = batch.offset_bytes;
  for (auto const& part : batch.parts) {
    views_.read(batch.file - files_.size(), offset, {staging + part.at, part.bytes});
    offset += part.bytes;
  }
}

}  // namespace reshard
