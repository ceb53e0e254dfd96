#include "pipeline/extract/chosen_tensors.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "core/base/shown_name.hpp"
#include "core/base/text.hpp"
#include "core/mapping/quant.hpp"
#include "core/plan/part_plan.hpp"

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

class Chooser {
 public:
  Chooser(Model const& model, Catalog const& catalog, std::span<std::string const> patterns,
          std::span<AxisIndex const> at)
      : model_(model), catalog_(catalog), patterns_(patterns), at_(at) {}

  std::vector<ChosenTensor> run() {
    for (std::size_t t = 0; t < model_.tensors().size(); ++t)
      if (model_.exists(TensorId(t)) && !catalog_.tensors[t].empty()) look_at(TensorId(t));
    for (std::string const& pattern : patterns_)
      if (!matched_.contains(pattern)) refuse(pattern);
    if (chosen_.empty()) refuse_indices();
    return std::move(chosen_);
  }

 private:
  void look_at(TensorId id) {
    std::string const& name = model_.tensor(id).name;
    std::string const weight = weight_of(model_, name);
    names_.push_back(name);
    bool named = false;
    for (std::string const& pattern : patterns_)
      if (matches_glob(pattern, name) || (!weight.empty() && matches_glob(pattern, weight))) {
        matched_.insert(pattern);
        named = true;
      }
    if (named) choose(id, weight);
  }

  void choose(TensorId id, std::string const& weight) {
    LogicalTensor const& logical = model_.tensor(id);
    std::vector<DomainAxis> domain = model_.meant_domain(logical);
    std::vector<bool> fixed(domain.size(), false);
    for (AxisIndex const& one : at_) {
      auto const axis = std::ranges::find_if(domain, [&](DomainAxis const& candidate) {
        return model_.axes()[candidate.axis].name == one.axis;
      });
      if (axis == domain.end()) return;
      if (axis->div != 1)
        fail(ErrorKind::usage,
             "--at {}={}: '{}' counts {} in blocks of {}. Leave the axis out, and cut the array "
             "afterwards.",
             one.axis, one.index, shown_name(logical.name), one.axis, axis->div);
      note(*axis, one);
      if (!has(*axis, one.index)) return;
      axis->runs = {{one.index, one.index + 1}};
      fixed[static_cast<std::size_t>(axis - domain.begin())] = true;
    }
    ChosenTensor chosen;
    chosen.id = id;
    chosen.name = logical.name;
    chosen.dtype = catalog_.blobs[catalog_.tensors[index(id)].blob(0)].dtype;
    chosen.part_of = weight;
    bool empty = false;
    for (std::size_t d = 0; d < domain.size(); ++d) {
      Index const size = extent(domain[d].runs);
      empty = empty || size == 0;
      if (fixed[d]) continue;
      chosen.shape.push_back(size);
      chosen.axes.push_back(domain[d]);
    }
    if (!empty) chosen.pieces = row_major_pieces(domain, model_, id);
    chosen_.push_back(std::move(chosen));
  }

  /// What the tensors that were named have along an axis, for an Error.
  void note(DomainAxis const& axis, AxisIndex const& one) {
    for (Run const& run : axis.runs) {
      auto const [known, is_new] = seen_.emplace(one.axis, run);
      if (is_new) continue;
      known->second.begin = std::min(known->second.begin, run.begin);
      known->second.end = std::max(known->second.end, run.end);
    }
  }

  [[noreturn]] void refuse(std::string const& pattern) const {
    std::string const near = nearest(pattern, names_);
    fail(
        ErrorKind::usage,
        "no tensor is named '{}'{}. Choose names that `reshard ls PATH --logical` lists; stored names, "
        "except of mp_rank_* folders, need --map none; '*' matches any text.",
        without_controls(pattern),
        near.empty() ? "" : fmt::format(" (did you mean '{}'?)", shown_name(near)));
  }

  [[noreturn]] void refuse_indices() const {
    std::string ranges;
    for (auto const& [axis, run] : seen_)
      ranges += fmt::format("{}{} from {} to {}", ranges.empty() ? "" : ", ", axis, run.begin,
                            run.end - 1);
    std::vector<std::string> wanted;
    for (AxisIndex const& one : at_) wanted.push_back(fmt::format("{}={}", one.axis, one.index));
    fail(ErrorKind::usage,
         "--at {}: none of the tensors that are named has this part: they have {}. Choose other "
         "indices; `reshard ls PATH --logical` lists the axes.",
         fmt::join(wanted, ","), ranges.empty() ? "no such axis" : ranges);
  }

  Model const& model_;
  Catalog const& catalog_;
  std::span<std::string const> patterns_;
  std::span<AxisIndex const> at_;
  std::vector<ChosenTensor> chosen_;
  std::vector<std::string> names_;
  std::set<std::string> matched_;
  std::map<std::string, Run> seen_;
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
    for (AxisIndex const& other : result)
      if (other.axis == picked.axis)
        fail(ErrorKind::usage, "--at {}: {} has two indices, {} and {}. Choose one.",
             without_controls(text), without_controls(picked.axis), other.index, picked.index);
    result.push_back(std::move(picked));
    at = end + 1;
  }
  return result;
}

std::vector<ChosenTensor> choose_tensors(Model const& model, Catalog const& catalog,
                                         std::span<std::string const> patterns,
                                         std::span<AxisIndex const> at) {
  return Chooser(model, catalog, patterns, at).run();
}

}  // namespace reshard
