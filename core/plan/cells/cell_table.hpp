#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/ids.hpp"
#include "core/base/tables/made_iterator.hpp"

namespace reshard {

/// The common part of equal cells: those of each expert of each layer differ only in the places of
/// their tensors, and those of AlikeTensors also in their digest. Ranges of Plan::shape_regions and
/// Plan::shape_digests.
struct CellShape {
  std::uint32_t first_region = 0;
  std::uint32_t region_count = 0;
  std::uint32_t first_digest = 0;
  std::uint32_t digest_count = 0;
  std::uint32_t source_places =
      0;                     ///< a cell's places of source files, before those of target files
  std::uint32_t unused = 0;  ///< so that the struct has no padding
  std::uint64_t staging_bytes = 0;  ///< as in Cell, these three
  std::uint64_t source_bytes = 0;
  std::uint64_t target_bytes = 0;
};

/// The regions of one block of one logical tensor's index space: they read the same source bytes
/// and are done together, so that each source byte is read once for all of its targets. A block
/// with very many targets is several cells, which each read it (PlanLimits::most_target_bytes).
struct Cell {
  std::uint32_t shape = 0;           ///< in CellTable::shapes()
  std::uint32_t first_source = 0;    ///< in Plan::places: the place of the shape's source file 0
  std::uint32_t first_target = 0;    ///< in Plan::places: the place of the shape's target file 0
  DigestId digest = DigestId::none;  ///< the destination of the shape's digests
  std::uint64_t digest_bytes = 0;    ///< the base of the offsets in the shape's digests
  std::uint64_t staging_bytes = 0;   ///< an upper bound of the cell's staging memory
  std::uint64_t source_bytes = 0;
  std::uint64_t target_bytes = 0;
};

/// The cells of a plan, by number, and their shapes. A cell takes 20 bytes.
class CellTable {
 public:
  using Iterator = MadeIterator<CellTable, Cell>;

  /// The part of a cell that is not of its shape.
  struct Record {
    std::uint32_t shape = 0;
    std::uint32_t first_place = 0;  ///< in Plan::places, of the source files, then of the target's
    DigestId digest = DigestId::none;
    std::uint32_t digest_bytes_low = 0;
    std::uint32_t digest_bytes_high = 0;
  };

  std::size_t size() const { return records_.size(); }
  bool empty() const { return records_.empty(); }
  Cell operator[](std::size_t i) const {
    Record const& record = records_[i];
    CellShape const& shape = shapes_[record.shape];
    return {record.shape,
            record.first_place,
            record.first_place + shape.source_places,
            record.digest,
            std::uint64_t{record.digest_bytes_high} << 32U | record.digest_bytes_low,
            shape.staging_bytes,
            shape.source_bytes,
            shape.target_bytes};
  }
  Cell front() const { return (*this)[0]; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  std::vector<CellShape> const& shapes() const { return shapes_; }
  CellShape const& shape(std::uint32_t number) const { return shapes_[number]; }

  void add_shapes(std::span<CellShape const> shapes) {
    shapes_.insert(shapes_.end(), shapes.begin(), shapes.end());
  }
  /// The number of a shape that is like `shape` except for its staging memory.
  std::uint32_t with_staging(std::uint32_t shape, std::uint64_t staging_bytes);
  void add(std::uint32_t shape, std::uint32_t first_place, DigestId digest,
           std::uint64_t digest_bytes);
  void add(Record const& record) { records_.push_back(record); }
  Record const& record(std::size_t i) const { return records_[i]; }
  void set(std::size_t i, Record const& record) { records_[i] = record; }
  void set_staging(std::size_t i, std::uint64_t staging_bytes) {
    records_[i].shape = with_staging(records_[i].shape, staging_bytes);
  }
  /// Keeps the first cells alone.
  void truncate(std::size_t count) { records_.resize(count); }

 private:
  /// Not one block: a plan of 8,192 ranks has a million, which would be moved while it grows.
  std::deque<Record> records_;
  std::vector<CellShape> shapes_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> staged_;  ///< with_staging()
};

}  // namespace reshard
