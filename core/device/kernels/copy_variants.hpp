#pragma once

#include "core/device/kernels/copy_descriptors.hpp"
#include "core/device/kernels/copy_shifted.hpp"
#include "core/device/kernels/copy_tiles.hpp"
#include "core/device/kernels/copy_words.hpp"

namespace reshard {

// From the numbers of a launch to the kernel's type, once for the GPU and the host. A visitor is
// called with an object of the type; each function returns whether there is such a kernel.

template <class Visitor>
bool visit_words(unsigned width, Visitor const& visit) {
  switch (width) {
    case 16: return visit(CopyWords<16, 1, 4>{}), true;
    case 8: return visit(CopyWords<8, 1, 4>{}), true;
    case 4: return visit(CopyWords<4, 1, 4>{}), true;
    case 2: return visit(CopyWords<2, 1, 4>{}), true;
    case 1: return visit(CopyWords<1, 1, 4>{}), true;
    default: return false;
  }
}

template <class Visitor>
bool visit_fours(unsigned width, Visitor const& visit) {
  switch (width) {
    case 4: return visit(CopyWords<4, 4, 2>{}), true;
    case 2: return visit(CopyWords<2, 4, 2>{}), true;
    case 1: return visit(CopyWords<1, 4, 4>{}), true;
    default: return false;
  }
}

template <class Visitor>
bool visit_shifted(unsigned width, Visitor const& visit) {
  switch (width) {
    case 4: return visit(CopyShifted<4, 2>{}), true;
    case 2: return visit(CopyShifted<2, 2>{}), true;
    case 1: return visit(CopyShifted<1, 2>{}), true;
    default: return false;
  }
}

/// Launches of kind copy_runs.
template <class Visitor>
bool visit_runs(Launch const& launch, Visitor const& visit) {
  switch (static_cast<CopyVariant>(launch.variant)) {
    case CopyVariant::words: return visit_words(launch.width, visit);
    case CopyVariant::fours: return visit_fours(launch.width, visit);
    case CopyVariant::shifted: return visit_shifted(launch.width, visit);
    default: return false;
  }
}

/// Launches of kind copy_tiles.
template <class Visitor>
bool visit_tiles(Launch const& launch, Visitor const& visit) {
  bool const packed = static_cast<CopyVariant>(launch.variant) == CopyVariant::packed_tiles;
  switch (launch.width) {
    case 16: return visit(CopyTiles<16, 1>{}), true;
    case 8: return visit(CopyTiles<8, 1>{}), true;
    case 4: return visit(CopyTiles<4, 1>{}), true;
    case 2: return packed ? visit(CopyTiles<2, 2>{}) : visit(CopyTiles<2, 1>{}), true;
    case 1: return packed ? visit(CopyTiles<1, 4>{}) : visit(CopyTiles<1, 1>{}), true;
    default: return false;
  }
}

}  // namespace reshard
