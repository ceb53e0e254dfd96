#include <algorithm>
#include <map>
#include <string>

#include "core/base/integers.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/schedule.hpp"

namespace reshard {
namespace {

/// Source files from this number on are messages: what a writer takes apart is compiled as if each message were a file.
constexpr std::uint32_t first_message_file = 0x80000000U;

/// What travels from one reader to one writer in one round: blocks packed one after the other, each source block once.
class Parcel {
 public:
  Parcel(Plan const& plan, std::uint32_t number) : plan_(plan), file_(first_message_file + number) {}

  /// Takes a region in and returns it as the writer sees it: its source is this message. `dims` gets the region's dimensions.
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
    for (std::size_t d = 0; d < own.size(); ++d) dims.push_back({own[d].count, packed[d].to_stride, own[d].to_stride});
    return region;
  }

  std::uint64_t bytes() const { return bytes_; }
  /// The reader's work: its one write names where the message lies in staging.
  RoundWork packing() const { return compile_round(packed_, packed_dims_); }

 private:
  static std::string key(Region const& region, std::span<ByteDim const> dims) {
    std::string text;
    auto const append = [&text](std::uint64_t value) { text.append(reinterpret_cast<char const*>(&value), sizeof value); };
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
    region.dst_file = 0;
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

/// Turns reads from messages into the copies that take them apart.
void take_messages(RoundWork& round, std::vector<Message>& messages) {
  std::vector<Extent> reads;
  std::vector<Extent> staged;  // from messages, by staging place
  for (Extent const& read : round.reads) (read.file < first_message_file ? reads : staged).push_back(read);
  std::sort(staged.begin(), staged.end(), [](Extent const& a, Extent const& b) { return a.at < b.at; });
  std::vector<bool> taken(staged.size(), false);
  std::vector<StridedCopy> copies;
  for (StridedCopy& copy : round.copies) {
    auto const after = std::upper_bound(staged.begin(), staged.end(), copy.from, [](std::uint64_t at, Extent const& e) { return at < e.at; });
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
    message.copies.push_back({message.at + staged[i].offset_bytes, staged[i].at, staged[i].bytes, {}});
  }
  round.reads = std::move(reads);
  round.copies = std::move(copies);
}

/// Appends what a reader does for one message to its round.
void send_parcel(RoundWork& round, Parcel const& parcel, int writer) {
  RoundWork work = parcel.packing();
  RESHARD_EXPECT(work.writes.size() == 1 && work.writes[0].bytes == parcel.bytes());
  std::uint64_t const shift = round.staging_bytes;
  Message message{writer, shift + work.writes[0].at, parcel.bytes(), std::move(work.copies)};
  for (StridedCopy& copy : message.copies) {
    copy.from += shift;
    copy.to += shift;
  }
  for (Extent& read : work.reads) {
    read.at += shift;
    round.reads.push_back(read);
  }
  round.staging_bytes += work.staging_bytes;
  round.sends.push_back(std::move(message));
}

}  // namespace

ExchangeRounds::ExchangeRounds(Plan const& plan, std::vector<int> reader_of_file, int rank, int ranks, std::uint64_t staging_bytes)
    : plan_(plan), reader_of_file_(std::move(reader_of_file)), rank_(rank), staging_bytes_(staging_bytes) {
  for (int r = 0; r < ranks; ++r) left_.push_back(cells_of_rank(plan, r, ranks));
}

std::vector<ExchangeRounds::Share> ExchangeRounds::choose() {
  std::size_t const ranks = left_.size();
  std::vector<std::uint64_t> load(ranks, 0);
  std::vector<Share> chosen;
  for (std::size_t writer = 0; writer < ranks; ++writer) {
    for (CellRange& range = left_[writer]; range.begin < range.end; ++range.begin) {
      Cell const& cell = plan_.cells[range.begin];
      std::vector<std::size_t> involved{writer};
      for (std::uint32_t r = cell.first_region; r < cell.first_region + cell.region_count; ++r)
        involved.push_back(static_cast<std::size_t>(reader_of_file_[plan_.regions[r].src_file]));
      std::sort(involved.begin(), involved.end());
      involved.erase(std::unique(involved.begin(), involved.end()), involved.end());
      // A writer holds the message, its staged form and the target; a reader what it read and the message.
      std::uint64_t const need = 2 * cell.staging_bytes;
      bool const fits = std::all_of(involved.begin(), involved.end(), [&](std::size_t r) { return load[r] + need <= staging_bytes_; });
      if (!fits && !chosen.empty()) break;
      for (std::size_t const r : involved) load[r] += need;
      chosen.push_back({static_cast<int>(writer), range.begin});
    }
  }
  return chosen;
}

std::optional<RoundWork> ExchangeRounds::next() {
  std::vector<Share> const chosen = choose();
  if (chosen.empty()) return std::nullopt;
  std::map<std::pair<int, int>, Parcel> parcels;  // (reader, writer), those of this rank
  std::vector<int> readers;                       // of the messages to this rank
  std::vector<Region> mine;
  std::vector<ByteDim> dims = {};
  for (Share const& share : chosen) {
    Cell const& cell = plan_.cells[share.cell];
    for (std::uint32_t r = cell.first_region; r < cell.first_region + cell.region_count; ++r) {
      Region region = plan_.regions[r];
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
  RoundWork round = mine.empty() ? RoundWork() : compile_round(mine, dims);
  for (int const reader : readers) {
    std::uint64_t const bytes = parcels.at({reader, rank_}).bytes();
    round.receives.push_back({reader, round.staging_bytes, bytes, {}});
    round.staging_bytes += (bytes + 4095) / 4096 * 4096;
  }
  take_messages(round, round.receives);
  for (auto const& [pair, parcel] : parcels)
    if (pair.first == rank_) send_parcel(round, parcel, pair.second);
  return round;
}

}  // namespace reshard
