#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/layout/pieces/join.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// The pieces of one slice of a tensor, at offset 0 of their blobs. Internal to this library, as
/// all of this header.
struct SlicePieces {
  std::vector<Piece> source;
  std::vector<Piece> target;
  std::vector<Piece> logical;  ///< of the digests; empty: no digests
  std::vector<Piece> padding;  ///< that is read but not part of a digest
};

/// The places of the pieces of a slice.
struct SlicePlaces {
  std::span<FilePlace const> source;
  std::span<FilePlace const> target;
};

/// The cells of a slice, for any slice with the same pieces at other places.
struct SlicePlan {
  std::vector<CellShape> shapes;      ///< one for each cell
  std::vector<Region> regions;        ///< files are numbers of pieces
  std::vector<DigestRegion> digests;  ///< to number 0: that of the cell
  std::vector<ByteDim> dims;
  std::uint64_t overlaps = 0;
  std::vector<std::uint32_t> measured;  ///< cells whose staging_bytes hold only for these places
};

/// The inputs of a slice's plan.
struct SliceTerms {
  std::string const& tensor;  ///< its name, for messages
  std::span<AxisId const> order;
  AxisTable const& axes;
  std::uint64_t element_bytes = 1;
  PlanLimits const& limits;
};

/// The shapes of a slice, or of the plan of a tensor.
struct ShapeParts {
  std::span<CellShape const> shapes;
  std::vector<Region>& regions;
  std::vector<DigestRegion>& digests;
  std::vector<ByteDim>& dims;
};
/// Appends them to those of a plan: shape numbers of the parts then count from the number of shapes
/// that it had.
void append_shapes(Plan& plan, ShapeParts const& parts);

/// Joins the pieces and cuts the join into cells. Errors: resources (a row too large for the
/// limits).
SlicePlan plan_slice(SlicePieces const& pieces, SlicePlaces const& places, SliceTerms const& terms);

/// The exact staging memory of a cell whose estimate exceeds the limit; nullopt if it exceeds the
/// limit, too.
std::optional<std::uint64_t> staging_of(SlicePlan const& plan, std::uint32_t cell,
                                        SlicePlaces const& places, PlanLimits const& limits);

}  // namespace reshard
