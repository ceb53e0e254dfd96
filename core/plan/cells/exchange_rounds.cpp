#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <string>

#include "core/base/tables/integers.hpp"
#include "core/plan/cells/cell_cuts.hpp"
#include "core/plan/cells/place_digests.hpp"
#include "core/plan/cells/schedule.hpp"
#include "core/plan/compile.hpp"

namespace reshard {
namespace {

/// Source files from this number on are messages: the unpacking of a writer is compiled as if each
/// message were a file.
constexpr std::uint32_t first_message_file = 0x80000000U;

/// The number of stretches of equal weight into which the cells of a writer are cut.
constexpr std::size_t most_stretches = 32;
/// The share of a reader that reads all of a stretch.
constexpr std::uint64_t whole_share = 64;
/// The least reduction of waiting for which a writer leaves the plan's order. Two stretches with
/// the same single reader wait for each other four times as much.
constexpr std::uint64_t least_wait = whole_share * whole_share / 4;

/// The message from one reader to one writer in one round: blocks packed one after the other, each
/// source block once.
class Parcel {
 public:
  Parcel(Plan const& plan, std::uint32_t number)
      : plan_(plan), file_(first_message_file + number) {}

  /// Takes a region in and returns it as the writer sees it: its source is this message. `dims`
  /// gets the region's dimensions.
  Region add(Region region, std::vector<ByteDim>& dims) {
    auto const own = plan_.dims_of(region);
    std::vector<ByteDim> packed(own.begin(), own.end());
    std::uint64_t bytes = region.run_bytes;
    for (std::size_t d = packed.size(); d-- > 0;) {
      packed[d].to_stride = static_cast<std::int64_t>(bytes);
      bytes *= packed[d].count;
    }
    auto const [at, is_new] = known_.emplace(key(region, own), bytes_);
    if (is_new) {
      pack(region, packed, at->second);
      bytes_ += bytes;
    }
    region.src_file = file_;
    region.src_offset_bytes = at->second;
    region.first_dim = narrow<std::uint32_t>(dims.size());
    for (std::size_t d = 0; d < own.size(); ++d)
      dims.push_back({own[d].count, packed[d].to_stride, own[d].to_stride});
    return region;
  }

  std::uint64_t bytes() const { return bytes_; }
  /// The reader's work: its one write names where the message lies in staging.
  RoundWork packing() const { return compile_round(packed_, packed_dims_, plan_.alignment); }

 private:
  static std::string key(Region const& region, std::span<ByteDim const> dims) {
    std::string text;
    auto const append = [&text](std::uint64_t value) {
      text.append(reinterpret_cast<char const*>(&value), sizeof value);
    };
    append(region.src_file);
    append(region.src_offset_bytes);
    append(region.run_bytes);
    for (ByteDim const& dim : dims) {
      append(dim.count);
      append(static_cast<std::uint64_t>(dim.from_stride));
    }
    return text;
  }

  void pack(Region region, std::vector<ByteDim> const& dims, std::uint64_t at) {
    region.to = 0;
    region.dst_offset_bytes = at;
    region.first_dim = narrow<std::uint32_t>(packed_dims_.size());
    packed_dims_.insert(packed_dims_.end(), dims.begin(), dims.end());
    packed_.push_back(region);
  }

  Plan const& plan_;
  std::uint32_t file_;
  std::map<std::string, std::uint64_t> known_;
  std::vector<Region> packed_;
  std::vector<ByteDim> packed_dims_;
  std::uint64_t bytes_ = 0;
};

/// Turns reads from messages into the copies that unpack them.
void take_messages(RoundWork& round, std::vector<Message>& messages) {
  std::vector<Extent> reads;
  std::vector<Extent> staged;  // from messages, by staging place
  for (Extent const& read : round.reads)
    (read.file < first_message_file ? reads : staged).push_back(read);
  std::sort(staged.begin(), staged.end(),
            [](Extent const& a, Extent const& b) { return a.at < b.at; });
  std::vector<bool> taken(staged.size(), false);
  std::vector<StridedCopy> copies;
  for (StridedCopy& copy : round.copies) {
    auto const after =
        std::upper_bound(staged.begin(), staged.end(), copy.from,
                         [](std::uint64_t at, Extent const& e) { return at < e.at; });
    auto const i = static_cast<std::size_t>(after - staged.begin()) - 1;
    if (after == staged.begin() || copy.from >= staged[i].at + staged[i].bytes) {
      copies.push_back(std::move(copy));
      continue;
    }
    taken[i] = true;
    Message& message = messages[staged[i].file - first_message_file];
    copy.from = message.at + staged[i].offset_bytes + (copy.from - staged[i].at);
    message.copies.push_back(std::move(copy));
  }
  for (std::size_t i = 0; i < staged.size(); ++i) {
    if (taken[i]) continue;  // its copies read the message itself
    Message& message = messages[staged[i].file - first_message_file];
    message.copies.push_back(
        {message.at + staged[i].offset_bytes, staged[i].at, staged[i].bytes, {}});
  }
  round.reads = std::move(reads);
  round.copies = std::move(copies);
}

/// Appends the work of a reader for one message to its round.
void send_parcel(RoundWork& round, Parcel const& parcel, int writer, StagingAlignment alignment) {
  RoundWork work = parcel.packing();
  RESHARD_EXPECT(work.writes.size() == 1 && work.writes[0].bytes == parcel.bytes());
  std::uint64_t const shift = alignment.block(round.staging_bytes);
  Message message{writer, shift + work.writes[0].at, parcel.bytes(), std::move(work.copies)};
  for (StridedCopy& copy : message.copies) {
    copy.from += shift;
    copy.to += shift;
  }
  for (Extent& read : work.reads) {
    read.at += shift;
    round.reads.push_back(read);
  }
  round.staging_bytes = shift + work.staging_bytes;
  round.sends.push_back(std::move(message));
}

/// An upper bound of the ranks' staging for the cells of one round: the same arithmetic on every
/// rank.
class RoundLoads {
 public:
  RoundLoads(Plan const& plan, std::vector<int> const& reader_of_file, std::size_t ranks)
      : plan_(plan), reader_of_file_(reader_of_file), load_(ranks, 0) {}

  /// Adds a cell, unless some rank would need more than the limit then.
  bool add(Cell const& cell, std::size_t writer, std::optional<std::uint64_t> limit) {
    if (limit && load_[writer] + 2 * cell.staging_bytes > *limit) return false;
    // A writer has the message, its staged form and the target in memory; a reader the read bytes
    // and the message.
    std::map<std::size_t, std::uint64_t> more{{writer, 2 * cell.staging_bytes}};
    std::map<std::uint32_t, Reads> touched;
    for (Region const& region : plan_.regions_of(cell)) {
      more.emplace(reader_of(region.src_file), 2 * cell.staging_bytes);
      touched.try_emplace(region.src_file, reads_[region.src_file])
          .first->second.add(region, plan_.dims_of(region));
    }
    for (auto const& [file, reads] : touched)
      more[reader_of(file)] +=
          reads.gap_bytes() - std::min(reads.gap_bytes(), reads_[file].gap_bytes());
    if (limit)
      for (auto const& [rank, bytes] : more)
        if (load_[rank] + bytes > *limit) return false;
    for (auto const& [rank, bytes] : more) load_[rank] += bytes;
    for (auto const& [file, reads] : touched) reads_[file] = reads;
    return true;
  }

 private:
  /// The reads of one file. Gaps between them may be read along: no more than there are, nor larger
  /// ones than compile_round() takes.
  struct Reads {
    std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t end = 0;
    std::uint64_t bytes = 0;
    std::uint64_t pieces = 0;

    void add(Region const& region, std::span<ByteDim const> dims) {
      std::uint64_t last = region.src_offset_bytes + region.run_bytes;
      for (ByteDim const& dim : dims)
        last += (dim.count - 1) * static_cast<std::uint64_t>(dim.from_stride);
      begin = std::min(begin, region.src_offset_bytes);
      end = std::max(end, last);
      bytes += bytes_of(region, dims);
      ++pieces;
    }
    std::uint64_t gap_bytes() const {
      if (pieces == 0) return 0;
      return std::min(end - begin - std::min(bytes, end - begin), pieces * sieve_gap_bytes);
    }
  };

  std::size_t reader_of(std::uint32_t file) const {
    return static_cast<std::size_t>(reader_of_file_[file]);
  }

  Plan const& plan_;
  std::vector<int> const& reader_of_file_;
  std::vector<std::uint64_t> load_;
  std::map<std::uint32_t, Reads> reads_;
};

}  // namespace

ExchangeRounds::ExchangeRounds(Plan const& plan, std::vector<int> reader_of_file, int rank,
                               int ranks, std::uint64_t staging_bytes)
    : plan_(plan),
      reader_of_file_(std::move(reader_of_file)),
      rank_(rank),
      staging_bytes_(staging_bytes),
      demands_(static_cast<std::size_t>(ranks), 0) {
  RankCells const cells(plan, ranks);
  for (int r = 0; r < ranks; ++r) {
    Writer& writer = writers_.emplace_back();
    writer.later = stretches_of(cells.of(r));
    begin_stretch(writer);
  }
}

std::vector<ExchangeRounds::Stretch> ExchangeRounds::stretches_of(CellRange cells) const {
  std::vector<Stretch> stretches;
  auto const cuts = cut_cells(plan_, cells, most_stretches);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    Stretch stretch{{cuts[i], cuts[i + 1]}, {}};
    if (stretch.cells.empty()) continue;
    std::map<std::size_t, std::uint64_t> bytes;
    std::uint64_t total = 0;
    for (std::size_t cell = cuts[i]; cell < cuts[i + 1]; ++cell)
      for (Region const& region : plan_.regions_of(plan_.cells[cell])) {
        std::uint64_t const own = bytes_of(region, plan_.dims_of(region));
        bytes[static_cast<std::size_t>(reader_of_file_[region.src_file])] += own;
        total += own;
      }
    for (auto const& [reader, own] : bytes)
      stretch.shares.emplace_back(reader, own * whole_share / std::max<std::uint64_t>(total, 1));
    stretches.push_back(std::move(stretch));
  }
  return stretches;
}

bool ExchangeRounds::begin_stretch(Writer& writer) {
  for (auto const& [reader, share] : writer.shares) demands_[reader] -= share;
  writer.shares.clear();
  if (writer.later.empty()) return false;
  auto const waiting = [&](Stretch const& stretch) {
    std::uint64_t sum = 0;
    for (auto const& [reader, share] : stretch.shares) sum += share * demands_[reader];
    return sum / least_wait;
  };
  auto const behind = std::ranges::lower_bound(writer.later, writer.now.end, {},
                                               [](Stretch const& one) { return one.cells.begin; });
  auto next = std::ranges::min_element(behind, writer.later.end(), {}, waiting);
  auto const before = std::ranges::min_element(writer.later.begin(), behind, {}, waiting);
  if (next == writer.later.end() || (before != behind && waiting(*before) < waiting(*next)))
    next = before;
  bool const goes_on = next->cells.begin == writer.now.end;
  writer.now = next->cells;
  writer.shares = std::move(next->shares);
  writer.later.erase(next);
  for (auto const& [reader, share] : writer.shares) demands_[reader] += share;
  return goes_on;
}

std::vector<ExchangeRounds::Share> ExchangeRounds::choose() {
  RoundLoads loads(plan_, reader_of_file_, writers_.size());
  std::vector<Share> chosen;
  using Turn = std::pair<std::uint64_t, std::size_t>;  // bytes assigned to a writer, and the writer
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  for (std::size_t writer = 0; writer < writers_.size(); ++writer)
    if (!writers_[writer].now.empty()) turns.emplace(writers_[writer].given_bytes, writer);
  while (!turns.empty()) {
    std::size_t const number = turns.top().second;
    turns.pop();
    Writer& writer = writers_[number];
    Cell const& cell = plan_.cells[writer.now.begin];
    if (!loads.add(cell, number, chosen.empty() ? std::nullopt : std::optional(staging_bytes_)))
      continue;  // no more cells for it in this round
    chosen.push_back({static_cast<int>(number), writer.now.begin++});
    writer.given_bytes += cell.staging_bytes;
    if (!writer.now.empty() || begin_stretch(writer)) turns.emplace(writer.given_bytes, number);
  }
  return chosen;
}

std::uint64_t ExchangeRounds::count() const {
  ExchangeRounds ahead = *this;
  std::uint64_t rounds = 0;
  while (!ahead.choose().empty()) ++rounds;
  return rounds;
}

std::optional<RoundWork> ExchangeRounds::next() {
  std::size_t const first = writers_[static_cast<std::size_t>(rank_)].now.begin;
  CellRange written{first, first};
  std::vector<Share> const chosen = choose();
  if (chosen.empty()) return std::nullopt;
  std::map<std::pair<int, int>, Parcel> parcels;  // (reader, writer), those of this rank
  std::vector<int> readers;                       // of the messages to this rank
  std::vector<Region> mine;
  std::vector<DigestRegion> digests;
  std::vector<ByteDim> dims = {};
  for (Share const& share : chosen) {
    Cell const& cell = plan_.cells[share.cell];
    if (share.writer == rank_) written.end = share.cell + 1;
    for (DigestRegion const& digest : plan_.digests_of(cell))
      if (reader_of_file_[digest.src_file] == rank_) digests.push_back(digest);
    for (Region region : plan_.regions_of(cell)) {
      int const reader = reader_of_file_[region.src_file];
      if (reader != rank_ && share.writer != rank_) continue;
      if (reader == share.writer) {
        auto const own = plan_.dims_of(region);
        region.first_dim = narrow<std::uint32_t>(dims.size());
        dims.insert(dims.end(), own.begin(), own.end());
        mine.push_back(region);
        continue;
      }
      bool const receiving = share.writer == rank_;
      auto const number = static_cast<std::uint32_t>(receiving ? readers.size() : 0);
      auto const [parcel, is_new] = parcels.try_emplace({reader, share.writer}, plan_, number);
      if (is_new && receiving) readers.push_back(reader);
      Region const taken = parcel->second.add(region, dims);
      if (receiving) mine.push_back(taken);
    }
  }
  RoundWork round = mine.empty() ? RoundWork() : compile_round(mine, dims, plan_.alignment);
  for (int const reader : readers) {
    std::uint64_t const bytes = parcels.at({reader, rank_}).bytes();
    round.receives.push_back({reader, round.staging_bytes, bytes, {}});
    round.staging_bytes += (bytes + 4095) / 4096 * 4096;
  }
  take_messages(round, round.receives);
  for (auto const& [pair, parcel] : parcels)
    if (pair.first == rank_) send_parcel(round, parcel, pair.second, plan_.alignment);
  place_digests(round, digests, plan_.dims, plan_.tensor_bytes);
  round.cells = written;
  return round;
}

}  // namespace reshard
