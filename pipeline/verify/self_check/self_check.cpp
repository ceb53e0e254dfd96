#include "pipeline/verify/self_check/self_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/io/file_set.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/verify/compare/compare_sides.hpp"
#include "pipeline/verify/self_check/element_finder.hpp"
#include "pipeline/verify/self_check/element_values.hpp"
#include "stages/plan/config/found_prefix.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_faults = 8;
constexpr std::size_t most_names = 8;
constexpr std::size_t batch_elements = std::size_t{1} << 16;
constexpr std::string_view master = " (master)";

/// A random number of its own for each pair (Steele, Lea, Flood: SplitMix64).
std::uint64_t mixed(std::uint64_t seed, std::uint64_t tensor, std::uint64_t draw) {
  std::uint64_t z = seed;
  for (std::uint64_t const part : {tensor, draw})
    z = mixed_bits(z + 0x9e3779b97f4a7c15ULL * (part + 1));
  return z;
}

/// Draw `number` of `count` among `volume` elements: one of each of `count` equal parts of them.
Index drawn(std::uint64_t seed, std::size_t tensor, std::uint64_t number, std::uint64_t count,
            Index volume) {
  auto const bound = [&](std::uint64_t n) {
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(volume) * n / count);
  };
  std::uint64_t const begin = bound(number);
  return narrow<Index>(begin + mixed(seed, tensor, number) % (bound(number + 1) - begin));
}

/// The bytes of one element, as they were read.
struct ReadElement {
  ElementPlace place;
  std::array<std::byte, 16> bytes{};
  std::span<std::byte const> value() const {
    return {bytes.data(), static_cast<std::size_t>(bits(place.dtype) / 8)};
  }
};

/// An element of b, where its value is in a, and for a quantised weight its scale.
struct Pair {
  std::size_t ordinal = 0;  ///< in b's ElementTable
  ReadElement b;
  ReadElement a;
  std::optional<ReadElement> scale;
};

std::string place_text(Checkpoint const& checkpoint, ElementPlace const& place) {
  return fmt::format("'{}' [{}] in {} at byte {}", checkpoint.stored.tensors.name(place.stored),
                     fmt::join(place.index, ", "), checkpoint.files[place.file].string(),
                     place.offset_bytes);
}

class SelfChecker {
 public:
  SelfChecker(SelfCheckRequest const& request, Comm const& comm) : request_(request), comm_(comm) {
    result_.elements_per_tensor = request.elements;
    result_.seed = request.seed;
  }

  SelfCheckResult run() {
    CompareRequest by_maps = request_.sides;  // the same names may mean other elements
    by_maps.by_maps = true;
    auto const failed = capture([&] { sides_ = open_sides(by_maps, comm_); });
    if (failed) {
      if (failed->kind() == ErrorKind::internal || failed->kind() == ErrorKind::io) throw *failed;
      result_.why_not = failed->sentence();
      result_.why_kind = failed->kind();
      return std::move(result_);
    }
    if (sides_.by_names && !request_.changed.empty()) {
      result_.why_not = "no map reads both sides, so it is not known which values were merged.";
      return std::move(result_);
    }
    if (sides_.a.changes.any() || sides_.b.changes.any()) {
      result_.why_not =
          "one side was made with other layers, experts or rows than the other, so an element of one "
          "is in another place of the other.";
      result_.understood = true;
      return std::move(result_);
    }
    together_seeing(comm_, [&] {
      a_ = table_of(sides_.a);
      b_ = table_of(sides_.b);
    });
    together(comm_, [&] { check_own(); });
    return merged();
  }

 private:
  ElementTable table_of(ComparedSide const& side) const {
    if (sides_.by_names) return named_element_table(side.checkpoint, side.request.read.prefix);
    ElementTable table;
    with_option_words(&side == &sides_.a ? "--config-a" : "--config-b", [&] {
      PlanRequest request = side.request;
      if (auto found = found_prefix(side.checkpoint, request, false, PrefixUse::look))
        request.read.prefix = std::move(found->prefix);
      table = element_table(side.checkpoint, request);
    });
    return table;
  }

  /// The stored tensors of b that are this rank's, one after the other.
  void check_own() {
    finder_.emplace(sides_.a.checkpoint, a_);
    for (std::size_t i = 0; i < b_.axes.size(); ++i)
      axis_in_a_.push_back(a_.axes.find(b_.axes[static_cast<AxisId>(i)].name));
    FileSet a_files(sides_.a.checkpoint.files, FileSet::Access::read);
    FileSet b_files(sides_.b.checkpoint.files, FileSet::Access::read);
    auto const ranks = static_cast<std::size_t>(comm_.size());
    for (auto i = static_cast<std::size_t>(comm_.rank()); i < b_.tensors.size(); i += ranks) {
      draw(i);
      if (pairs_.size() >= batch_elements) compare(a_files, b_files);
    }
    compare(a_files, b_files);
    if (comm_.rank() != 0) return;
    for (std::size_t const stored : b_.not_described) not_covered(stored);
  }

  void not_covered(std::size_t stored) {
    ++result_.not_covered;
    if (result_.not_covered_names.size() < most_names)
      result_.not_covered_names.push_back(sides_.b.checkpoint.stored.tensors.name(stored));
  }

  void draw(std::size_t ordinal) {
    StoredElements const& tensor = b_.tensors[ordinal];
    Index const volume = checked_volume(tensor.shape, ErrorKind::source, tensor.tensors.front());
    if (volume == 0) return;
    std::uint64_t const count =
        std::min<std::uint64_t>(request_.elements, narrow<std::uint64_t>(volume));
    std::size_t const before = pairs_.size();
    std::uint64_t const padding = result_.padding;
    for (std::uint64_t n = 0; n < count; ++n)
      add(ordinal, drawn(request_.seed, ordinal, n, count, volume));
    if (pairs_.size() > before)
      ++result_.tensors;
    else if (result_.padding - padding < count)
      not_covered(tensor.stored);
  }

  void add(std::size_t ordinal, Index flat) {
    StoredElements const& tensor = b_.tensors[ordinal];
    std::vector<Index> index(tensor.shape.size());
    for (std::size_t d = index.size(); d-- > 0; flat /= tensor.shape[d])
      index[d] = flat % tensor.shape[d];
    auto element = element_at(tensor.rule, b_.axes, index);
    if (!element) {
      ++result_.padding;
      return;
    }
    std::string name = element->tensor;
    if (request_.changed.contains(name)) {
      ++result_.computed;
      return;
    }
    if (!tensor.slot.empty()) name += fmt::format(" ({})", tensor.slot);
    auto place = place_in_file(sides_.b.checkpoint, tensor, std::move(index));
    if (!place) {
      ++result_.computed;  // smaller than a byte
      return;
    }
    Pair pair{ordinal, {std::move(*place)}, {}, {}};
    if (find_in_a(name, in_a(std::move(*element)), pair)) pairs_.push_back(std::move(pair));
  }

  LogicalElement in_a(LogicalElement element) const {
    std::vector<Index> at(a_.axes.size(), -1);
    for (std::size_t axis = 0; axis < element.at.size(); ++axis)
      if (element.at[axis] >= 0 && axis_in_a_[axis] >= 0)
        at[static_cast<std::size_t>(axis_in_a_[axis])] = element.at[axis];
    element.at = std::move(at);
    return element;
  }

  bool find_in_a(std::string const& name, LogicalElement element, Pair& pair) {
    std::optional<ElementPlace> found;
    if (b_.masters_alone && !name.ends_with(')'))
      found = finder_->find(name + std::string(master), element);
    if (!found) found = finder_->find(name, element);
    if (!found && a_.masters_alone && name.ends_with(master))
      found = finder_->find(name.substr(0, name.size() - master.size()), element);
    if (!found) return find_quantised(name, std::move(element), pair);
    pair.a.place = std::move(*found);
    return comparable(pair);
  }

  /// A weight that a stores as codes with one scale for each block.
  bool find_quantised(std::string const& name, LogicalElement element, Pair& pair) {
    std::vector<std::string> const parts = finder_->parts_of(name);
    if (parts.size() != 2 || !parts.back().ends_with(".scale")) {
      ++(parts.empty() ? result_.unplaced : result_.computed);
      return false;
    }
    element.tensor = parts.front();
    auto code = finder_->find(element.tensor, element);
    element.tensor = parts.back();
    auto scale = finder_->find(element.tensor, element);
    bool const codes = code && (code->dtype == DType::f8_e4m3 || code->dtype == DType::f8_e5m2);
    if (!codes || !scale) {
      ++(code ? result_.computed : result_.unplaced);
      return false;
    }
    pair.a.place = std::move(*code);
    pair.scale.emplace().place = std::move(*scale);
    return true;
  }

  /// Whether an element is the code of a weight that the job of one side quantised.
  bool is_computed_code(Pair const& pair) const {
    bool const of_a = sides_.a.quantised_by.has_value();
    if (of_a == sides_.b.quantised_by.has_value()) return false;
    DType const made = (of_a ? pair.a : pair.b).place.dtype;
    constexpr std::array values = {DType::f64, DType::f32, DType::f16, DType::bf16};
    return made != (of_a ? pair.b : pair.a).place.dtype &&
           std::ranges::find(values, made) == values.end();
  }

  bool comparable(Pair const& pair) {
    if (is_computed_code(pair)) {
      ++result_.computed;
      return false;
    }
    if (pair.a.place.dtype == pair.b.place.dtype && pair.a.place.add == pair.b.place.add)
      return true;
    std::array<std::byte, 16> const zeros{};
    for (DType const dtype : {pair.a.place.dtype, pair.b.place.dtype})
      if (dtype == DType::f8_e8m0 ||
          !value_of(dtype, {zeros.data(), static_cast<std::size_t>(bits(dtype) / 8)})) {
        ++result_.computed;
        return false;
      }
    return true;
  }

  static void read(FileSet& files, std::vector<ReadElement*> elements) {
    std::ranges::sort(elements, [](ReadElement const* x, ReadElement const* y) {
      return std::pair(x->place.file, x->place.offset_bytes) <
             std::pair(y->place.file, y->place.offset_bytes);
    });
    std::shared_ptr<IoFile const> file;
    std::optional<std::uint32_t> number;
    for (ReadElement* const element : elements) {
      if (number != element->place.file) {
        file = files.open(element->place.file);
        number = element->place.file;
      }
      file->read_at(
          element->place.offset_bytes,
          {element->bytes.data(), static_cast<std::size_t>(bits(element->place.dtype) / 8)});
    }
  }

  void compare(FileSet& a_files, FileSet& b_files) {
    std::vector<ReadElement*> of_a;
    std::vector<ReadElement*> of_b;
    for (Pair& pair : pairs_) {
      of_a.push_back(&pair.a);
      of_b.push_back(&pair.b);
      if (pair.scale) of_a.push_back(&*pair.scale);
    }
    read(a_files, std::move(of_a));
    read(b_files, std::move(of_b));
    for (Pair const& pair : pairs_) judge(pair);
    pairs_.clear();
  }

  void judge(Pair const& pair) {
    ++result_.elements;
    bool const same = pair.a.place.dtype == pair.b.place.dtype &&
                      pair.a.place.add == pair.b.place.add && !pair.scale;
    if (same) {
      if (!std::ranges::equal(pair.a.value(), pair.b.value())) note(pair, "");
      return;
    }
    ++result_.converted;
    double value = *value_of(pair.a.place.dtype, pair.a.value());
    value += pair.b.place.add - pair.a.place.add;
    std::string how =
        pair.b.place.add == pair.a.place.add
            ? fmt::format(" as {}", name(pair.b.place.dtype))
            : fmt::format(" with {} added, as {}", pair.b.place.add - pair.a.place.add,
                          name(pair.b.place.dtype));
    if (pair.scale) {
      auto const scale = value_of(pair.scale->place.dtype, pair.scale->value());
      if (!scale) {
        --result_.elements;
        --result_.converted;
        ++result_.computed;
        return;
      }
      value *= *scale;
      how =
          fmt::format(", times the scale {} of {}, as {}",
                      element_text(pair.scale->place.dtype, pair.scale->value()),
                      place_text(sides_.a.checkpoint, pair.scale->place), name(pair.b.place.dtype));
    }
    if (!is_nearest(pair.b.place.dtype, pair.b.value(), value)) note(pair, how);
  }

  void note(Pair const& pair, std::string const& how) {
    ++result_.wrong;
    if (faults_.size() >= most_faults) return;
    StoredElements const& tensor = b_.tensors[pair.ordinal];
    faults_.emplace_back(
        pair.ordinal,
        fmt::format("{} is {}; its value in the source is {}{}, {} (of {})",
                    place_text(sides_.b.checkpoint, pair.b.place),
                    element_text(pair.b.place.dtype, pair.b.value()),
                    element_text(pair.a.place.dtype, pair.a.value()), how,
                    place_text(sides_.a.checkpoint, pair.a.place), tensor.tensors.front()));
  }

  SelfCheckResult merged() {
    auto const total = [this](std::uint64_t& mine) {
      mine = static_cast<std::uint64_t>(comm_.sum(static_cast<std::int64_t>(mine)));
    };
    for (std::uint64_t* const count :
         {&result_.tensors, &result_.elements, &result_.converted, &result_.padding,
          &result_.computed, &result_.unplaced, &result_.not_covered, &result_.wrong})
      total(*count);
    Json mine;
    mine.set("names",
             Json(Json::Array(result_.not_covered_names.begin(), result_.not_covered_names.end())));
    Json faults = Json::array();
    for (auto const& [ordinal, text] : faults_)
      faults.push(Json().set("at", static_cast<std::uint64_t>(ordinal)).set("text", text));
    mine.set("faults", std::move(faults));
    std::map<std::int64_t, std::vector<std::string>> by_tensor;
    result_.not_covered_names.clear();
    for (std::string const& text : comm_.all_gather(mine.dump())) {
      Json const theirs = parse_json(text, "self-check");
      for (Json const& name : *theirs.find("names")->items())
        result_.not_covered_names.push_back(*name.text());
      for (Json const& fault : *theirs.find("faults")->items())
        by_tensor[*fault.find("at")->integer()].push_back(*fault.find("text")->text());
    }
    std::ranges::sort(result_.not_covered_names);
    if (result_.not_covered_names.size() > most_names) result_.not_covered_names.resize(most_names);
    for (auto const& [ordinal, texts] : by_tensor)
      for (std::string const& text : texts)
        if (result_.faults.size() < most_faults) result_.faults.push_back(text);
    if (result_.elements == 0) {
      result_.why_not =
          "no value of the target has a stored value of the source as its origin, as where weights "
          "are quantised.";
      result_.understood = true;
    }
    return std::move(result_);
  }

  SelfCheckRequest const& request_;
  Comm const& comm_;
  ComparedSides sides_;
  ElementTable a_;
  ElementTable b_;
  std::optional<ElementFinder> finder_;
  std::vector<int> axis_in_a_;  ///< by b's number; -1: a has none of the name
  std::vector<Pair> pairs_;
  std::vector<std::pair<std::size_t, std::string>> faults_;
  SelfCheckResult result_;
};

}  // namespace

SelfCheckResult self_check(SelfCheckRequest const& request, Comm const& comm) {
  return SelfChecker(request, comm).run();
}

}  // namespace reshard
