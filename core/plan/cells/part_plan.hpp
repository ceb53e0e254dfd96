#pragma once

#include <span>
#include <vector>

#include "core/layout/pieces/join.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The pieces of a row-major array over a part of a tensor's domain (fewer indices of some axes),
/// as logical_pieces() returns those of the complete domain.
std::vector<Piece> row_major_pieces(std::span<DomainAxis const> domain, Model const& model,
                                    TensorId tensor);

/// As make_plan() for a target that may have a part of each tensor: elements that it lacks are not
/// read. The source is nevertheless proved to be complete. Without digests.
Plan make_part_plan(Model const& model, Catalog const& source, Catalog const& target,
                    PlanLimits const& limits);

}  // namespace reshard
