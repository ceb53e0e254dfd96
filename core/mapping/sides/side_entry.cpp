#include "core/mapping/sides/side_entry.hpp"

#include <algorithm>

#include "core/layout/part_layout.hpp"
#include "core/mapping/sides/side_adapter.hpp"
#include "core/mapping/sides/side_quant.hpp"

namespace reshard {
namespace {

void collect_axes(LayoutExpr::Factor const& factor, std::vector<std::string>& axes) {
  if (factor.kind == LayoutExpr::Factor::Kind::digit) {
    if (std::find(axes.begin(), axes.end(), factor.digit.axis) == axes.end())
      axes.push_back(factor.digit.axis);
    return;
  }
  for (auto const& product : factor.alternatives)
    for (auto const& inner : product.factors) collect_axes(inner, axes);
}

/// Every key that a name's fields use, those of macros included.
void collect_keys(NameTemplate const& name, std::vector<CompiledMacro> const& macros, int depth,
                  std::vector<std::string>& direct, std::vector<std::string>& all) {
  for (auto const& segment : name.segments()) {
    if (segment.macro >= 0 && depth < 8)
      for (NameTemplate const& text : macros[static_cast<std::size_t>(segment.macro)].texts)
        collect_keys(text, macros, depth + 1, all, all);
    if (segment.expression.empty()) continue;
    for (std::string const& key : segment.expression.keys()) {
      std::string const axis = key.substr(0, key.find('.'));
      direct.push_back(axis);
      if (&direct != &all) all.push_back(axis);
    }
  }
}

bool contains(std::vector<std::string> const& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

class Compiler {
 public:
  Compiler(MapFile const& map, Model const& model, std::vector<CompiledMacro> const& macros,
           SideOptions const& options, ExpressionScope const& words)
      : map_(map), model_(model), macros_(macros), options_(options), words_(words) {}

  void add(std::size_t group, MapEntry const& written, std::string const& name, LayoutExpr expr,
           std::string const& ending) {
    std::optional<SideEntry> made = weight_entry(group, written, std::move(expr));
    if (!made) return;
    SideEntry& entry = *made;
    if (!ending.empty()) {
      entry.ending = ending;
      entry.whole = parse_layout(written.quantised.empty() ? written.is : written.quantised);
    }
    entry.name = NameTemplate::parse(name + ending, map_.macros, written.place);
    for (std::string const& alias : written.or_names)
      entry.aliases.push_back(NameTemplate::parse(alias + ending, map_.macros, written.place));
    if (!written.view.empty()) entry.view = parse_layout(written.view);
    cast(entry);
    if (!axes(entry)) return;
    entries_.push_back(entry);
    add_parts(entry, name, ending,
              [&](QuantPart const& part) { return ending.empty() || !part.fused; });
  }

  /// The parts of a weight that is stored in pieces which belong to all of it.
  void add_fused_parts(std::size_t group, MapEntry const& written, std::string const& name,
                       LayoutExpr expr) {
    std::optional<SideEntry> weight = weight_entry(group, written, std::move(expr));
    if (weight && axes(*weight))
      add_parts(*weight, name, "", [](QuantPart const& part) { return part.fused; });
  }

  /// A matrix of an adapter; its tensors and layouts are made already.
  void add_made(SideEntry entry) {
    if (axes(entry)) entries_.push_back(std::move(entry));
  }

  std::vector<SideEntry> take() { return std::move(entries_); }

 private:
  void cast(SideEntry& entry) const {
    if (entry.written->cast.empty()) return;
    entry.cast = dtype_from_name(entry.written->cast);
    if (!entry.cast)
      fail(ErrorKind::usage,
           "{}: cast = \"{}\" is not a dtype. Use the names of safetensors: F32, BF16, …",
           entry.written->place, entry.written->cast);
  }

  /// The entry of a tensor that is stored as it is; nothing where the model cannot have one of its
  /// tensors.
  std::optional<SideEntry> weight_entry(std::size_t group, MapEntry const& written,
                                        LayoutExpr expr) const {
    SideEntry entry;
    entry.written = &written;
    entry.group = group;
    entry.expr = std::move(expr);
    for (std::string const& tensor : entry.expr.tensors()) {
      std::optional<TensorId> const found = model_.find_tensor(tensor);
      if (!found) return std::nullopt;
      entry.tensors.push_back(*found);
    }
    entry.quantised = written.quantised.empty() ? entry.expr : parse_layout(written.quantised);
    entry.whole = entry.quantised;
    return entry;
  }

  void add_parts(SideEntry const& weight, std::string const& name, std::string const& ending,
                 std::function<bool(QuantPart const&)> const& chosen) {
    if (!weight.written->view.empty() || weight.written->as_it_is) return;
    for (QuantScheme const& scheme : model_.schemes())
      for (QuantPart const& part : scheme.parts)
        if (chosen(part)) add_part(weight, scheme, part, name + ending, ending);
  }

  /// The entry of a part of the weight, when all tensors of the weight's entry have that part. When
  /// some have the codes and others do not, an entry that is a fault.
  void add_part(SideEntry const& weight, QuantScheme const& scheme, QuantPart const& part,
                std::string const& name, std::string const& ending) {
    SideEntry entry;
    std::vector<TensorId> const weights = weight.tensors;
    std::optional<TensorId> with;
    std::optional<TensorId> without;
    for (TensorId const tensor : weights) {
      std::optional<TensorId> const found =
          model_.find_tensor(part_tensor(model_.tensor(tensor).name, scheme, part));
      // A fault where both are there: what names() asks is whether all tensors of an entry exist.
      entry.tensors.push_back(found.value_or(tensor));
      (found ? with : without) = tensor;
    }
    bool const codes = !scheme.beside && &part == &scheme.parts.front();
    if (without && (!with || !codes)) return;
    entry.written = weight.written;
    entry.group = weight.group;
    entry.part = scheme.name + "." + part.name;
    entry.name =
        NameTemplate::parse(part_name(name, part.stored), map_.macros, entry.written->place);
    for (std::string const& alias : entry.written->or_names)
      entry.aliases.push_back(NameTemplate::parse(part_name(alias + ending, part.stored),
                                                  map_.macros, entry.written->place));
    try {
      if (without)
        fail(ErrorKind::usage, "'{}' is quantised ({}), '{}' is not, and '{}' holds both",
             model_.tensor(*with).name, scheme.name, model_.tensor(*without).name, name);
      std::vector<LayoutExpr> layouts =
          part_layouts(weight.quantised, part, options_, map_, "." + entry.part,
                       [this](std::string const& size) { return size_of(size); });
      check_blocks(entry, weight.quantised, layouts, weights);
      entry.expr = std::move(layouts.front());
      entry.shared.assign(std::make_move_iterator(layouts.begin() + 1),
                          std::make_move_iterator(layouts.end()));
    } catch (Error const& error) {
      entry.fault = error.sentence();
      entry.expr = weight.quantised;
      entry.name_axes = weight.name_axes;
      entry.shape_axes = weight.shape_axes;
    }
    if (!entry.fault.empty() || axes(entry)) entries_.push_back(std::move(entry));
  }

  Index size_of(std::string const& name) const {
    if (int const axis = model_.axes().find(name); axis >= 0)
      return model_.axes()[static_cast<AxisId>(axis)].size;
    std::optional<Json> const value = words_.key(name);
    return value && value->integer() != nullptr ? *value->integer() : 0;
  }

  /// Both sides of a job must have the same blocks: packed values cannot be packed along another
  /// axis.
  void check_blocks(SideEntry const& entry, LayoutExpr const& weight_layout,
                    std::vector<LayoutExpr> const& layouts,
                    std::vector<TensorId> const& weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      LogicalTensor const& part = model_.tensor(entry.tensors[i]);
      LogicalTensor const& weight = model_.tensor(weights[i]);
      auto const own = std::ranges::find(layouts, part.name.text(), &LayoutExpr::tag);
      auto const here = part_axes(weight, model_.axes(), weight_layout,
                                  own == layouts.end() ? layouts.front() : *own, part.name);
      bool same = here.size() == part.axes.size();
      for (std::size_t a = 0; same && a < here.size(); ++a)
        same = here[a].axis == part.axes[a].axis && here[a].div == part.axes[a].div;
      if (!same)
        fail(ErrorKind::usage,
             "'{}': '{}' would have blocks along {} here, and has them along {} in the source",
             entry.written->is, part.name, blocks_text(here), blocks_text(part.axes));
    }
  }

  std::string blocks_text(std::vector<LogicalAxis> const& axes) const {
    std::string text;
    for (LogicalAxis const& axis : axes) {
      if (axis.div > 1)
        text += fmt::format("{}{}/{}", text.empty() ? "" : ", ", model_.axes()[axis.axis].name,
                            axis.div);
    }
    return text.empty() ? "no axis" : text;
  }

  /// Finds the axes of shape and name; false when the model lacks one (then it lacks the stored
  /// tensor).
  bool axes(SideEntry& entry) const {
    std::vector<std::string> in_shape;
    for (auto const& dim : entry.expr.dims) collect_axes(dim, in_shape);
    for (std::string const& axis : in_shape) {
      int const id = model_.axes().find(axis);
      if (id >= 0) entry.shape_axes.push_back(static_cast<AxisId>(id));
    }
    std::vector<std::string> direct;
    std::vector<std::string> all;
    collect_keys(entry.name, macros_, 0, direct, all);
    std::copy(direct.begin(), direct.end(), std::back_inserter(all));
    for (TensorId const tensor : entry.tensors) name_axes_of(entry, tensor, all);
    for (TensorId const tensor : entry.tensors) name_parts_of(entry, tensor, all);
    for (std::string const& key : direct) {
      int const id = model_.axes().find(key);
      if (id < 0) {
        if (std::any_of(map_.axes.begin(), map_.axes.end(),
                        [&](auto const& a) { return a.name == key; }))
          return false;
        continue;
      }
      add_name_axis(entry, {static_cast<AxisId>(id), false, {}});
    }
    return true;
  }

  void name_axes_of(SideEntry& entry, TensorId tensor,
                    std::vector<std::string> const& named) const {
    LogicalTensor const& logical = model_.tensor(tensor);
    for (LogicalAxis const& axis : logical.axes) {
      if (std::find(entry.shape_axes.begin(), entry.shape_axes.end(), axis.axis) !=
          entry.shape_axes.end())
        continue;
      std::string const& name = model_.axes()[axis.axis].name;
      if (!options_.in_front && !contains(named, name))
        fail(ErrorKind::usage,
             "{}: '{}': axis '{}' of '{}' is neither in the name nor in the shape. Put {{{}}} into "
             "the name or {} into the shape.",
             entry.written->place, entry.expr.text, name, logical.name, name, name);
      add_name_axis(entry, {axis.axis, true, {}});
    }
  }

  /// Axes of which the shape has only a part: the name counts the rest.
  void name_parts_of(SideEntry& entry, TensorId tensor,
                     std::vector<std::string> const& named) const {
    LogicalTensor const& logical = model_.tensor(tensor);
    std::vector<LayoutExpr::Digit> all = entry.expr.digits_of(logical.name);
    for (LayoutExpr const& other : entry.shared)
      for (LayoutExpr::Digit& digit : other.digits_of(logical.name))
        all.push_back(std::move(digit));
    for (LogicalAxis const& axis : logical.axes) {
      if (std::find(entry.shape_axes.begin(), entry.shape_axes.end(), axis.axis) ==
          entry.shape_axes.end())
        continue;
      Axis const& whole = model_.axes()[axis.axis];
      std::vector<LayoutExpr::Digit> digits;
      std::copy_if(all.begin(), all.end(), std::back_inserter(digits),
                   [&](auto const& digit) { return digit.axis == whole.name; });
      std::optional<AxisPart> const left = part_left(
          digits, whole.size, axis.div, [this](std::string const& name) -> std::optional<Index> {
            std::optional<Json> const value = words_.key(name);
            return value && value->integer() != nullptr ? std::optional<Index>(*value->integer())
                                                        : std::nullopt;
          });
      bool const all_in_shape = left && left->count() == 1;
      if (!left ||
          (all_in_shape && (!contains(named, whole.name) || options_.local || options_.in_front)))
        continue;
      check_part(entry, logical, axis.axis, *left, named);
      auto const known =
          std::find_if(entry.name_axes.begin(), entry.name_axes.end(),
                       [&](NameAxis const& other) { return other.axis == axis.axis; });
      if (known == entry.name_axes.end()) entry.name_axes.push_back({axis.axis, true, left});
    }
  }

  /// One name stands for all the tensors of an entry, in a whole tensor.
  void check_part(SideEntry const& entry, LogicalTensor const& logical, AxisId axis,
                  AxisPart const& left, std::vector<std::string> const& named) const {
    std::string const& name = model_.axes()[axis].name;
    auto const refuse = [&](std::string_view why) {
      fail(ErrorKind::usage, "{}: '{}': the shape holds a part of axis '{}' of '{}', and {}.",
           entry.written->place, entry.expr.text, name, logical.name, why);
    };
    if (!contains(named, name))
      refuse("the name does not count the rest. Put it there, such as {" + name + "%N}");
    if (options_.local || options_.in_front)
      refuse(
          "Megatron's formats have no names for the rest. Put the whole axis into the name or the shape");
    for (NameAxis const& other : entry.name_axes)
      if (other.axis == axis && other.part != std::optional<AxisPart>(left))
        refuse(
            "another tensor of this entry has another part of it there. Give them separate "
            "entries");
  }

  static void add_name_axis(SideEntry& entry, NameAxis axis) {
    for (NameAxis const& known : entry.name_axes)
      if (known.axis == axis.axis) return;
    if (std::find(entry.shape_axes.begin(), entry.shape_axes.end(), axis.axis) !=
        entry.shape_axes.end())
      return;
    entry.name_axes.push_back(axis);
  }

  MapFile const& map_;
  Model const& model_;
  std::vector<CompiledMacro> const& macros_;
  SideOptions const& options_;
  ExpressionScope const& words_;
  std::vector<SideEntry> entries_;
};

}  // namespace

Index number_along(Mesh const& mesh, std::vector<std::size_t> const& axes, MeshPlace const& at) {
  Index number = 0;
  if (!at.empty())
    for (std::size_t const axis : axes) number = number * mesh.axes()[axis].size + at[axis];
  return number;
}

std::vector<LayoutExpr> split_apart(LayoutExpr const& expr) {
  for (std::size_t d = 0; d < expr.dims.size(); ++d) {
    if (expr.dims[d].kind != LayoutExpr::Factor::Kind::alternatives ||
        expr.dims[d].alternatives.size() < 2)
      continue;
    std::vector<LayoutExpr> parts;
    for (auto const& alternative : expr.dims[d].alternatives) {
      parts.push_back(expr);
      parts.back().dims[d].alternatives = {alternative};
    }
    return parts;
  }
  return {expr};
}

std::vector<CompiledMacro> compile_macros(MapFile const& map) {
  std::vector<CompiledMacro> result;
  for (MapMacro const& macro : map.macros) {
    CompiledMacro compiled;
    for (MacroChoice const& choice : macro.choices)
      compiled.texts.push_back(NameTemplate::parse(choice.text, map.macros, macro.place));
    result.push_back(std::move(compiled));
  }
  return result;
}

std::vector<SideEntry> compile_entries(MapFile const& map, Model const& model,
                                       std::vector<CompiledMacro> const& macros,
                                       SideOptions const& options,
                                       ExpressionScope const& conditions) {
  Compiler compiler(map, model, macros, options, conditions);
  for (std::size_t group = 0; group < map.stored.size(); ++group) {
    MapName const& name = map.stored[group];
    std::vector<std::string> adapted;  // weights whose adapters an earlier choice stores
    for (MapEntry const& written : name.entries) {
      LayoutExpr expr;
      try {
        expr = parse_layout(written.is);
      } catch (Error const& error) {
        throw error.in(written.place);
      }
      bool const apart = !written.apart_when.empty() && written.apart_when.holds(conditions);
      if (!options.adapter.empty() && takes_adapters(model, expr, adapted))
        for (SideEntry& entry : adapter_entries({map, model, options, conditions},
                                                {group, written, name.name, expr, apart}))
          compiler.add_made(std::move(entry));
      if (!apart) {
        compiler.add(group, written, name.name, std::move(expr), "");
        continue;
      }
      std::vector<LayoutExpr> parts = split_apart(expr);
      compiler.add_fused_parts(group, written, name.name, expr);
      if (parts.size() != written.apart_as.size())
        fail(ErrorKind::usage,
             "{}: apart: {} endings for {} alternatives. Give one ending for each.", written.place,
             written.apart_as.size(), parts.size());
      for (std::size_t k = 0; k < parts.size(); ++k)
        compiler.add(group, written, name.name, std::move(parts[k]), written.apart_as[k]);
    }
  }
  return compiler.take();
}

bool holds_axis(LayoutExpr::Factor const& factor, std::string_view axis) {
  std::vector<std::string> axes;
  collect_axes(factor, axes);
  return contains(axes, axis);
}

}  // namespace reshard
