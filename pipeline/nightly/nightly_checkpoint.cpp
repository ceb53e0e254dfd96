#include "pipeline/nightly/nightly_checkpoint.hpp"

#include <chrono>
#include <thread>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/containers/tracker.hpp"
#include "core/formats/format.hpp"
#include "core/formats/run/run_saves.hpp"
#include "pipeline/records/source_stamp.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

bool is_file(fs::path const& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The step in a tracker, read while no program rewrites it.
std::optional<std::int64_t> parsed_tracker(std::string const& text) {
  auto const step = step_of_tracker(text);
  if (!step) return std::nullopt;
  return step->release ? step_of_name(release_name) : step->iteration;
}

}  // namespace

bool holds_checkpoint(fs::path const& folder) {
  bool found = false;
  // A folder that cannot be listed holds nothing that could be read.
  (void)capture([&] { found = !recognise(folder).empty(); });
  return found;
}

std::vector<ListedFolder> checkpoints_in(fs::path const& folder) {
  std::vector<ListedFolder> found;
  for (std::string& name : saves_below(folder)) found.push_back({std::move(name), 0});
  if (!ordered_by_number(found))
    for (ListedFolder& one : found)
      (void)capture([&] { one.newest_ns = source_stamp(folder / one.name).newest_ns; });
  return found;
}

Tracked tracked_step(fs::path const& folder) {
  fs::path const path = folder / tracker_name;
  std::string text;
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (!is_file(path)) return {};
    text = read_text_file(path, largest_tracker_bytes);
    if (auto const step = parsed_tracker(text)) return {step, false};
    std::this_thread::sleep_for(
        std::chrono::milliseconds(100));  // it is empty for a moment while it is rewritten
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {std::nullopt, true};
  refuse_tracker(folder, text, "remove it if no program writes it");
}

}  // namespace reshard
