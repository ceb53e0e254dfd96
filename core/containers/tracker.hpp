#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// The file in the root of Megatron's saves, legacy or torch_dist, that names the one to load.
inline constexpr std::string_view tracker_name = "latest_checkpointed_iteration.txt";
/// The tracker's text, and the folder's name, for weights of a converter.
inline constexpr std::string_view release_name = "release";

/// A save of a root.
struct SaveStep {
  bool release = false;
  std::int64_t iteration = 0;
  friend bool operator==(SaveStep const&, SaveStep const&) = default;
};

/// The step in the text of a tracker, blanks around it ignored; nullopt for any other text (it is
/// empty for a moment while it is rewritten).
std::optional<SaveStep> step_of_tracker(std::string_view text);

/// The size limit of a tracker, far above any real one.
inline constexpr std::uint64_t largest_tracker_bytes = 4096;

/// Throws an Error of kind source about a tracker without a step, with the saves of the root.
/// `way_out` ends the sentence "Correct it, or …".
[[noreturn]] void refuse_tracker(std::filesystem::path const& root, std::string_view text,
                                 std::string_view way_out);

/// The step in the tracker of `root`. Errors of kind source: refuse_tracker(), a link out of the
/// root, a file above largest_tracker_bytes.
SaveStep read_tracker(std::filesystem::path const& root, std::string_view way_out);

/// The text of a tracker: the decimal number.
std::string tracker_text(std::int64_t iteration);

}  // namespace reshard
