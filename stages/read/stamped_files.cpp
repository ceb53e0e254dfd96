#include "stages/read/stamped_files.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

#include "core/transport/shared_sight.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::uint64_t file = 0;
  FileStamp stamp;
};
static_assert(std::is_trivially_copyable_v<Line>);

}  // namespace

StampedFiles::StampedFiles(std::vector<fs::path> const& files) : paths_(files), set_(files, FileSet::Access::read), stamps_(files.size()) {}

std::shared_ptr<File const> StampedFiles::open(std::uint32_t file) {
  auto opened = set_.open(file);
  if (auto& stamp = stamps_[file]; !stamp) stamp = opened->stamp();
  return opened;
}

std::vector<FileStamp> StampedFiles::gathered(Comm const& comm) {
  std::string mine;
  for (std::size_t f = 0; f < stamps_.size(); ++f) {
    if (!stamps_[f]) continue;
    Line const line{f, *stamps_[f]};
    mine.append(reinterpret_cast<char const*>(&line), sizeof line);
  }
  std::vector<std::string> const all = comm.all_gather(mine);
  std::vector<std::optional<std::pair<int, FileStamp>>> found(stamps_.size());
  together(comm, [&] {
    for (std::size_t r = 0; r < all.size(); ++r)
      for (std::size_t at = 0; at < all[r].size(); at += sizeof(Line)) {
        Line line;
        RESHARD_EXPECT(all[r].size() - at >= sizeof line);
        std::memcpy(&line, all[r].data() + at, sizeof line);
        auto& first = found.at(line.file);
        if (!first)
          first.emplace(static_cast<int>(r), line.stamp);
        else if (!difference(first->second, line.stamp).empty())
          refuse_two_worlds(paths_[line.file], first->first, first->second, static_cast<int>(r), line.stamp);
      }
  });
  std::vector<FileStamp> stamps;
  together_seeing(comm, [&] {
    for (std::size_t f = 0; f < found.size(); ++f)
      stamps.push_back(found[f] ? found[f]->second : File::open_for_reading(paths_[f]).stamp());
  });
  return stamps;
}

std::string difference(FileStamp const& one, FileStamp const& other) {
  auto const pair = [](std::string_view what, auto a, auto b) { return fmt::format("{} {} against {}", what, a, b); };
  if (one.bytes != other.bytes) return pair("size", one.bytes, other.bytes);
  if (one.mtime_ns != other.mtime_ns) return pair("time of change in ns", one.mtime_ns, other.mtime_ns);
  if (one.inode != other.inode) return pair("inode", one.inode, other.inode);
  if (one.ctime_ns != other.ctime_ns) return pair("time of the inode's change in ns", one.ctime_ns, other.ctime_ns);
  return "";
}

void refuse_two_worlds(fs::path const& file, int rank, FileStamp const& seen, int other_rank, FileStamp const& other) {
  fail(ErrorKind::source,
       "{}: rank {} sees another file there than rank {}: {}. All ranks must see the same source: put it on a file system that all nodes share, not a copy "
       "on each; if it was changed just now, run again.",
       file.string(), rank, other_rank, difference(seen, other));
}

}  // namespace reshard
