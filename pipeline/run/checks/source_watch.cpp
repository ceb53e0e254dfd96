#include "pipeline/run/checks/source_watch.hpp"

#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/transport/in_turn.hpp"

namespace reshard {

void SourceWatch::look(std::size_t file, FileStamp const& now) const {
  compare(source_.files[file], source_.stamps.taken[file], now);
}

void SourceWatch::look_at(FileSet& files) const {
  files.look_at_each(
      [this](std::uint32_t file, File const& opened) { look(file, opened.stamp()); });
}

void SourceWatch::look_again(Comm const& comm) const {
  std::vector<std::size_t> mine;
  for_each_in_turn(comm, source_.files.size(), [&](std::size_t f) { mine.push_back(f); });
  overlapped(mine.size(), [&](std::size_t i) { look(mine[i], stamp_of(source_.files[mine[i]])); });
  for (auto const& [path, stamp] : described_by_) compare(path, stamp, stamp_of(path));
}

void SourceWatch::compare(std::filesystem::path const& path, FileStamp const& before,
                          FileStamp const& now) const {
  auto const what = difference(before, now);
  if (what.empty()) return;
  changed_ = true;
  fail(ErrorKind::io,
       "{}: changed while it was read: {}. Nothing was published: run again when no program writes "
       "the source.",
       path.string(), what);
}

}  // namespace reshard
