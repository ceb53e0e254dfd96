#include "stages/write/unchanged_bytes.hpp"

#include <algorithm>
#include <utility>

#include "core/base/hash/crc64.hpp"
#include "core/base/range.hpp"
#include "core/plan/clones.hpp"

namespace reshard {
namespace {

/// The CRC-64 of the bytes of a range, which these extents cover in order.
std::uint64_t crc64_of(FileSpan const& span, std::span<Extent const> extents,
                       std::byte const* staging) {
  std::uint64_t sum = 0;
  std::uint64_t at = span.begin;
  for (std::size_t i = 0; at < span.end; ++i) {
    Extent const& extent = extents[i];
    std::uint64_t const end = std::min(span.end, extent.offset_bytes + extent.bytes);
    sum = crc64({staging + extent.at + (at - extent.offset_bytes), end - at}, sum);
    at = end;
  }
  return sum;
}

}  // namespace

bool is_same_file(FileStamp const& one, FileStamp const& other) {
  return one.bytes == other.bytes && one.mtime_ns == other.mtime_ns && one.inode == other.inode;
}

std::vector<UnchangedBytes::Candidate> UnchangedBytes::candidates_in(
    std::span<Extent const> sorted) const {
  std::vector<Candidate> parts;  // of blocks
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    auto const& [file, offset, bytes, at] = sorted[i];
    if (files_[file].path.empty()) continue;
    for (std::uint64_t begin = offset; begin < offset + bytes;) {
      std::uint64_t const end = std::min(offset + bytes, (begin / block_bytes_ + 1) * block_bytes_);
      FileSpan* const last = parts.empty() ? nullptr : &parts.back().span;
      if (last != nullptr && last->file == file && last->end == begin && begin % block_bytes_ != 0)
        last->end = end;
      else
        parts.push_back({{file, begin, end}, i});
      begin = end;
    }
  }
  std::erase_if(parts, [&](Candidate const& part) {
    auto const& [file, begin, end] = part.span;
    auto const size = static_cast<std::uint64_t>(files_[file].stamp.bytes);
    return begin % block_bytes_ != 0 || end != std::min(size, begin + block_bytes_);
  });
  return parts;
}

ComparedRound UnchangedBytes::compare(std::span<Extent const> sorted, std::byte const* staging) {
  std::vector<Candidate> blocks = candidates_in(sorted);
  workers_.run(blocks.size(), [&](std::size_t i, std::size_t) {
    blocks[i].crc64 = crc64_of(blocks[i].span, sorted.subspan(blocks[i].first_extent), staging);
  });
  ComparedRound compared;
  std::vector<CloneExtent> left_out;
  for (Candidate const& one : blocks) {
    auto const& [file, begin, end] = one.span;
    if (one.crc64 != files_[file].blocks[begin / block_bytes_]) continue;
    compared.blocks.push_back({one.span, one.crc64});
    left_out.push_back({file, begin, file, begin, end - begin});
    kept_.push_back(one.span);
  }
  compared.to_write = without_clones(sorted, left_out);
  return compared;
}

std::vector<FileSpan> UnchangedBytes::take_kept() { return united(std::exchange(kept_, {})); }

}  // namespace reshard
