#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.hpp"
#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/kernels/copy_memory.hpp"

namespace reshard {

/// The kernels words (Group 1) and fours (Group 4): neighbouring lanes move neighbouring items,
/// each lane Depth items at a time, so that Depth · Group loads are under way before the first
/// store. A group's elements are far apart: item i has the elements i, i + n, i + 2n, i + 3n of a
/// level, so that loads and stores of the lanes stay adjacent.
template <unsigned Width, unsigned Group, unsigned Depth>
struct CopyWords {
  static constexpr unsigned unit_items =
      items_per_unit(Group == 4 ? CopyVariant::fours : CopyVariant::words, Width);
  static_assert(Group == 1 || Group == 4);

  static RESHARD_HOST_DEVICE void run(CopyWork const& work, std::uint32_t block,
                                      std::uint32_t thread) {
    UnitWork const unit = unit_work(work, block, thread, unit_items);
    RESHARD_ROLLED_LOOP
    for (std::uint32_t item = unit.first; item < unit.end; item += lanes_per_warp * Depth)
      move(work, unit.copy, item + thread % lanes_per_warp, unit.end);
  }

 private:
  static RESHARD_HOST_DEVICE void move(CopyWork const& work, RunsCopy const& copy,
                                       std::uint32_t item, std::uint32_t end) {
    std::uint32_t number[Depth];
    std::uint32_t from[Depth];
    std::uint32_t to[Depth];
    for (unsigned d = 0; d < Depth; ++d) {
      number[d] = item + d * lanes_per_warp;
      from[d] = copy.from_start;
      to[d] = 0;
    }
    add_levels(work.levels + copy.first_level, copy.levels, number, from, to);
    Word<Width> held[Depth][Group];
    for (unsigned d = 0; d < Depth; ++d)
      if (item + d * lanes_per_warp < end)
        for (unsigned g = 0; g < Group; ++g)
          held[d][g] =
              load_word<Word<Width>>(work.from + copy.from + from[d] + g * copy.from_group);
    for (unsigned d = 0; d < Depth; ++d)
      if (item + d * lanes_per_warp < end)
        for (unsigned g = 0; g < Group; ++g)
          store_word(work.to + copy.to + to[d] + g * copy.to_group, held[d][g]);
  }
};

}  // namespace reshard
