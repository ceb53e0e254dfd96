#include <algorithm>

#include "pipeline/view/view_model.hpp"

namespace reshard {
namespace {

/// A picture of more runs than these shows nothing.
constexpr std::size_t most_runs = 64;

std::vector<PieceDigit> digits_of(Piece const& piece, AxisId axis) {
  std::vector<PieceDigit> digits;
  for (PieceDigit const& digit : piece.digits)
    if (digit.axis == axis) digits.push_back(digit);
  std::sort(digits.begin(), digits.end(),
            [](PieceDigit const& a, PieceDigit const& b) { return a.div > b.div; });
  return digits;
}

void append_run(std::vector<Run>& runs, Run const& run) {
  if (!runs.empty() && runs.back().end >= run.begin)
    runs.back().end = std::max(runs.back().end, run.end);
  else
    runs.push_back(run);
}

/// One digit finer: every index of `part` counts `radix` indices, of which the digit has some.
void refine(AxisRuns& part, Index radix, PieceDigit const& digit) {
  part.count *= digit.count;
  bool const whole = digit.first == 0 && digit.count == radix;
  Index indices = 0;
  for (Run const& run : part.runs) indices += run.end - run.begin;
  if (!whole && indices > static_cast<Index>(most_runs)) {
    part.runs = {{part.runs.front().begin * radix + digit.first,
                  (part.runs.back().end - 1) * radix + digit.first + digit.count}};
    part.hull = true;
    return;
  }
  std::vector<Run> finer;
  for (Run const& run : part.runs) {
    if (whole)
      append_run(finer, {run.begin * radix, run.end * radix});
    else
      for (Index i = run.begin; i < run.end; ++i)
        append_run(finer, {i * radix + digit.first, i * radix + digit.first + digit.count});
  }
  part.runs = std::move(finer);
}

bool follows(std::string_view name, std::size_t at, std::string_view word) {
  return at >= word.size() && name.substr(at - word.size(), word.size()) == word &&
         (at == word.size() || name[at - word.size() - 1] == '.');
}

}  // namespace

AxisRuns part_of_axis(Piece const& piece, LogicalAxis const& axis) {
  AxisRuns part;
  part.runs = {{0, 1}};
  Index unit = 0;
  for (PieceDigit const& digit : digits_of(piece, axis.axis)) {
    Index const outer = unit == 0 ? digit.mod : unit;
    refine(part, outer / digit.div, digit);
    unit = digit.div;
  }
  if (unit > axis.div)  // the finer digits have one value
    for (Run& run : part.runs) run = {run.begin * (unit / axis.div), run.end * (unit / axis.div)};
  return part;
}

NumbersInName numbers_in_name(std::string_view name) {
  NumbersInName numbers;
  for (std::size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1)) {
    std::size_t const end = std::min(name.find('.', at + 1), name.size());
    std::string_view const text = name.substr(at + 1, end - at - 1);
    if (text.empty() || text.size() > 9 ||
        text.find_first_not_of("0123456789") != std::string_view::npos)
      continue;
    Index const number = std::stoll(std::string(text));
    for (std::string_view const word : {"layers", "layer", "blocks", "block", "h"})
      if (!numbers.layer && follows(name, at, word)) numbers.layer = number;
    for (std::string_view const word : {"experts", "local_experts"})
      if (!numbers.expert && follows(name, at, word)) numbers.expert = number;
  }
  return numbers;
}

std::string ranges_text(std::vector<Index> const& sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
    if (end - i > 1) text += fmt::format("-{}", sorted[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace reshard
