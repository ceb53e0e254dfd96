#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/run/run_record.hpp"
#include "core/formats/stored_view.hpp"

namespace reshard::dcp {

/// Sorts the tensors of flat buffers, places in StoredTable::tensors, into the view's buffers and
/// states, of which it has none yet. A bucket that lacks a state, states of different sizes and
/// gaps between the numbers of buffers or buckets are Errors of kind source.
void add_flat_buffers(Checkpoint const& checkpoint, std::vector<std::size_t> const& tensors,
                      StoredView& view);

/// Adds the settings and loss scales that groups of ranks saved as objects to the record, a common
/// state, as Megatron does in the forms that can be resharded. Each optimizer gets every parameter
/// group that any of its ranks has. Steps and loss scales that differ, and groups of ranks that
/// have state and no settings, are Errors of kind source.
void gather_settings(Checkpoint const& checkpoint, RunRecord& record);

}  // namespace reshard::dcp
