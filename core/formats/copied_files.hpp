#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/header_exchange.hpp"
#include "core/formats/stamped_files.hpp"

namespace reshard {

// A file of a rank that was copied over that of another rank reads as if it were right. The CRC-32s
// of its records, which headers state, are then those of the other file. Payloads that
// repeat themselves (zeros, ones), and files with few others, prove nothing: where two files have
// the same sums, the payloads of one are read at their starts and ends.

/// Files of ranks that hold different parts of the same tensors, by number in Checkpoint::files.
using DifferentFiles = std::vector<std::uint32_t>;

/// An Error of kind source where two files of one list have the same records, by
/// Checkpoint::records with their CRC-32s.
void refuse_copied_files(Checkpoint const& checkpoint, std::span<DifferentFiles const> lists);

/// The same for files of boxes, whose records' CRC-32s stand behind the payloads: 16 bytes are read
/// of each file that is laid out like another one, each rank those of some files. Two such files
/// are copies where all records are equal and boxes of the same tensors differ in their places.
/// Experts prove nothing: a model may begin with equal ones.
void refuse_copied_boxes(Checkpoint const& checkpoint, StampedFiles& files,
                         HeaderExchange const& exchange);

}  // namespace reshard
