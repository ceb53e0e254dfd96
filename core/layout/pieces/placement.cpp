#include "core/layout/pieces/placement.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "core/base/error.hpp"
#include "core/layout/axis.hpp"

namespace reshard {
namespace {

// Text and sizes come from a user: these bounds keep the list of boxes and the work for it in
// memory's reach.
constexpr std::size_t longest_text = 4096;
constexpr std::size_t most_boxes = std::size_t{1} << 20;
constexpr std::size_t most_steps = std::size_t{1} << 26;

constexpr std::string_view placements_help =
    "Write one of R, S(dim), _S(dim, parts) per mesh axis, separated by spaces: \"R S(0)\".";
constexpr std::string_view mesh_help =
    "Write name=size for every mesh axis, separated by spaces: \"dp=4 tp=2\".";

/// Words and numbers of one text.
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view help) : text_(text), help_(help) {
    if (text.size() > longest_text)
      fail(ErrorKind::usage, "a string of {} characters is too long. {}", text.size(), help);
  }

  [[noreturn]] void refuse(std::string_view wanted) const {
    std::string const found =
        at_ < text_.size() ? fmt::format("'{}'", text_.substr(at_, 1)) : std::string("the end");
    fail(ErrorKind::usage, "'{}': column {} has {} where {} is expected. {}", text_, at_ + 1, found,
         wanted, help_);
  }
  [[noreturn]] void refuse_value(std::string const& why) const {
    fail(ErrorKind::usage, "'{}': {}. {}", text_, why, help_);
  }

  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  bool take(std::string_view wanted) {
    skip_spaces();
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  void expect(std::string_view wanted) {
    if (!take(wanted)) refuse(fmt::format("'{}'", wanted));
  }
  /// Consumes the space between two items.
  void separate() {
    if (at_ < text_.size() && !is_space(text_[at_])) refuse("a space");
  }
  std::string word() {
    skip_spaces();
    std::size_t const begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
      ++at_;
    if (at_ == begin) refuse("a name");
    return std::string(text_.substr(begin, at_ - begin));
  }
  template <class Integer>
  Integer number() {
    skip_spaces();
    Integer value{};
    char const* const begin = text_.data() + at_;
    auto const [end, status] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (status != std::errc() || *begin == '-') refuse("a number that is not too large");
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  void skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  std::string_view text_;
  std::string_view help_;
  std::size_t at_ = 0;
};

Placement strided(Scanner& scanner) {
  Placement result{Placement::Kind::strided_shard, 0, 1};
  scanner.expect("(");
  scanner.take("dim=");
  result.dim = scanner.number<int>();
  scanner.expect(",");
  if (!scanner.take("split_factor=")) scanner.take("sf=");
  result.split_factor = scanner.number<Index>();
  if (result.split_factor < 1) scanner.refuse_value("a strided shard needs 1 part or more");
  scanner.expect(")");
  return result;
}

Placement plain(Scanner& scanner) {
  Placement result{Placement::Kind::shard, 0, 1};
  bool const in_brackets = scanner.take("(");
  if (in_brackets) scanner.take("dim=");
  result.dim = scanner.number<int>();
  if (in_brackets) scanner.expect(")");
  return result;
}

Placement placement(Scanner& scanner) {
  if (scanner.take("_StridedShard") || scanner.take("_S")) return strided(scanner);
  if (scanner.take("Shard") || scanner.take("S")) return plain(scanner);
  if (scanner.take("Replicate()") || scanner.take("R")) return {};
  scanner.refuse("a placement");
}

using Rows = std::vector<Run>;

void append(Rows& rows, Index begin, Index end) {
  if (begin == end) return;
  if (!rows.empty() && rows.back().end == begin) {
    rows.back().end = end;
    return;
  }
  if (rows.size() == most_boxes)
    fail(ErrorKind::usage,
         "strided shards give a rank more than {} runs of rows. Choose fewer parts.", most_boxes);
  rows.push_back({begin, end, false});
}

Index length(Rows const& rows) {
  Index size = 0;
  for (Run const& run : rows) size += run.end - run.begin;
  return size;
}

/// An extent cut into parts of ceil(extent / n) rows; late ones are short or empty.
struct Cut {
  Index size;
  Index step;
  Cut(Index extent, Index parts)
      : size(extent), step(extent / parts + (extent % parts == 0 ? 0 : 1)) {}
  Index begin(Index part) const {
    return step == 0 || part > size / step ? size : std::min(size, part * step);
  }
  Index end(Index part) const { return begin(part) + std::min(size - begin(part), step); }
  /// Parts that have rows.
  Index parts() const { return step == 0 ? 0 : (size - 1) / step + 1; }
};

/// Counts through the rows of a list: slices must come in ascending order.
class Slicer {
 public:
  explicit Slicer(Rows const& rows) : rows_(rows) {}

  void append_slice(Rows& result, Index begin, Index end) {
    while (begin < end) {
      Run const& run = rows_[run_];
      Index const past = before_ + (run.end - run.begin);
      if (begin >= past) {
        before_ = past;
        ++run_;
        continue;
      }
      Index const stop = std::min(end, past);
      append(result, run.begin + (begin - before_), run.begin + (stop - before_));
      begin = stop;
    }
  }

 private:
  Rows const& rows_;
  std::size_t run_ = 0;
  Index before_ = 0;  ///< rows in the runs before
};

/// The effect of one placement on the rows of a dimension: parts of equal size, each cut over the
/// ranks.
class Divider {
 public:
  Divider(Rows const& rows, Placement const& placement, Index ranks)
      : rows_(rows),
        outer_(length(rows),
               placement.kind == Placement::Kind::strided_shard ? placement.split_factor : 1),
        ranks_(ranks) {
    if (static_cast<std::uint64_t>(outer_.parts()) > most_boxes)
      fail(ErrorKind::usage, "_S({}, {}) cuts {} rows into more than {} parts. Choose fewer.",
           placement.dim, placement.split_factor, outer_.size, most_boxes);
  }

  /// Ranks from this one on have no rows: each part has `step` rows or fewer, and a rank takes one
  /// at least.
  Index used_ranks() const { return std::min(outer_.step, ranks_); }
  std::size_t steps() const { return rows_.size() + static_cast<std::size_t>(outer_.parts()); }

  Rows rows_of(Index rank) const {
    Rows result;
    Slicer slicer(rows_);
    for (Index part = 0; part < outer_.parts(); ++part) {
      Index const begin = outer_.begin(part);
      Cut const inner(outer_.end(part) - begin, ranks_);
      slicer.append_slice(result, begin + inner.begin(rank), begin + inner.end(rank));
    }
    return result;
  }

 private:
  Rows const& rows_;
  Cut outer_;
  Index ranks_;
};

/// Goes through the coordinates of a mesh and collects the boxes of each place.
class Boxes {
 public:
  Boxes(Mesh const& mesh, std::span<Placement const> placements)
      : mesh_(mesh.axes()), placements_(placements) {}

  void descend(std::size_t axis, std::vector<Rows>& rows) {
    if (std::any_of(rows.begin(), rows.end(),
                    [](Rows const& dimension) { return dimension.empty(); }))
      return;
    if (axis == mesh_.size()) {
      TensorBox box;
      return emit(rows, box);
    }
    Placement const& how = placements_[axis];
    if (how.kind == Placement::Kind::replicate) return descend(axis + 1, rows);
    auto const dim = static_cast<std::size_t>(how.dim);
    Rows const whole = rows[dim];
    Divider const divider(whole, how, mesh_[axis].size);
    for (Index rank = 0; rank < divider.used_ranks(); ++rank) {
      steps_ += divider.steps();
      if (steps_ > most_steps)
        fail(ErrorKind::usage,
             "placements cut a tensor into too many parts. Choose a smaller mesh or fewer parts.");
      rows[dim] = divider.rows_of(rank);
      descend(axis + 1, rows);
    }
    rows[dim] = whole;
  }

  std::vector<TensorBox> take() { return std::move(boxes_); }

 private:
  void emit(std::vector<Rows> const& rows, TensorBox& box) {
    std::size_t const d = box.begin.size();
    if (d == rows.size()) {
      if (boxes_.size() == most_boxes)
        fail(ErrorKind::usage,
             "placements cut a tensor into more than {} boxes. Choose a smaller mesh.", most_boxes);
      boxes_.push_back(box);
      return;
    }
    for (Run const& run : rows[d]) {
      box.begin.push_back(run.begin);
      box.end.push_back(run.end);
      emit(rows, box);
      box.begin.pop_back();
      box.end.pop_back();
    }
  }

  std::span<MeshAxis const> mesh_;
  std::span<Placement const> placements_;
  std::vector<TensorBox> boxes_;
  std::size_t steps_ = 0;
};

void check(std::span<Index const> shape, std::span<Placement const> placements, std::size_t axes,
           auto const& axis_name) {
  if (axes != placements.size())
    fail(
        ErrorKind::usage,
        "{} placements for a mesh of {} axes. Give one placement for each axis, R where it does not cut.",
        placements.size(), axes);
  for (std::size_t i = 0; i < axes; ++i) {
    Placement const& how = placements[i];
    if (how.kind == Placement::Kind::replicate) continue;
    if (how.dim < 0 || static_cast<std::size_t>(how.dim) >= shape.size())
      fail(
          ErrorKind::usage,
          "mesh axis '{}' cuts dimension {} of a tensor of {} dimensions. Choose a dimension from 0 to {}, or R.",
          axis_name(i), how.dim, shape.size(), static_cast<Index>(shape.size()) - 1);
    if (how.kind == Placement::Kind::strided_shard && how.split_factor < 1)
      fail(ErrorKind::usage, "mesh axis '{}' cuts after {} parts; a strided shard needs 1 or more.",
           axis_name(i), how.split_factor);
  }
}

/// The axes that cut a dimension, in the order of their cuts; nullopt if the factors of strided
/// shards determine none.
std::optional<std::vector<std::size_t>> order_of_cuts(std::span<Index const> sizes,
                                                      std::span<Placement const> placements,
                                                      int dim) {
  std::vector<std::size_t> order;
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    Placement const& how = placements[axis];
    if (how.kind == Placement::Kind::replicate || how.dim != dim) continue;
    Index const factor = how.kind == Placement::Kind::strided_shard ? how.split_factor : 1;
    Index before = 1;
    std::size_t place = 0;
    while (before != factor && place < order.size())
      if (__builtin_mul_overflow(before, sizes[order[place++]], &before)) return std::nullopt;
    if (before != factor) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), axis);
  }
  return order;
}

}  // namespace

std::vector<Placement> parse_placements(std::string_view text) {
  Scanner scanner(text, placements_help);
  std::vector<Placement> result;
  while (!scanner.at_end()) {
    result.push_back(placement(scanner));
    scanner.separate();
  }
  return result;
}

Mesh parse_mesh(std::string_view text) {
  Scanner scanner(text, mesh_help);
  std::vector<MeshAxis> result;
  while (!scanner.at_end()) {
    MeshAxis axis;
    axis.name = scanner.word();
    scanner.expect("=");
    axis.size = scanner.number<Index>();
    if (axis.size < 1)
      scanner.refuse_value(fmt::format("'{}' has size {}, which is below 1", axis.name, axis.size));
    if (std::any_of(result.begin(), result.end(),
                    [&](MeshAxis const& known) { return known.name == axis.name; }))
      scanner.refuse_value(fmt::format("'{}' appears twice", axis.name));
    result.push_back(std::move(axis));
    scanner.separate();
  }
  return Mesh(std::move(result));
}

std::vector<TensorBox> placed_boxes(std::span<Index const> shape, Mesh const& mesh,
                                    std::span<Placement const> placements) {
  check(shape, placements, mesh.axes().size(), [&](std::size_t i) { return mesh.axes()[i].name; });
  if (checked_volume(shape, ErrorKind::usage, "a tensor") == 0)
    return {{std::vector<Index>(shape.size(), 0), {shape.begin(), shape.end()}}};
  std::vector<Rows> rows;
  for (Index const extent : shape) rows.push_back({{0, extent, false}});
  Boxes boxes(mesh, placements);
  boxes.descend(0, rows);
  return boxes.take();
}

std::vector<Share> placed_rows(std::span<Index const> shape, std::span<Index const> sizes,
                               std::span<Index const> at, std::span<Placement const> placements) {
  check(shape, placements, sizes.size(), [](std::size_t i) { return i; });
  std::vector<Share> rows;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    rows.emplace_back();
    append(rows.back(), 0, shape[d]);
    auto const cut = [&](std::size_t axis, Placement const& how) {
      rows.back() = Divider(rows.back(), how, sizes[axis]).rows_of(at[axis]);
    };
    auto const dim = static_cast<int>(d);
    if (auto const order = order_of_cuts(sizes, placements, dim)) {
      for (std::size_t const axis : *order) cut(axis, {Placement::Kind::shard, dim, 1});
      continue;
    }
    for (std::size_t axis = 0; axis < placements.size(); ++axis)
      if (placements[axis].kind != Placement::Kind::replicate && placements[axis].dim == dim)
        cut(axis, placements[axis]);
  }
  return rows;
}

}  // namespace reshard
