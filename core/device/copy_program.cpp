#include "core/device/copy_program.hpp"

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/device/copy_choice.hpp"
#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/program_writer.hpp"
#include "core/device/strided_copy.hpp"

namespace reshard {
namespace {

std::uint32_t small(std::uint64_t number) {
  RESHARD_EXPECT(number < std::numeric_limits<std::int32_t>::max());
  return static_cast<std::uint32_t>(number);
}

/// A stride as kernels add it: those of a descriptor stay within 32 bits, and negative ones wrap
/// around.
std::uint32_t wrapped(std::int64_t stride) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(stride));
}

bool works_by_tiles(CopyVariant variant) {
  return variant == CopyVariant::tiles || variant == CopyVariant::packed_tiles;
}

/// The parts of one launch while they are collected.
class LaunchParts {
 public:
  LaunchParts(CopyVariant variant, unsigned width) : variant_(variant), width_(width) {}

  void add(ChosenCopy const& chosen) {
    std::uint64_t items = 1;
    std::uint32_t const first_level = small(levels_.size());
    for (ByteDim const& level : chosen.levels) {
      levels_.push_back({small(level.count),
                         fast_divisor(small(level.count)),
                         0,
                         wrapped(level.from_stride),
                         wrapped(level.to_stride),
                         {}});
      items *= level.count;
    }
    if (works_by_tiles(variant_))
      add_tiles(chosen, first_level);
    else
      add_runs(chosen, first_level, items);
    std::uint64_t const per_unit = works_by_tiles(variant_) ? 1 : items_per_unit(variant_, width_);
    table_.insert(table_.end(), (small(items) + per_unit - 1) / per_unit, descriptors_++);
  }

  void append_to(Program& program) {
    bool const tiles = works_by_tiles(variant_);
    std::uint32_t const units_per_block = tiles ? 1 : warps_per_block;
    std::uint32_t const blocks =
        block_count((table_.size() + units_per_block - 1) / units_per_block);
    table_.resize(std::size_t{blocks} * units_per_block, no_copy);
    Launch launch;
    launch.kind = tiles ? KernelKind::copy_tiles : KernelKind::copy_runs;
    launch.variant = static_cast<std::uint8_t>(variant_);
    launch.width = static_cast<std::uint8_t>(width_);
    launch.descriptors = descriptors_;
    launch.blocks = blocks;
    launch.at = tiles ? append_descriptors<TilesCopy>(program, tiles_)
                      : append_descriptors<RunsCopy>(program, runs_);
    append_descriptors<std::uint32_t>(program, table_);
    append_descriptors<CopyLevel>(program, levels_);
    program.launches.push_back(launch);
  }

 private:
  void add_runs(ChosenCopy const& chosen, std::uint32_t first_level, std::uint64_t items) {
    RunsCopy copy;
    copy.from = chosen.from - chosen.from_start;
    copy.to = chosen.to;
    copy.from_group = chosen.group.from_stride;
    copy.to_group = chosen.group.to_stride;
    copy.from_start = chosen.from_start;
    copy.items = small(items);
    copy.first_unit = small(table_.size());
    copy.first_level = first_level;
    copy.levels = small(chosen.levels.size());
    copy.run_bytes = small(chosen.run_bytes);
    runs_.push_back(copy);
  }

  void add_tiles(ChosenCopy const& chosen, std::uint32_t first_level) {
    TilesCopy copy;
    copy.from = chosen.from - chosen.from_start;
    copy.to = chosen.to;
    copy.from_start = chosen.from_start;
    copy.line_from = wrapped(chosen.line.from_stride);
    copy.line_to = wrapped(chosen.line.to_stride);
    copy.column_from = wrapped(chosen.column.from_stride);
    copy.column_to = wrapped(chosen.column.to_stride);
    copy.line_count = small(chosen.line.count);
    copy.column_count = small(chosen.column.count);
    copy.first_unit = small(table_.size());
    copy.first_level = first_level;
    copy.levels = small(chosen.levels.size());
    copy.line_bits = chosen.line_bits;
    copy.column_bits = chosen.column_bits;
    tiles_.push_back(copy);
  }

  CopyVariant variant_;
  unsigned width_;
  std::uint32_t descriptors_ = 0;
  std::vector<RunsCopy> runs_;
  std::vector<TilesCopy> tiles_;
  std::vector<std::uint32_t> table_;
  std::vector<CopyLevel> levels_;
};

}  // namespace

void add_copies(Program& program, std::span<CopyRequest const> copies) {
  std::map<std::pair<CopyVariant, unsigned>, LaunchParts> launches;
  for (CopyRequest const& copy : copies)
    for (ChosenCopy const& chosen : choose_kernels(copy))
      launches.try_emplace({chosen.variant, chosen.width}, chosen.variant, chosen.width)
          .first->second.add(chosen);
  for (auto& [kernel, parts] : launches) parts.append_to(program);
}

std::uint64_t bytes_of(std::span<CopyRequest const> copies) {
  std::uint64_t bytes = 0;
  for (CopyRequest const& copy : copies) bytes += copied_bytes(copy.run_bytes, copy.dims);
  return bytes;
}

}  // namespace reshard
