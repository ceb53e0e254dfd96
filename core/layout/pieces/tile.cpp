#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/error.hpp"
#include "core/layout/pieces/digit_boxes.hpp"
#include "core/layout/pieces/join.hpp"

namespace reshard {
namespace {

/// A bad cell: its interval on the digits processed, the deepest first while it is being found.
struct Fault {
  std::vector<Interval> at;
  int holders = 0;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

/// Sweeps digit after digit: cuts a digit at all ends of intervals, and processes the boxes over
/// each cell on the next digit. Boxes are numbered domain first, then pieces; every cell must end
/// with one of each.
class Sweep {
 public:
  Sweep(DigitBoxes const& domain, DigitBoxes const& pieces)
      : domain_(domain), pieces_(pieces), width_(pieces.width()) {
    boxes_.resize(domain.size());
    std::iota(boxes_.begin(), boxes_.end(), 0U);
    for (std::uint32_t const box : pieces.sorted())
      boxes_.push_back(narrow<std::uint32_t>(domain.size() + box));
  }

  std::optional<Fault> run() { return check(0, 0, boxes_.size()); }

 private:
  bool is_domain(std::uint32_t box) const { return box < domain_.size(); }

  Interval interval(std::uint32_t box, std::size_t digit) const {
    BoxDigit const& found =
        is_domain(box) ? domain_.row(box)[digit] : pieces_.row(box - domain_.size())[digit];
    return {found.first, found.count};
  }

  /// The boxes boxes_[begin, end) cover one cell of the digits before `digit`. Leaves boxes_ as
  /// long as it was, this range reordered.
  std::optional<Fault> check(std::size_t digit, std::size_t begin, std::size_t end) {
    auto const in_domain = static_cast<std::size_t>(
        std::count_if(boxes_.begin() + offset(begin), boxes_.begin() + offset(end),
                      [this](std::uint32_t box) { return is_domain(box); }));
    std::size_t const held = end - begin - in_domain;
    if (in_domain == 0 || held == 0 || digit == width_) return judge(begin, end, in_domain);
    sort(digit, begin, end);
    std::size_t const first_cut = cuts_.size();
    collect_cuts(digit, begin, end);
    std::optional<Fault> const fault = check_cells(digit, begin, end, first_cut);
    cuts_.resize(first_cut);
    return fault;
  }

  std::optional<Fault> judge(std::size_t begin, std::size_t end, std::size_t in_domain) const {
    Fault fault;
    fault.a = fault.b = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = begin; i < end; ++i) {
      if (is_domain(boxes_[i])) continue;
      std::uint32_t const piece = pieces_.piece(boxes_[i] - domain_.size());
      fault.b = std::min(fault.b, std::max(fault.a, piece));
      fault.a = std::min(fault.a, piece);
      ++fault.holders;
    }
    if (in_domain == 0) fault.holders = std::min(fault.holders, 1);
    if (in_domain == 1 && fault.holders == 1) return std::nullopt;
    return end > begin ? std::optional(fault) : std::nullopt;
  }

  void sort(std::size_t digit, std::size_t begin, std::size_t end) {
    auto const by_first = [&](std::uint32_t a, std::uint32_t b) {
      return interval(a, digit).first < interval(b, digit).first;
    };
    auto const from = boxes_.begin() + offset(begin);
    auto const to = boxes_.begin() + offset(end);
    if (!std::is_sorted(from, to, by_first)) std::stable_sort(from, to, by_first);
  }

  void collect_cuts(std::size_t digit, std::size_t begin, std::size_t end) {
    std::size_t const first_cut = cuts_.size();
    for (std::size_t i = begin; i < end; ++i) {
      Interval const here = interval(boxes_[i], digit);
      if (cuts_.size() < first_cut + 2 || cuts_[cuts_.size() - 2] != here.first ||
          cuts_.back() != here.first + here.count) {
        cuts_.push_back(here.first);
        cuts_.push_back(here.first + here.count);
      }
    }
    auto const from = cuts_.begin() + offset(first_cut);
    if (!std::is_sorted(from, cuts_.end())) std::sort(from, cuts_.end());
    cuts_.erase(std::unique(from, cuts_.end()), cuts_.end());
  }

  /// Processes the cells between neighbouring cuts. After the first fault it continues as long as
  /// the fault continues in the next cell.
  std::optional<Fault> check_cells(std::size_t digit, std::size_t begin, std::size_t end,
                                   std::size_t first_cut) {
    std::size_t const last_cut = cuts_.size() - 1;
    std::size_t const active = boxes_.size();
    std::size_t next = begin;
    std::optional<Fault> found;
    for (std::size_t cut = first_cut; cut < last_cut; ++cut) {
      Interval const cell{cuts_[cut], cuts_[cut + 1] - cuts_[cut]};
      drop_ended(digit, active, cell.first);
      for (; next < end && interval(boxes_[next], digit).first == cell.first; ++next)
        boxes_.push_back(boxes_[next]);
      std::optional<Fault> fault = check(digit + 1, active, boxes_.size());
      if (found && !(fault && extends(*found, *fault, cell))) break;
      if (found) {
        found->at.back().count += cell.count;
      } else if (fault) {
        found = std::move(fault);
        found->at.push_back(cell);
      }
    }
    boxes_.resize(active);
    return found;
  }

  void drop_ended(std::size_t digit, std::size_t active, Index at) {
    auto const ended = [&](std::uint32_t box) {
      Interval const here = interval(box, digit);
      return here.first + here.count <= at;
    };
    boxes_.erase(std::remove_if(boxes_.begin() + offset(active), boxes_.end(), ended),
                 boxes_.end());
  }

  static bool extends(Fault const& found, Fault const& next, Interval cell) {
    Interval const last = found.at.back();
    return last.first + last.count == cell.first && found.holders == next.holders &&
           found.at.size() == next.at.size() + 1 &&
           std::equal(next.at.begin(), next.at.end(), found.at.begin());
  }

  static std::ptrdiff_t offset(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }

  DigitBoxes const& domain_;
  DigitBoxes const& pieces_;
  std::size_t width_;
  std::vector<std::uint32_t> boxes_;  ///< a stack: the ranges of the recursion, one after the other
  std::vector<Index> cuts_;           ///< a stack: the cuts of the recursion, one after the other
};

PieceDigit whole_digit(DomainAxis const& axis, AxisTable const& axes) {
  Index const size = axes[axis.axis].size;
  Index const blocks = std::max(Index{1}, size / axis.div + (size % axis.div != 0 ? 1 : 0));
  return {axis.axis, blocks * axis.div, axis.div, 0, blocks, 0};
}

/// All combinations of the runs of the axes from `next` on, as pieces without a place.
void domain_pieces(std::span<DomainAxis const> domain, AxisTable const& axes, Piece const& prefix,
                   std::vector<Piece>& result) {
  if (prefix.digits.size() == domain.size()) {
    result.push_back(prefix);
    return;
  }
  DomainAxis const& axis = domain[prefix.digits.size()];
  for (Run const& run : axis.runs) {
    PieceDigit digit = whole_digit(axis, axes);
    digit.first = run.begin;
    digit.count = run.end - run.begin;
    Piece longer = prefix;
    longer.digits.push_back(digit);
    domain_pieces(domain, axes, longer, result);
  }
}

/// The intervals of one axis' digits as text: one range when they are one ("inter 64:96"), else
/// digit by digit ("inter/32 0:4, inter%32 8:16").
std::string text_of(std::span<JoinDigit const> digits, std::span<Interval const> at,
                    std::span<Index const> extents, Axis const& axis, Index div) {
  std::size_t varying = 0;
  while (varying < digits.size() && at[varying].count == 1) ++varying;
  bool one_range = true;
  for (std::size_t k = varying + 1; k < digits.size(); ++k)
    one_range = one_range && at[k] == Interval{0, extents[k]};
  std::string const suffix = div > 1 ? fmt::format("/{}", div) : "";
  if (one_range) {
    Index begin = 0;
    for (std::size_t k = 0; k < digits.size(); ++k) begin += at[k].first * (digits[k].div / div);
    std::size_t const last = std::min(varying, digits.size() - 1);
    Index const blocks = axis.size / div + (axis.size % div != 0 ? 1 : 0);
    Index const end = std::min(blocks, begin + at[last].count * (digits[last].div / div));
    return fmt::format("{}{} {}:{}", axis.name, suffix, begin, end);
  }
  std::string text;
  for (std::size_t k = 0; k < digits.size(); ++k)
    text += fmt::format("{}{}{}{} {}:{}", k == 0 ? "" : ", ", axis.name,
                        digits[k].mod < axis.size ? fmt::format("%{}", digits[k].mod) : "",
                        digits[k].div > 1 ? fmt::format("/{}", digits[k].div) : "", at[k].first,
                        at[k].first + at[k].count);
  return text;
}

bool is_everything(std::span<Interval const> at, std::span<Index const> extents) {
  for (std::size_t k = 0; k < at.size(); ++k)
    if (at[k] != Interval{0, extents[k]}) return false;
  return true;
}

/// The axes on which the cell is not everything; the first axis when there is no such.
std::string text_of(Fault const& fault, ElementaryDigits const& digits,
                    std::span<DomainAxis const> domain, AxisTable const& axes) {
  std::vector<Index> extents;
  for (std::size_t k = 0; k < digits.list().size(); ++k) extents.push_back(digits.extent(k));
  std::vector<Interval> at(fault.at.rbegin(), fault.at.rend());
  for (std::size_t k = at.size(); k < extents.size(); ++k) at.push_back({0, extents[k]});
  std::string first;
  std::string text;
  for (DomainAxis const& axis : domain) {
    ElementaryDigits::Range const range = digits.range_of(whole_digit(axis, axes));
    std::size_t const count = range.end - range.begin;
    if (count == 0) continue;
    auto const here = std::span(at).subspan(range.begin, count);
    auto const sizes = std::span(extents).subspan(range.begin, count);
    std::string const part = text_of(std::span(digits.list()).subspan(range.begin, count), here,
                                     sizes, axes[axis.axis], axis.div);
    if (first.empty()) first = part;
    if (!is_everything(here, sizes)) text += (text.empty() ? "" : ", ") + part;
  }
  if (!text.empty()) return text;
  return first.empty() ? "its only element" : first;
}

}  // namespace

std::optional<TilingFault> tile(std::span<Piece const> pieces, std::span<DomainAxis const> domain,
                                AxisTable const& axes) {
  std::vector<AxisId> order;
  for (DomainAxis const& axis : domain) order.push_back(axis.axis);
  ElementaryDigits digits(order, axes);
  digits.add(pieces);
  for (DomainAxis const& axis : domain) digits.add(whole_digit(axis, axes));
  digits.close();
  std::vector<Piece> all;
  Piece prefix;
  domain_pieces(domain, axes, prefix, all);
  DigitBoxes domain_boxes(digits);
  DigitBoxes piece_boxes(digits);
  domain_boxes.add(all);
  piece_boxes.add(pieces);
  std::optional<Fault> const fault = Sweep(domain_boxes, piece_boxes).run();
  if (!fault) return std::nullopt;
  return TilingFault{text_of(*fault, digits, domain, axes), fault->holders,
                     fault->holders > 0 ? fault->a : 0, fault->holders > 1 ? fault->b : 0};
}

}  // namespace reshard
