#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/formats/headers/header_exchange.hpp"
#include "core/formats/headers/stamped_files.hpp"

namespace reshard {

// A file of a rank that was overwritten with that of another rank reads without an error, but the
// CRC-32s of its records, in the headers, are those of the other file. Constant payloads (zeros,
// ones), and files with few others, are no proof: if two files have the same sums, the payloads of
// one are read at their starts and ends.

/// Files of ranks with different parts of the same tensors, by number in Checkpoint::files.
using DifferentFiles = std::vector<std::uint32_t>;

/// Throws an Error of kind source if two files of one list have the same records, by
/// Checkpoint::records with their CRC-32s.
void refuse_copied_files(Checkpoint const& checkpoint, std::span<DifferentFiles const> lists);

/// As refuse_copied_files(), for files of boxes, whose records' CRC-32s follow the payloads: 16
/// bytes are read of each file with the layout of another one, each rank those of some files. Two
/// such files are copies if all records are equal and boxes of the same tensors differ in their
/// offsets. Experts are no proof: a model may begin with equal ones.
void refuse_copied_boxes(Checkpoint const& checkpoint, StampedFiles& files,
                         HeaderExchange const& exchange);

}  // namespace reshard
