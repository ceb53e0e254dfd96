#include "pipeline/nightly/nightly_checkpoint.hpp"

#include <chrono>
#include <thread>

#include "core/base/file.hpp"
#include "core/base/paths.hpp"
#include "core/base/text.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/containers/tracker.hpp"
#include "core/formats/format.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "pipeline/describe/look.hpp"
#include "pipeline/records/source_stamp.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

bool is_file(fs::path const& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// "latest" and the like: the checkpoint is listed under its own name.
bool links_to_neighbour(fs::path const& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return false;
  fs::path const real = resolved_path(path, error);
  return !error && real.parent_path() == resolved_path(path.parent_path(), error);
}

/// What a tracker says, read while no program rewrites it.
std::optional<std::int64_t> parsed_tracker(std::string const& text) {
  auto const step = step_of_tracker(text);
  if (!step) return std::nullopt;
  return step->release ? step_of_name(release_name) : step->iteration;
}

/// Signs of a save that has not come to its end, by names alone.
std::string missing_mark(fs::path const& folder) {
  for (Format const* format : recognise(folder))
    if (std::string mark = format->why_incomplete(folder); !mark.empty()) return mark;
  return "";
}

}  // namespace

bool holds_checkpoint(fs::path const& folder) {
  bool found = false;
  // A folder that cannot be listed holds nothing that could be read.
  (void)capture([&] { found = !recognise(folder).empty(); });
  return found;
}

std::vector<ListedFolder> checkpoints_in(fs::path const& folder) {
  std::error_code error;
  std::vector<ListedFolder> found;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    std::string const name = it->path().filename().string();
    if (is_unfinished_name(name) || !it->is_directory(ignored) || links_to_neighbour(it->path()))
      continue;
    if (holds_checkpoint(it->path())) found.push_back({name, 0});
  }
  if (error)
    fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
         folder.string(), error.message());
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

std::string why_incomplete(fs::path const& checkpoint) {
  std::string reason;
  auto const error = capture([&] {
    reason = missing_mark(checkpoint);
    if (!reason.empty()) return;
    Inspection const found = inspect(checkpoint, {}, "");
    if (found.sound) return;
    Json const* const mismatches = found.json.find("mismatches");
    bool const named =
        mismatches != nullptr && mismatches->items() != nullptr && !mismatches->items()->empty();
    Json const first = named ? mismatches->items()->front() : Json();
    reason =
        fmt::format("is incomplete: {}", first.text() != nullptr ? *first.text() : first.dump());
  });
  return error ? "is incomplete: " + error->sentence() : reason;
}

}  // namespace reshard
