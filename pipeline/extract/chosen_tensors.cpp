#include "pipeline/extract/chosen_tensors.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/quant.hpp"
#include "core/plan/cells/part_plan.hpp"

namespace reshard {
namespace {

/// The weight that a tensor of this name is a part of; "" for none.
std::string weight_of(Model const& model, std::string const& name) {
  for (QuantScheme const& scheme : model.schemes())
    for (QuantPart const& part : scheme.parts) {
      std::string const ending = part_tensor("", scheme, part);
      if (!name.ends_with(ending)) continue;
      std::string weight = name.substr(0, name.size() - ending.size());
      if (model.find_tensor(weight)) return weight;
    }
  return "";
}

bool has(DomainAxis const& axis, Index index) {
  return std::ranges::any_of(axis.runs,
                             [&](Run const& run) { return run.begin <= index && index < run.end; });
}

/// A pattern as what it may mean: "layer.3.experts.*" is also "experts.*" at layer 3.
struct Reading {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> at;  ///< axis, pattern of indices
};

/// An Error of kind usage where the axis has another index already.
void add_index(std::vector<AxisIndex>& at, AxisIndex one, std::string_view place) {
  for (AxisIndex const& other : at)
    if (other.axis == one.axis)
      fail(ErrorKind::usage, "{}: {} has two indices, {} and {}. Choose one.", place,
           without_controls(one.axis), other.index, one.index);
  at.push_back(std::move(one));
}

class Chooser {
 public:
  Chooser(Model const& model, Catalog const& catalog, std::span<std::string const> patterns,
          std::span<AxisIndex const> at, std::span<HalfOpen<Index> const> cuts)
      : model_(model), catalog_(catalog), patterns_(patterns), at_(at), cuts_(cuts) {}

  std::vector<ChosenTensor> run() {
    for (std::size_t t = 0; t < model_.tensors().size(); ++t)
      if (model_.exists(TensorId(t)) && !catalog_.tensors[t].empty()) look_at(TensorId(t));
    for (std::string const& pattern : patterns_) {
      if (!matched_.contains(pattern)) refuse(pattern);
      if (!met_.contains(pattern)) refuse_indices(without_controls(pattern));
    }
    if (chosen_.empty()) refuse_indices(asked_at());
    return std::move(chosen_);
  }

 private:
  /// All that a pattern may mean, from the most to the least of it as the name.
  std::vector<Reading> readings(std::string_view pattern) const {
    std::vector<Reading> all{{pattern, {}}};
    for (;;) {
      Reading next = all.back();
      std::size_t const axis = next.name.find('.');
      std::size_t const number = next.name.find('.', axis + 1);
      if (axis == next.name.npos || number == next.name.npos || number + 1 == next.name.size() ||
          model_.axes().find(next.name.substr(0, axis)) < 0)
        return all;
      next.at.emplace_back(next.name.substr(0, axis),
                           next.name.substr(axis + 1, number - axis - 1));
      next.name.remove_prefix(number + 1);
      all.push_back(std::move(next));
    }
  }

  void look_at(TensorId id) {
    std::string const& name = model_.tensor(id).name;
    std::string const weight = weight_of(model_, name);
    names_.push_back(name);
    for (std::string const& pattern : patterns_)
      for (Reading const& reading : readings(pattern)) {
        if (!matches_glob(reading.name, name) &&
            (weight.empty() || !matches_glob(reading.name, weight)))
          continue;
        matched_.insert(pattern);
        if (reading.at.empty()) met_.insert(pattern);  // an index of --at need not be in each
        for (std::vector<AxisIndex> const& part : parts_of(id, reading)) {
          choose(id, weight, part);
          met_.insert(pattern);
        }
        break;
      }
  }

  DomainAxis const* axis_of(std::vector<DomainAxis> const& domain, std::string_view name) const {
    auto const axis = std::ranges::find_if(domain, [&](DomainAxis const& candidate) {
      return model_.axes()[candidate.axis].name == name;
    });
    return axis == domain.end() ? nullptr : &*axis;
  }

  /// The indices of each part of a tensor that a pattern names.
  std::vector<std::vector<AxisIndex>> parts_of(TensorId id, Reading const& reading) {
    std::vector<DomainAxis> const domain = model_.meant_domain(model_.tensor(id));
    std::vector<std::vector<AxisIndex>> parts{{}};
    for (auto const& [name, wanted] : reading.at) {
      DomainAxis const* const axis = axis_of(domain, name);
      if (axis == nullptr) return {};
      note(*axis, name);
      std::vector<std::vector<AxisIndex>> longer;
      for (std::vector<AxisIndex> const& part : parts)
        for (Run const& run : axis->runs)
          for (Index i = run.begin; i < run.end; ++i) {
            if (!matches_glob(wanted, std::to_string(i))) continue;
            longer.push_back(part);
            longer.back().push_back({std::string(name), i});
          }
      parts = std::move(longer);
    }
    return parts;
  }

  void choose(TensorId id, std::string const& weight, std::vector<AxisIndex> const& part) {
    LogicalTensor const& logical = model_.tensor(id);
    std::string name;
    for (AxisIndex const& one : part) name += part_prefix(one.axis, one.index);
    name += logical.name;
    if (names_chosen_.contains(name)) return;
    std::vector<AxisIndex> at(at_.begin(), at_.end());
    for (AxisIndex const& one : part) add_index(at, one, shown_name(name));
    std::vector<DomainAxis> domain = model_.meant_domain(logical);
    std::vector<bool> fixed(domain.size(), false);
    for (AxisIndex const& one : at) {
      DomainAxis const* const found = axis_of(domain, one.axis);
      if (found == nullptr) return;
      auto const d = static_cast<std::size_t>(found - domain.data());
      DomainAxis& axis = domain[d];
      if (axis.div != 1)
        fail(ErrorKind::usage,
             "--at {}={}: '{}' counts {} in blocks of {}. Leave the axis out, and cut the array "
             "afterwards.",
             one.axis, one.index, shown_name(logical.name), one.axis, axis.div);
      note(axis, one.axis);
      if (!has(axis, one.index)) return;
      axis.runs = {{one.index, one.index + 1}};
      fixed[d] = true;
    }
    names_chosen_.insert(name);
    ChosenTensor chosen;
    chosen.id = id;
    chosen.name = std::move(name);
    chosen.dtype = catalog_.blobs[catalog_.tensors[index(id)].blob(0)].dtype;
    chosen.part_of = weight;
    bool empty = false;
    for (std::size_t d = 0; d < domain.size(); ++d) {
      if (!fixed[d] && chosen.shape.size() < cuts_.size())
        cut(domain[d], cuts_[chosen.shape.size()], chosen.name);
      Index const size = extent(domain[d].runs);
      empty = empty || size == 0;
      if (fixed[d]) continue;
      chosen.shape.push_back(size);
      chosen.axes.push_back(domain[d]);
    }
    if (chosen.shape.size() < cuts_.size())
      fail(ErrorKind::usage, "'{}': has {}, and {} were to be cut. Give no more ranges than that.",
           shown_name(chosen.name), counted(chosen.shape.size(), "dimension"), cuts_.size());
    if (!empty) chosen.pieces = row_major_pieces(domain, model_, id);
    chosen_.push_back(std::move(chosen));
  }

  /// Leaves the indices of an axis that an array of `name` has at these places.
  static void cut(DomainAxis& axis, HalfOpen<Index> places, std::string const& name) {
    Index const size = extent(axis.runs);
    if (places.begin < 0 || places.end < places.begin || size < places.end)
      fail(ErrorKind::usage,
           "'{}': [{}, {}) is no part of a dimension of {}. Choose indices within it.",
           shown_name(name), places.begin, places.end, size);
    std::vector<Run> left;
    Index before = 0;
    for (Run const& run : axis.runs) {
      Run part = run;
      part.begin = std::max(run.begin, run.begin + places.begin - before);
      part.end = std::min(run.end, run.begin + places.end - before);
      if (part.begin < part.end) left.push_back(part);
      before += run.end - run.begin;
    }
    axis.runs = std::move(left);
  }

  /// Notes the indices of the named tensors along an axis, for an Error.
  void note(DomainAxis const& axis, std::string_view name) {
    for (Run const& run : axis.runs) {
      auto const [known, is_new] = seen_.emplace(name, run);
      if (is_new) continue;
      known->second.begin = std::min(known->second.begin, run.begin);
      known->second.end = std::max(known->second.end, run.end);
    }
  }

  [[noreturn]] void refuse(std::string const& pattern) const {
    Reading const shortest = readings(pattern).back();
    std::string near = nearest(shortest.name, names_);
    if (!near.empty())
      near = std::string(pattern.begin(), pattern.end() - std::ssize(shortest.name)) + near;
    fail(
        ErrorKind::usage,
        "no tensor is named '{}'{}. Choose names that `reshard ls PATH --logical` lists, or, except of "
        "mp_rank_* folders, names in the files; '*' matches any text.",
        without_controls(pattern),
        near.empty() ? "" : fmt::format(" (did you mean '{}'?)", shown_name(near)));
  }

  std::string asked_at() const {
    std::vector<std::string> wanted;
    for (AxisIndex const& one : at_) wanted.push_back(fmt::format("{}={}", one.axis, one.index));
    return fmt::format("--at {}", fmt::join(wanted, ","));
  }

  [[noreturn]] void refuse_indices(std::string const& asked) const {
    std::string ranges;
    for (auto const& [axis, run] : seen_)
      ranges += fmt::format("{}{} from {} to {}", ranges.empty() ? "" : ", ", axis, run.begin,
                            run.end - 1);
    fail(ErrorKind::usage,
         "{}: none of the tensors that are named has this part: they have {}. Choose other "
         "indices; `reshard ls PATH --logical` lists the axes.",
         asked, ranges.empty() ? "no such axis" : ranges);
  }

  Model const& model_;
  Catalog const& catalog_;
  std::span<std::string const> patterns_;
  std::span<AxisIndex const> at_;
  std::span<HalfOpen<Index> const> cuts_;
  std::vector<ChosenTensor> chosen_;
  std::vector<std::string> names_;
  std::set<std::string> matched_;  ///< patterns that name a tensor
  std::set<std::string> met_;      ///< those that name one which has the indices, too
  std::set<std::string> names_chosen_;
  std::map<std::string, Run, std::less<>> seen_;
};

}  // namespace

std::vector<AxisIndex> parse_axis_indices(std::string_view text) {
  std::vector<AxisIndex> result;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t const end = std::min(text.find(',', at), text.size());
    std::string_view const one = text.substr(at, end - at);
    std::size_t const equal = one.find('=');
    AxisIndex picked;
    char const* const last = one.data() + one.size();
    bool read = equal != std::string_view::npos && equal > 0;
    if (read) {
      picked.axis = one.substr(0, equal);
      auto const [stop, error] = std::from_chars(one.data() + equal + 1, last, picked.index);
      read = error == std::errc() && stop == last && picked.index >= 0;
    }
    if (!read)
      fail(ErrorKind::usage,
           "--at {}: '{}' is not an axis and an index. Write --at layer=3, or --at "
           "layer=3,expert=5.",
           without_controls(text), without_controls(one));
    add_index(result, std::move(picked), fmt::format("--at {}", without_controls(text)));
    at = end + 1;
  }
  return result;
}

std::vector<ChosenTensor> choose_tensors(Model const& model, Catalog const& catalog,
                                         std::span<std::string const> patterns,
                                         std::span<AxisIndex const> at,
                                         std::span<HalfOpen<Index> const> cuts) {
  return Chooser(model, catalog, patterns, at, cuts).run();
}

}  // namespace reshard
