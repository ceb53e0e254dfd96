#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

// Which checkpoint of a listing is the newest, which may still be in the making, which targets are
// surplus: decided from names and times alone.

/// A folder with a checkpoint in it.
struct ListedFolder {
  std::string name;
  std::int64_t newest_ns = 0;  ///< the youngest time of change in it, nanoseconds since 1970; used
                               ///< where names have no numbers
  friend bool operator==(ListedFolder const&, ListedFolder const&) = default;
};

/// The step that a folder's name says: its last run of digits ("iter_0001000": 1000,
/// "epoch-2-step-50": 50); 0 for "release". Nothing without digits, or with more than 18.
std::optional<std::int64_t> step_of_name(std::string_view name);

/// Whether all folders are ordered by the numbers in their names; else their times count.
bool ordered_by_number(std::span<ListedFolder const> folders);

/// The same folders, newest first.
std::vector<ListedFolder> newest_first(std::vector<ListedFolder> folders);

/// The word of latest_checkpointed_iteration.txt about a folder.
enum class TrackerWord {
  nothing,  ///< there is none, or the name has no number, or a lower one
  names,    ///< this one
  beyond,   ///< it names an older one: this one is being written
};
TrackerWord tracker_word(std::string_view name, std::optional<std::int64_t> tracked);

/// A warning where the tracker names a lower step than converted checkpoints have: training went
/// back, and what it had saved beyond that step counts as the newest all the same. "" when there is
/// none. `source` and `target`: the folders of all checkpoints, for the text.
std::string abandoned_note(std::vector<ListedFolder> converted, std::int64_t tracked,
                           std::string const& source, std::string const& target);

/// How long ago the folder changed, in whole seconds, when that is less than the settle time. A
/// time in the future counts as 0.
std::optional<std::int64_t> unsettled_seconds(std::int64_t newest_ns, std::int64_t now_ns,
                                              std::int64_t settle_seconds);

/// Names of the targets to remove, oldest first: all but the newest `keep`, but never `current`,
/// the target of the newest complete checkpoint, and none that is newer. `current` need not be
/// among the targets. None when `current` has no name, for then any of them may be in use, and none
/// with a `keep` of 0.
std::vector<std::string> surplus_targets(std::vector<ListedFolder> targets,
                                         ListedFolder const& current, std::size_t keep);

/// Whether a target `one`, older than `current`, would stay if it were made beside these targets
/// and that of `current`: surplus_targets() would not name it.
bool would_stay(std::vector<ListedFolder> targets, ListedFolder const& current,
                ListedFolder const& one, std::size_t keep);

}  // namespace reshard
