#pragma once

#include <cstdint>

#include "core/formats/targets/format_option.hpp"

namespace reshard::hdf5 {

/// The way in which the bytes of a target are written: by the system at the datasets' offsets, or
/// by libhdf5 over MPI-IO, each rank by itself or all collectively.
enum class TargetIo { automatic, direct, independent, collective };

/// The keys of an HDF5 target.
struct TargetOptions {
  std::uint64_t part_bytes = 1ULL << 40U;  ///< the most in a file, except for one larger tensor
  TargetIo io = TargetIo::automatic;       ///< automatic is direct
  friend bool operator==(TargetOptions const&, TargetOptions const&) = default;
};

FormatOptions<TargetOptions> target_options();

}  // namespace reshard::hdf5
