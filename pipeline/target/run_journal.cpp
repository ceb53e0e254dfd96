#include "pipeline/target/run_journal.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/file.hpp"
#include "core/base/file_time.hpp"
#include "core/base/retry.hpp"
#include "core/base/text.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "pipeline/target/file_records.hpp"
#include "pipeline/target/gathered_texts.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view job_file = "job";
constexpr std::string_view lost_file = "job.lost";
constexpr std::string_view spec_file = "job.toml";
constexpr std::string_view complete_file = "complete";
constexpr std::uint64_t most_spec_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t most_identity_bytes = 4096;
constexpr std::uint64_t most_complete_bytes = std::uint64_t{256} << 20;

/// A folder keeps its inode under every name. The number of a device means something only until the
/// machine is started again.
std::string staging_line(fs::path const& staging) {
  struct stat status {};
  if (::lstat(staging.c_str(), &status) != 0) return "";
  return fmt::format("staging {} {} {}\n", status.st_ino, status.st_dev, this_boot_id());
}

/// "staging INODE DEVICE BOOT": the folder that is there now, as far as the numbers mean something
/// here.
bool is_line_of(std::string const& line, fs::path const& staging) {
  std::istringstream words(line);
  std::string word;
  std::string boot;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;
  struct stat status {};
  if (!(words >> word >> inode >> device >> boot) || ::lstat(staging.c_str(), &status) != 0)
    return false;
  return inode == status.st_ino && (boot != this_boot_id() || device == status.st_dev);
}

/// One line for a file or folder: opened, so that a client of a network file system asks its
/// server.
std::string line_of(fs::path const& path, fs::path const& root) {
  int const descriptor =
      retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (descriptor < 0) fail_errno(path, "open", errno);
  struct stat status {};
  bool const seen = retried([&] { return ::fstat(descriptor, &status); }) == 0;
  int const reason = errno;
  ::close(descriptor);
  if (!seen) fail_errno(path, "stat", reason);
  std::string const name = path.lexically_relative(root).generic_string();
  if (S_ISDIR(status.st_mode)) return fmt::format("folder {} {}\n", status.st_ino, name);
  return fmt::format("{} {} {} {} {}\n", status.st_size, nanoseconds_since_1970(status.st_mtim),
                     nanoseconds_since_1970(status.st_ctim), status.st_ino, name);
}

/// What a folder holds, with the digest of its manifest where it has one; "" when it cannot be
/// looked at.
std::string contents_of(fs::path const& root) {
  std::vector<std::string> lines;
  std::string manifest = "-";
  auto const error = capture([&] {
    for (auto const& entry : fs::recursive_directory_iterator(root))
      lines.push_back(line_of(entry.path(), root));
    if (fs::is_regular_file(fs::symlink_status(root / manifest_name)))
      manifest = hex64(record_of(root / manifest_name, root).xxh3);
  });
  if (error) return "";
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (std::string const& line : lines) text += line;
  return fmt::format("{}manifest {}\n", text, manifest);
}

/// The sums of one kind of several entries.
class Sums {
 public:
  enum class Way { combined, added };
  Sums(std::vector<SumShare> JournalEntry::*list, Way way) : list_(list), way_(way) {}

  void take(JournalEntry const& entry) {
    for (SumShare const& one : entry.*list_) {
      std::uint64_t& sum = by_number_[one.number];
      sum = way_ == Way::combined ? sum ^ one.value : sum + one.value;
    }
  }
  void give(JournalEntry& entry) const {
    for (auto const& [number, value] : by_number_)
      if (value != 0) (entry.*list_).push_back({number, value});
  }

 private:
  std::vector<SumShare> JournalEntry::*list_;
  Way way_;
  std::map<std::uint64_t, std::uint64_t> by_number_;
};

std::vector<Sums> all_sums() {
  return {
      {&JournalEntry::digests, Sums::Way::combined}, {&JournalEntry::records, Sums::Way::combined},
      {&JournalEntry::files, Sums::Way::combined},   {&JournalEntry::sources, Sums::Way::combined},
      {&JournalEntry::covered, Sums::Way::added},    {&JournalEntry::digested, Sums::Way::added},
      {&JournalEntry::written, Sums::Way::added}};
}

/// Whether one of the ranges has cells that are taken, or that another of them has.
bool overlaps(std::map<std::size_t, std::size_t> const& taken, std::vector<CellRange> ranges) {
  std::ranges::sort(ranges, {}, &CellRange::begin);
  std::size_t end = 0;
  for (CellRange const& range : ranges) {
    if (range.begin < range.end && range.begin < end) return true;
    end = std::max(end, range.end);
    auto const after = taken.lower_bound(range.end);  // the first that begins behind it
    if (range.begin < range.end && after != taken.begin() && std::prev(after)->second > range.begin)
      return true;
  }
  return false;
}

/// What a round did, in numbers of the whole plan; cells that follow each other there are one
/// range.
std::vector<CellRange> in_whole_plan(std::span<CellRange const> ranges,
                                     std::span<std::uint32_t const> kept) {
  std::vector<CellRange> whole;
  for (CellRange const& range : ranges)
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (whole.empty() || whole.back().end != kept[i]) whole.push_back({kept[i], kept[i]});
      ++whole.back().end;
    }
  return whole;
}

constexpr std::size_t most_ranks = 1U << 20U;

/// Whatever is wrong with a journal: what it has to say is lost, and no more.
std::optional<Journal> read_if_possible(fs::path const& path, RunJournal::Limits const& limits) {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(path, ignored))) return std::nullopt;
  std::optional<Journal> journal;
  if (capture([&] { journal = read_journal(path); }) || !journal || !keeps_limits(*journal, limits))
    return std::nullopt;
  if (journal->ranks > most_ranks) return std::nullopt;
  return journal;
}

/// ": layout.tp = 2" for the lines of a job that were others before; "" when that cannot be found
/// out.
std::string changed_keys_of(fs::path const& before, std::string const& now) {
  std::string text;
  if (capture([&] { text = read_text_file(before, most_spec_bytes); })) return "";
  std::set<std::string> known;
  std::istringstream old_lines(text);
  for (std::string line; std::getline(old_lines, line);) known.insert(line);
  std::vector<std::string> changed;
  std::istringstream lines(now);
  for (std::string line; std::getline(lines, line);)
    if (!known.contains(line)) changed.push_back(line);
  return changed.empty() ? "" : ": " + listed(changed, 4);
}

/// Runs with larger numbers are none of ours: whoever looks at all smaller ones would not come to
/// an end.
constexpr std::uint64_t most_runs = 1'000'000;

/// The first number of a name: "0002-00007" gives 2.
std::optional<std::uint64_t> run_of(std::string const& name) {
  std::uint64_t run = 0;
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), run);
  if (error != std::errc() || end == name.data() || run > most_runs) return std::nullopt;
  return run;
}

/// The second number of the name of a rank's journal of this run.
std::optional<std::size_t> rank_of(std::string const& name, std::uint64_t run) {
  std::string const beginning = fmt::format("{:04}-", run);
  std::size_t rank = 0;
  if (!name.starts_with(beginning)) return std::nullopt;
  auto const [end, error] =
      std::from_chars(name.data() + beginning.size(), name.data() + name.size(), rank);
  if (error != std::errc() || end != name.data() + name.size() || rank >= most_ranks)
    return std::nullopt;
  return rank;
}

/// The ranks of a machine share the files.
void sync_share(std::span<std::string const> boots, std::size_t rank,
                std::set<std::uint32_t> const& numbers,
                std::function<void(std::uint32_t)> const& sync) {
  std::vector<std::uint32_t> const all(numbers.begin(), numbers.end());
  auto const ranks = static_cast<std::size_t>(std::count(boots.begin(), boots.end(), boots[rank]));
  auto const before = static_cast<std::size_t>(
      std::count(boots.begin(), boots.begin() + static_cast<std::ptrdiff_t>(rank), boots[rank]));
  for (std::size_t i = before; i < all.size(); i += ranks) sync(all[i]);
}

}  // namespace

void sync_on_every_machine(Comm const& comm, std::set<std::uint32_t> const& files,
                           std::function<void(std::uint32_t)> const& sync) {
  std::vector<std::string> const boots = gathered_texts({this_boot_id()}, comm);
  together(comm, [&] { sync_share(boots, static_cast<std::size_t>(comm.rank()), files, sync); });
}

JournalEntry joined(std::span<JournalEntry const> entries) {
  JournalEntry all;
  std::vector<Sums> sums = all_sums();
  std::map<std::size_t, std::size_t> taken;  // ranges of cells: begin, end
  for (JournalEntry const& entry : entries) {
    if (overlaps(taken, entry.cells)) continue;
    for (CellRange const& range : entry.cells)
      if (range.begin < range.end) taken.emplace(range.begin, range.end);
    all.bytes += entry.bytes;
    for (Sums& one : sums) one.take(entry);
    all.held.insert(all.held.end(), entry.held.begin(), entry.held.end());
    all.unsynced.insert(entry.unsynced.begin(), entry.unsynced.end());
  }
  for (auto const& [begin, end] : taken) {
    if (!all.cells.empty() && all.cells.back().end == begin)
      all.cells.back().end = end;
    else
      all.cells.push_back({begin, end});
  }
  for (Sums const& one : sums) one.give(all);
  return all;
}

std::vector<JournalEntry> certain_entries(std::span<std::optional<Journal> const> ranks,
                                          std::function<bool(std::string const&)> const& alive) {
  std::uint64_t rounds = UINT64_MAX;
  auto const certain = [&](Journal const& journal) {
    return alive(journal.boot_id) ? journal.entries.size() : journal.synced;
  };
  for (std::optional<Journal> const& journal : ranks)
    rounds = std::min<std::uint64_t>(rounds, journal ? certain(*journal) : 0);
  std::vector<JournalEntry> entries;
  for (std::optional<Journal> const& journal : ranks) {
    if (!journal) continue;
    std::size_t const count = journal->lockstep ? rounds : certain(*journal);
    for (std::size_t i = 0; i < count; ++i) {
      entries.push_back(journal->entries[i]);
      if (i < journal->synced) entries.back().unsynced.clear();
    }
  }
  return entries;
}

bool keeps_limits(Journal const& journal, RunJournal::Limits const& limits) {
  auto const below = [](std::vector<SumShare> const& shares, std::size_t limit) {
    return std::all_of(shares.begin(), shares.end(),
                       [&](SumShare const& one) { return one.number < limit; });
  };
  return std::all_of(
      journal.entries.begin(), journal.entries.end(), [&](JournalEntry const& entry) {
        bool const cells =
            std::all_of(entry.cells.begin(), entry.cells.end(), [&](CellRange const& range) {
              return range.begin <= range.end && range.end <= limits.cells;
            });
        bool const held = std::ranges::all_of(
            entry.held, [&](HeldBytes const& one) { return one.file < limits.files; });
        bool const unsynced = entry.unsynced.empty() || *entry.unsynced.rbegin() < limits.files;
        bool const sources =
            below(entry.sources, limits.sources) && below(entry.covered, limits.sources);
        bool const counts =
            below(entry.digested, limits.digests) && below(entry.written, limits.files);
        return cells && held && unsynced && sources && counts &&
               below(entry.digests, limits.digests) && below(entry.records, limits.records) &&
               below(entry.files, limits.files);
      });
}

bool is_local_file_system(std::uint64_t type) {
  constexpr std::uint64_t zfs = 0x2fc12fc1;
  constexpr std::uint64_t bcachefs = 0xca451a4e;
  constexpr std::uint64_t xfs = 0x58465342;
  constexpr std::array<std::uint64_t, 10> local = {EXT4_SUPER_MAGIC,  xfs,
                                                   BTRFS_SUPER_MAGIC, TMPFS_MAGIC,
                                                   RAMFS_MAGIC,       OVERLAYFS_SUPER_MAGIC,
                                                   F2FS_SUPER_MAGIC,  zfs,
                                                   bcachefs,          REISERFS_SUPER_MAGIC};
  return std::find(local.begin(), local.end(), type & 0xffffffffU) != local.end();
}

std::optional<std::string> RunJournal::obstacle(fs::path const& staging,
                                                JobIdentity const& identity) const {
  std::error_code ignored;
  for (fs::path const& folder : {staging, folder_})
    if (!fs::is_directory(fs::symlink_status(folder, ignored)))
      return folder.filename().string() + " is no folder";
  if (fs::exists(fs::symlink_status(folder_ / lost_file, ignored)))
    return "a sync had failed, so it may have lost what it wrote";
  if (!fs::is_regular_file(fs::symlink_status(folder_ / job_file, ignored)))
    return "its journal is incomplete";
  std::string text;
  if (capture([&] { text = read_text_file(folder_ / job_file, most_identity_bytes); }))
    return "its journal cannot be read";
  std::size_t const last = text.rfind("staging ");
  auto const before =
      last == std::string::npos ? std::nullopt : parse_identity(text.substr(0, last));
  if (!before) return "its journal cannot be read";
  if (!is_line_of(text.substr(last), staging)) return "its journal speaks of another folder";
  std::string changed = difference(*before, identity);
  if (changed.empty()) return std::nullopt;
  if (before->job != identity.job)
    changed += changed_keys_of(folder_ / spec_file, identity.job_text);
  return changed;
}

bool RunJournal::is_of(fs::path const& staging) const {
  std::string text;
  if (capture([&] { text = read_text_file(folder_ / job_file, most_identity_bytes); }))
    return false;
  std::size_t const last = text.rfind("staging ");
  return last != std::string::npos && is_line_of(text.substr(last), staging);
}

void RunJournal::create(fs::path const& staging, JobIdentity const& identity,
                        std::string const& nightly_source) const {
  if (!nightly_source.empty()) write_text_file(folder_ / journal_source_name, nightly_source);
  write_text_file(folder_ / spec_file, identity.job_text);
  // Under another name first: half a line is none.
  write_text_file(folder_ / "job.new", identity_text(identity) + staging_line(staging));
  rename_path(folder_ / "job.new", folder_ / job_file);
  sync_directory(folder_);
  sync_directory(folder_.parent_path());
}

void RunJournal::mark_complete(fs::path const& staging) const {
  std::string const contents = contents_of(staging);
  if (contents.empty())
    fail(
        ErrorKind::io,
        "{}: cannot be listed and read again, or a file in it was replaced by a link. Look what else writes there, then run again.",
        staging.string());
  fs::path const made = folder_ / fmt::format("{}.new", complete_file);
  write_text_file(made, contents);
  fs::rename(made, folder_ / complete_file);
  sync_directory(folder_);
}

bool RunJournal::is_complete(fs::path const& staging) const {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(folder_ / complete_file, ignored))) return false;
  std::string noted;
  if (capture([&] { noted = read_text_file(folder_ / complete_file, most_complete_bytes); }))
    return false;
  return !noted.empty() && noted == contents_of(staging);
}

void RunJournal::distrust() const {
  capture([&] { rename_path(folder_ / job_file, folder_ / lost_file); });
  capture([&] { sync_directory(folder_); });
}

fs::path RunJournal::rank_file(std::uint64_t run, int rank) const {
  return folder_ / fmt::format("{:04}-{:05}", run, rank);
}
fs::path RunJournal::base_file(std::uint64_t run) const {
  return folder_ / fmt::format("{:04}.base", run);
}

std::vector<std::optional<Journal>> RunJournal::ranks_of(std::uint64_t run,
                                                         Limits const& limits) const {
  std::vector<std::optional<Journal>> ranks;
  for (auto const& entry : fs::directory_iterator(folder_)) {
    auto const rank = rank_of(entry.path().filename().string(), run);
    if (!rank) continue;
    std::optional<Journal> journal = read_if_possible(entry.path(), limits);
    ranks.resize(std::max<std::size_t>({ranks.size(), *rank + 1, journal ? journal->ranks : 0}));
    ranks[*rank] = std::move(journal);
  }
  return ranks;
}

/// The newest base, and what the runs since then are sure to have done.
EarlierWork RunJournal::read(std::span<std::string const> boots, Limits const& limits) const {
  std::uint64_t newest = 0;
  for (auto const& entry : fs::directory_iterator(folder_))
    if (auto const run = run_of(entry.path().filename().string())) newest = std::max(newest, *run);
  std::uint64_t base = newest;
  std::vector<JournalEntry> entries;
  for (; base > 0; --base)
    if (auto const sum = read_if_possible(base_file(base), limits)) {
      entries = sum->entries;
      break;
    }
  struct statfs system {};
  bool const is_local = ::statfs(folder_.c_str(), &system) == 0 &&
                        is_local_file_system(static_cast<std::uint64_t>(system.f_type));
  auto const alive = [&](std::string const& boot) {
    return is_local && !boot.empty() && std::find(boots.begin(), boots.end(), boot) != boots.end();
  };
  for (std::uint64_t run = base; run <= newest; ++run) {
    std::vector<std::optional<Journal>> const ranks = ranks_of(run, limits);
    std::vector<JournalEntry> const certain = certain_entries(ranks, alive);
    entries.insert(entries.end(), certain.begin(), certain.end());
  }
  return {.runs = newest + 1, .done = joined(entries)};
}

EarlierWork RunJournal::take_over(Comm const& comm, TargetFiles const& files,
                                  Limits const& limits) {
  std::vector<std::string> const boots = gathered_texts({this_boot_id()}, comm);
  EarlierWork earlier;
  std::string cells;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    earlier = read(boots, limits);
    JournalEntry bare;
    bare.round = earlier.runs;
    bare.bytes = earlier.done.bytes;
    bare.cells = earlier.done.cells;
    bare.unsynced = earlier.done.unsynced;
    cells = journal_block(bare);
  });
  cells = comm.broadcast(std::move(cells), 0);
  together(comm, [&] {
    if (comm.rank() == 0) return;
    auto bare = parse_journal_block(cells);
    RESHARD_EXPECT(bare);
    earlier.runs = bare->round;
    earlier.done = *std::move(bare);
  });
  together(comm, [&] {
    auto const error = capture([&] {
      sync_share(boots, static_cast<std::size_t>(comm.rank()), earlier.done.unsynced, files.sync);
    });
    if (!error) return;
    distrust();
    throw *error;
  });
  together(comm, [&] {
    run_ = earlier.runs;
    earlier.done.unsynced.clear();
    if (comm.rank() != 0) return;
    if (!earlier.done.held.empty()) files.write(earlier.done.held);
    earlier.done.held.clear();
    write_journal(base_file(run_), earlier.done);
    for (auto const& entry : fs::directory_iterator(folder_))
      if (auto const run = run_of(entry.path().filename().string()); run && *run < run_)
        fs::remove_all(entry.path());
    sync_directory(folder_);
  });
  return earlier;
}

void RunJournal::begin(Comm const& comm, Writing writing) {
  kept_ = std::move(writing.kept);
  auto const sync_file = [this, sync = std::move(writing.sync_file)](std::uint32_t file) {
    auto const error = capture([&] { sync(file); });
    if (!error) return;
    distrust();
    throw *error;
  };
  writer_ = std::make_unique<JournalWriter>(
      JournalWriter::Parts{.path = rank_file(run_, comm.rank()),
                           .ranks = static_cast<std::uint64_t>(comm.size()),
                           .lockstep = writing.lockstep,
                           .sync_file = sync_file});
}

void RunJournal::end() {
  if (writer_) writer_->end();
  writer_.reset();
}

void RunJournal::add(JournalEntry entry, std::span<Extent const> writes) {
  if (!kept_.empty()) entry.cells = in_whole_plan(entry.cells, kept_);
  writer_->add(entry, writes);
}

}  // namespace reshard
