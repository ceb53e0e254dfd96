#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

// The folder of a training run: which saves lie in it, what they lack, and which one is taken. All
// commands ask here.

/// Names of the folders in `run` that hold a save of any format, complete or not: a checkpoint,
/// what is left of one, or a save of a program that keeps weights below it (shapes.hpp). Left out
/// are names of unfinished things and links to a neighbour.
std::vector<std::string> saves_below(std::filesystem::path const& run);

/// Whether a name is one that programs give to saves: "iter_0000010", "checkpoint-500".
bool is_name_of_save(std::string_view name);

/// Whether the names in a folder are those of one checkpoint, beside which others may lie.
bool is_one_save(std::filesystem::path const& path);

/// The lack of an incomplete save, as a clause without its subject; "" when it is complete: the
/// file that is written last is there, all files have the sizes that headers and catalogues state.
/// Reads headers.
std::string why_incomplete(std::filesystem::path const& save);

/// A file of a run that names the save to load, such as Megatron's tracker or DeepSpeed's `latest`,
/// and its text without blanks around it.
struct SaveNamer {
  std::string file;
  std::string text;
};
std::vector<SaveNamer> save_namers(std::filesystem::path const& run);

/// The newest complete save of a run, where no file names one and the path is no checkpoint itself;
/// else the path. Looks through Sight.
std::filesystem::path newest_save(std::filesystem::path const& path);

}  // namespace reshard
