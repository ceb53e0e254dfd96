#include "tests/support/copy_cases.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

namespace reshard::test {
namespace {

using Random = std::mt19937_64;

// Bytes before the first and after the last place of a side; the target's must stay as they are.
constexpr std::uint64_t guard_bytes = 48;

std::uint64_t round_up(std::uint64_t number, std::uint64_t unit) {
  return (number + unit - 1) / unit * unit;
}

bool one_in(std::uint64_t n, Random& random) { return random() % n == 0; }

std::uint64_t between(std::uint64_t low, std::uint64_t high, Random& random) {
  return low + random() % (high - low + 1);
}

/// A copy before it has places: strides and places will be multiples of `unit`.
struct Draft {
  std::uint64_t unit = 1;
  std::uint64_t run_bytes = 1;
  std::vector<std::uint64_t> counts;
  bool reversed = false;  ///< the target has the dimensions in the opposite order
  bool shuffled = false;  ///< each side has an order of its own
  std::uint64_t apart =
      1;  ///< elements of the finest dimension are this many elements apart on one side
  bool dense = false;  ///< the finest dimension has no gaps, whatever the unit
};

std::uint64_t power_of_two(Random& random) { return std::uint64_t{1} << random() % 5; }

std::vector<std::uint64_t> small_counts(std::size_t most_dims, std::uint64_t most, Random& random) {
  std::vector<std::uint64_t> counts(random() % (most_dims + 1));
  for (std::uint64_t& count : counts)
    count = one_in(6, random) ? between(1, 10 * most, random) : between(1, most, random);
  return counts;
}

Draft draft_anything(Random& random) {
  constexpr std::array<std::uint64_t, 14> runs{1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32, 48, 100};
  return {one_in(2, random) ? power_of_two(random) : 1,
          runs[random() % runs.size()],
          small_counts(6, 5, random),
          false,
          true,
          1};
}

Draft draft_long_runs(Random& random) {
  std::uint64_t const unit = power_of_two(random);
  std::uint64_t const run = one_in(60, random) ? (std::uint64_t{1} << 20U)
                                               : between(1, one_in(3, random) ? 9000 : 400, random);
  return {unit, round_up(run, unit), small_counts(3, 4, random), false, one_in(2, random), 1};
}

Draft draft_transpose(Random& random) {
  std::uint64_t const element = power_of_two(random);
  std::uint64_t const factor =
      one_in(2, random)
          ? 4
          : 1;  // sides that four divides, so that words of several elements are possible
  std::vector<std::uint64_t> counts{between(1, 100, random) * factor,
                                    between(1, 100, random) * factor};
  while (one_in(3, random) && counts.size() < 5) {
    auto const at = static_cast<std::ptrdiff_t>(random() % 3);
    counts.insert(counts.begin() + at, between(2, 4, random));
  }
  std::uint64_t const unit = one_in(2, random) ? std::max<std::uint64_t>(element, 4) : element;
  return {unit, element, counts, true, one_in(6, random), 1, !one_in(4, random)};
}

Draft draft_every_nth(Random& random) {
  std::uint64_t const element = power_of_two(random);
  std::vector<std::uint64_t> counts = small_counts(2, 6, random);
  counts.push_back(between(1, 3000, random));
  return {element, element, counts, false, false, between(2, 5, random)};
}

Draft draft(std::uint64_t most_bytes, Random& random) {
  constexpr std::array drafts{draft_anything, draft_long_runs, draft_transpose, draft_every_nth};
  Draft result = drafts[random() % drafts.size()](random);
  auto const bytes = [&] {
    return std::accumulate(result.counts.begin(), result.counts.end(), result.run_bytes,
                           std::multiplies<>{});
  };
  while (!result.counts.empty() && bytes() > most_bytes) {
    auto const largest = std::max_element(result.counts.begin(), result.counts.end());
    if (*largest == 1) break;
    *largest = (*largest + 1) / 2;
  }
  return result;
}

/// Where the first run stands on a side and where the side ends, counted from its beginning.
struct Extent {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
};

/// Lays the dimensions out on one side, `order` from the finest on, each with a random gap and
/// direction.
Extent lay_out(Draft const& draft, std::vector<std::size_t> const& order, std::uint64_t apart,
               std::vector<ByteDim>& dims, std::int64_t ByteDim::*stride, Random& random) {
  std::uint64_t end = draft.run_bytes * apart;
  std::uint64_t first = 0;
  for (std::size_t const d : order) {
    bool const dense = draft.dense && d == order.front();
    std::uint64_t const gap = one_in(3, random) ? random() % 20 : 0;
    std::uint64_t const step = dense ? end : round_up(end + gap, draft.unit);
    bool const backwards = one_in(7, random) && !dense;
    dims[d].*stride =
        backwards ? -static_cast<std::int64_t>(step) : static_cast<std::int64_t>(step);
    if (backwards) first += step * (dims[d].count - 1);
    end = step * dims[d].count;
    if (apart > 1 && d == order.front()) end = step * (dims[d].count - 1) + draft.run_bytes;
  }
  return {first, end};
}

std::uint64_t next_place(std::uint64_t end, Draft const& draft, Random& random) {
  std::uint64_t const gap = one_in(2, random) ? random() % 40 : 0;
  return round_up(end + gap, draft.unit);
}

void place(Draft const& draft, CopyCase& copies, Random& random) {
  OwnedCopy copy;
  copy.run_bytes = draft.run_bytes;
  for (std::uint64_t const count : draft.counts) copy.dims.push_back({count, 0, 0});
  std::vector<std::size_t> order(copy.dims.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  bool const apart_in_source = one_in(2, random);
  if (draft.shuffled) std::shuffle(order.begin(), order.end(), random);
  Extent const from = lay_out(draft, order, apart_in_source ? draft.apart : 1, copy.dims,
                              &ByteDim::from_stride, random);
  if (draft.reversed) std::reverse(order.begin(), order.end());
  if (draft.shuffled) std::shuffle(order.begin(), order.end(), random);
  Extent const to = lay_out(draft, order, apart_in_source ? 1 : draft.apart, copy.dims,
                            &ByteDim::to_stride, random);
  for (ByteDim& dim : copy.dims)
    if (dim.from_stride > 0 && one_in(15, random)) dim.from_stride = 0;  // a repeated source
  std::uint64_t const from_place = next_place(copies.from_bytes, draft, random);
  std::uint64_t const to_place = next_place(copies.to_bytes, draft, random);
  copy.from = from_place + from.first;
  copy.to = to_place + to.first;
  copies.from_bytes = from_place + from.end;
  copies.to_bytes = to_place + to.end;
  copies.copies.push_back(std::move(copy));
}

void copy_dims(std::byte const* from, std::byte* to, std::uint64_t run_bytes,
               std::span<ByteDim const> dims) {
  if (dims.empty()) {
    for (std::uint64_t i = 0; i < run_bytes; ++i) to[i] = from[i];
    return;
  }
  for (std::uint64_t i = 0; i < dims[0].count; ++i) {
    auto const index = static_cast<std::int64_t>(i);
    copy_dims(from + index * dims[0].from_stride, to + index * dims[0].to_stride, run_bytes,
              dims.subspan(1));
  }
}

}  // namespace

std::vector<CopyRequest> CopyCase::requests() const {
  std::vector<CopyRequest> requests;
  for (OwnedCopy const& copy : copies) requests.push_back(copy.request());
  return requests;
}

CopyCase random_copy_case(std::uint64_t seed, std::uint64_t most_bytes) {
  Random random(seed);
  CopyCase copies;
  copies.from_bytes = random() % guard_bytes;
  copies.to_bytes = random() % guard_bytes;
  std::uint64_t const count = between(1, 5, random);
  for (std::uint64_t i = 0; i < count; ++i)
    place(draft(most_bytes / count, random), copies, random);
  copies.from_bytes = round_up(copies.from_bytes, 16);
  copies.to_bytes = round_up(copies.to_bytes, 16) + (one_in(2, random) ? guard_bytes : 0);
  return copies;
}

CopyCase one_run(std::uint64_t from, std::uint64_t to, std::uint64_t run_bytes) {
  return {{{from, to, run_bytes, {}}},
          round_up(from + run_bytes, 16),
          round_up(to + run_bytes, 16) + guard_bytes};
}

CopyCase all_alignments(std::uint64_t run_bytes) {
  constexpr std::uint64_t runs = 3;
  std::uint64_t const distance =
      round_up(run_bytes, 16) + 16;  // the next run stands on the same byte of a word
  auto const stride = static_cast<std::int64_t>(distance);
  CopyCase copies;
  for (std::uint64_t from = 0; from < 16; ++from)
    for (std::uint64_t to = 0; to < 16; ++to) {
      copies.copies.push_back(
          {copies.from_bytes + from, copies.to_bytes + to, run_bytes, {{runs, stride, stride}}});
      copies.from_bytes += runs * distance;
      copies.to_bytes += runs * distance;
    }
  return copies;
}

std::vector<std::byte> random_memory(std::size_t bytes, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> memory(bytes);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  return memory;
}

void copy_byte_by_byte(CopyCase const& copies, std::byte const* from, std::byte* to) {
  for (OwnedCopy const& copy : copies.copies)
    copy_dims(from + copy.from, to + copy.to, copy.run_bytes, copy.dims);
}

std::size_t first_difference(std::byte const* a, std::byte const* b, std::size_t bytes) {
  return static_cast<std::size_t>(std::mismatch(a, a + bytes, b).first - a);
}

}  // namespace reshard::test
