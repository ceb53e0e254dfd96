#include "core/mapping/adapter_finder.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"

namespace reshard {
namespace {

void set_member(std::vector<bool>& members, Index at) {
  auto const i = static_cast<std::size_t>(std::max<Index>(at, 0));
  if (members.size() <= i) members.resize(i + 1, false);
  members[i] = true;
}

}  // namespace

/// peft nests the wrappers of a module's parameters in the order in which the module has them:
/// gate_up_proj inside of down_proj. Names that come earlier in the alphabet are outside.
std::size_t AdapterFinder::wrapped(std::string_view parameter) const {
  std::string_view const word = module_and_word(parameter).second;
  std::vector<std::string_view> others;
  for (std::string const& packed : names_.packed) {
    auto const [module, last] = module_and_word(packed);
    bool const same = module_and_word(parameter).first.ends_with(module);
    if (same && std::ranges::find(others, last) == others.end()) others.push_back(last);
  }
  return static_cast<std::size_t>(
      std::ranges::count_if(others, [&](std::string_view other) { return other < word; }));
}

Index AdapterFinder::count(std::vector<std::string> const& axes) const {
  Index result = 1;
  for (std::string const& axis : axes)
    result *= model_.axes()[static_cast<AxisId>(model_.axes().find(axis))].size;
  return result;
}

std::vector<AdapterPair> AdapterFinder::look(std::span<StoredName const> names,
                                             FindTensor const& find,
                                             std::string const& place_name) {
  pairs_.clear();
  for (StoredName const& name : names) {
    if (name.copy) continue;
    look(name, name.name, find, place_name);
    for (std::string const& alias : name.aliases) look(name, alias, find, place_name);
  }
  return std::move(pairs_);
}

void AdapterFinder::look(StoredName const& name, std::string const& weight, FindTensor const& find,
                         std::string const& place_name) {
  MapAdapter const& form = adapter_form(model_.adapter_forms(), names_.form);
  std::vector<TensorId> const& tensors = side_.tensors(name.entry);
  if (std::ranges::any_of(tensors, [&](TensorId tensor) {
        return !may_have_adapter(form, model_.tensor(tensor).name);
      }))
    return;
  auto const axes = linear_.find(model_.tensor(tensors.front()).name);
  if (axes == linear_.end()) return;
  auto const roles = linear_roles(side_.quantised_expression(name.entry), axes->second);
  if (!roles) return;
  std::string a = adapter_name(form, weight, AdapterMatrix::a, "");
  if (a.empty()) {
    if (!form.packed || roles->further.empty() || !means_parameter(names_.packed, weight)) return;
    std::size_t const depth = wrapped(weight);
    note({weight, packed_adapter_name(form, weight, AdapterMatrix::a, depth),
          packed_adapter_name(form, weight, AdapterMatrix::b, depth), roles->further},
         tensors, name, find, place_name);
    return;
  }
  if (!roles->further.empty()) return;
  std::string_view const before = module_and_word(weight).first;
  std::string const module(before.substr(0, before.size() - (before.ends_with('.') ? 1 : 0)));
  if (note({module, std::move(a), adapter_name(form, weight, AdapterMatrix::b, ""), {}}, tensors,
           name, find, place_name))
    return;
  if (!names_.apart || tensors.size() < 2) return;
  for (TensorId const tensor : tensors) {
    std::string_view const word = part_word(form, model_.tensor(tensor).name);
    if (!word.empty())
      note({module,
            adapter_name(form, weight, AdapterMatrix::a, word),
            adapter_name(form, weight, AdapterMatrix::b, word),
            {}},
           {&tensor, 1}, name, find, place_name);
  }
}

/// False when neither matrix is there.
bool AdapterFinder::note(Names const& names, std::span<TensorId const> tensors,
                         StoredName const& name, FindTensor const& find,
                         std::string const& place_name) {
  auto const a = find(names.a);
  auto const b = find(names.b);
  if (!a && !b) return false;
  if (!a || !b)
    fail(ErrorKind::source,
         "{}: has '{}', but '{}' is missing, the other matrix of the same adapter. The file is "
         "incomplete: restore it.",
         place_name, a ? names.a : names.b, a ? names.b : names.a);
  Index const inside = count(names.further);
  Index const last = b->shape.empty() ? 0 : b->shape.back();
  if (last <= 0 || last % inside != 0 || b->shape.size() < 2)
    fail(ErrorKind::source,
         "{}: '{}' is [{}], expected a matrix whose last dimension is the rank{}. The file "
         "belongs to another model.",
         place_name, names.b, fmt::join(b->shape, ", "),
         inside == 1 ? "" : fmt::format(" of {}", counted(inside, "expert")));
  Index const rank = last / inside;
  pairs_.push_back({names.module, names.a, names.b, rank});
  for (TensorId const tensor : tensors) {
    std::vector<Index> layers = side_.layers_of(name, tensor);
    if (layers.empty()) layers.push_back(-1);
    for (Index const layer : layers) {
      auto const [seen, is_new] = seen_.emplace(std::pair(tensor, layer), std::pair(rank, names.b));
      if (!is_new && seen->second.first != rank)
        fail(ErrorKind::source,
             "{}: '{}' has rank {}, and '{}' of the same weight and layer rank {}. Adapters of the "
             "experts of one layer must have one rank.",
             place_name, names.b, rank, seen->second.second, seen->second.first);
      set_member(found_[{tensor, rank}], layer);
    }
  }
  return true;
}

void AdapterFinder::apply(Model& model) const {
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    if (!model.exists(TensorId(t))) model.limit(TensorId(t), {});  // in_base_model() asks for it
    model.set_exists(TensorId(t), false);
  }
  for (auto const& [key, layers] : found_) {
    auto const& [weight, rank] = key;
    AxisId const rank_axis = model.rank_axis(rank);
    LogicalTensor const own = model.tensor(weight);
    LinearAxes const& linear = linear_.find(own.name)->second;
    auto const is = [&](std::vector<std::string> const& of, LogicalAxis const& axis) {
      return std::ranges::find(of, model.axes()[axis.axis].name) != of.end();
    };
    std::vector<LogicalAxis> a;
    std::vector<LogicalAxis> b;
    for (LogicalAxis const& axis : own.axes)
      if (!is(linear.in, axis) && !is(linear.out, axis)) a.push_back(axis);
    b = a;
    a.push_back({rank_axis, 1, ""});
    for (LogicalAxis const& axis : own.axes) {
      if (is(linear.in, axis)) a.push_back(axis);
      if (is(linear.out, axis)) b.push_back(axis);
    }
    b.push_back({rank_axis, 1, ""});
    model.add_adapter(weight, adapter_tensor(own.name, AdapterMatrix::a, rank), std::move(a),
                      layers);
    model.add_adapter(weight, adapter_tensor(own.name, AdapterMatrix::b, rank), std::move(b),
                      layers);
  }
}

}  // namespace reshard
