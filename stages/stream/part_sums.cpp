#include "stages/stream/part_sums.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/device/strided_digest.hpp"

namespace reshard {
namespace {

/// Bytes of one part of a tensor.
struct Stretch {
  std::uint64_t from = 0;
  std::uint64_t at = 0;
  std::uint64_t run_bytes = 0;
  std::vector<ByteDim> dims;

  /// The first byte, and one behind the last.
  std::pair<std::uint64_t, std::uint64_t> bounds() const {
    std::uint64_t first = at;
    std::uint64_t end = at + run_bytes;
    for (ByteDim const& dim : dims) {
      std::uint64_t const reach = (dim.count - 1) * width(dim);
      if (dim.to_stride < 0)
        first -= reach;
      else
        end += reach;
    }
    return {first, end};
  }
  static std::uint64_t width(ByteDim const& dim) {
    return static_cast<std::uint64_t>(std::abs(dim.to_stride));
  }
  std::uint64_t bytes() const {
    std::uint64_t bytes = run_bytes;
    for (ByteDim const& dim : dims) bytes *= dim.count;
    return bytes;
  }
};

/// Cuts a range at the borders of parts: along its dimensions, the widest first, then its run.
void cut(Stretch stretch, std::uint64_t part_bytes, std::vector<Stretch>& into) {
  auto const [first, end] = stretch.bounds();
  if (end <= (first / part_bytes + 1) * part_bytes) {
    into.push_back(std::move(stretch));
    return;
  }
  auto const widest = std::ranges::max_element(stretch.dims, {}, &Stretch::width);
  if (widest != stretch.dims.end()) {
    ByteDim const dim = *widest;
    stretch.dims.erase(widest);
    for (std::uint64_t i = 0; i < dim.count; ++i) {
      Stretch one = stretch;
      one.from += i * static_cast<std::uint64_t>(dim.from_stride);
      one.at += i * static_cast<std::uint64_t>(dim.to_stride);
      cut(std::move(one), part_bytes, into);
    }
    return;
  }
  while (stretch.run_bytes > 0) {
    std::uint64_t const bytes = std::min(stretch.run_bytes, part_bytes - stretch.at % part_bytes);
    into.push_back({stretch.from, stretch.at, bytes, {}});
    stretch.from += bytes;
    stretch.at += bytes;
    stretch.run_bytes -= bytes;
  }
}

}  // namespace

PartSums::PartSums(std::vector<PartedTensor> tensors) : tensors_(std::move(tensors)) {
  first_.push_back(0);
  for (PartedTensor const& tensor : tensors_) first_.push_back(first_.back() + tensor.parts);
  sums_.resize(first_.back());
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i].number = i;
}

std::uint64_t PartSums::add(DigestPart const& part, std::byte const* staging) {
  std::size_t const tensor = index(part.digest);
  if (tensor >= tensors_.size() || tensors_[tensor].parts == 0)
    return strided_digest(staging + part.from, part.run_bytes, part.dims,
                          part.tensor_bytes - part.at - part.run_bytes);
  std::uint64_t const part_bytes = tensors_[tensor].part_bytes;
  std::vector<Stretch> stretches;
  cut({part.from, part.at, part.run_bytes, part.dims}, part_bytes, stretches);
  std::uint64_t share = 0;
  for (Stretch const& one : stretches) {
    std::uint64_t const number = one.at / part_bytes;
    std::uint64_t const end = (number + 1) * part_bytes;
    std::uint64_t const sum =
        strided_digest(staging + one.from, one.run_bytes, one.dims, end - one.at - one.run_bytes);
    share ^= crc64_shifted(sum, part.tensor_bytes - end);
    std::scoped_lock const lock(mutex_);
    PartSum& whole = sums_[first_[tensor] + number];
    whole.crc64 ^= sum;
    whole.bytes += one.bytes();
  }
  return share;
}

std::vector<PartSum> PartSums::merged(Comm const& comm) const {
  std::string own;
  for (PartSum const& sum : sums_)
    if (sum.bytes > 0) own.append(reinterpret_cast<char const*>(&sum), sizeof sum);
  std::vector<PartSum> all(sums_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].number = i;
  for (std::string const& bytes : comm.all_gather(own))
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(PartSum)) {
      PartSum sum;
      std::memcpy(&sum, bytes.data() + at, sizeof sum);
      RESHARD_EXPECT(sum.number < all.size());
      all[sum.number].crc64 ^= sum.crc64;
      all[sum.number].bytes += sum.bytes;
    }
  return all;
}

}  // namespace reshard
