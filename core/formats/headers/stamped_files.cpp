#include "core/formats/headers/stamped_files.hpp"

#include <ctime>
#include <utility>

#include "core/base/text/wire.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A file with its stamp on the rank that opened it.
struct Stamped {
  std::uint64_t file = 0;
  FileStamp stamp;
};

constexpr auto wire_fields(Stamped const&) { return std::tuple(&Stamped::file, &Stamped::stamp); }

/// "2026-11-28 12:03:10.387628509 UTC".
std::string date(std::int64_t nanoseconds) {
  constexpr std::int64_t second = 1'000'000'000;
  std::int64_t const rest = (nanoseconds % second + second) % second;
  std::time_t const seconds = (nanoseconds - rest) / second;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:09} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     rest);
}

}  // namespace

StampedFiles::StampedFiles(FilePaths files)
    : paths_(std::move(files)), set_(paths_, FileSet::Access::read), stamps_(paths_.size()) {}

std::shared_ptr<File const> StampedFiles::open(std::uint32_t file) {
  auto const opened = set_.open(file);
  std::lock_guard const lock(mutex_);
  if (auto& stamp = stamps_[file]; !stamp) stamp = opened->file().stamp();
  return {opened, &opened->file()};
}

void StampedFiles::give_stamps(Checkpoint& source, HeaderExchange const& exchange) {
  std::vector<Stamped> mine;
  for (std::size_t f = 0; f < stamps_.size(); ++f)
    if (stamps_[f]) mine.push_back({f, *stamps_[f]});
  std::vector<std::string> const all = exchange.all_gather(WireWriter().put(mine).bytes());
  source.stamps.taken.assign(stamps_.size(), {});
  source.stamps.rank.assign(stamps_.size(), -1);
  exchange.together([&] {
    for (std::size_t r = 0; r < all.size(); ++r) add_stamps(source, static_cast<int>(r), all[r]);
  });
  exchange.together_seeing([&] {
    for (std::size_t f = 0; f < paths_.size(); ++f) {
      if (source.stamps.rank[f] >= 0) continue;
      source.stamps.taken[f] = File::open_for_reading(paths_[f]).stamp();
      source.stamps.rank[f] = 0;
    }
  });
}

void StampedFiles::add_stamps(Checkpoint& source, int rank, std::string const& stamps) const {
  for (auto const& [file, stamp] :
       WireReader(stamps, "the stamps of a rank").all<std::vector<Stamped>>()) {
    RESHARD_EXPECT(file < paths_.size());
    FileStamp& first = source.stamps.taken[file];
    int& stamper = source.stamps.rank[file];
    if (stamper >= 0 && !difference(first, stamp).empty())
      refuse_two_worlds(paths_[file], rank, stamp, stamper, first);
    if (stamper >= 0) continue;
    first = stamp;
    stamper = rank;
  }
}

std::string difference(FileStamp const& one, FileStamp const& other) {
  auto const pair = [](std::string_view what, auto a, auto b) {
    return fmt::format("{} {} against {}", what, a, b);
  };
  if (one.bytes != other.bytes) return pair("size", one.bytes, other.bytes);
  if (one.mtime_ns != other.mtime_ns)
    return pair("time of change", date(one.mtime_ns), date(other.mtime_ns));
  if (one.inode != other.inode) return pair("inode", one.inode, other.inode);
  if (one.ctime_ns != other.ctime_ns)
    return pair("time of the inode's change", date(one.ctime_ns), date(other.ctime_ns));
  return "";
}

void refuse_two_worlds(fs::path const& file, int rank, FileStamp const& seen, int other_rank,
                       FileStamp const& other) {
  fail(ErrorKind::source,
       "{}: rank {} sees a different file than rank {}: {}. All ranks must see the same "
       "source: put it on a file system that all nodes share. If it has just been changed, run "
       "again.",
       file.string(), rank, other_rank, difference(seen, other));
}

}  // namespace reshard
