#include "stages/plan/check/side_proof.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>

#include "core/base/tables/counted.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/equal/replicas.hpp"

namespace reshard {
namespace {

constexpr std::size_t most_digits = 9;  // a longer number is no index

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// A name cut at its numbers: texts[0] numbers[0] texts[1] … texts.back().
struct CutName {
  std::vector<std::string> texts{""};
  std::vector<Index> numbers;
};

CutName cut_at_numbers(std::string_view name) {
  CutName result;
  for (std::size_t at = 0; at < name.size();) {
    std::size_t end = at;
    while (end < name.size() && is_digit(name[end])) ++end;
    if (end == at || end - at > most_digits) {
      result.texts.back() += name.substr(at, std::max<std::size_t>(end - at, 1));
      at += std::max<std::size_t>(end - at, 1);
      continue;
    }
    Index number = 0;
    std::from_chars(name.data() + at, name.data() + end, number);
    result.numbers.push_back(number);
    result.texts.emplace_back();
    at = end;
  }
  return result;
}

/// The indices of the axes of which a piece holds one.
std::vector<std::pair<AxisId, Index>> single_indices(Piece const& piece) {
  std::vector<std::pair<AxisId, Index>> result;
  std::vector<AxisId> many;
  for (PieceDigit const& digit : piece.digits) {
    if (digit.count != 1) many.push_back(digit.axis);
    auto known = std::find_if(result.begin(), result.end(),
                              [&](auto const& item) { return item.first == digit.axis; });
    if (known == result.end()) known = result.insert(known, {digit.axis, 0});
    known->second += digit.first * digit.div;
  }
  std::erase_if(result, [&](auto const& item) {
    return std::find(many.begin(), many.end(), item.first) != many.end();
  });
  return result;
}

/// Gathers names into patterns.
class Patterns {
 public:
  Patterns(Model const& model, Side const& side) : model_(model), side_(side) {}

  void add(StoredName const& name, std::vector<Index> const& shape,
           std::vector<Piece> const& pieces) {
    CutName const cut = cut_at_numbers(name.name);
    std::string key = fmt::format("{}:{}", name.entry, name.copy);
    for (Index const extent : shape) key += fmt::format(",{}", extent);
    for (std::string const& text : cut.texts) key += '\n' + text;
    auto const [at, is_new] = groups_.try_emplace(std::move(key), all_.size());
    auto const indices =
        pieces.empty() ? std::vector<std::pair<AxisId, Index>>() : single_indices(pieces.front());
    if (is_new) {
      all_.push_back(
          {{"", shape, 0, name.copy, side_.entry_place(name.entry), side_.tensors(name.entry)},
           cut.texts,
           {}});
      for (Index const number : cut.numbers) all_.back().numbers.push_back({number, true, {}});
      for (Number& number : all_.back().numbers)
        for (auto const& [axis, index] : indices)
          number.offsets.emplace_back(axis, number.first - index);
    }
    Group& group = all_[at->second];
    ++group.pattern.count;
    for (std::size_t i = 0; i < cut.numbers.size(); ++i)
      narrow_down(group.numbers[i], cut.numbers[i], indices);
  }

  std::vector<NamePattern> take() {
    std::vector<NamePattern> result;
    for (Group& group : all_) {
      group.pattern.text = group.texts.front();
      for (std::size_t i = 0; i < group.numbers.size(); ++i)
        group.pattern.text += field(group.numbers[i]) + group.texts[i + 1];
      result.push_back(std::move(group.pattern));
    }
    return result;
  }

 private:
  /// A number in the names of a group, and the axes that it may count: number - index is the same
  /// in all of them.
  struct Number {
    Index first = 0;
    bool same = true;
    std::vector<std::pair<AxisId, Index>> offsets;
  };
  struct Group {
    NamePattern pattern;
    std::vector<std::string> texts;
    std::vector<Number> numbers;
  };

  static void narrow_down(Number& number, Index value,
                          std::vector<std::pair<AxisId, Index>> const& indices) {
    number.same = number.same && value == number.first;
    std::erase_if(number.offsets, [&](auto const& candidate) {
      for (auto const& [axis, index] : indices)
        if (axis == candidate.first) return value - index != candidate.second;
      return true;
    });
  }

  std::string field(Number const& number) const {
    if (number.same) return fmt::format("{}", number.first);
    if (number.offsets.empty()) return "{n}";
    auto const& [axis, offset] = number.offsets.front();
    return offset == 0 ? "{" + model_.axes()[axis].name + "}"
                       : fmt::format("{{{}{:+}}}", model_.axes()[axis].name, offset);
  }

  Model const& model_;
  Side const& side_;
  std::unordered_map<std::string, std::size_t> groups_;
  std::vector<Group> all_;
};

class SideProver {
 public:
  SideProver(Model const& model, Side const& side, Detail detail)
      : model_(model), side_(side), detail_(detail), patterns_(model, side) {
    catalog_.tensors.resize(model.tensors().size());
  }

  /// Pre: called once.
  SideProof run(std::span<SidePlace const> places) {
    std::unordered_map<PipelineChunk const*, std::vector<StoredName>> names;
    for (SidePlace const& place : places) {
      auto const [at, is_new] = names.try_emplace(place.chunk);
      if (is_new) {
        at->second = side_.names(place.chunk);
        check_aliases(at->second);
      }
      add_place(place, at->second);
    }
    for (std::size_t t = 0; t < model_.tensors().size(); ++t)
      if (model_.exists(TensorId(t))) prove(TensorId(t), places.size() == 1);
    result_.patterns = patterns_.take();
    return std::move(result_);
  }

 private:
  void add_place(SidePlace const& place, std::vector<StoredName> const& names) {
    auto const file = static_cast<std::uint32_t>(catalog_.files.size());
    catalog_.files.push_back(side_.place_text(place));
    for (StoredName const& name : names) {
      std::vector<Piece> pieces = side_.pieces(name, place);
      ++result_.stored_tensors;
      if (detail_ != Detail::none) {
        std::vector<Index> shape =
            place.chunk == nullptr ? side_.shape(name) : side_.layout(name.entry, place).file_shape;
        if (detail_ == Detail::patterns) patterns_.add(name, shape, pieces);
        result_.stored.emplace_back(name.name, std::move(shape));
      }
      catalog_.add({file, 0, DType::u8, name.name}, pieces, name.copy);
      entries_.push_back(name.entry);
    }
  }

  /// A name that a reader accepts for one tensor must not be the name of another.
  void check_aliases(std::vector<StoredName> const& names) const {
    std::unordered_map<std::string_view, std::uint32_t> own;
    for (StoredName const& name : names) own.emplace(name.name, name.entry);
    for (StoredName const& name : names)
      for (std::string const& alias : name.aliases)
        if (auto const found = own.find(alias); found != own.end() && found->second != name.entry)
          fail(
              ErrorKind::usage,
              "{}: the other name '{}' of '{}' is what {} calls another tensor. Give one of them another name.",
              side_.entry_place(name.entry), alias, name.name, side_.entry_place(found->second));
  }

  void prove(TensorId tensor, bool one_place) {
    LogicalTensor const& logical = model_.tensor(tensor);
    TensorPieces const& all = catalog_.tensors[static_cast<std::size_t>(tensor)];
    if (one_place && !all.has_copies() && !all.empty() &&
        !tile(all.made(), model_.domain(logical), model_.axes()))
      return;
    Distinct const distinct = distinct_pieces(all, catalog_);
    if (one_place && distinct.dropped > 0)
      if (auto twice = said_twice(all)) {
        result_.faults.push_back({tensor, false, fmt::format("{} '{}'", *twice, logical.name)});
        return;
      }
    if (distinct.empty()) {
      result_.faults.push_back(
          {tensor, true, fmt::format("no stored tensor holds '{}'", logical.name)});
      return;
    }
    auto const fault = tile(distinct.made(), model_.domain(logical), model_.axes());
    if (!fault) return;
    auto const named = [&](std::uint32_t piece) {
      return catalog_.blobs[distinct.blob(piece)].name;
    };
    std::string sentence;
    if (fault->holders == 0)
      sentence = fmt::format("no stored tensor holds {} of '{}'", fault->where, logical.name);
    else if (fault->holders == 1)
      sentence = fmt::format("'{}' holds {} of '{}', which the model does not have",
                             named(fault->a), fault->where, logical.name);
    else
      sentence = fmt::format("{} hold {} of '{}': '{}' and '{}' among them",
                             counted(fault->holders, "stored tensor"), fault->where, logical.name,
                             named(fault->a), named(fault->b));
    result_.faults.push_back({tensor, false, std::move(sentence)});
  }

  /// Equal pieces of one place are replicas where one entry makes them for several indices; of two
  /// entries they are a mistake.
  std::optional<std::string> said_twice(TensorPieces const& all) const {
    std::map<std::vector<std::array<Index, 5>>, std::uint32_t> known;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all.is_copy(i)) continue;
      std::vector<std::array<Index, 5>> box;
      Piece const piece = all[i];
      for (PieceDigit const& digit : piece.digits)
        box.push_back(
            {static_cast<Index>(digit.axis), digit.mod, digit.div, digit.first, digit.count});
      std::sort(box.begin(), box.end());
      auto const [at, is_new] = known.emplace(std::move(box), all.blob(i));
      if (is_new || entries_[at->second] == entries_[all.blob(i)]) continue;
      return fmt::format("'{}' ({}) and '{}' ({}) hold the same part of",
                         catalog_.blobs[at->second].name, side_.entry_place(entries_[at->second]),
                         catalog_.blobs[all.blob(i)].name,
                         side_.entry_place(entries_[all.blob(i)]));
    }
    return std::nullopt;
  }

  Model const& model_;
  Side const& side_;
  Detail detail_;
  Patterns patterns_;
  Catalog catalog_;
  std::vector<std::uint32_t> entries_;  ///< of every blob
  SideProof result_;
};

}  // namespace

SideProof prove_side(Model const& model, Side const& side, std::span<SidePlace const> places,
                     Detail detail) {
  return SideProver(model, side, detail).run(places);
}

}  // namespace reshard
