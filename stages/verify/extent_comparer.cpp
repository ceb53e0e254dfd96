#include "stages/verify/extent_comparer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/error.hpp"

namespace reshard {
namespace {

constexpr std::size_t values_at_a_time = 4096;

void add_non_finite(double a, double b, TensorStats& stats) {
  auto const count = [](bool is_so) { return static_cast<std::uint64_t>(is_so); };
  stats.nan_a += count(std::isnan(a));
  stats.nan_b += count(std::isnan(b));
  stats.infinite_a += count(std::isinf(a));
  stats.infinite_b += count(std::isinf(b));
  stats.non_finite_differing += count(a != b && !(std::isnan(a) && std::isnan(b)));
  if (std::isfinite(a)) stats.largest_a = std::max(stats.largest_a, std::abs(a));
  if (std::isfinite(b)) stats.largest_b = std::max(stats.largest_b, std::abs(b));
}

}  // namespace

ExtentComparer::ExtentComparer(Catalog const& b, StoredPlaces const& places, Comparison comparison,
                               ReadExtents read, std::uint64_t buffer_bytes)
    : b_(b),
      places_(places),
      comparison_(comparison),
      read_(std::move(read)),
      buffer_bytes_(std::max<std::uint64_t>(buffer_bytes, 64)) {
  buffer_ = std::make_unique_for_overwrite<std::byte[]>(buffer_bytes_);
  stats_.resize(places.part_count());
  if (comparison == Comparison::bytes) return;
  a_values_.resize(values_at_a_time);
  b_values_.resize(values_at_a_time);
}

void ExtentComparer::compare(std::span<Extent const> extents, std::byte const* staging) {
  std::vector<Extent> const sorted = by_place(extents);
  for (std::size_t begin = 0; begin < sorted.size();) {
    std::size_t end = begin + 1;
    while (end < sorted.size() && sorted[end].file == sorted[begin].file &&
           sorted[end].offset_bytes == sorted[end - 1].offset_bytes + sorted[end - 1].bytes)
      ++end;
    compare_neighbours({sorted.data() + begin, end - begin}, staging);
    begin = end;
  }
}

void ExtentComparer::compare_neighbours(std::span<Extent const> neighbours,
                                        std::byte const* staging) {
  std::uint32_t const file = neighbours.front().file;
  std::uint64_t const end = neighbours.back().offset_bytes + neighbours.back().bytes;
  std::size_t next = 0;
  for (std::uint64_t begin = neighbours.front().offset_bytes; begin < end;) {
    std::uint64_t limit = std::min(end, begin + buffer_bytes_);
    if (limit < end) limit = places_.begin_of_element(file, limit);
    Extent const whole{file, begin, limit - begin, 0};
    read_({&whole, 1}, buffer_.get());
    bytes_ += whole.bytes;
    calls_ += 1;
    for (std::uint64_t at = begin; at < limit;) {
      Extent const& extent = neighbours[next];
      std::uint64_t const bytes = std::min(limit, extent.offset_bytes + extent.bytes) - at;
      compare_part(file, at, {staging + extent.at + (at - extent.offset_bytes), bytes},
                   buffer_.get() + (at - begin));
      at += bytes;
      if (at == extent.offset_bytes + extent.bytes) ++next;
    }
    begin = limit;
  }
}

void ExtentComparer::compare_part(std::uint32_t file, std::uint64_t offset_bytes,
                                  std::span<std::byte const> a, std::byte const* b) {
  if (comparison_ == Comparison::bytes && std::memcmp(a.data(), b, a.size()) == 0) return;
  for (std::size_t done = 0; done < a.size();) {
    StoredRun const run = places_.run_at(file, offset_bytes + done);
    DType const dtype = b_.blobs[run.blob].dtype;
    auto const element = static_cast<std::size_t>(bits(dtype) / 8);
    std::size_t const count =
        std::min(static_cast<std::size_t>(run.elements), (a.size() - done) / element);
    RESHARD_EXPECT(count > 0);
    Elements const elements{run,  dtype,           element,  offset_bytes + done,
                            file, a.data() + done, b + done, count};
    count_differing(elements);
    if (comparison_ == Comparison::values)
      run.replica ? measure_replica(elements) : measure(elements);
    done += count * element;
  }
}

std::uint64_t ExtentComparer::place_of(Elements const& elements, std::size_t i) const {
  return places_.place_of(elements.run.tensor, elements.run.piece,
                          elements.run.element + static_cast<Index>(i));
}

void ExtentComparer::count_differing(Elements const& elements) {
  std::size_t const bytes = elements.element_bytes;
  if (std::memcmp(elements.a, elements.b, elements.count * bytes) == 0) return;
  std::uint64_t differing = 0;
  for (std::size_t i = 0; i < elements.count; ++i) {
    if (std::memcmp(elements.a_at(i), elements.b_at(i), bytes) == 0) continue;
    if (differing++ == 0 || !elements.run.ascending) note(elements, i);
  }
  TensorStats& stats = stats_[elements.run.part];
  (elements.run.replica ? stats.differing_in_replicas : stats.differing) += differing;
}

void ExtentComparer::note(Elements const& elements, std::size_t i) {
  DifferingElement found;
  found.place = place_of(elements, i);
  found.file = elements.file;
  found.blob = elements.run.blob;
  found.offset_bytes = elements.offset_bytes + i * elements.element_bytes;
  std::memcpy(found.a.data(), elements.a_at(i), elements.element_bytes);
  std::memcpy(found.b.data(), elements.b_at(i), elements.element_bytes);
  TensorStats& stats = stats_[elements.run.part];
  if (found.before(stats.first)) stats.first = found;
}

void ExtentComparer::measure(Elements const& elements) {
  stats_[elements.run.part].elements += elements.count;
  if (!has_values(elements.dtype)) return;
  for (std::size_t first = 0; first < elements.count; first += values_at_a_time)
    measure_block(elements, first, std::min(values_at_a_time, elements.count - first));
}

void ExtentComparer::measure_replica(Elements const& elements) {
  std::size_t const bytes = elements.element_bytes;
  if (!has_values(elements.dtype) ||
      std::memcmp(elements.a, elements.b, elements.count * bytes) == 0)
    return;
  TensorStats found;
  for (std::size_t first = 0; first < elements.count; first += values_at_a_time) {
    std::size_t const count = std::min(values_at_a_time, elements.count - first);
    decode_values(elements.dtype, {elements.a_at(first), count * bytes}, {a_values_.data(), count});
    decode_values(elements.dtype, {elements.b_at(first), count * bytes}, {b_values_.data(), count});
    for (std::size_t i = 0; i < count; ++i) {
      double const a = a_values_[i];
      double const b = b_values_[i];
      if (!std::isfinite(a) || !std::isfinite(b)) {
        add_non_finite(a, b, found);
        continue;
      }
      double const difference = std::abs(a - b);
      if (difference == 0) continue;
      found.absolute_in_replicas = std::max(found.absolute_in_replicas, difference);
      found.relative_in_replicas =
          std::max(found.relative_in_replicas, difference / std::max(std::abs(a), std::abs(b)));
    }
  }
  TensorStats of_replicas;
  of_replicas.absolute_in_replicas = found.absolute_in_replicas;
  of_replicas.relative_in_replicas = found.relative_in_replicas;
  of_replicas.non_finite_in_replicas = found.non_finite_differing;
  stats_[elements.run.part].add(of_replicas);
}

void ExtentComparer::measure_block(Elements const& elements, std::size_t first, std::size_t count) {
  std::size_t const bytes = elements.element_bytes;
  decode_values(elements.dtype, {elements.a_at(first), count * bytes}, {a_values_.data(), count});
  decode_values(elements.dtype, {elements.b_at(first), count * bytes}, {b_values_.data(), count});
  TensorStats block;
  std::size_t absolute_at = 0;
  std::size_t relative_at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    double const a = std::abs(a_values_[i]);
    double const b = std::abs(b_values_[i]);
    if (!std::isfinite(a) || !std::isfinite(b)) {
      add_non_finite(a_values_[i], b_values_[i], block);
      continue;
    }
    double const difference = std::abs(a_values_[i] - b_values_[i]);
    double const relative = difference == 0 ? 0 : difference / std::max(a, b);
    block.largest_a = std::max(block.largest_a, a);
    block.largest_b = std::max(block.largest_b, b);
    if (difference > 0) block.decades.add(difference);
    block.absolute_sum += difference;
    ++block.finite;
    if (difference > block.absolute.value) block.absolute.value = difference, absolute_at = i;
    if (relative > block.relative.value) block.relative.value = relative, relative_at = i;
  }
  TensorStats& stats = stats_[elements.run.part];
  // Only for candidates of the largest difference, as finding a place takes time.
  if (block.absolute.value > 0 && block.absolute.value >= stats.absolute.value)
    block.absolute.place = place_of(elements, first + absolute_at);
  if (block.relative.value > 0 && block.relative.value >= stats.relative.value)
    block.relative.place = place_of(elements, first + relative_at);
  stats.add(block);
}

}  // namespace reshard
