#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// The file in the root of Megatron's saves, legacy or torch_dist, that names the one to load.
inline constexpr std::string_view tracker_name = "latest_checkpointed_iteration.txt";
/// What it says, and the folder's name, for weights of a converter.
inline constexpr std::string_view release_name = "release";

/// A save of a root.
struct SaveStep {
  bool release = false;
  std::int64_t iteration = 0;
  friend bool operator==(SaveStep const&, SaveStep const&) = default;
};

/// What the text of a tracker says, without blanks around it; nothing when it is not such a text
/// (it is empty for a moment while it is rewritten).
std::optional<SaveStep> step_of_tracker(std::string_view text);

/// A tracker is smaller by far.
inline constexpr std::uint64_t largest_tracker_bytes = 4096;

/// An Error of kind source about a tracker whose text says nothing, with the saves that are there.
/// `way_out` ends the sentence "Correct it, or …".
[[noreturn]] void refuse_tracker(std::filesystem::path const& root, std::string_view text,
                                 std::string_view way_out);

/// What the tracker of `root` says. Errors of kind source: as above, a link out of the root, a file
/// that is far too large.
SaveStep read_tracker(std::filesystem::path const& root, std::string_view way_out);

/// What the tracker holds: the decimal number.
std::string tracker_text(std::int64_t iteration);

}  // namespace reshard
