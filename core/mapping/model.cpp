#include "core/mapping/model.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/base/hash/mixed_bits.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {

/// Evaluates the definitions of a map on demand; a cycle is an Error.
class ModelBuilder {
  static constexpr std::size_t deepest = 200;  // definitions inside definitions
  static constexpr std::size_t most_members =
      1U << 14U;  // indices that sets are evaluated for: no model has as many layers

 public:
  ModelBuilder(Model& model, MapFile const& definitions, MapFile const& tensors,
               ModelFacts const& facts)
      : model_(model),
        definitions_(definitions),
        facts_{scoped_facts(completed_config(definitions, facts.facts), definitions.facts),
               facts.origin, facts.true_vocab_size, facts.prediction_layers} {
    model_.facts_ = facts_.facts;
    model_.origin_ = facts.origin;
    for (NamedExpression const& let : definitions.let) model_.lets_[let.name] = named(let.name);
    for (NamedExpression const& axis : definitions.axes) add_axis(axis);
    for (NamedExpression const& set : definitions.sets) add_set(set.name);
    for (MapTensor const& tensor : tensors.tensors) add_tensor(tensor);
    if (&definitions != &tensors)
      for (MapTensor const& tensor : definitions.tensors) add_tensor(tensor);
    for (NamedExpression const& axis : definitions.axes)
      if (!declared_.contains(axis.name)) model_.facts_alone_.insert(axis.name);
  }

 private:
  Json named(std::string const& name) {
    if (auto const known = values_.find(name); known != values_.end()) return known->second;
    NamedExpression const* definition = find(name);
    if (definition == nullptr) return fact(facts_.facts, name);
    if (!open_.insert(name).second)
      fail(ErrorKind::usage, "{}: '{}' is defined in terms of itself. Break the cycle.",
           definitions_.name, name);
    if (open_.size() > deepest)
      fail(ErrorKind::usage, "{}: '{}' needs more than {} other definitions, one inside the other.",
           definitions_.name, name, deepest);
    ExpressionScope scope;
    scope.key = [&](std::string_view key) {
      return std::optional<Json>(key == name ? fact(facts_.facts, key) : named(std::string(key)));
    };
    scope.exact_division = true;
    scope.absent_spreads = true;
    Json value = definition->expression.evaluate(scope);
    if (name == "vocab" && facts_.true_vocab_size > 0) value = facts_.true_vocab_size;
    if (name == "M" && facts_.prediction_layers) value = *facts_.prediction_layers;
    open_.erase(name);
    return values_[name] = std::move(value);
  }

  NamedExpression const* find(std::string_view name) const {
    for (auto const* list : {&definitions_.let, &definitions_.axes})
      for (NamedExpression const& item : *list)
        if (item.name == name) return &item;
    return nullptr;
  }

  void add_axis(NamedExpression const& axis) {
    Json const value = named(axis.name);
    if (value.is_null()) return;
    auto const* size = value.integer();
    if (size == nullptr) refuse_odd_fact(axis);
    if (size == nullptr || *size < 0)
      // No map makes fractions: the source states one.
      fail(value.real() != nullptr ? ErrorKind::source : ErrorKind::usage,
           "{}: axis '{}' = '{}' is {}, a size is needed. Check {}.", definitions_.name, axis.name,
           axis.expression.text(), value.dump(), facts_.origin);
    if (*size == 0) return;
    model_.axes_.add(axis.name, *size);
  }

  /// An Error that names the fact that makes a size something else than an integer, where one does.
  void refuse_odd_fact(NamedExpression const& axis) const {
    std::vector<std::string> words = axis.expression.keys();
    for (std::size_t w = 0; w < words.size(); ++w) {
      NamedExpression const* definition = words[w] == axis.name ? nullptr : find(words[w]);
      if (definition != nullptr)
        for (std::string& inner : definition->expression.keys())
          if (!std::ranges::count(words, inner)) words.push_back(std::move(inner));
      Json const value = fact(facts_.facts, words[w]);
      std::string const* text = value.text();
      bool const as_text =
          text != nullptr && !text->empty() && text->front() >= '0' && text->front() <= '9';
      if (value.real() == nullptr && !as_text) continue;
      fail(
          ErrorKind::source,
          "{}: '{}' is {}, and the size '{}' is made of it ({}): an integer is needed. Correct it, "
          "or restore the file.",
          facts_.origin, words[w], value.dump(), axis.name, axis.expression.text());
    }
  }

  void add_set(std::string const& name) {
    if (model_.sets_.contains(name)) return;
    auto const axis = name.substr(0, name.find('.'));
    int const id = model_.axes_.find(axis);
    if (id < 0) return;
    NamedExpression const* definition = nullptr;
    for (NamedExpression const& set : definitions_.sets)
      if (set.name == name) definition = &set;
    if (definition == nullptr) return;
    if (!open_.insert(name).second)
      fail(ErrorKind::usage, "{}: set '{}' is defined in terms of itself. Break the cycle.",
           definitions_.name, name);
    auto const size = static_cast<std::size_t>(model_.axes_[static_cast<AxisId>(id)].size);
    if (size > most_members)
      fail(ErrorKind::usage,
           "{}: axis '{}' has {} indices; an axis with sets may have at most {}. Check {}.",
           definitions_.name, axis, size, most_members, facts_.origin);
    std::vector<bool> members(size);
    for (std::size_t i = 0; i < size; ++i)
      members[i] = definition->expression.holds(set_scope(axis, static_cast<Index>(i)));
    open_.erase(name);
    model_.sets_[name] = std::move(members);
  }

  ExpressionScope set_scope(std::string const& axis, Index i) {
    ExpressionScope scope;
    scope.absent_spreads = true;
    scope.key = [this, axis, i](std::string_view key) -> std::optional<Json> {
      if (key == axis) return Json(i);
      if (key.starts_with(axis + ".")) {
        add_set(std::string(key));
        return Json(model_.in_set(key, i));
      }
      return named(std::string(key));
    };
    return scope;
  }

  void add_tensor(MapTensor const& tensor) {
    note_axes(tensor.axes);
    std::vector<LogicalAxis> axes;
    for (std::size_t at = 0; at < tensor.axes.size();) {
      std::size_t const begin = tensor.axes.find_first_not_of(' ', at);
      if (begin == std::string::npos) break;
      at = std::min(tensor.axes.find(' ', begin), tensor.axes.size());
      auto const axis = parse_axis(tensor, std::string_view(tensor.axes).substr(begin, at - begin));
      if (!axis) return;  // the model lacks this axis, so it lacks the tensor
      axes.push_back(*axis);
    }
    LogicalTensor logical{tensor.name, axes};
    if (model_.volume(logical) == 0) return;
    if (!model_.add_name(logical.name))
      fail(ErrorKind::usage, "{}: the tensor '{}' is declared twice. Keep one declaration.",
           tensor.place, logical.name);
    model_.tensors_.push_back(std::move(logical));
    model_.exists_.push_back(true);
  }

  void note_axes(std::string_view axes) {
    while (!axes.empty()) {
      std::size_t const end = std::min(axes.find(' '), axes.size());
      declared_.emplace(axes.substr(0, std::min(end, axes.find_first_of("./"))));
      axes.remove_prefix(std::min(end + 1, axes.size()));
    }
  }

  std::optional<LogicalAxis> parse_axis(MapTensor const& tensor, std::string_view word) const {
    LogicalAxis result;
    if (auto const slash = word.find('/'); slash != std::string_view::npos) {
      auto const digits = word.substr(slash + 1);
      auto const [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), result.div);
      if (error != std::errc() || end != digits.data() + digits.size() || result.div <= 0)
        fail(ErrorKind::usage, "{}: '{}': the block size '{}' must be a number above zero.",
             tensor.place, tensor.name, digits);
      word = word.substr(0, slash);
    }
    std::string_view const axis = word.substr(0, word.find('.'));
    if (axis != word) {
      result.set = word;
      if (!model_.sets_.contains(result.set)) return std::nullopt;
    }
    int const id = model_.axes_.find(axis);
    if (id < 0) return std::nullopt;
    result.axis = static_cast<AxisId>(id);
    return result;
  }

  Model& model_;
  MapFile const& definitions_;
  ModelFacts facts_;
  std::map<std::string, Json> values_;
  std::set<std::string> open_;
  std::set<std::string, std::less<>> declared_;  ///< axes of declared tensors
};

Model::Model(MapFile const& definitions, MapFile const& tensors, ModelFacts const& facts) {
  ModelBuilder(*this, definitions, tensors, facts);
  mesh_axes_ = reshard::mesh_axes(definitions);
  for (std::string& axis : reshard::mesh_axes(tensors)) mesh_axes_.push_back(std::move(axis));
}

/// Tensors share axes; the dimensions of one tensor never do.
LogicalAxes Model::plain_axes(SharedShape shape) {
  std::vector<LogicalAxis> axes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::string const axis = fmt::format("{}.{}", d, shape[d]);
    int const known = axes_.find(axis);
    axes.push_back({known >= 0 ? static_cast<AxisId>(known) : axes_.add(axis, shape[d]), 1, ""});
  }
  return axes;
}

Model::Model(std::span<PlainTensor const> tensors, std::string origin)
    : origin_(std::move(origin)) {
  tensors_.reserve(tensors.size());
  exists_.reserve(tensors.size());
  LogicalAxes axes;  // of the last shape
  SharedShape last;
  for (PlainTensor const& tensor : tensors) {
    if (tensor.shape != last) axes = plain_axes(tensor.shape);
    last = tensor.shape;
    LogicalTensor logical{tensor.name, axes};
    if (!add_name(logical.name))
      fail(ErrorKind::source, "{}: '{}' appears twice. Remove one of them.", origin_, logical.name);
    tensors_.push_back(std::move(logical));
    exists_.push_back(true);
  }
}

std::string part_prefix(std::string_view axis, Index index) {
  return fmt::format("{}.{}.", axis, index);
}

std::string slot_name(std::string_view parameter, std::string_view slot) {
  return fmt::format("{} ({})", parameter, slot);
}

void Model::add_slots(std::span<std::string const> names) {
  RESHARD_EXPECT(slots_.size() == 1);
  parameters_ = tensors_.size();
  for (std::string const& name : names) {
    SlotId const slot{narrow<std::uint32_t>(slots_.size())};
    slots_.push_back(name);
    for (std::size_t t = 0; t < parameters_; ++t) {
      LogicalTensor state = tensors_[t];
      state.name = slot_name(state.name, name);
      state.slot = slot;
      add_name(state.name);
      tensors_.push_back(std::move(state));
      exists_.push_back(false);
    }
  }
}

TensorId Model::in_slot(TensorId parameter, SlotId slot) const {
  RESHARD_EXPECT(slot == SlotId::weight || index(parameter) < parameters_);
  return TensorId{narrow<std::uint32_t>(index(parameter) + index(slot) * parameters_)};
}

void Model::note_states(std::span<PlainState const> states) {
  RESHARD_EXPECT(slots_.size() == 1);
  for (PlainState const& one : states) {
    auto const at = std::ranges::find(slots_, one.slot) - slots_.begin();
    if (at == std::ssize(slots_)) slots_.push_back(one.slot);
    SlotId const slot{narrow<std::uint32_t>(at)};
    tensors_[index(one.state)].slot = slot;
    plain_states_.emplace(std::pair(one.parameter, slot), one.state);
  }
}

std::optional<TensorId> Model::state_of(TensorId parameter, SlotId slot) const {
  if (parameters_ > 0) {
    TensorId const state = in_slot(parameter, slot);
    return exists(state) ? std::optional(state) : std::nullopt;
  }
  auto const found = plain_states_.find({parameter, slot});
  return found == plain_states_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<TensorId> Model::find_tensor(std::string_view name) const {
  std::uint32_t const number = number_of(name);
  return number == IdTable::none ? std::nullopt : std::optional(TensorId{number});
}

std::uint32_t Model::number_of(SharedText const& name) const {
  return by_name_.id(mixed_bits(name.hash()),
                     [&](std::uint32_t one) { return tensors_[one].name == name; });
}

bool Model::add_name(SharedText const& name) {
  if (number_of(name) != IdTable::none) return false;
  by_name_.make_room([this](std::uint32_t one) { return mixed_bits(tensors_[one].name.hash()); });
  by_name_.add(mixed_bits(name.hash()), narrow<std::uint32_t>(tensors_.size()));
  return true;
}

bool Model::in_set(std::string_view set, Index i) const {
  if (set.empty()) return true;
  auto const found = sets_.find(set);
  return found != sets_.end() && i >= 0 && static_cast<std::size_t>(i) < found->second.size() &&
         found->second[static_cast<std::size_t>(i)];
}

std::vector<DomainAxis> Model::domain(LogicalTensor const& tensor) const {
  std::vector<DomainAxis> result;
  for (LogicalAxis const& axis : tensor.axes) {
    Index const size = axes_[axis.axis].size;
    DomainAxis domain{axis.axis, axis.div, {}};
    if (axis.set.empty()) {
      domain.runs.push_back({0, (size + axis.div - 1) / axis.div, false});
    } else {
      for (Index i = 0; i < size; ++i) {
        if (!in_set(axis.set, i)) continue;
        if (!domain.runs.empty() && domain.runs.back().end == i)
          ++domain.runs.back().end;
        else
          domain.runs.push_back({i, i + 1, false});
      }
    }
    result.push_back(std::move(domain));
  }
  return result;
}

std::vector<DomainAxis> Model::meant_domain(LogicalTensor const& tensor) const {
  std::vector<DomainAxis> result = domain(tensor);
  for (DomainAxis& axis : result) {
    auto const limit = meant_.find(axis.axis);
    if (limit == meant_.end()) continue;
    Index const end = (limit->second + axis.div - 1) / axis.div;
    for (Run& run : axis.runs) run = {std::min(run.begin, end), std::min(run.end, end), run.fill};
    std::erase_if(axis.runs, [](Run const& run) { return run.begin == run.end; });
  }
  return result;
}

Index Model::volume(LogicalTensor const& tensor) const {
  Index volume = 1;
  for (DomainAxis const& axis : domain(tensor)) {
    Index count = 0;
    for (Run const& run : axis.runs) count += run.end - run.begin;
    volume =
        checked_mul(volume, count, ErrorKind::usage, "the size of tensor '" + tensor.name + "'");
  }
  return volume;
}

Json Model::value(std::string_view key) const {
  if (auto const let = lets_.find(key); let != lets_.end()) return let->second;
  if (int const axis = axes_.find(key); axis >= 0) return axes_[static_cast<AxisId>(axis)].size;
  return fact(facts_, key);
}

Json Model::value_or_set(std::string_view key) const {
  auto const set = sets_.find(key);
  if (set == sets_.end()) return value(key);
  Json::Array members;
  for (bool const member : set->second) members.emplace_back(member ? 1 : 0);
  return Json(std::move(members));
}

std::vector<std::pair<std::string, Json>> Model::evaluate(
    std::vector<NamedExpression> const& table) const {
  ExpressionScope scope;
  scope.absent_spreads = true;
  scope.key = [this](std::string_view key) { return std::optional<Json>(value_or_set(key)); };
  std::vector<std::pair<std::string, Json>> result;
  for (NamedExpression const& item : table)
    result.emplace_back(item.name, item.expression.evaluate(scope));
  return result;
}

}  // namespace reshard
