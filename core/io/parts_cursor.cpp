#include "core/io/parts_cursor.hpp"

#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"

namespace reshard {

std::uint64_t bytes_of(std::span<iovec const> parts) {
  std::uint64_t bytes = 0;
  for (iovec const& part : parts) bytes += part.iov_len;
  return bytes;
}

std::vector<iovec> PartsCursor::take(std::uint64_t bytes) {
  std::vector<iovec> taken;
  done_bytes_ += bytes;
  while (bytes > 0) {
    RESHARD_EXPECT(part_ < parts_.size());
    iovec const& part = parts_[part_];
    std::size_t const length = std::min<std::uint64_t>(bytes, part.iov_len - within_);
    if (length > 0) taken.push_back({static_cast<std::byte*>(part.iov_base) + within_, length});
    bytes -= length;
    within_ += length;
    if (within_ == part.iov_len) {
      ++part_;
      within_ = 0;
    }
  }
  return taken;
}

std::vector<iovec> PartsCursor::rest() { return take(bytes_of(parts_) - done_bytes_); }

void PartsCursor::fill(std::span<std::byte const> from) {
  for (iovec const& part : take(from.size())) {
    std::memcpy(part.iov_base, from.data(), part.iov_len);
    from = from.subspan(part.iov_len);
  }
}

void PartsCursor::gather(std::span<std::byte> to) {
  for (iovec const& part : take(to.size())) {
    std::memcpy(to.data(), part.iov_base, part.iov_len);
    to = to.subspan(part.iov_len);
  }
}

std::vector<TransferStep> transfer_steps(std::uint64_t offset_bytes, std::span<iovec const> parts,
                                         std::uint64_t file_bytes, std::uint64_t memory_bytes,
                                         std::uint64_t least_bytes) {
  std::vector<TransferStep> steps;
  std::uint64_t done = offset_bytes;
  std::uint64_t begin = offset_bytes;
  for (iovec const& part : parts) {
    std::uint64_t const end = begin + part.iov_len;
    std::uint64_t const first = (begin + file_bytes - 1) / file_bytes * file_bytes;
    std::uint64_t const last = end / file_bytes * file_bytes;
    if (last > first && last - first >= least_bytes) {
      std::byte* const memory = static_cast<std::byte*>(part.iov_base) + (first - begin);
      if (reinterpret_cast<std::uintptr_t>(memory) % memory_bytes == 0) {
        if (first > done) steps.push_back({done, first, nullptr});
        steps.push_back({first, last, memory});
        done = last;
      }
    }
    begin = end;
  }
  if (begin > done) steps.push_back({done, begin, nullptr});
  return steps;
}

}  // namespace reshard
