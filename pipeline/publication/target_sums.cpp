#include "pipeline/publication/target_sums.hpp"

namespace reshard {
namespace {

/// By what sums differ from their previous values; these become the new ones. Only those that were
/// touched are checked.
template <class Word>
std::vector<SumShare> changes(std::span<std::size_t const> touched, std::span<Word> now,
                              std::vector<Word>& before) {
  std::vector<SumShare> shares;
  for (std::size_t const i : touched) {
    if (now[i] == before[i]) continue;
    shares.push_back({i, static_cast<std::uint64_t>(now[i] ^ before[i])});
    before[i] = now[i];
  }
  return shares;
}

}  // namespace

TargetSums::TargetSums(JobPlan const& plan, std::span<TargetLayout const> layouts,
                       std::size_t source_records, FileSums file_sums, std::uint64_t block_bytes)
    : account_(plan, source_records),
      records_(layouts, plan.unread.crc32),
      files_(layouts, block_bytes),
      file_sums_(file_sums),
      noted_records_(records_.shares().size(), 0),
      noted_files_(files_.shares().size(), 0) {
  limits_ = {.cells = plan.plan.cells.size(),
             .digests = plan.plan.tensor_bytes.size(),
             .records = records_.shares().size(),
             .file_sums = files_.shares().size(),
             .sources = source_records};
  for (TargetLayout const& layout : layouts) limits_.file_bytes.push_back(layout.size_bytes);
}

void TargetSums::add_earlier(JournalEntry const& done, bool with_sums) {
  account_.add_earlier(done);
  if (!with_sums) return;
  for (SumShare const& one : done.records)
    records_.shares()[one.number] ^= static_cast<std::uint32_t>(one.value);
  for (SumShare const& one : done.files) files_.shares()[one.number] ^= one.value;
  noted_records_.assign(records_.shares().begin(), records_.shares().end());
  noted_files_.assign(files_.shares().begin(), files_.shares().end());
}

void TargetSums::add_taken(JournalEntry const& taken, bool with_sums) {
  JournalEntry cells;
  cells.cells = taken.cells;
  account_.add_earlier(with_sums ? taken : cells);
  noted_files_.assign(files_.shares().begin(), files_.shares().end());
}

void TargetSums::observe(std::uint32_t file, std::uint64_t offset_bytes,
                         std::span<std::byte const> bytes) {
  observe_unchanged(file, offset_bytes, bytes);
  if (file_sums_ == FileSums::taken) files_.add(file, offset_bytes, bytes);
}

void TargetSums::observe_unchanged(std::uint32_t file, std::uint64_t offset_bytes,
                                   std::span<std::byte const> bytes) {
  {
    std::lock_guard const lock(*observing_);
    account_.add_written(file, bytes.size());
  }
  records_.add(file, offset_bytes, bytes);
}

void TargetSums::add_block(UnchangedBlock const& block) {
  files_.add_block(block.span.file, block.span.begin, block.crc64);
}

void TargetSums::add_unread(CloneExtent const& extent) {
  account_.add_written(extent.file, extent.bytes);
}

JournalEntry TargetSums::add(FinishedRound const& round) {
  JournalEntry entry = account_.add(round);
  entry.records =
      changes<std::uint32_t>(records_.take_touched(), records_.shares(), noted_records_);
  entry.files = changes<std::uint64_t>(files_.take_touched(), files_.shares(), noted_files_);
  return entry;
}

}  // namespace reshard
