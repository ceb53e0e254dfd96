#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/plan/catalog.hpp"
#include "core/plan/views/extent_batch.hpp"
#include "stages/verify/stored_places.hpp"
#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {

/// The kind of comparison of two checkpoints.
enum class Comparison {
  bytes,   ///< equality of elements, bit by bit
  values,  ///< also the size of differences
};

/// Fills memory[extent.at, +extent.bytes) with the bytes of b's files.
using ReadExtents = std::function<void(std::span<Extent const>, std::byte* memory)>;

/// Compares bytes of checkpoint a, in the layout of b's files, with the bytes of b's files. Used by
/// one thread.
class ExtentComparer {
 public:
  /// Needs a buffer of buffer_bytes and a few KiB. `b` is the catalogue whose files the extents
  /// count in; all of it outlives the comparer.
  ExtentComparer(Catalog const& b, StoredPlaces const& places, Comparison comparison,
                 ReadExtents read, std::uint64_t buffer_bytes = std::uint64_t{8} << 20);

  /// Compares staging[extent.at, +extent.bytes) with those bytes of b's file, for every extent.
  /// Extents consist of complete elements of tensors in `places`.
  void compare(std::span<Extent const> extents, std::byte const* staging);

  /// The findings of this rank, by part (parts_of()).
  std::vector<TensorStats>& stats() { return stats_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t calls() const { return calls_; }

 private:
  /// Neighbouring elements on both sides, all of one run.
  struct Elements {
    StoredRun run;
    DType dtype = DType::u8;
    std::size_t element_bytes = 1;
    std::uint64_t offset_bytes = 0;  ///< of the first in b's file
    std::uint32_t file = 0;
    std::byte const* a = nullptr;
    std::byte const* b = nullptr;
    std::size_t count = 0;

    std::byte const* a_at(std::size_t i) const { return a + i * element_bytes; }
    std::byte const* b_at(std::size_t i) const { return b + i * element_bytes; }
  };

  /// Compares contiguous extents of a file.
  void compare_neighbours(std::span<Extent const> neighbours, std::byte const* staging);
  void compare_part(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> a,
                    std::byte const* b);
  void count_differing(Elements const& elements);
  void note(Elements const& elements, std::size_t i);
  void measure(Elements const& elements);
  void measure_replica(Elements const& elements);
  void measure_block(Elements const& elements, std::size_t first, std::size_t count);
  std::uint64_t place_of(Elements const& elements, std::size_t i) const;

  Catalog const& b_;
  StoredPlaces const& places_;
  Comparison comparison_;
  ReadExtents read_;
  std::uint64_t buffer_bytes_;
  std::unique_ptr<std::byte[]> buffer_;
  std::vector<TensorStats> stats_;
  std::vector<double> a_values_;
  std::vector<double> b_values_;
  std::uint64_t bytes_ = 0;
  std::uint64_t calls_ = 0;
};

}  // namespace reshard
