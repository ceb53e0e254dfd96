#include "core/formats/fsdp_ranks/rank_mesh.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/base/error.hpp"

namespace reshard::fsdp_ranks {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::NodeId;

constexpr std::size_t most_axes = 16;

/// Sizes and strides of one axis, outermost first: of one that was flattened there are several.
struct AxisLayout {
  std::vector<Index> sizes;
  std::vector<Index> strides;
};

class Reader {
 public:
  Reader(Document const& document, NodeId mesh, Index rank, std::string const& where,
         std::function<std::vector<Index>(std::uint32_t)> const& integers)
      : document_(document), mesh_(mesh), rank_(rank), where_(where), integers_(integers) {}

  RankMesh read() {
    RankMesh result;
    if (NodeId const tensor = attribute(document_, mesh_, "mesh"); tensor != no_node)
      read_tensor(tensor, result);
    else
      read_layout(result);
    if (result.form.sizes.empty() || result.form.sizes.size() > most_axes)
      damaged(fmt::format("{} axes", result.form.sizes.size()));
    read_names(result.form);
    check(result);
    return result;
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail(ErrorKind::source,
         "{}: its mesh has {}. The file is damaged, or of a release of PyTorch that is not known: "
         "restore it, or save again.",
         where_, what);
  }

  std::size_t position(std::vector<Index> const& ranks) const {
    auto const found = std::ranges::find(ranks, rank_);
    if (found == ranks.end())
      fail(ErrorKind::source,
           "{}: its mesh has no rank {}, of which the file is by its name. It was renamed, or "
           "copied from another rank: give it its name, or restore it.",
           where_, rank_);
    return static_cast<std::size_t>(found - ranks.begin());
  }

  std::uint32_t tensor_number(NodeId id) const {
    if (id == no_node || document_.at(id).kind != Kind::tensor) damaged("no tensor of ranks");
    return document_.at(id).index;
  }

  void read_tensor(NodeId id, RankMesh& result) const {
    std::uint32_t const number = tensor_number(id);
    result.form.sizes = document_.tensors[number].shape;
    std::size_t at = position(integers_(number));
    result.place.resize(result.form.sizes.size());
    for (std::size_t axis = result.form.sizes.size(); axis-- > 0;) {
      auto const size = static_cast<std::size_t>(result.form.sizes[axis]);
      result.place[axis] = static_cast<Index>(at % size);
      at /= size;
    }
  }

  void read_layout(RankMesh& result) const {
    NodeId const layout = attribute(document_, mesh_, "_layout");
    if (layout == no_node) damaged("neither 'mesh' nor '_layout'");
    std::vector<AxisLayout> axes;
    if (NodeId const list = attribute(document_, layout, "axes"); list != no_node) {
      for (NodeId const one : document_.at(list).items)
        axes.push_back(
            axis(attribute(document_, one, "shape"), attribute(document_, one, "stride")));
    } else {
      NodeId const shape = attribute(document_, layout, "shape");
      NodeId const stride = attribute(document_, layout, "stride");
      if (shape == no_node || stride == no_node) damaged("a layout without 'axes' and 'shape'");
      if (document_.at(shape).kind == Kind::integer) {
        axes.push_back(axis(shape, stride));
      } else {
        auto const& sizes = document_.at(shape).items;
        auto const& strides = document_.at(stride).items;
        if (sizes.size() != strides.size()) damaged("another number of sizes than of strides");
        for (std::size_t i = 0; i < sizes.size(); ++i) axes.push_back(axis(sizes[i], strides[i]));
      }
    }
    std::vector<Index> const map =
        integers_(tensor_number(attribute(document_, mesh_, "_rank_map")));
    check_nested(axes, std::ssize(map));
    auto const at = static_cast<Index>(position(map));
    for (AxisLayout const& one : axes) {
      Index size = 1;
      Index place = 0;
      for (std::size_t i = 0; i < one.sizes.size(); ++i) {
        size *= one.sizes[i];
        if (one.sizes[i] == 1) continue;  // its stride may be 0
        place = place * one.sizes[i] + at / one.strides[i] % one.sizes[i];
      }
      result.form.sizes.push_back(size);
      result.place.push_back(place);
    }
  }

  AxisLayout axis(NodeId sizes, NodeId strides) const {
    auto const list = [&](NodeId id) -> std::vector<Index> {
      if (id != no_node && document_.at(id).kind == Kind::integer)
        return {document_.at(id).integer};
      auto found = id == no_node ? std::nullopt : integers_in(document_, id);
      if (!found) damaged("an axis without sizes or strides");
      return *found;
    };
    AxisLayout result{list(sizes), list(strides)};
    if (result.sizes.size() != result.strides.size() || result.sizes.size() > most_axes)
      damaged("an axis of other numbers of sizes and of strides");
    return result;
  }

  /// An axis takes every place of a mixed radix: strides count the places of those further in.
  void check_nested(std::vector<AxisLayout> const& axes, Index ranks) const {
    std::vector<std::pair<Index, Index>> all;  // stride and size
    for (AxisLayout const& one : axes)
      for (std::size_t i = 0; i < one.sizes.size(); ++i) {
        if (one.sizes[i] < 1 || one.strides[i] < 0) damaged("a size below 1, or a stride below 0");
        if (one.sizes[i] > 1) all.emplace_back(one.strides[i], one.sizes[i]);
      }
    for (auto const& [stride, size] : all)
      if (stride < 1) damaged("a stride of 0");
    std::ranges::sort(all);
    Index reach = 1;
    for (auto const& [stride, size] : all) {
      if (stride % reach != 0 || __builtin_mul_overflow(stride, size, &reach) || reach > ranks)
        damaged(fmt::format("an axis of {} ranks at a stride of {}, which do not fit in {}", size,
                            stride, ranks));
    }
  }

  void read_names(MeshForm& form) const {
    NodeId names = attribute(document_, mesh_, "_mesh_dim_names");
    if (names == no_node) names = attribute(document_, mesh_, "mesh_dim_names");
    if (names == no_node || document_.at(names).kind != Kind::tuple) return;
    for (NodeId const one : document_.at(names).items)
      if (document_.at(one).kind == Kind::string) form.names.push_back(document_.at(one).text);
    if (form.names.size() != form.sizes.size()) form.names.clear();
  }

  /// Checks the mesh's record of the rank that saved it.
  void check(RankMesh const& mesh) const {
    NodeId const rank = attribute(document_, mesh_, "_rank");
    if (rank != no_node && document_.at(rank).kind == Kind::integer &&
        document_.at(rank).integer != rank_)
      fail(ErrorKind::source,
           "{}: was saved by rank {}, and the file is of rank {} by its name. Files of ranks were "
           "exchanged, or copied over each other: give each its name, or restore them.",
           where_, document_.at(rank).integer, rank_);
    NodeId const place = attribute(document_, mesh_, "_coordinate_on_dim");
    if (place == no_node) return;
    auto const stated = integers_in(document_, place);
    if (stated && *stated != mesh.place)
      fail(ErrorKind::source,
           "{}: its mesh places rank {} at ({}), and the rank that saved it was at ({}). Files of "
           "ranks were exchanged, or the file is damaged: restore it.",
           where_, rank_, fmt::join(mesh.place, ", "), fmt::join(*stated, ", "));
  }

  Document const& document_;
  NodeId mesh_;
  Index rank_;
  std::string const& where_;
  std::function<std::vector<Index>(std::uint32_t)> const& integers_;
};

}  // namespace

RankMesh read_rank_mesh(Document const& document, NodeId mesh, Index rank, std::string const& where,
                        std::function<std::vector<Index>(std::uint32_t)> const& integers) {
  return Reader(document, mesh, rank, where, integers).read();
}

NodeId attribute(Document const& document, NodeId object, std::string_view key) {
  if (object == no_node) return no_node;
  if (NodeId const found = document.find(object, key); found != no_node) return found;
  pickle::Node const& node = document.at(object);
  NodeId const state = node.kind == Kind::reduce ? node.state : object;
  if (state == no_node || document.at(state).kind != Kind::tuple) return no_node;
  for (NodeId const part : document.at(state).items)
    if (NodeId const found = document.find(part, key); found != no_node) return found;
  return no_node;
}

std::optional<std::vector<Index>> integers_in(Document const& document, NodeId id) {
  if (document.at(id).kind == Kind::reduce) {
    NodeId const arguments = document.at(id).arguments;
    if (arguments == no_node || document.at(arguments).items.size() != 1) return std::nullopt;
    id = document.at(arguments).items.front();
  }
  pickle::Node const& node = document.at(id);
  if (node.kind != Kind::tuple && node.kind != Kind::list) return std::nullopt;
  std::vector<Index> result;
  for (NodeId const item : node.items) {
    if (document.at(item).kind != Kind::integer) return std::nullopt;
    result.push_back(document.at(item).integer);
  }
  return result;
}

}  // namespace reshard::fsdp_ranks
