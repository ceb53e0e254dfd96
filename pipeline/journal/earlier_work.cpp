#include "pipeline/journal/earlier_work.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include <linux/magic.h>
#include <sys/vfs.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/transport/gathered_texts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_ranks = 1U << 20U;

/// Whatever is wrong with a journal: what it has to say is lost, and no more.
std::optional<Journal> read_if_possible(fs::path const& path, JournalLimits const& limits) {
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(path, ignored))) return std::nullopt;
  std::optional<Journal> journal;
  if (capture([&] { journal = read_journal(path); }) || !journal || !keeps_limits(*journal, limits))
    return std::nullopt;
  if (journal->ranks > most_ranks) return std::nullopt;
  return journal;
}

/// Runs with larger numbers are none of ours: checking all smaller ones would not come to
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

std::vector<std::optional<Journal>> ranks_of(JournalFolder const& folder, std::uint64_t run,
                                             JournalLimits const& limits) {
  std::vector<std::optional<Journal>> ranks;
  for (auto const& entry : fs::directory_iterator(folder.path())) {
    auto const rank = rank_of(entry.path().filename().string(), run);
    if (!rank) continue;
    std::optional<Journal> journal = read_if_possible(entry.path(), limits);
    ranks.resize(std::max<std::size_t>({ranks.size(), *rank + 1, journal ? journal->ranks : 0}));
    ranks[*rank] = std::move(journal);
  }
  return ranks;
}

/// As rank 0 has read it: the others get what they need to know, the cells and what is not synced.
EarlierWork read_on_rank_0(JournalFolder const& folder, std::span<std::string const> boots,
                           Comm const& comm, JournalLimits const& limits) {
  EarlierWork earlier;
  std::string cells;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    earlier = earlier_work(folder, boots, limits);
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
  return earlier;
}

/// The sum of all earlier runs becomes the base of the next one; their own files go.
void write_base(JournalFolder const& folder, EarlierWork const& earlier) {
  write_journal(folder.base_file(earlier.runs), earlier.done);
  for (auto const& entry : fs::directory_iterator(folder.path()))
    if (auto const run = run_of(entry.path().filename().string()); run && *run < earlier.runs)
      fs::remove_all(entry.path());
  sync_directory(folder.path());
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

/// The newest base, and what the runs since then are sure to have done.
EarlierWork earlier_work(JournalFolder const& folder, std::span<std::string const> boots,
                         JournalLimits const& limits) {
  std::uint64_t newest = 0;
  for (auto const& entry : fs::directory_iterator(folder.path()))
    if (auto const run = run_of(entry.path().filename().string())) newest = std::max(newest, *run);
  std::uint64_t base = newest;
  std::vector<JournalEntry> entries;
  for (; base > 0; --base)
    if (auto const sum = read_if_possible(folder.base_file(base), limits)) {
      entries = sum->entries;
      break;
    }
  struct statfs system {};
  bool const is_local = ::statfs(folder.path().c_str(), &system) == 0 &&
                        is_local_file_system(static_cast<std::uint64_t>(system.f_type));
  auto const alive = [&](std::string const& boot) {
    return is_local && !boot.empty() && std::find(boots.begin(), boots.end(), boot) != boots.end();
  };
  for (std::uint64_t run = base; run <= newest; ++run) {
    std::vector<std::optional<Journal>> const ranks = ranks_of(folder, run, limits);
    std::vector<JournalEntry> const certain = certain_entries(ranks, alive);
    entries.insert(entries.end(), certain.begin(), certain.end());
  }
  return {.runs = newest + 1, .done = joined(entries)};
}

EarlierWork take_over_work(JournalFolder const& folder, Comm const& comm,
                           JournaledFiles const& files, JournalLimits const& limits) {
  std::vector<std::string> const boots = gathered_texts({this_boot_id()}, comm);
  EarlierWork earlier = read_on_rank_0(folder, boots, comm, limits);
  together(comm, [&] {
    auto const error = capture([&] {
      sync_share(boots, static_cast<std::size_t>(comm.rank()), earlier.done.unsynced, files.sync);
    });
    if (!error) return;
    folder.distrust();
    throw *error;
  });
  together(comm, [&] {
    earlier.done.unsynced.clear();
    if (comm.rank() != 0) return;
    if (!earlier.done.held.empty()) files.write(earlier.done.held);
    earlier.done.held.clear();
    write_base(folder, earlier);
  });
  return earlier;
}

}  // namespace reshard
