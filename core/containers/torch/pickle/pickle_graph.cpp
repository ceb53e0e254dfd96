#include "core/containers/torch/pickle/pickle_graph.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace reshard::pickle {
namespace {

/// Depth-first search that measures how high the graph is above its leaves.
class HeightSearch {
 public:
  HeightSearch(Document const& document, std::size_t deepest)
      : document_(document), deepest_(deepest), height_(document.nodes.size(), unseen) {}

  bool exceeds(NodeId root) {
    enter(root);
    while (!path_.empty()) {
      if (path_.size() > deepest_) return true;
      Step& step = path_.back();
      Node const& node = document_.at(step.node);
      if (step.next == child_count(node)) {
        if (leave()) return true;
        continue;
      }
      NodeId const next = child(node, step.next++);
      if (next == no_node || height_[next] == on_path) continue;
      if (height_[next] == unseen)
        enter(next);
      else
        step.height = std::max(step.height, height_[next]);
      if (path_.size() + path_.back().height > deepest_) return true;
    }
    return false;
  }

 private:
  static constexpr std::uint32_t unseen = 0;
  static constexpr std::uint32_t on_path = 0xffffffffU;

  struct Step {
    NodeId node;
    std::size_t next = 0;      ///< position of the next child
    std::uint32_t height = 0;  ///< of the highest finished child
  };

  void enter(NodeId node) {
    height_[node] = on_path;
    path_.push_back({node});
  }

  bool leave() {
    Step const done = path_.back();
    path_.pop_back();
    std::uint32_t const height = done.height + 1;
    height_[done.node] = height;
    if (!path_.empty()) path_.back().height = std::max(path_.back().height, height);
    return height > deepest_;
  }

  Document const& document_;
  std::size_t deepest_;
  std::vector<std::uint32_t> height_;
  std::vector<Step> path_;
};

}  // namespace

std::size_t child_count(Node const& node) { return 3 + node.items.size() + node.pairs.size(); }

NodeId child(Node const& node, std::size_t position) {
  if (position == 0) return node.callable;
  if (position == 1) return node.arguments;
  position -= 2;
  if (position < node.items.size()) return node.items[position];
  position -= node.items.size();
  return position < node.pairs.size() ? node.pairs[position] : node.state;
}

std::vector<bool> reachable(Document const& document, NodeId root) {
  std::vector<bool> seen(document.nodes.size());
  std::vector<NodeId> waiting;
  auto const meet = [&](NodeId id) {
    if (id == no_node || seen[id]) return;
    seen[id] = true;
    waiting.push_back(id);
  };
  meet(root);
  while (!waiting.empty()) {
    Node const& node = document.at(waiting.back());
    waiting.pop_back();
    for (std::size_t position = 0; position < child_count(node); ++position)
      meet(child(node, position));
  }
  return seen;
}

std::vector<bool> leading_to(Document const& document, std::vector<bool> marked) {
  auto const each_edge = [&document](auto const& take) {
    for (NodeId from = 0; from < document.nodes.size(); ++from)
      for (std::size_t position = 0; position < child_count(document.at(from)); ++position)
        if (NodeId const to = child(document.at(from), position); to != no_node) take(from, to);
  };
  // All edges by the node that they lead to: those of node i end at last[i] and begin where the one
  // before ends.
  std::vector<std::size_t> last(document.nodes.size() + 1);
  each_edge([&last](NodeId, NodeId to) { ++last[to + 1]; });
  std::partial_sum(last.begin(), last.end(), last.begin());
  std::vector<NodeId> origins(last.back());
  each_edge([&](NodeId from, NodeId to) { origins[last[to]++] = from; });
  std::vector<NodeId> waiting;
  for (NodeId id = 0; id < marked.size(); ++id)
    if (marked[id]) waiting.push_back(id);
  while (!waiting.empty()) {
    NodeId const to = waiting.back();
    waiting.pop_back();
    for (std::size_t i = to == 0 ? 0 : last[to - 1]; i < last[to]; ++i) {
      if (marked[origins[i]]) continue;
      marked[origins[i]] = true;
      waiting.push_back(origins[i]);
    }
  }
  return marked;
}

bool deeper_than(Document const& document, std::size_t deepest) {
  return HeightSearch(document, deepest).exceeds(document.root);
}

}  // namespace reshard::pickle
