#include "stages/write/extent_writer.hpp"

#include <algorithm>
#include <vector>

#include <sys/uio.h>

#include "core/io/shared_extents.hpp"
#include "core/plan/clones.hpp"

namespace reshard {
namespace {

constexpr BatchRules rules{.most_bytes = std::uint64_t{8} << 20, .tail = TailPage::apart};
/// How much of an extent an observer is shown at a time where there are workers.
constexpr std::uint64_t shown_bytes = std::uint64_t{4} << 20;

/// How much of an extent is copied at a time.
constexpr std::uint64_t most_copied_bytes = std::uint64_t{8} << 20;

std::vector<Extent> in_parts(std::span<Extent const> extents) {
  std::vector<Extent> parts;
  for (Extent const& extent : extents)
    for (std::uint64_t done = 0; done < extent.bytes; done += shown_bytes)
      parts.push_back({extent.file, extent.offset_bytes + done,
                       std::min(shown_bytes, extent.bytes - done), extent.at + done});
  return parts;
}

}  // namespace

bool ExtentCloner::clone(CloneExtent const& extent) {
  std::pair const files(extent.from_file, extent.file);
  if (never_ || refused_.contains(files)) return false;
  auto const from = sources_.open(extent.from_file);
  auto const to = targets_.open(extent.file);
  CloneAnswer const answer =
      clone_range({from->file(), extent.from_bytes, to->file(), extent.offset_bytes, extent.bytes});
  if (answer == CloneAnswer::refused) refused_.insert(files);
  never_ = answer == CloneAnswer::never_between;
  return answer == CloneAnswer::cloned;
}

void ExtentCloner::copy(CloneExtent const& extent) {
  buffer_.resize(std::min(extent.bytes, most_copied_bytes));
  auto const from = sources_.open(extent.from_file);
  auto const to = targets_.open(extent.file);
  for (std::uint64_t done = 0; done < extent.bytes;) {
    std::span const part(buffer_.data(), std::min(extent.bytes - done, most_copied_bytes));
    from->read_at(extent.from_bytes + done, part);
    to->write_at(extent.offset_bytes + done, part);
    done += part.size();
  }
}

void ExtentWriter::write(std::span<Extent const> extents, std::byte* staging) {
  write_without(extents, {}, staging, {});
}

void ExtentWriter::take(RoundWork const& round, std::byte* staging) {
  std::vector<CloneExtent> cloned;
  for (CloneExtent const& extent : round.clones)
    if (clone(extent)) cloned.push_back(extent);
  move_unread(round.unread);
  write_without(round.writes, cloned, staging, round.cells);
}

bool ExtentWriter::clone(CloneExtent const& extent) {
  if (!cloner_ || !cloner_->clone(extent)) return false;
  stats_.cloned_bytes += extent.bytes;
  stats_.clone_calls += 1;
  return true;
}

void ExtentWriter::move_unread(std::span<CloneExtent const> extents) {
  for (CloneExtent const& extent : extents) {
    bool const cloned = clone(extent);
    if (!cloned) {
      RESHARD_EXPECT(cloner_.has_value());
      cloner_->copy(extent);
      stats_.bytes += extent.bytes;
    }
    if (unread_) unread_(extent, !cloned);
  }
}

/// The observer is called for cloned bytes, too: they are in the file like written ones.
void ExtentWriter::write_without(std::span<Extent const> extents,
                                 std::span<CloneExtent const> cloned, std::byte* staging,
                                 CellRange cells) {
  std::vector<Extent> sorted = by_place(extents);
  if (unchanged_.bytes != nullptr && cloned.empty()) {
    sorted = without_unchanged(sorted, staging);
  } else {
    if (observer_) show(sorted, staging, observer_);
    if (!cloned.empty()) sorted = without_clones(sorted, cloned);
  }
  for (Extent const& extent : sorted) stats_.bytes += extent.bytes;
  if (edges_ != nullptr) sorted = edges_->keep(sorted, staging, cells);
  std::vector<ExtentBatch> const batches = batches_of(sorted, rules);
  workers_.run(batches.size(),
               [&](std::size_t batch, std::size_t) { write_batch(batches[batch], staging); });
  stats_.calls += batches.size();
}

/// The sums of unchanged blocks are known: they are not computed a second time.
std::vector<Extent> ExtentWriter::without_unchanged(std::span<Extent const> sorted,
                                                    std::byte const* staging) {
  ComparedRound compared = unchanged_.bytes->compare(sorted, staging);
  std::vector<CloneExtent> known;
  for (auto const& [span, crc64] : compared.blocks)
    known.push_back({span.file, span.begin, span.file, span.begin, span.end - span.begin});
  std::vector<Extent> const others = without_clones(sorted, known);
  std::vector<CloneExtent> rest;
  for (Extent const& one : others)
    rest.push_back({one.file, one.offset_bytes, one.file, one.offset_bytes, one.bytes});
  if (observer_) show(others, staging, observer_);
  if (unchanged_.seen) show(without_clones(sorted, rest), staging, unchanged_.seen);
  if (unchanged_.block)
    for (UnchangedBlock const& block : compared.blocks) unchanged_.block(block);
  return std::move(compared.to_write);
}

void ExtentWriter::show(std::span<Extent const> sorted, std::byte const* staging,
                        WriteObserver const& observer) {
  std::vector<Extent> const parts =
      workers_.count() > 1 ? in_parts(sorted) : std::vector<Extent>(sorted.begin(), sorted.end());
  workers_.run(parts.size(), [&](std::size_t part, std::size_t) {
    Extent const& one = parts[part];
    observer(one.file, one.offset_bytes, {staging + one.at, one.bytes});
  });
}

void ExtentWriter::write_batch(ExtentBatch const& batch, std::byte* staging) const {
  std::vector<iovec> parts;
  parts.reserve(batch.parts.size());
  for (auto const& part : batch.parts) parts.push_back({staging + part.at, part.bytes});
  files_.open(batch.file)->write_parts_at(batch.offset_bytes, parts);
}

}  // namespace reshard
