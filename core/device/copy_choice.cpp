#include "core/device/copy_choice.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/device/copy_shape.hpp"
#include "core/device/kernels/copy_tiles.hpp"
#include "core/device/strided_copy.hpp"

namespace reshard {
namespace {

// Larger copies are cut: then every index and every distance fits the kernels' 32-bit arithmetic,
// whatever the element.
constexpr std::uint64_t most_moved = std::uint64_t{1} << 30U;
constexpr std::uint64_t farthest_apart = (std::uint64_t{1} << 32U) - (std::uint64_t{1} << 20U);

// A cut of a run keeps its alignment.
constexpr std::uint64_t run_cut_alignment = 256;

// The GPU's memory is read in pieces of this size: to step farther costs no more.
constexpr std::uint64_t sector_bytes = 32;

// Runs from this length on are copied by the kernel shifted, by the largest power of two that
// divides all addresses. Below it most words of the target would be shared by runs, and elements
// are cheaper.
constexpr std::uint64_t shifted_run_bytes(unsigned width) { return width == 1 ? 32 : 64; }

// Smaller matrices leave most threads of a block without work; a warp's reads of them stay in the
// cache anyway.
constexpr std::uint64_t smallest_tiled_matrix = 4096;
constexpr std::uint64_t smallest_tiled_side = 4;

struct Copy {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  CopyShape shape;
};

std::uint64_t moved(std::uint64_t place, std::int64_t stride, std::uint64_t steps) {
  return place + static_cast<std::uint64_t>(stride) * steps;
}

/// The dimensions in the order of the target, all forwards in it, as few as possible.
Copy in_target_order(CopyRequest const& request) {
  Copy copy{request.from, request.to, simplified(request.run_bytes, request.dims)};
  for (ByteDim& dim : copy.shape.dims) {
    if (dim.to_stride >= 0) continue;
    copy.from = moved(copy.from, dim.from_stride, dim.count - 1);
    copy.to = moved(copy.to, dim.to_stride, dim.count - 1);
    dim = {dim.count, -dim.from_stride, -dim.to_stride};
  }
  std::stable_sort(copy.shape.dims.begin(), copy.shape.dims.end(),
                   [](ByteDim const& a, ByteDim const& b) { return a.to_stride > b.to_stride; });
  copy.shape = simplified(copy.shape.run_bytes, copy.shape.dims);
  return copy;
}

/// A dimension of one index is none.
void set_count(std::vector<ByteDim>& dims, std::size_t d, std::uint64_t count) {
  dims[d].count = count;
  if (count == 1) dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d));
}

std::uint64_t reach(std::int64_t stride, std::uint64_t count) {
  return static_cast<std::uint64_t>(std::abs(stride)) * (count - 1);
}

std::uint64_t reach(ByteDim const& dim) {
  return std::max(reach(dim.from_stride, dim.count), reach(dim.to_stride, dim.count));
}

bool is_too_large(CopyShape const& shape) {
  std::uint64_t from = shape.run_bytes;
  std::uint64_t to = shape.run_bytes;
  for (ByteDim const& dim : shape.dims) {
    from += reach(dim.from_stride, dim.count);
    to += reach(dim.to_stride, dim.count);
  }
  return copied_bytes(shape.run_bytes, shape.dims) > most_moved ||
         std::max(from, to) > farthest_apart;
}

/// Cuts a copy in two along the dimension that reaches farthest, or along its only run.
std::pair<Copy, Copy> halves(Copy const& copy) {
  Copy low = copy;
  Copy high = copy;
  if (copy.shape.dims.empty()) {
    std::uint64_t const cut = copy.shape.run_bytes / 2 / run_cut_alignment * run_cut_alignment;
    low.shape.run_bytes = cut;
    high.shape.run_bytes -= cut;
    high.from += cut;
    high.to += cut;
    return {low, high};
  }
  std::vector<ByteDim> const& dims = copy.shape.dims;
  auto const farthest =
      std::max_element(dims.begin(), dims.end(),
                       [](ByteDim const& a, ByteDim const& b) { return reach(a) < reach(b); });
  std::uint64_t const cut = farthest->count / 2;
  high.from = moved(copy.from, farthest->from_stride, cut);
  high.to = moved(copy.to, farthest->to_stride, cut);
  set_count(low.shape.dims, static_cast<std::size_t>(farthest - dims.begin()), cut);
  set_count(high.shape.dims, static_cast<std::size_t>(farthest - dims.begin()),
            farthest->count - cut);
  return {low, high};
}

/// The largest power of two, 16 at most, that divides all added numbers.
class Alignment {
 public:
  explicit Alignment(std::uint64_t number) { add(number); }
  void add(std::uint64_t number) { bits_ |= number; }
  void add(std::int64_t number) { bits_ |= static_cast<std::uint64_t>(number); }
  unsigned value() const { return 1U << static_cast<unsigned>(std::countr_zero(bits_ | 16U)); }

 private:
  std::uint64_t bits_ = 0;
};

unsigned element_bytes(Copy const& copy) {
  Alignment alignment(copy.from | copy.to | copy.shape.run_bytes);
  for (ByteDim const& dim : copy.shape.dims) {
    alignment.add(dim.from_stride);
    alignment.add(dim.to_stride);
  }
  return alignment.value();
}

std::uint64_t step_cost(std::int64_t stride) {
  return std::min(static_cast<std::uint64_t>(std::abs(stride)), sector_bytes);
}

/// The dimension that walks the source in the smallest steps. Dimensions of stride 0 do not count.
/// Pre: there are dimensions.
std::size_t finest_in_source(std::vector<ByteDim> const& dims) {
  std::size_t best = dims.size() - 1;
  for (std::size_t d = dims.size(); d-- > 0;)
    if (dims[d].from_stride != 0 &&
        (dims[best].from_stride == 0 ||
         std::abs(dims[d].from_stride) < std::abs(dims[best].from_stride)))
      best = d;
  return best;
}

unsigned bits_for(std::uint64_t count) { return static_cast<unsigned>(std::bit_width(count - 1)); }

/// The sides of a tile: cache lines in both directions, and where one side of the matrix is short,
/// more of the other.
void choose_sides(ChosenCopy& chosen, unsigned pack) {
  unsigned const all_bits = bits_for(tile_bytes / chosen.width);
  unsigned const side_limit = bits_for(tile_side_words * pack);
  unsigned const row_limit = bits_for(tile_row_limit(chosen.width * pack));
  unsigned const lines = bits_for(chosen.line.count);
  unsigned const columns = bits_for(chosen.column.count);
  chosen.line_bits = std::min(lines, all_bits / 2);
  chosen.column_bits = std::min({columns, all_bits - chosen.line_bits, side_limit});
  chosen.line_bits = std::min({lines, all_bits - chosen.column_bits, row_limit});
}

ChosenCopy chosen_for(Copy const& copy, CopyVariant variant, unsigned width) {
  ChosenCopy chosen;
  chosen.variant = variant;
  chosen.width = width;
  chosen.from = copy.from;
  chosen.to = copy.to;
  for (ByteDim const& dim : copy.shape.dims)
    if (dim.from_stride < 0)
      chosen.from_start += static_cast<std::uint32_t>(reach(dim.from_stride, dim.count));
  return chosen;
}

/// How many elements of one word stand side by side in the source's lines and in the target's
/// columns: four bytes of them, or one element.
unsigned pack_of(Copy const& copy, std::size_t line, std::size_t column) {
  std::uint64_t const width = copy.shape.run_bytes;
  std::vector<ByteDim> const& dims = copy.shape.dims;
  if (width > 2) return 1;
  auto const pack = static_cast<unsigned>(4 / width);
  auto const step = static_cast<std::int64_t>(width);
  if (dims[line].from_stride != step || dims[column].to_stride != step) return 1;
  if (dims[line].count % pack != 0 || dims[column].count % pack != 0) return 1;
  Alignment alignment(copy.from | copy.to);
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (d != line) alignment.add(dims[d].from_stride);
    if (d != column) alignment.add(dims[d].to_stride);
  }
  return alignment.value() >= 4 ? pack : 1;
}

/// The copy by tiles, when its elements suit and neighbours in the target are far apart in the
/// source, so that single elements would waste half of what is read or written.
std::optional<ChosenCopy> by_tiles(Copy const& copy) {
  std::vector<ByteDim> const& dims = copy.shape.dims;
  std::uint64_t const width = copy.shape.run_bytes;
  if (dims.size() < 2 || width > 16 || element_bytes(copy) != width) return std::nullopt;
  std::size_t const l = finest_in_source(dims);
  std::size_t const c = dims.size() - 1;
  if (l == c) return std::nullopt;
  ByteDim const& line = dims[l];
  ByteDim const& column = dims[c];
  if (std::min(line.count, column.count) < smallest_tiled_side ||
      line.count * column.count * width < smallest_tiled_matrix)
    return std::nullopt;
  std::uint64_t const by_lines = step_cost(line.from_stride) + step_cost(line.to_stride);
  std::uint64_t const by_columns = step_cost(column.from_stride) + step_cost(column.to_stride);
  std::uint64_t const tiled = step_cost(line.from_stride) + step_cost(column.to_stride);
  if (2 * std::min(by_lines, by_columns) < 3 * tiled) return std::nullopt;

  unsigned const pack = pack_of(copy, l, c);
  ChosenCopy chosen = chosen_for(copy, pack > 1 ? CopyVariant::packed_tiles : CopyVariant::tiles,
                                 static_cast<unsigned>(width));
  chosen.line = line;
  chosen.column = column;
  choose_sides(chosen, pack);
  auto const tiles = [](ByteDim const& dim, unsigned bits) {
    std::int64_t const side = std::int64_t{1} << bits;
    return ByteDim{(dim.count + static_cast<std::uint64_t>(side) - 1) >> bits,
                   dim.from_stride * side, dim.to_stride * side};
  };
  chosen.levels = {tiles(line, chosen.line_bits), tiles(column, chosen.column_bits)};
  for (std::size_t d = dims.size(); d-- > 0;)
    if (d != l && d != c) chosen.levels.push_back(dims[d]);
  return chosen;
}

/// The levels of single elements: those of a run, then the dimensions, the one along which lanes
/// touch the fewest sectors first.
std::vector<ByteDim> element_levels(Copy const& copy, unsigned width) {
  std::vector<ByteDim> levels(copy.shape.dims.rbegin(), copy.shape.dims.rend());
  if (!levels.empty() && copy.shape.run_bytes < sector_bytes) {
    auto const cost = [](ByteDim const& dim) {
      return step_cost(dim.from_stride) + step_cost(dim.to_stride);
    };
    auto const best =
        std::min_element(levels.begin(), levels.end(),
                         [&](ByteDim const& a, ByteDim const& b) { return cost(a) < cost(b); });
    std::rotate(levels.begin(), best, best + 1);
  }
  if (copy.shape.run_bytes > width)
    levels.insert(levels.begin(), {copy.shape.run_bytes / width, width, width});
  return levels;
}

/// Which level to take by fours: the outermost whose count four divides, so that the lanes' order
/// stays as it is; else the longest.
std::optional<std::size_t> level_of_fours(std::vector<ByteDim> const& levels) {
  for (std::size_t l = levels.size(); l-- > 0;)
    if (levels[l].count % 4 == 0) return l;
  auto const longest =
      std::max_element(levels.begin(), levels.end(),
                       [](ByteDim const& a, ByteDim const& b) { return a.count < b.count; });
  if (longest == levels.end() || longest->count < 4) return std::nullopt;
  return static_cast<std::size_t>(longest - levels.begin());
}

/// Elements by fours, and the remaining ones one by one.
void add_elements(Copy const& copy, unsigned width, std::vector<ChosenCopy>& chosen) {
  ChosenCopy words = chosen_for(copy, CopyVariant::words, width);
  words.levels = element_levels(copy, width);
  std::optional<std::size_t> const l = width < 8 ? level_of_fours(words.levels) : std::nullopt;
  if (!l) return chosen.push_back(std::move(words));
  ByteDim const level = words.levels[*l];
  std::uint64_t const quarter = level.count / 4;
  auto const quarter_steps = static_cast<std::int64_t>(quarter);
  ChosenCopy fours = words;
  fours.variant = CopyVariant::fours;
  fours.group = {4, level.from_stride * quarter_steps, level.to_stride * quarter_steps};
  set_count(fours.levels, *l, quarter);
  chosen.push_back(std::move(fours));
  if (level.count % 4 == 0) return;
  words.from = moved(words.from, level.from_stride, quarter * 4);
  words.to = moved(words.to, level.to_stride, quarter * 4);
  if (level.from_stride < 0)
    words.from_start -= static_cast<std::uint32_t>(reach(level.from_stride, quarter * 4 + 1));
  set_count(words.levels, *l, level.count % 4);
  chosen.push_back(std::move(words));
}

/// Long runs of any alignment. Level 0 counts the words of the target that a run touches, at most
/// where runs are aligned differently.
ChosenCopy by_shifted_words(Copy const& copy, unsigned width) {
  Alignment alignment(0);
  for (ByteDim const& dim : copy.shape.dims) alignment.add(dim.to_stride);
  std::uint64_t const before = alignment.value() == 16 ? copy.to % 16 : 15;
  ChosenCopy chosen = chosen_for(copy, CopyVariant::shifted, width);
  chosen.run_bytes = copy.shape.run_bytes;
  chosen.levels = {{(before + copy.shape.run_bytes + 15) / 16, 16, 16}};
  chosen.levels.insert(chosen.levels.end(), copy.shape.dims.rbegin(), copy.shape.dims.rend());
  return chosen;
}

void choose(Copy const& copy, std::vector<ChosenCopy>& chosen) {
  if (is_too_large(copy.shape)) {
    auto const [low, high] = halves(copy);
    choose(low, chosen);
    return choose(high, chosen);
  }
  if (auto tiles = by_tiles(copy)) return chosen.push_back(std::move(*tiles));
  unsigned const width = element_bytes(copy);
  if (width < 8 && copy.shape.run_bytes >= shifted_run_bytes(width))
    return chosen.push_back(by_shifted_words(copy, width));
  add_elements(copy, width, chosen);
}

}  // namespace

std::vector<ChosenCopy> choose_kernels(CopyRequest const& request) {
  std::vector<ChosenCopy> chosen;
  if (copied_bytes(request.run_bytes, request.dims) > 0) choose(in_target_order(request), chosen);
  return chosen;
}

}  // namespace reshard
