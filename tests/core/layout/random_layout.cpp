#include "tests/core/layout/random_layout.hpp"

namespace reshard::test {
namespace {

/// An axis as the expression uses it: whole, in blocks, or split into two or three digits.
struct AxisUse {
  std::string name;
  std::vector<std::string> tokens;
  Index size = 0;
  Index unit = 1;  ///< shares are cut at multiples of this
};

class Generator {
 public:
  explicit Generator(std::mt19937& random) : random_(random) {}

  RandomLayout layout() {
    RandomLayout result;
    std::vector<std::string> tokens;
    int const axes = between(2, 5);
    for (int i = 0; i < axes; ++i) {
      AxisUse const use = axis_use(std::string(1, static_cast<char>('a' + i)));
      names_.push_back(use.name);
      AxisId const id = result.model.axes.add(use.name, use.size);
      if (between(0, 2) > 0) result.shares.set(id, share(use, result.has_fill_runs));
      tokens.insert(tokens.end(), use.tokens.begin(), use.tokens.end());
    }
    result.text = between(0, 3) > 0 ? "x:" : "";
    result.text += product(tokens, 0);
    return result;
  }

 private:
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

  AxisUse axis_use(std::string const& name) {
    Index const fine = between(1, 3);
    Index const middle = between(1, 2);
    Index const blocks = between(1, 3);
    switch (between(0, 3)) {
      case 0: return {name, {name}, fine * middle * blocks, 1};
      case 1:
        return {name,
                {fmt::format("{}/{}", name, fine)},
                fine * blocks - between(0, static_cast<int>(fine) - 1),
                fine};
      case 2:
        return {name,
                {fmt::format("{}/{}", name, fine), fmt::format("{}%{}", name, fine)},
                fine * blocks,
                fine};
      default: break;
    }
    Index const unit = fine * middle;
    return {name,
            {fmt::format("{}/{}", name, unit), fmt::format("{}%{}/{}", name, unit, fine),
             fmt::format("{}%{}", name, fine)},
            unit * blocks,
            unit};
  }

  Share share(AxisUse const& use, bool& has_fill) {
    Share result;
    auto const blocks = static_cast<int>((use.size + use.unit - 1) / use.unit);
    for (int runs = between(0, 3); runs > 0; --runs) {
      int const begin = between(0, blocks - 1);
      int const end = between(begin, blocks);
      if (between(0, 5) == 0) {
        has_fill = true;
        result.push_back({0, use.unit * between(0, 2), true});
      } else {
        result.push_back({begin * use.unit, std::min(use.size, end * use.unit), false});
      }
    }
    return result;
  }

  std::string product(std::vector<std::string> tokens, int depth) {
    std::ranges::shuffle(tokens, random_);
    std::string text;
    while (!tokens.empty()) {
      if (depth < 3 && between(0, 2) == 0) {
        auto const taken = static_cast<std::size_t>(between(1, static_cast<int>(tokens.size())));
        std::vector<std::string> const some(tokens.end() - static_cast<std::ptrdiff_t>(taken),
                                            tokens.end());
        tokens.resize(tokens.size() - taken);
        text += " " + alternatives(some, depth);
      } else {
        text += " " + tokens.back();
        tokens.pop_back();
      }
      if (between(0, 11) == 0) text += " 1";
      if (between(0, 11) == 0)
        text += fmt::format(
            " *{}",
            names_[static_cast<std::size_t>(between(0, static_cast<int>(names_.size()) - 1))]);
    }
    return text;
  }

  std::string alternatives(std::vector<std::string> const& tokens, int depth) {
    std::string text = "(";
    for (int count = between(1, 3), i = 0; i < count; ++i) {
      if (i > 0) text += " |";
      if (between(0, 8) == 0) {
        text += fmt::format(" fill({})", between(0, 3));
        continue;
      }
      std::vector<std::string> kept;
      for (std::string const& token : tokens)
        if (between(0, 3) > 0) kept.push_back(token);
      if (between(0, 4) > 0) text += fmt::format(" t{}:", tag_++);
      text += product(kept, depth + 1);
    }
    return text + ")";
  }

  std::mt19937& random_;
  std::vector<std::string> names_;
  int tag_ = 0;
};

}  // namespace

RandomLayout random_layout(std::mt19937& random) { return Generator(random).layout(); }

}  // namespace reshard::test
