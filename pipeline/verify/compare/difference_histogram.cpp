#include "pipeline/verify/compare/difference_histogram.hpp"

#include <algorithm>
#include <cmath>

namespace reshard {
namespace {

struct Sums {
  std::uint64_t finite = 0;
  DifferenceDecades decades;
  std::uint64_t zero() const { return finite - decades.sum(); }
};

Sums sums_of(std::span<TensorStats const> stats) {
  Sums sums;
  for (TensorStats const& one : stats) {
    sums.finite += one.finite;
    sums.decades.add(one.decades);
  }
  return sums;
}

std::string line(std::string const& name, std::uint64_t count, std::uint64_t all) {
  constexpr double widest = 40;
  double const share = static_cast<double>(count) / static_cast<double>(all);
  std::string const bar(static_cast<std::size_t>(std::ceil(share * widest)), '#');
  return fmt::format("{:>12} {:>15} {:>7.3f} %  {}\n", name, count, 100 * share, bar);
}

}  // namespace

Json histogram_json(std::span<TensorStats const> stats) {
  Sums const sums = sums_of(stats);
  Json json = Json::object();
  if (sums.zero() > 0) json.set("0", sums.zero());
  for (std::size_t i = 0; i < DifferenceDecades::classes; ++i)
    if (sums.decades.counts[i] > 0) json.set(DifferenceDecades::name(i), sums.decades.counts[i]);
  return json;
}

std::string histogram_text(std::span<TensorStats const> stats) {
  Sums const sums = sums_of(stats);
  if (sums.finite == 0) return "";
  auto const& counts = sums.decades.counts;
  auto const has = [](std::uint64_t count) { return count > 0; };
  auto const first = std::find_if(counts.begin(), counts.end(), has);
  auto const last = std::find_if(counts.rbegin(), counts.rend(), has).base();
  std::string text = fmt::format("{:>12} {:>15}\n", "|a-b| from", "elements");
  text += line("0", sums.zero(), sums.finite);
  for (auto one = first; one < last; ++one)
    text += line(DifferenceDecades::name(static_cast<std::size_t>(one - counts.begin())), *one,
                 sums.finite);
  return text;
}

}  // namespace reshard
