#include "stages/write/copy_beside.hpp"

#include <algorithm>
#include <vector>

#include "core/base/files/file.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t block_bytes = std::size_t{4} << 20;

void copy_plain_file(fs::path const& from_path, fs::path const& to_path) {
  File const from = File::open_for_reading(from_path);
  File to = File::create(to_path);
  std::vector<std::byte> block(block_bytes);
  for (std::uint64_t at = 0;;) {
    std::size_t const got = from.read_some_at(at, block);
    to.write_at(at, std::span(block).first(got));
    at += got;
    if (got < block.size()) break;
  }
  to.sync();
  to.close();
}

void copy_any(fs::path const& from, fs::path const& to, int depth) {
  constexpr int deepest = 32;
  fs::file_status const status = fs::symlink_status(from);
  if (fs::is_regular_file(status)) return copy_plain_file(from, to);
  if (!fs::is_directory(status) || depth == deepest)
    fail(ErrorKind::source,
         "{}: is neither a regular file nor a folder, so it cannot be copied into the target. "
         "Remove it from the checkpoint, or put a copy in its place.",
         from.string());
  make_folders(to);
  std::error_code error;
  for (fs::directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error))
    copy_any(entry->path(), to / entry->path().filename(), depth + 1);
  if (error) fail_errno(from, "list", error.value());
}

}  // namespace

void copy_beside(fs::path const& from, fs::path const& to) {
  make_folders(to.parent_path());
  copy_any(from, to, 0);
}

}  // namespace reshard
