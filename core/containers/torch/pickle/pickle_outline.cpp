#include "core/containers/torch/pickle/pickle_outline.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "core/containers/torch/pickle/pickle_opcodes.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"

namespace reshard::pickle {
namespace {

/// The values of a document with their edges: to their members, and to the origins of their
/// content.
class ValueGraph {
 public:
  ValueGraph(Document const& document, Trace trace)
      : document_(document), made_of_(std::move(trace.made_of)), uses_(document.nodes.size()) {
    std::ranges::sort(made_of_);
    for (NodeId id = 0; id < document.nodes.size(); ++id)
      each_next(id, [this](NodeId next) { ++uses_[next]; });
  }

  /// The value at the end of a path, if no value on the path is used in another place, too.
  std::optional<NodeId> lone(Outline::Path const& path) const {
    NodeId at = document_.root;
    for (std::string_view const key : path) {
      at = document_.find(at, key);
      if (at == no_node || uses_[at] != 1) return std::nullopt;
      NodeId const attributes = document_.at(at).state;
      if (attributes != no_node && uses_[attributes] != 1) return std::nullopt;
    }
    return at;
  }

  /// The values reachable from `waiting`, themselves included, without entering those that are
  /// `closed`.
  std::vector<bool> reached(std::vector<NodeId> waiting, std::span<NodeId const> closed) const {
    std::vector<bool> seen(document_.nodes.size());
    for (NodeId const id : waiting) seen[id] = true;
    while (!waiting.empty()) {
      NodeId const from = waiting.back();
      waiting.pop_back();
      each_next(from, [&](NodeId next) {
        if (seen[next] || std::ranges::find(closed, next) != closed.end()) return;
        seen[next] = true;
        waiting.push_back(next);
      });
    }
    return seen;
  }

 private:
  template <class Visit>
  void each_next(NodeId id, Visit const& visit) const {
    Node const& node = document_.at(id);
    for (std::size_t position = 0; position < child_count(node); ++position)
      if (NodeId const next = child(node, position); next != no_node) visit(next);
    for (auto at = std::ranges::lower_bound(made_of_, std::pair(id, NodeId{0}));
         at != made_of_.end() && at->first == id; ++at)
      visit(at->second);
  }

  Document const& document_;
  std::vector<std::pair<NodeId, NodeId>> made_of_;
  std::vector<std::uint32_t> uses_;  ///< how many values lead to each
};

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i)
    value = value << 8U | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

std::int64_t integer_of(std::string_view content, bool is_signed) {
  std::uint64_t value = little_endian(content);
  if (is_signed && !content.empty() && content.size() < 8 &&
      (static_cast<unsigned char>(content.back()) & 0x80U) != 0)
    value |= ~std::uint64_t{0} << (8 * content.size());
  return static_cast<std::int64_t>(value);
}

}  // namespace

Outline::Outline(std::string bytes, std::span<Path const> free)
    : bytes_(std::move(bytes)), values_(free.size()) {
  Trace trace;
  std::size_t consumed = 0;
  Document const document =
      parse_prefix(std::as_bytes(std::span(bytes_)), "a pickle", &consumed, {}, &trace);
  RESHARD_EXPECT(consumed == bytes_.size());
  std::vector<std::size_t> const offsets = trace.offsets;
  ValueGraph const graph(document, std::move(trace));
  std::vector<NodeId> roots;
  std::vector<std::pair<NodeId, std::size_t>> path_of;
  for (std::size_t p = 0; p < free.size(); ++p) {
    NodeId value = document.root;
    for (std::string_view const key : free[p]) value = document.find(value, key);
    if (value == no_node) continue;
    if (document.at(value).kind == pickle::Kind::integer) values_[p] = document.at(value).integer;
    auto const lone = graph.lone(free[p]);
    if (!lone) continue;
    roots.push_back(*lone);
    path_of.emplace_back(*lone, p);
  }
  std::vector<NodeId> fixed{document.root};
  for (NodeId id = 0; id < document.nodes.size(); ++id) {
    auto const kind = document.at(id).kind;
    if (kind == pickle::Kind::tensor || kind == pickle::Kind::storage ||
        kind == pickle::Kind::global)
      fixed.push_back(id);
  }
  std::vector<bool> const may = graph.reached(roots, {});
  std::vector<bool> const must_not = graph.reached(fixed, roots);
  for (NodeId id = 0; id < document.nodes.size(); ++id) {
    if (!may[id] || must_not[id]) continue;
    auto const token = token_at(bytes_, offsets[id]);
    if (!token) continue;
    Atom atom{offsets[id], offsets[id] + token->size, token->kind};
    atom.latin1 = token->kind == Kind::text && is_latin1(token->content);
    auto const path = std::ranges::find(path_of, id, &std::pair<NodeId, std::size_t>::first);
    if (path != path_of.end()) atom.path = path->second;
    atoms_.push_back(atom);
  }
  std::ranges::sort(atoms_, {}, &Atom::begin);
}

std::optional<Outline::Values> Outline::compare(std::string_view bytes) const {
  if (bytes == bytes_) return values_;
  Values values = values_;
  std::string_view const own = bytes_;
  std::size_t here = 0;
  std::size_t there = 0;
  for (Atom const& atom : atoms_) {
    std::string_view const equal = own.substr(here, atom.begin - here);
    if (!bytes.substr(there).starts_with(equal)) return std::nullopt;
    there += equal.size();
    auto const token = token_at(bytes, there);
    if (!token || token->kind != atom.kind) return std::nullopt;
    if (atom.kind == Kind::text &&
        (!is_utf8(token->content) || (atom.latin1 && !is_latin1(token->content))))
      return std::nullopt;
    if (atom.path && atom.kind == Kind::integer)
      values[*atom.path] =
          integer_of(token->content, static_cast<Op>(bytes[there]) == Op::binint ||
                                         static_cast<Op>(bytes[there]) == Op::long1);
    here = atom.end;
    there += token->size;
  }
  if (bytes.substr(there) != own.substr(here)) return std::nullopt;
  return values;
}

/// The opcode at a place, where it makes one value of its argument.
std::optional<Outline::Token> Outline::token_at(std::string_view bytes, std::size_t at) {
  if (at >= bytes.size()) return std::nullopt;
  std::string_view const rest = bytes.substr(at + 1);
  auto const fixed = [&](Kind kind, std::size_t size) -> std::optional<Token> {
    if (rest.size() < size) return std::nullopt;
    return Token{kind, 1 + size, rest.substr(0, size)};
  };
  auto const counted = [&](Kind kind, std::size_t count_bytes) -> std::optional<Token> {
    if (rest.size() < count_bytes) return std::nullopt;
    std::uint64_t const size = little_endian(rest.substr(0, count_bytes));
    if (rest.size() - count_bytes < size) return std::nullopt;
    return Token{kind, 1 + count_bytes + size, rest.substr(count_bytes, size)};
  };
  switch (static_cast<Op>(bytes[at])) {
    case Op::binint1: return fixed(Kind::integer, 1);
    case Op::binint2: return fixed(Kind::integer, 2);
    case Op::binint: return fixed(Kind::integer, 4);
    case Op::long1: {
      auto const token = counted(Kind::integer, 1);
      return token && token->content.size() <= 8 ? token : std::nullopt;
    }
    case Op::binfloat: return fixed(Kind::real, 8);
    case Op::binunicode: return counted(Kind::text, 4);
    case Op::short_binunicode: return counted(Kind::text, 1);
    case Op::binbytes: return counted(Kind::bytes, 4);
    case Op::short_binbytes: return counted(Kind::bytes, 1);
    default: return std::nullopt;
  }
}

/// UTF-8 has two bytes for those from 128 on, the first of which is then C2 or C3. Pre: is_utf8().
bool Outline::is_latin1(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0xc4U; });
}

}  // namespace reshard::pickle
