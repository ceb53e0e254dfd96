#include "core/device/strided_digest.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "core/base/hash/crc64.hpp"

namespace reshard {
namespace {

/// From this many multiplications on, the tables of a factor pay.
constexpr std::uint64_t enough_for_tables = 40;

/// Indices of a dimension in the order in which their runs are in the tensor: the sum of the runs
/// before is multiplied by `factor` at each step.
class Level {
 public:
  /// `times`: the number of walks over the dimension.
  Level(ByteDim const& dim, std::uint64_t times)
      : count_(dim.count), from_stride_(dim.from_stride) {
    if (dim.to_stride < 0) {
      first_from_ = static_cast<std::int64_t>(dim.count - 1) * dim.from_stride;
      from_stride_ = -dim.from_stride;
    }
    auto const step = static_cast<std::uint64_t>(std::abs(dim.to_stride));
    last_to_ = dim.to_stride < 0 ? 0 : (dim.count - 1) * step;
    factor_ = crc64_power(step);
    if (times * dim.count >= enough_for_tables) tables_.emplace(factor_);
  }

  /// How much further the last index is in the tensor than index 0.
  std::uint64_t last_to() const { return last_to_; }

  template <class ShareOf>
  std::uint64_t sum(std::byte const* from, ShareOf share_of) const {
    std::uint64_t sum = 0;
    from += first_from_;
    for (std::uint64_t i = 0; i < count_; ++i) {
      std::uint64_t const shifted = tables_ ? (*tables_)(sum) : crc64_product(sum, factor_);
      sum = shifted ^ share_of(from + static_cast<std::int64_t>(i) * from_stride_);
    }
    return sum;
  }

 private:
  std::uint64_t count_;
  std::int64_t from_stride_;
  std::int64_t first_from_ = 0;
  std::uint64_t last_to_ = 0;
  std::uint64_t factor_ = 0;
  std::optional<Crc64Factor> tables_;
};

template <class ShareOfRun>
std::uint64_t sum_of(std::span<Level const> levels, std::byte const* from,
                     ShareOfRun share_of_run) {
  if (levels.empty()) return share_of_run(from);
  if (levels.size() == 1) return levels[0].sum(from, share_of_run);
  return levels[0].sum(
      from, [&](std::byte const* at) { return sum_of(levels.subspan(1), at, share_of_run); });
}

template <std::size_t bytes>
std::uint64_t word_at(std::byte const* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, bytes);
  return word;
}

/// The shares of all runs. A run of a few bytes is its own remainder, except for the factor that
/// all have in common.
std::uint64_t sum_of_runs(std::span<Level const> levels, std::byte const* from,
                          std::uint64_t run_bytes) {
  auto const in_common = [run_bytes](std::uint64_t sum) { return crc64_shifted(sum, run_bytes); };
  switch (run_bytes) {
    case 1: return in_common(sum_of(levels, from, word_at<1>));
    case 2: return in_common(sum_of(levels, from, word_at<2>));
    case 4: return in_common(sum_of(levels, from, word_at<4>));
    case 8: return in_common(sum_of(levels, from, word_at<8>));
    default:
      return sum_of(levels, from, [run_bytes](std::byte const* at) {
        return crc64({at, static_cast<std::size_t>(run_bytes)});
      });
  }
}

}  // namespace

CopyShape digest_shape(std::uint64_t run_bytes, std::span<ByteDim const> dims) {
  for (ByteDim const& dim : dims)
    if (dim.count == 0) return {};
  CopyShape shape = simplified(run_bytes, dims);
  auto const coarser = [](ByteDim const& a, ByteDim const& b) {
    return std::abs(a.from_stride) > std::abs(b.from_stride);
  };
  std::stable_sort(shape.dims.begin(), shape.dims.end(), coarser);
  return shape;
}

std::uint64_t strided_digest(std::byte const* from, std::uint64_t run_bytes,
                             std::span<ByteDim const> dims, std::uint64_t after_bytes) {
  CopyShape const shape = digest_shape(run_bytes, dims);
  if (shape.run_bytes == 0) return 0;
  std::vector<Level> levels;
  std::uint64_t times = 1;
  std::uint64_t last_to = 0;
  for (ByteDim const& dim : shape.dims) {
    levels.emplace_back(dim, times);
    times *= dim.count;
    last_to += levels.back().last_to();
  }
  // The sum ends with the last run in the tensor.
  return crc64_shifted(sum_of_runs(levels, from, shape.run_bytes),
                       after_bytes - (shape.run_bytes - run_bytes) - last_to);
}

}  // namespace reshard
