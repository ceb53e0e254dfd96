#include "core/mapping/adapter.hpp"

#include <algorithm>
#include <charconv>

#include "core/base/text/text.hpp"

namespace reshard {
namespace {

/// The rest of a name behind "weight", where that is its last word; nothing elsewhere.
std::optional<std::string_view> behind_weight(std::string_view name) {
  constexpr std::string_view word = "weight";
  std::string_view const last = module_and_word(name).second;
  if (!last.starts_with(word)) return std::nullopt;
  std::string_view const rest = last.substr(word.size());
  bool const counts = rest.find_first_not_of("0123456789") == std::string_view::npos;
  bool const field = rest.starts_with('{') && rest.ends_with('}');
  return counts || field ? std::optional(rest) : std::nullopt;
}

std::string filled(std::string text, std::string_view field, std::string_view with) {
  if (std::size_t const at = text.find(field); at != std::string::npos)
    text.replace(at, field.size(), with);
  return text;
}

std::string words_of(MapAdapter const& form, AdapterMatrix matrix, std::string_view part,
                     std::string_view rest) {
  std::string text = matrix == AdapterMatrix::a ? form.a : form.b;
  text = filled(std::move(text), "{part}", part.empty() ? std::string() : std::string(part) + ".");
  return filled(std::move(text), "{rest}", rest);
}

bool holds(std::vector<std::string> const& all, std::string const& one) {
  return std::ranges::find(all, one) != all.end();
}

}  // namespace

LinearWeights linear_weights(MapFile const& map, bool kept) {
  LinearWeights result;
  for (MapName const& name : map.stored)
    for (MapEntry const& entry : name.entries) {
      if (!behind_weight(name.name) || !entry.view.empty()) continue;
      if (entry.as_it_is && !kept) continue;
      LayoutExpr const expr = parse_layout(entry.is);
      if (expr.dims.size() != 2) continue;
      std::vector<std::string> const out = axes_in(expr.dims[0]);
      std::vector<std::string> const in = axes_in(expr.dims[1]);
      for (std::string const& tensor : expr.tensors()) {
        LinearAxes axes;
        for (LayoutExpr::Digit const& digit : expr.digits_of(tensor)) {
          if (holds(out, digit.axis)) axes.out.push_back(digit.axis);
          if (holds(in, digit.axis)) axes.in.push_back(digit.axis);
        }
        result.try_emplace(tensor, std::move(axes));
      }
    }
  return result;
}

std::optional<LinearRoles> linear_roles(LayoutExpr const& weight, LinearAxes const& axes) {
  LinearRoles roles;
  std::size_t outs = 0;
  std::size_t ins = 0;
  for (std::size_t d = 0; d < weight.dims.size(); ++d) {
    std::vector<std::string> const here = axes_in(weight.dims[d]);
    // A dimension without axes is one row or column, as of a gate: Linear(hidden, 1).
    auto const is = [&](std::vector<std::string> const& of) {
      return here.empty() ? of.empty() : std::ranges::any_of(here, [&](std::string const& axis) {
        return holds(of, axis);
      });
    };
    if (is(axes.out)) {
      roles.dims.out = d;
      ++outs;
    } else if (is(axes.in)) {
      roles.dims.in = d;
      ++ins;
    } else if (here.size() == 1 && weight.dims[d].kind == LayoutExpr::Factor::Kind::digit) {
      roles.further.push_back(here.front());
    } else {
      return std::nullopt;
    }
  }
  return outs == 1 && ins == 1 ? std::optional(std::move(roles)) : std::nullopt;
}

std::string adapter_part(AdapterMatrix matrix, Index rank) {
  return fmt::format("lora_{}.r{}", matrix == AdapterMatrix::a ? 'a' : 'b', rank);
}

std::string adapter_tensor(std::string_view weight, AdapterMatrix matrix, Index rank) {
  return fmt::format("{}.{}", weight, adapter_part(matrix, rank));
}

std::string adapter_name(MapAdapter const& form, std::string_view weight, AdapterMatrix matrix,
                         std::string_view part) {
  auto const rest = behind_weight(weight);
  if (!rest) return {};
  auto const [module, word] = module_and_word(weight);
  return form.prefix + std::string(module) + words_of(form, matrix, part, *rest);
}

std::string packed_adapter_name(MapAdapter const& form, std::string_view parameter,
                                AdapterMatrix matrix, std::size_t wrapped) {
  std::string result = form.prefix + std::string(module_and_word(parameter).first);
  for (std::size_t i = 0; i < wrapped; ++i) result += "base_layer.";
  return result + words_of(form, matrix, "", "");
}

bool means_parameter(std::vector<std::string> const& ends, std::string_view parameter) {
  return std::ranges::any_of(ends, [&](std::string const& end) {
    return parameter == end || parameter.ends_with("." + end);
  });
}

bool means_module_of(std::vector<std::string> const& ends, std::string_view parameter) {
  auto const [module, word] = module_and_word(parameter);
  if (behind_weight(parameter)) return false;
  return std::ranges::any_of(ends, [&, of = module](std::string const& end) {
    std::string_view const meant = module_and_word(end).first;
    if (!of.ends_with(meant)) return false;
    std::string_view const before = of.substr(0, of.size() - meant.size());
    return before.empty() || before.ends_with('.') || before.ends_with('*');
  });
}

std::pair<std::string_view, std::string_view> module_and_word(std::string_view name) {
  // A field at the end is of the last word; one in front of it is text that ends in a dot.
  std::size_t const end = name.ends_with('}') ? name.rfind('{') : name.size();
  std::size_t const at = name.substr(0, end).find_last_of(".}");
  if (at == std::string_view::npos) return {"", name};
  return {name.substr(0, at + 1), name.substr(at + 1)};
}

std::string_view part_word(MapAdapter const& form, std::string_view weight) {
  for (auto const& [tensor, word] : form.parts)
    if (tensor == weight) return word;
  return {};
}

bool may_have_adapter(MapAdapter const& form, std::string_view weight) {
  return std::ranges::none_of(
      form.except, [&](std::string const& pattern) { return matches_glob(pattern, weight); });
}

MapAdapter const& adapter_form(std::vector<MapAdapter> const& forms, std::string_view name) {
  auto const found = std::ranges::find(forms, name, &MapAdapter::name);
  RESHARD_EXPECT(found != forms.end());
  return *found;
}

std::optional<AdapterTensor> adapter_of(Model const& model, TensorId tensor) {
  std::string_view const name = model.tensor(tensor).name;
  constexpr std::string_view mark = ".lora_";
  std::size_t const at = name.rfind(mark);
  if (model.adapter_ranks().empty() || at == std::string_view::npos) return std::nullopt;
  std::string_view const rest = name.substr(at + mark.size());  // "a.r8"
  if (rest.size() < 4 || rest.substr(1, 2) != ".r") return std::nullopt;
  AdapterTensor result;
  auto const weight = model.find_tensor(name.substr(0, at));
  char const* const end = rest.data() + rest.size();
  auto const [stop, error] = std::from_chars(rest.data() + 3, end, result.rank);
  if (!weight || error != std::errc{} || stop != end) return std::nullopt;
  result.weight = *weight;
  result.matrix = rest.front() == 'a' ? AdapterMatrix::a : AdapterMatrix::b;
  return result;
}

bool in_base_model(Model const& model, std::string_view weight) {
  auto const tensor = model.find_tensor(weight);
  return tensor && model.volume(model.tensor(*tensor)) > 0;
}

std::optional<LinearAxes> adapted_axes(Model const& model, std::string_view weight, Index rank) {
  auto const a = model.find_tensor(adapter_tensor(weight, AdapterMatrix::a, rank));
  auto const b = model.find_tensor(adapter_tensor(weight, AdapterMatrix::b, rank));
  auto const own = model.find_tensor(weight);
  if (!a || !b || !own) return std::nullopt;
  LinearAxes result;
  auto const& all = model.tensor(*own).axes;
  auto const has = [&](TensorId tensor, AxisId axis) {
    return std::ranges::find(model.tensor(tensor).axes, axis, &LogicalAxis::axis) !=
           model.tensor(tensor).axes.end();
  };
  for (LogicalAxis const& axis : all) {
    bool const in_a = has(*a, axis.axis);
    bool const in_b = has(*b, axis.axis);
    if (in_a && !in_b) result.in.push_back(model.axes()[axis.axis].name);
    if (in_b && !in_a) result.out.push_back(model.axes()[axis.axis].name);
  }
  return result;
}

}  // namespace reshard
