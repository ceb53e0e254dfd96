#include "pipeline/publication/work_account.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/transport/sum_all.hpp"
#include "pipeline/records/target_check.hpp"

namespace reshard {
namespace {

constexpr std::string_view advice =
    "Nothing was published, and what was written is removed: run the job again. If it ends like this again, report it as a bug of reshard with the "
    "job "
    "file.";

/// The bytes of every rank's ranges.
std::string packed(std::span<CellRange const> ranges) {
  std::string bytes;
  for (CellRange const& range : ranges)
    for (std::uint64_t const word : {std::uint64_t{range.begin}, std::uint64_t{range.end}})
      bytes.append(reinterpret_cast<char const*>(&word), sizeof word);
  return bytes;
}

void unpack(std::string_view bytes, std::vector<CellRange>& ranges) {
  for (; !bytes.empty(); bytes.remove_prefix(2 * sizeof(std::uint64_t))) {
    std::uint64_t words[2];
    RESHARD_EXPECT(bytes.size() >= sizeof words);
    std::memcpy(words, bytes.data(), sizeof words);
    ranges.push_back({words[0], words[1]});
  }
}

void add_range(std::vector<CellRange>& ranges, CellRange const& range) {
  if (range.begin == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

/// A number that is not in the sums can only come from a modified journal; what it
/// should have added to is missing then.
template <class Sum, class Way>
void take(std::vector<SumShare> const& shares, std::vector<Sum>& sums, Way way) {
  for (SumShare const& one : shares)
    if (one.number < sums.size())
      sums[one.number] = way(sums[one.number], static_cast<Sum>(one.value));
}

}  // namespace

WorkAccount::WorkAccount(JobPlan const& plan, std::size_t source_records)
    : whole_cells_(plan.plan.cells.size()),
      planned_(plan.files.size(), 0),
      written_(plan.files.size(), 0),
      own_(plan.files.size(), 0),
      digested_(plan.plan.tensor_bytes.size(), 0),
      record_crc32_(source_records, 0),
      record_covered_(source_records, 0) {
  for (Cell const& cell : plan.plan.cells)
    for (Region const& region : plan.plan.regions_of(cell))
      planned_[region.to] += bytes_of(region, plan.plan.dims_of(region));
}

void WorkAccount::add_written(std::uint32_t file, std::uint64_t bytes) {
  just_written_[file] += bytes;
}

JournalEntry WorkAccount::add(FinishedRound const& round) {
  JournalEntry entry;
  entry.round = round.number;
  add_range(cells_, round.cells);
  entry.cells.push_back(round.cells);
  for (auto const& [file, bytes] : just_written_) {
    entry.bytes += bytes;
    entry.written.push_back({file, bytes});
    written_[file] += bytes;
    own_[file] += bytes;
  }
  just_written_.clear();
  std::map<std::uint32_t, std::uint64_t> digested;
  for (DigestShare const& one : round.digests) {
    auto const number = static_cast<std::uint32_t>(one.digest);
    entry.digests.push_back({number, one.share});
    digested[number] += one.bytes;
  }
  for (auto const& [tensor, bytes] : digested) {
    entry.digested.push_back({tensor, bytes});
    digested_[tensor] += bytes;
  }
  std::map<std::uint32_t, RecordShare> records;
  for (RecordShare const& one : round.records) {
    records[one.record].crc32 ^= one.crc32;
    records[one.record].covered += one.covered;
  }
  for (auto const& [record, sum] : records) {
    entry.sources.push_back({record, sum.crc32});
    entry.covered.push_back({record, sum.covered});
    record_crc32_[record] ^= sum.crc32;
    record_covered_[record] += sum.covered;
  }
  return entry;
}

void WorkAccount::add_earlier(JournalEntry const& done) {
  for (CellRange const& range : done.cells) earlier_cells_ += range.end - range.begin;
  auto const sum = [](std::uint64_t a, std::uint64_t b) { return a + b; };
  take(done.written, written_, sum);
  take(done.digested, digested_, sum);
  take(done.covered, record_covered_, sum);
  take(done.sources, record_crc32_, [](std::uint32_t a, std::uint32_t b) { return a ^ b; });
}

void WorkAccount::gather(Comm const& comm) {
  std::vector<std::string> const all = comm.all_gather(packed(cells_));
  cells_.clear();
  for (std::string const& ranges : all) unpack(ranges, cells_);
  std::sort(cells_.begin(), cells_.end(),
            [](CellRange const& a, CellRange const& b) { return a.begin < b.begin; });
  for (std::vector<std::uint64_t>* const sums : {&written_, &digested_, &record_covered_})
    sum_all(comm, *sums);
  comm.xor_all(record_crc32_);
}

/// Each cell that is left of the plan was done by one rank, and the rest by earlier runs.
void WorkAccount::expect_cells(JobPlan const& plan) const {
  std::size_t const cells = plan.plan.cells.size();
  auto const wrong = [&](std::size_t cell, std::string_view how) {
    std::string const of = cell < cells ? " of " + cell_name(plan, plan.plan.cells[cell]) : "";
    fail(
        ErrorKind::self_check,
        "the plan was not executed exactly: step {} of {}{} was done {}. {} Where a file system does "
        "not create a file once only, or claims in the journal's folder were changed meanwhile, set "
        "run.work_stealing = \"never\".",
        cell, cells, of, how, advice);
  };
  std::size_t next = 0;
  for (CellRange const& range : cells_) {
    if (range.begin > next) wrong(next, "by no rank");
    if (range.begin < next) wrong(range.begin, "twice");
    next = range.end;
  }
  if (next != cells)
    wrong(std::min(next, cells), next < cells ? "by no rank" : "though there is no such step");
  if (earlier_cells_ + cells != whole_cells_)
    fail(ErrorKind::self_check,
         "the plan was not executed exactly: it has {} steps, earlier runs recorded {} and {} were "
         "left. {}",
         whole_cells_, earlier_cells_, cells, advice);
}

void WorkAccount::expect_whole(JobPlan const& plan) const {
  expect_cells(plan);
  for (std::uint32_t t = 0; t < digested_.size(); ++t)
    if (digested_[t] != plan.plan.tensor_bytes[t])
      fail(ErrorKind::self_check,
           "the plan was not executed exactly: {}: {} bytes of it were read, it has {}. {}",
           tensor_name(plan, DigestId(t)), digested_[t], plan.plan.tensor_bytes[t], advice);
  for (std::size_t f = 0; f < planned_.size(); ++f)
    if (written_[f] != planned_[f])
      fail(ErrorKind::self_check,
           "the plan was not executed exactly: {}: {} bytes of tensors were written to it, planned "
           "are {}. {}",
           plan.target.files[f], written_[f], planned_[f], advice);
}

}  // namespace reshard
