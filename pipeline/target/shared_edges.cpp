#include "pipeline/target/shared_edges.hpp"

#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "core/base/integers.hpp"
#include "core/plan/schedule.hpp"
#include "core/plan/shared_pages.hpp"

namespace reshard {
namespace {

/// What all ranks may say of their pages, and keep back of them, all in all: every rank gets it.
constexpr std::size_t most_spans_of_all = std::size_t{1} << 20;
constexpr std::uint64_t most_held_of_all = std::uint64_t{64} << 20;

PageLimits page_limits(Comm const& comm) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const page_bytes = static_cast<std::uint64_t>(comm.max(::sysconf(_SC_PAGESIZE)));
  return {page_bytes, std::clamp<std::size_t>(most_spans_of_all / ranks, 64, 4096),
          std::clamp<std::size_t>(most_held_of_all / page_bytes / ranks, 16, 1024)};
}

std::string packed(std::span<FileSpan const> spans) {
  std::vector<std::uint64_t> words;
  for (FileSpan const& span : spans) words.insert(words.end(), {span.file, span.begin, span.end});
  return {reinterpret_cast<char const*>(words.data()), words.size() * sizeof(std::uint64_t)};
}

std::vector<FileSpan> unpacked(std::string const& bytes) {
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::vector<FileSpan> spans;
  for (std::size_t i = 0; i + 2 < words.size(); i += 3)
    spans.push_back({narrow<std::uint32_t>(words[i]), words[i + 1], words[i + 2]});
  return spans;
}

}  // namespace

EdgeBytes find_edges(Plan const& plan, Comm const& comm) {
  PageLimits const limits = page_limits(comm);
  std::string mine;
  together(comm, [&] {
    mine = packed(written_pages(plan, cells_of_rank(plan, comm.rank(), comm.size()), limits));
  });
  std::vector<std::vector<FileSpan>> all;
  for (std::string const& one : comm.all_gather(mine)) all.push_back(unpacked(one));
  return EdgeBytes(pages_of_lower_ranks(all, static_cast<std::size_t>(comm.rank()), limits));
}

std::vector<std::vector<FileSegment>> gathered_edges(EdgeBytes const* edges, std::size_t files,
                                                     Comm const& comm) {
  JournalEntry mine;
  if (edges != nullptr) mine.held = edges->all();
  std::vector<std::vector<FileSegment>> by_file(files);
  for (std::string const& one : comm.all_gather(journal_block(mine))) {
    auto const entry = parse_journal_block(one);
    RESHARD_EXPECT(entry);
    for (HeldBytes const& held : entry->held) by_file.at(held.file).push_back(held.segment);
  }
  return by_file;
}

}  // namespace reshard
