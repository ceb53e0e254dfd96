#include <algorithm>
#include <charconv>

#include "core/layout/part_layout.hpp"
#include "core/mapping/model.hpp"

namespace reshard {
namespace {

/// An axis whose indices can be stored in different ways: a checkpoint quantises some layers and
/// leaves others as they are.
bool counts_layers(std::string_view axis) { return axis == "layer" || axis == "depth"; }

Index block_of(LayoutExpr::Digit const& digit) {
  Index div = 1;
  if (!digit.div.empty())
    std::from_chars(digit.div.data(), digit.div.data() + digit.div.size(), div);
  return div;
}

}  // namespace

std::vector<LogicalAxis> part_axes(LogicalTensor const& weight, AxisTable const& axes,
                                   LayoutExpr const& weight_layout, LayoutExpr const& part_layout,
                                   std::string const& part_name) {
  std::vector<LogicalAxis> result;
  auto const of_weight = weight_layout.digits_of(weight.name);
  auto const of_part = part_layout.digits_of(part_name);
  auto const is = [&](std::string const& name) {
    return [&name](LayoutExpr::Digit const& digit) { return digit.axis == name; };
  };
  for (LogicalAxis axis : weight.axes) {
    std::string const& name = axes[axis.axis].name;
    if (std::ranges::any_of(of_weight, is(name))) {
      Index div = 0;
      for (LayoutExpr::Digit const& digit : of_part)
        if (digit.axis == name) div = div == 0 ? block_of(digit) : std::min(div, block_of(digit));
      if (div == 0) continue;  // one value for all of the axis
      axis.div = div;
    }
    result.push_back(axis);
  }
  for (LayoutExpr::Digit const& digit : of_part)
    if (std::ranges::none_of(of_weight, is(digit.axis)))
      result.push_back({static_cast<AxisId>(axes.find(digit.axis)), 1, ""});
  return result;
}

void Model::set_schemes(std::vector<QuantScheme> schemes) {
  schemes_ = std::move(schemes);
  auto const add_axis = [this](Index numbers) {
    if (numbers > 0 && axes_.find(vector_axis(numbers)) < 0)
      axes_.add(vector_axis(numbers), numbers);
  };
  for (QuantScheme const& scheme : schemes_)
    for (QuantPart const& part : scheme.parts) {
      add_axis(part.vector);
      for (PartDim const& dim : part.dims)
        if (dim.kind == PartDim::Kind::words) add_axis(dim.inner);
    }
}

std::optional<AxisId> Model::layer_axis(TensorId tensor) const {
  LogicalTensor const& logical = tensors_[index(tensor)];
  if (logical.axes.empty() || !counts_layers(axes_[logical.axes.front().axis].name))
    return std::nullopt;
  return logical.axes.front().axis;
}

TensorId Model::add_part(TensorId weight, std::string name, std::vector<LogicalAxis> axes,
                         std::vector<bool> const& members, bool instead) {
  LogicalTensor part{std::move(name), axes};
  TensorId const number{narrow<std::uint32_t>(tensors_.size())};
  RESHARD_EXPECT(add_name(part.name));
  tensors_.push_back(std::move(part));
  exists_.push_back(true);
  if (instead) quantised_.insert(weight);
  if (layer_axis(weight)) limit(number, members);
  return number;
}

void Model::limit(TensorId tensor, std::vector<bool> const& members) {
  LogicalTensor& logical = tensors_[index(tensor)];
  if (!layer_axis(tensor)) {
    exists_[index(tensor)] = std::ranges::find(members, true) != members.end();
    return;
  }
  std::vector<LogicalAxis> axes = logical.axes;
  LogicalAxis& axis = axes.front();
  std::vector<bool> both(static_cast<std::size_t>(axes_[axis.axis].size), false);
  for (std::size_t i = 0; i < both.size(); ++i)
    both[i] = i < members.size() && members[i] && in_set(axis.set, static_cast<Index>(i));
  exists_[index(tensor)] = std::ranges::find(both, true) != both.end();
  axis.set = axes_[axis.axis].name + "." + logical.name;
  sets_[axis.set] = std::move(both);
  logical.axes = axes;
}

}  // namespace reshard
