#include "core/mapping/registration.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// One part of a dotted name: "weight10" is the word "weight" with the number 10.
struct Part {
  std::string_view word;
  std::string_view digits;  ///< without zeros in front; "" for none
};

Part part_of(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0 && text[end - 1] >= '0' && text[end - 1] <= '9') --end;
  std::string_view digits = text.substr(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return {text.substr(0, end), digits};
}

std::vector<Part> parts_of(std::string_view name) {
  std::vector<Part> parts;
  for (std::size_t begin = 0;;) {
    std::size_t const dot = name.find('.', begin);
    parts.push_back(part_of(name.substr(begin, dot == name.npos ? dot : dot - begin)));
    if (dot == name.npos) return parts;
    begin = dot + 1;
  }
}

class Order {
 public:
  Order(std::span<std::string const> names, std::span<std::string const> words,
        std::string const& place)
      : names_(names), place_(place) {
    for (std::size_t w = 0; w < words.size(); ++w) rank_.emplace(words[w], w);
    for (std::string const& name : names) parts_.push_back(parts_of(name));
  }

  bool before(std::size_t a, std::size_t b) const {
    auto const& x = parts_[a];
    auto const& y = parts_[b];
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      int const order = compare(x[i], y[i], a, b);
      if (order != 0) return order < 0;
    }
    return x.size() < y.size();
  }

 private:
  /// Parts without a number come first.
  int compare(Part const& x, Part const& y, std::size_t a, std::size_t b) const {
    if (x.digits.size() != y.digits.size()) return x.digits.size() < y.digits.size() ? -1 : 1;
    if (x.digits != y.digits) return x.digits < y.digits ? -1 : 1;
    if (x.word == y.word) return 0;
    return rank(x, a, b) < rank(y, a, b) ? -1 : 1;
  }

  std::size_t rank(Part const& part, std::size_t a, std::size_t b) const {
    auto const found = rank_.find(part.word);
    if (found == rank_.end())
      fail(ErrorKind::usage,
           "{}: '{}' is not in the list of registration order, so it is unknown whether '{}' or "
           "'{}' comes first. Add it to the list.",
           place_, part.word, names_[a], names_[b]);
    return found->second;
  }

  std::span<std::string const> names_;
  std::string const& place_;
  std::unordered_map<std::string_view, std::size_t> rank_;
  std::vector<std::vector<Part>> parts_;
};

}  // namespace

std::vector<std::size_t> registration_order(std::span<std::string const> names,
                                            std::span<std::string const> words,
                                            std::string const& place) {
  Order const order(names, words, place);
  std::vector<std::size_t> result(names.size());
  std::iota(result.begin(), result.end(), std::size_t{0});
  std::ranges::sort(result, [&](std::size_t a, std::size_t b) { return order.before(a, b); });
  return result;
}

}  // namespace reshard
