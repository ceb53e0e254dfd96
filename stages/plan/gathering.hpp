#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/views/gathered.hpp"

namespace reshard {

/// The real files of a file number of `source`: itself, or those that a view is made from.
std::vector<std::uint32_t> files_behind(Catalog const& source, std::uint32_t file);

/// Hands on the parts of `source` that the pieces `to` of a tensor are gathered from, each with the
/// place of its piece in `to`.
void each_gathered_part(Model const& model, Catalog const& source, TensorId tensor,
                        std::span<Piece const> to,
                        std::function<void(std::size_t, GatheredPart)> const& use);

/// Sorts the parts of a tensor and notes their files. Pre: shape is set, and the parts hold each
/// element once.
void finish_gathering(GatheredTensor& tensor, Catalog const& source, std::string_view name);

/// Makes the plan's source_bytes those of the files behind the views: what a mean, codes, or a
/// gathered tensor is computed from, instead of its own.
void count_behind_views(Plan& plan, Catalog const& source);

}  // namespace reshard
