#pragma once

#include <set>
#include <string>
#include <string_view>

#include "core/formats/targets/target.hpp"

namespace reshard {

/// Whether programs that save or publish checkpoints give this name to a file of the checkpoint
/// itself: weights, their index, a tracker, the model's config, its tokenizer. `path` is relative
/// to the checkpoint. Not what a training run or a person puts beside them: a trainer's optimizer
/// state, logs, model cards, code. Nor files of other formats than those that are read.
bool is_checkpoint_file(std::string_view path);

/// The same for a folder that leads to such files.
bool is_checkpoint_folder(std::string_view path);

/// The paths of all files of a target, relative to it.
std::set<std::string> files_to_write(TargetDraft const& draft);

}  // namespace reshard
