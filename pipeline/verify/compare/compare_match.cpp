#include "pipeline/verify/compare/compare_match.hpp"

#include <algorithm>
#include <set>

#include "core/base/text/text.hpp"
#include "core/formats/run/state_inventory.hpp"
#include "core/formats/targets/target.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/mapping/quant.hpp"
#include "core/plan/equal/replicas.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "core/quant/convert.hpp"
#include "stages/plan/value_changes.hpp"
#include "stages/verify/stored_places.hpp"

namespace reshard {
namespace {

std::set<DType> dtypes_of(Catalog const& catalog, std::size_t tensor) {
  std::set<DType> dtypes;
  for (std::uint32_t const blob : catalog.tensors[tensor].blobs())
    dtypes.insert(catalog.blobs[blob].dtype);
  return dtypes;
}

std::string text_of(std::set<DType> const& dtypes) {
  std::string text;
  for (DType const dtype : dtypes) text += (text.empty() ? "" : " and ") + std::string(name(dtype));
  return text;
}

/// The lack or the double part of a tensor on a side; "" when it is whole.
std::string fault_of(Model const& model, Catalog const& catalog, std::size_t tensor) {
  Distinct const distinct = distinct_pieces(catalog.tensors[tensor], catalog);
  auto const fault = tile(distinct.made(), model.domain(model.tensors()[tensor]), model.axes());
  if (!fault) return "";
  return fault->holders == 0
             ? "nothing holds " + fault->where
             : fmt::format("{} stored places hold {}", fault->holders, fault->where);
}

class Matcher {
 public:
  Matcher(ComparedSides& sides, Comparison comparison, ComparedPart part)
      : by_names_(sides.by_names),
        comparison_(comparison),
        part_(part),
        a_model_(*sides.a.catalogue.model),
        b_model_(*sides.b.catalogue.model),
        a_(sides.a.catalogue.source),
        b_(sides.b.catalogue.source),
        a_adds_(sides.a.catalogue.listing.adds),
        b_adds_(sides.b.catalogue.listing.adds),
        a_casts_(sides.a.catalogue.listing.casts),
        b_casts_(sides.b.catalogue.listing.casts) {}

  MatchedSides run() {
    result_.b.files = std::move(b_.files);
    result_.b.views = std::move(b_.views);
    result_.b.blobs = std::move(b_.blobs);
    result_.b.tensors.resize(a_model_.tensors().size());
    wish_.blobs = {{0, 0, DType::f32, ""}, {0, 0, DType::f64, ""}};
    wish_.tensors.resize(a_model_.tensors().size());
    adds_.source = a_adds_;
    adds_.target.assign(a_model_.tensors().size(), 0);
    for (std::size_t t = 0; t < a_model_.tensors().size(); ++t)
      if (a_model_.exists(TensorId(t)) && !match(t)) leave_out(t);
    note_extras();
    change_values(a_model_, a_, wish_, adds_);
    change_values(a_model_, result_.b, wish_, {});
    return std::move(result_);
  }

 private:
  bool b_has(TensorId tensor) const {
    return b_model_.exists(tensor) && !b_.tensors[index(tensor)].empty();
  }
  bool a_has(std::size_t tensor) const {
    return a_model_.exists(TensorId(tensor)) && !a_.tensors[tensor].empty();
  }

  bool counts(Model const& model, LogicalTensor const& tensor) const {
    if (part_ == ComparedPart::all) return true;
    if (tensor.slot != SlotId::weight || (by_names_ && is_optimizer_key(tensor.name))) return false;
    if (part_ == ComparedPart::without_state) return true;
    return std::ranges::none_of(model.schemes(), [&](QuantScheme const& scheme) {
      return scheme.beside && std::ranges::any_of(scheme.parts, [&](QuantPart const& part) {
               return tensor.name.ends_with(part_tensor("", scheme, part));
             });
    });
  }

  /// Forms of state have different words for the slot of master weights.
  std::optional<TensorId> in_b(LogicalTensor const& tensor) const {
    std::optional<TensorId> const same = b_model_.find_tensor(tensor.name);
    std::string const& slot = a_model_.slots()[index(tensor.slot)];
    if (same || !is_master_slot(slot)) return same;
    std::string_view const parameter =
        std::string_view(tensor.name).substr(0, tensor.name.size() - slot.size() - 3);
    for (std::string const& other : b_model_.slots())
      if (is_master_slot(other))
        if (auto const found = b_model_.find_tensor(fmt::format("{} ({})", parameter, other)))
          return found;
    return std::nullopt;
  }

  void leave_out(std::size_t t) {
    a_model_.set_exists(TensorId(t), false);
    a_.tensors[t] = {};
    result_.b.tensors[t] = {};
    wish_.tensors[t] = {};
  }

  bool differs(HeaderFault fault, std::size_t t, std::string a, std::string b) {
    result_.differences.push_back({fault, a_model_.tensors()[t].name, std::move(a), std::move(b),
                                   part_count(a_model_, static_cast<std::uint32_t>(t)),
                                   a_model_.tensors()[t].slot != SlotId::weight});
    return false;
  }

  /// Whether the elements of the tensor can be compared; where they cannot, the difference is
  /// noted.
  bool match(std::size_t t) {
    LogicalTensor const& tensor = a_model_.tensors()[t];
    if (!a_has(t)) return false;
    if (!counts(a_model_, tensor)) {
      ++result_.left_out_a;
      return false;
    }
    std::optional<TensorId> const other = in_b(tensor);
    known_in_a_.insert(other ? b_model_.tensor(*other).name : tensor.name);
    if (!other || !b_has(*other)) {
      if (by_names_ && is_optimizer_key(tensor.name))
        ++result_.states_only_a;
      else
        differs(HeaderFault::missing, t, a_.blobs[a_.tensors[t].blob(0)].name, "");
      return false;
    }
    std::size_t const u = index(*other);
    if (!same_domain(t, u))
      return differs(HeaderFault::shape, t, shape_text(a_model_, static_cast<std::uint32_t>(t)),
                     shape_text(b_model_, static_cast<std::uint32_t>(u)));
    take_over(t, u);
    if (a_model_.volume(tensor) == 0) return match_dtypes(t, u);
    std::string const fault_a = fault_of(a_model_, a_, t);
    std::string const fault_b = fault_of(a_model_, result_.b, t);
    if (!fault_a.empty() || !fault_b.empty())
      return differs(HeaderFault::incomplete, t, fault_a, fault_b);
    return match_dtypes(t, u);
  }

  bool same_domain(std::size_t t, std::size_t u) const {
    auto const a = a_model_.domain(a_model_.tensors()[t]);
    auto const b = b_model_.domain(b_model_.tensors()[u]);
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [this](DomainAxis const& x, DomainAxis const& y) {
                        Axis const& of_a = a_model_.axes()[x.axis];
                        Axis const& of_b = b_model_.axes()[y.axis];
                        return of_a.name == of_b.name && of_a.size == of_b.size && x.div == y.div &&
                               x.runs == y.runs;
                      });
  }

  /// b's pieces of a tensor, in a's numbers.
  void take_over(std::size_t t, std::size_t u) {
    TensorPieces& pieces = result_.b.tensors[t];
    pieces = b_.tensors[u];
    pieces.set_tensor(TensorId(t));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      Piece piece = pieces[i];
      piece.digits.change([&](PieceDigit& digit) {
        digit.axis = static_cast<AxisId>(a_model_.axes().find(b_model_.axes()[digit.axis].name));
      });
      pieces.set(i, piece);
    }
  }

  /// Whether one side has the dtype that a map states for the tensor, and the other one values that
  /// it may be cast from.
  bool is_stated_cast(std::size_t t, std::size_t u, std::set<DType> const& a,
                      std::set<DType> const& b) const {
    if (a.size() != 1 || b.size() != 1) return false;
    auto const states = [&](std::vector<std::optional<DType>> const& casts, std::size_t tensor) {
      return tensor < casts.size() && casts[tensor] &&
             (a.contains(*casts[tensor]) || b.contains(*casts[tensor]));
    };
    auto const has_value = [](DType dtype) { return quant::convertible(dtype, DType::f64); };
    return (states(a_casts_, t) || states(b_casts_, u)) && has_value(*a.begin()) &&
           has_value(*b.begin());
  }

  /// Whether some of the tensor is computed while it is read, and would have to be changed again.
  static bool is_computed(Catalog const& catalog, std::size_t tensor) {
    return std::ranges::any_of(catalog.tensors[tensor].blobs(), [&](std::uint32_t const blob) {
      return catalog.blobs[blob].file >= catalog.real_files();
    });
  }

  bool match_dtypes(std::size_t t, std::size_t u) {
    std::set<DType> const a = dtypes_of(a_, t);
    std::set<DType> const b = dtypes_of(result_.b, t);
    int const add = add_of(b_adds_, TensorId(u)) - add_of(a_adds_, TensorId(t));
    if (a != b && comparison_ == Comparison::bytes) {
      if (!is_stated_cast(t, u, a, b))
        return differs(HeaderFault::dtype, t, text_of(a), text_of(b));
      result_.casts.push_back(
          fmt::format("{}: {} in a, {} in b", a_model_.tensors()[t].name, text_of(a), text_of(b)));
    }
    std::set<DType> all = a;
    all.insert(b.begin(), b.end());
    if (std::any_of(all.begin(), all.end(), [](DType dtype) { return bits(dtype) % 8 != 0; }))
      return differs(HeaderFault::not_comparable, t, text_of(a), text_of(b));
    if (all.size() > 1 || add != 0) {
      if (!std::all_of(all.begin(), all.end(),
                       [](DType dtype) { return quant::convertible(dtype, DType::f64); }))
        return differs(a != b ? HeaderFault::dtype : HeaderFault::not_comparable, t, text_of(a),
                       text_of(b));
      if (is_computed(a_, t) || is_computed(result_.b, t))
        return differs(HeaderFault::not_comparable, t, text_of(a), text_of(b));
      bool const widest = add != 0 || all.contains(DType::f64);
      wish_.tensors[t].add(Piece{TensorId(t), {}, {}, 0}, widest ? 1U : 0U, false);
      adds_.target[t] = add_of(b_adds_, TensorId(u));
    }
    result_.tensors.push_back({static_cast<std::uint32_t>(t), *a.begin(), *b.begin()});
    return true;
  }

  void note_extras() {
    for (std::size_t u = 0; u < b_model_.tensors().size(); ++u) {
      if (!b_has(TensorId(u))) continue;
      std::string const& name = b_model_.tensors()[u].name;
      if (!counts(b_model_, b_model_.tensors()[u])) {
        ++result_.left_out_b;
        continue;
      }
      if (known_in_a_.contains(name)) continue;
      if (by_names_ && is_optimizer_key(name))
        ++result_.states_only_b;
      else
        result_.differences.push_back({HeaderFault::extra, name, "",
                                       result_.b.blobs[b_.tensors[u].blob(0)].name,
                                       part_count(b_model_, static_cast<std::uint32_t>(u)),
                                       b_model_.tensors()[u].slot != SlotId::weight});
    }
  }

  bool by_names_;
  Comparison comparison_;
  ComparedPart part_;
  Model& a_model_;
  Model const& b_model_;
  Catalog& a_;
  Catalog& b_;
  std::vector<int> const& a_adds_;
  std::vector<int> const& b_adds_;
  std::vector<std::optional<DType>> const& a_casts_;
  std::vector<std::optional<DType>> const& b_casts_;
  std::set<std::string> known_in_a_;
  Catalog wish_;  ///< whose dtypes values are compared in
  StoredAdds adds_;
  MatchedSides result_;
};

}  // namespace

std::string_view name(HeaderFault fault) {
  switch (fault) {
    case HeaderFault::missing: return "missing";
    case HeaderFault::extra: return "extra";
    case HeaderFault::shape: return "shape";
    case HeaderFault::dtype: return "dtype";
    case HeaderFault::incomplete: return "incomplete";
    case HeaderFault::not_comparable: return "not comparable";
  }
  broken("HeaderFault", __FILE__, __LINE__);
}

MatchedSides match_sides(ComparedSides& sides, Comparison comparison, ComparedPart part) {
  return Matcher(sides, comparison, part).run();
}

std::string shape_text(Model const& model, std::uint32_t tensor, std::size_t first_axis) {
  std::string named;
  std::string plain;
  bool has_names = true;
  std::vector<DomainAxis> const domain = model.domain(model.tensors()[tensor]);
  for (std::size_t d = first_axis; d < domain.size(); ++d) {
    DomainAxis const& axis = domain[d];
    Index extent = 0;
    for (Run const& run : axis.runs) extent += run.end - run.begin;
    std::string const& name = model.axes()[axis.axis].name;
    has_names = has_names && !(name.front() >= '0' && name.front() <= '9');
    named += fmt::format("{}{} {}", named.empty() ? "" : " · ", name, extent);
    plain += fmt::format("{}{}", plain.empty() ? "" : ", ", extent);
  }
  return has_names && !named.empty() ? named : "[" + plain + "]";
}

}  // namespace reshard
