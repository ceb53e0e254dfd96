#include "stages/verify/rows_behind.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/wire.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t slice_bytes = std::uint64_t{4} << 20;
constexpr std::size_t most_ranges = 4;

/// Rows [begin, end) with values.
struct FilledRows {
  Index begin = 0;
  Index end = 0;
  friend auto operator<=>(FilledRows const&, FilledRows const&) = default;
};
constexpr auto wire_fields(FilledRows const&) {
  return std::tuple(&FilledRows::begin, &FilledRows::end);
}

/// The filled rows of one tensor, by its number.
struct FilledTensor {
  std::uint32_t tensor = 0;
  std::vector<FilledRows> filled;
};
constexpr auto wire_fields(FilledTensor const&) {
  return std::tuple(&FilledTensor::tensor, &FilledTensor::filled);
}

/// A tensor's rows behind the vocabulary, and those of them with values, in order.
struct Behind {
  Index first = 0;
  Index rows = 0;
  std::vector<FilledRows> filled;
  friend bool operator==(Behind const&, Behind const&) = default;
};

/// Ranges in order, neighbours joined.
std::vector<FilledRows> joined(std::vector<FilledRows> ranges) {
  std::ranges::sort(ranges);
  std::vector<FilledRows> result;
  for (FilledRows const& range : ranges)
    if (!result.empty() && result.back().end >= range.begin)
      result.back().end = std::max(result.back().end, range.end);
    else
      result.push_back(range);
  return result;
}

/// Rows [begin, end) of `of` that are not zero.
void look_at(PaddingRows const& of, Index begin, Index end, CatalogReader const& read,
             std::vector<std::byte>& bytes, std::vector<FilledRows>& filled) {
  auto const count = static_cast<std::uint64_t>(end - begin);
  bytes.resize(count * of.row_bytes);
  read(of.file, of.offset_bytes + static_cast<std::uint64_t>(begin) * of.row_bytes, bytes);
  for (std::uint64_t row = 0; row < count; ++row) {
    auto const at = std::span(bytes).subspan(row * of.row_bytes, of.row_bytes);
    if (std::ranges::all_of(at, [](std::byte byte) { return byte == std::byte{0}; })) continue;
    Index const number = of.first_row + begin + static_cast<Index>(row);
    if (!filled.empty() && filled.back().end == number)
      ++filled.back().end;
    else
      filled.push_back({number, number + 1});
  }
}

/// This rank's share: slices in turn of each range of rows.
std::vector<FilledTensor> look_at_share(std::span<PaddingRows const> rows,
                                        CatalogReader const& read, Comm const& comm) {
  std::map<std::uint32_t, std::vector<FilledRows>> filled;
  std::vector<std::byte> bytes;
  std::size_t turn = 0;
  for (PaddingRows const& one : rows) {
    auto const step = static_cast<Index>(
        std::max<std::uint64_t>(1, slice_bytes / std::max<std::uint64_t>(one.row_bytes, 1)));
    for (Index begin = 0; begin < one.rows; begin += step)
      if (turn++ % static_cast<std::size_t>(comm.size()) == static_cast<std::size_t>(comm.rank()))
        look_at(one, begin, std::min(begin + step, one.rows), read, bytes,
                filled[static_cast<std::uint32_t>(index(one.tensor))]);
  }
  std::vector<FilledTensor> result;
  for (auto& [tensor, ranges] : filled) result.push_back({tensor, std::move(ranges)});
  return result;
}

Index count_of(std::vector<FilledRows> const& filled) {
  Index rows = 0;
  for (FilledRows const& range : filled) rows += range.end - range.begin;
  return rows;
}

std::string range_text(FilledRows const& range) {
  return range.end == range.begin + 1 ? fmt::format("{}", range.begin)
                                      : fmt::format("{} to {}", range.begin, range.end - 1);
}

std::string warning(std::string const& names, Behind const& behind) {
  std::vector<std::string> ranges;
  for (FilledRows const& range : behind.filled) ranges.push_back(range_text(range));
  return fmt::format(
      "{}: {} of the {} rows behind the first {} are not zero ({} {}), and the target does not get "
      "them. If they are tokens that vocab_size does not count, set model.true_vocab_size = {}",
      names, count_of(behind.filled), behind.rows, behind.first,
      agreeing(static_cast<std::uint64_t>(count_of(behind.filled)), "row", "rows"),
      listed(ranges, most_ranges), behind.filled.back().end);
}

std::string note(std::string const& names, Behind const& behind) {
  return fmt::format(
      "{}: {} behind the first {} have values, as Megatron trains the rows that it "
      "pads with; the target does not get them",
      names, counted(static_cast<std::uint64_t>(behind.rows), "row"), behind.first);
}

}  // namespace

RowsBehind look_behind_vocabulary(Model const& model, std::span<PaddingRows const> rows,
                                  CatalogReader const& read, Comm const& comm) {
  std::vector<FilledTensor> mine;
  together(comm, [&] { mine = look_at_share(rows, read, comm); });
  std::map<std::uint32_t, Behind> found;
  for (PaddingRows const& one : rows) {
    auto const [of, is_new] = found.try_emplace(static_cast<std::uint32_t>(index(one.tensor)),
                                                Behind{one.first_row, 0, {}});
    of->second.first = std::min(of->second.first, one.first_row);
    of->second.rows += one.rows;
  }
  for (std::string const& packed : comm.all_gather(WireWriter().put(mine).bytes()))
    for (FilledTensor const& one :
         WireReader(packed, "the rows of a rank").all<std::vector<FilledTensor>>())
      found[one.tensor].filled.insert(found[one.tensor].filled.end(), one.filled.begin(),
                                      one.filled.end());
  // Tensors with the same findings share a sentence: an embedding and its output layer.
  std::vector<std::pair<std::vector<std::string>, Behind>> alike;
  for (auto& [tensor, behind] : found) {
    behind.filled = joined(std::move(behind.filled));
    if (behind.filled.empty()) continue;
    auto same = std::ranges::find_if(
        alike, [&found = behind](auto const& one) { return one.second == found; });
    if (same == alike.end()) {
      alike.emplace_back(std::vector<std::string>(), behind);
      same = alike.end() - 1;
    }
    same->first.push_back(fmt::format("'{}'", model.tensor(TensorId{tensor}).name));
  }
  RowsBehind result;
  for (auto const& [names, behind] : alike) {
    bool const all = count_of(behind.filled) == behind.rows;
    (all ? result.notes : result.warnings)
        .push_back(all ? note(listed(names), behind) : warning(listed(names), behind));
  }
  return result;
}

}  // namespace reshard
