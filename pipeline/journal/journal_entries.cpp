#include "pipeline/journal/journal_entries.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace reshard {
namespace {

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
    auto const after = taken.lower_bound(range.end);  // the first that begins after it
    if (range.begin < range.end && after != taken.begin() && std::prev(after)->second > range.begin)
      return true;
  }
  return false;
}

}  // namespace

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
    all.kept.insert(all.kept.end(), entry.kept.begin(), entry.kept.end());
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

bool keeps_limits(Journal const& journal, JournalLimits const& limits) {
  auto const below = [](std::vector<SumShare> const& shares, std::size_t limit) {
    return std::all_of(shares.begin(), shares.end(),
                       [&](SumShare const& one) { return one.number < limit; });
  };
  std::size_t const files = limits.file_bytes.size();
  return std::all_of(
      journal.entries.begin(), journal.entries.end(), [&](JournalEntry const& entry) {
        bool const cells =
            std::all_of(entry.cells.begin(), entry.cells.end(), [&](CellRange const& range) {
              return range.begin <= range.end && range.end <= limits.cells;
            });
        bool const held = std::ranges::all_of(entry.held, [&](HeldBytes const& one) {
          auto const& [offset, bytes] = one.segment;
          return one.file < files && offset <= limits.file_bytes[one.file] &&
                 bytes.size() <= limits.file_bytes[one.file] - offset;
        });
        bool const kept = std::ranges::all_of(entry.kept, [&](FileSpan const& one) {
          return one.file < files && one.begin < one.end;
        });
        bool const unsynced = entry.unsynced.empty() || *entry.unsynced.rbegin() < files;
        bool const sources =
            below(entry.sources, limits.sources) && below(entry.covered, limits.sources);
        bool const counts = below(entry.digested, limits.digests) && below(entry.written, files);
        return cells && held && kept && unsynced && sources && counts &&
               below(entry.digests, limits.digests) && below(entry.records, limits.records) &&
               below(entry.files, limits.file_sums);
      });
}

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

}  // namespace reshard
