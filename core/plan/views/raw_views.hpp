#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/cells/round.hpp"
#include "core/plan/views/source_view.hpp"

namespace reshard {

/// A range of a view that is computed in staging memory: from the stored bytes at the staging
/// offsets `stored`, `scales`, … to `to`.
struct ViewPart {
  std::uint32_t view = 0;
  Index first = 0;  ///< element of the view
  Index count = 0;
  quant::RowPart rows;  ///< of a dequantising view: the same elements
  std::uint64_t stored = 0;
  std::uint64_t scales = 0;
  std::uint64_t seconds = 0;
  std::uint64_t zero_points = 0;
  std::uint64_t to = 0;
};

/// Replaces the reads of views in a round, except those of merged weights, by reads of the stored
/// bytes, whose staging follows the others. Returns the computations to make before all other steps
/// of the round. View v has the file number first_view_file + v.
std::vector<ViewPart> stage_raw_views(RoundWork& work, std::span<SourceView const> views,
                                      std::uint32_t first_view_file);

/// The largest factor by which a round's staging may grow in stage_raw_views(), small pieces of a
/// few KiB excluded; 1 without views.
double staging_growth(std::span<SourceView const> views);

}  // namespace reshard
