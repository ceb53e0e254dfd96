#include "pipeline/publication/shared_edges.hpp"

#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "core/base/tables/integers.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/equal/shared_pages.hpp"

namespace reshard {
namespace {

/// Bounds, over all ranks, of the pages that they may name and of the bytes that they may keep
/// back: every rank gets all of it.
constexpr std::size_t most_spans_of_all = std::size_t{1} << 20;
constexpr std::uint64_t most_held_of_all = std::uint64_t{64} << 20;
/// Where cells are handed out; else they are not handed out.
constexpr std::uint64_t most_held_of_part = std::uint64_t{256} << 10;
constexpr std::uint64_t most_held_of_rank = std::uint64_t{8} << 20;  ///< on average

PageLimits page_limits(Comm const& comm, std::size_t writers) {
  auto const page_bytes = static_cast<std::uint64_t>(comm.max(::sysconf(_SC_PAGESIZE)));
  return {page_bytes, std::clamp<std::size_t>(most_spans_of_all / writers, 64, 4096),
          std::clamp<std::size_t>(most_held_of_all / page_bytes / writers, 16, 1024)};
}

/// A number of spans, and these.
std::string packed(std::span<FileSpan const> spans) {
  std::vector<std::uint64_t> words{spans.size()};
  for (FileSpan const& span : spans) words.insert(words.end(), {span.file, span.begin, span.end});
  return {reinterpret_cast<char const*>(words.data()), words.size() * sizeof(std::uint64_t)};
}

std::vector<std::vector<FileSpan>> unpacked(std::string const& bytes) {
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::vector<std::vector<FileSpan>> lists;
  for (std::size_t at = 0; at < words.size();) {
    lists.emplace_back();
    for (std::uint64_t left = words[at++]; left > 0; --left, at += 3)
      lists.back().push_back(
          {narrow<std::uint32_t>(words.at(at)), words.at(at + 1), words.at(at + 2)});
  }
  return lists;
}

/// Of all ranks, in their order: each gives one or more lists.
std::vector<std::vector<FileSpan>> gathered(std::string const& mine, Comm const& comm) {
  std::vector<std::vector<FileSpan>> all;
  for (std::string const& one : comm.all_gather(mine))
    for (std::vector<FileSpan>& list : unpacked(one)) all.push_back(std::move(list));
  return all;
}

}  // namespace

EdgeBytes find_edges(Plan const& plan, Comm const& comm) {
  PageLimits const limits = page_limits(comm, static_cast<std::size_t>(comm.size()));
  std::string mine;
  together(comm, [&] {
    mine = packed(written_pages(plan, cells_of_rank(plan, comm.rank(), comm.size()), limits));
  });
  return EdgeBytes(
      pages_of_lower_ranks(gathered(mine, comm), static_cast<std::size_t>(comm.rank()), limits));
}

std::optional<EdgeBytes> find_edges(Plan const& plan, RankParts const& parts, Comm const& comm) {
  PageLimits const limits = page_limits(comm, parts.count());
  std::string mine;
  together(comm, [&] {
    auto const [begin, end] = parts.of_rank(comm.rank());
    for (std::size_t part = begin; part < end; ++part)
      mine += packed(written_pages(plan, parts.cells(part), limits));
  });
  std::uint64_t const most =
      std::max(most_held_of_all, static_cast<std::uint64_t>(comm.size()) * most_held_of_rank);
  auto pages = pages_of_lower_writers(gathered(mine, comm),
                                      std::min(most, parts.count() * most_held_of_part));
  if (!pages) return std::nullopt;
  std::vector<KeptPages> kept;
  for (std::size_t part = 0; part < parts.count(); ++part)
    if (!(*pages)[part].empty()) kept.push_back({parts.cells(part), std::move((*pages)[part])});
  return EdgeBytes::of_parts(std::move(kept));
}

std::vector<std::vector<FileSegment>> gathered_edges(
    EdgeBytes const* edges, std::size_t files, std::function<bool(std::uint32_t)> const& wanted,
    Comm const& comm) {
  JournalEntry mine;
  if (edges != nullptr) mine.held = edges->all();
  std::string const block = journal_block(mine);
  std::vector<std::vector<FileSegment>> by_file(files);
  auto const take = [&](std::string const& one) {
    auto entry = parse_journal_block(one);
    RESHARD_EXPECT(entry);
    for (HeldBytes& held : entry->held)
      if (wanted(held.file)) by_file.at(held.file).push_back(std::move(held.segment));
  };
  auto const in_all = static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(block.size())));
  if (in_all <= most_held_of_all) {
    for (std::string const& one : comm.all_gather(block)) take(one);
    return by_file;
  }
  for (int rank = 0; rank < comm.size(); ++rank)
    take(comm.broadcast(rank == comm.rank() ? block : "", rank));
  return by_file;
}

}  // namespace reshard
