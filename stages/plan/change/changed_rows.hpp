#pragma once

#include "core/formats/checkpoint.hpp"
#include "core/formats/format_id.hpp"
#include "core/formats/model_changes.hpp"
#include "core/formats/source_model.hpp"

namespace reshard {

/// Gives the model ModelChanges::vocab_size rows of tokens: rows are cut off its weights and their
/// state, or added behind them, zeros, a mean, or those of Checkpoint::new_rows. Errors of kind
/// usage: rows that the job does not give, weights to which none can be added; of kind source: a
/// file of rows that does not fit.
void change_rows(Checkpoint const& source, ModelChanges const& changes, FormatId target,
                 SourceModel& read);

}  // namespace reshard
