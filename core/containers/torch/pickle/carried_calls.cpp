#include "core/containers/torch/pickle/carried_calls.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "core/containers/torch/pickle/carried_names.hpp"
#include "core/containers/torch/pickle/pickle_graph.hpp"

namespace reshard::pickle {
namespace {

constexpr std::string_view codec_call = "_codecs\nencode";
constexpr std::string_view from_type_call = "torch._tensor\n_rebuild_from_type_v2";
constexpr std::string_view wrapper_call = "torch._utils\n_rebuild_wrapper_subclass";
constexpr std::string_view dtype_call = "numpy\ndtype";
constexpr std::array<std::string_view, 2> bytearray_calls = {"__builtin__\nbytearray",
                                                             "builtins\nbytearray"};

Node const* argument(Document const& document, Node const& call, std::size_t number) {
  if (call.arguments == no_node || number >= document.at(call.arguments).items.size())
    return nullptr;
  return &document.at(document.at(call.arguments).items[number]);
}

/// Checks single nodes.
class NameCheck {
 public:
  explicit NameCheck(Document const& document) : document_(document) {}

  NotCarried of(NodeId id) const {
    Node const& node = document_.at(id);
    if (node.kind == Kind::global) return name(id, Permission::value);
    if (node.kind != Kind::reduce) return {};
    if (node.callable == no_node || document_.at(node.callable).kind != Kind::global)
      return {"a computed function"};
    NotCarried const called =
        name(node.callable, node.state == no_node ? Permission::enumeration : Permission::call);
    if (called || fits(node)) return called;
    return {full_name(node.callable) + unusual(node)};
  }

 private:
  std::string full_name(NodeId id) const {
    auto const [module, name] = document_.class_of(id);
    return fmt::format("{}.{}", module, name);
  }

  NotCarried name(NodeId id, Permission least) const {
    auto const [module, name] = document_.class_of(id);
    Permission const permission = permission_of(module, name);
    if (permission >= least) return {};
    return {fmt::format("{}.{}", module, name), permission == Permission::foreign};
  }

  /// A clause about a call that does not fit: " of NAME", or " with unusual arguments".
  std::string unusual(Node const& call) const {
    Node const* const first = argument(call, 0);
    bool const named = first != nullptr && first->kind == Kind::global;
    return named ? fmt::format(" of {}", full_name(document_.at(call.arguments).items[0]))
                 : " with unusual arguments";
  }

  Node const* argument(Node const& call, std::size_t number) const {
    return pickle::argument(document_, call, number);
  }

  /// Whether a call's arguments are usual: with others some functions do more than make a value.
  bool fits(Node const& call) const {
    std::string_view const function = document_.at(call.callable).text;
    Node const* const first = argument(call, 0);
    // It calls its argument. The reader knows the usual forms, and has made tensors of them, except
    // for those of classes with parts.
    if (function == from_type_call) return wrapper_arguments(document_, call) != nullptr;
    if (function == codec_call) {
      Node const* const codec = argument(call, 1);
      return first != nullptr && first->kind == Kind::string && codec != nullptr &&
             codec->kind == Kind::string && (codec->text == "latin1" || codec->text == "latin-1");
    }
    if (std::ranges::find(bytearray_calls, function) != bytearray_calls.end())
      return first == nullptr || first->kind == Kind::bytes || first->kind == Kind::string;
    return function != dtype_call ||
           (first != nullptr && is_number_type(*first) && has_plain_state(call));
  }

  /// Whether a NumPy type is one of numbers ("f8", "<i4"): elements that are objects would be read
  /// from the file as addresses.
  static bool is_number_type(Node const& text) {
    std::string_view name =
        text.kind == Kind::string ? std::string_view(text.text) : std::string_view();
    if (!name.empty() && std::string_view("<>=|").find(name.front()) != std::string_view::npos)
      name.remove_prefix(1);
    return name.size() >= 2 && name.size() <= 3 &&
           std::string_view("biufcU").find(name.front()) != std::string_view::npos &&
           name.substr(1).find_first_not_of("0123456789") == std::string_view::npos;
  }

  /// (3, '<', None, None, None, -1, -1, 0): no fields, no shape, and flags of numbers or text.
  bool has_plain_state(Node const& call) const {
    if (call.state == no_node) return true;
    Node const& state = document_.at(call.state);
    if (state.kind != Kind::tuple || state.items.size() != 8) return false;
    for (std::size_t i = 2; i < 5; ++i)
      if (document_.at(state.items[i]).kind != Kind::none) return false;
    Node const& flags = document_.at(state.items[7]);
    return flags.kind == Kind::integer && (flags.integer == 0 || flags.integer == 8);
  }

  Document const& document_;
};

/// The finding to report: the first that no job can permit, else the first.
class Worst {
 public:
  void add(NotCarried found) {
    if (found && (!worst_ || (worst_.foreign && !found.foreign))) worst_ = std::move(found);
  }
  bool is_final() const { return worst_ && !worst_.foreign; }
  NotCarried take() { return std::move(worst_); }

 private:
  NotCarried worst_;
};

}  // namespace

Node const* wrapper_arguments(Document const& document, Node const& value) {
  if (value.kind != Kind::reduce || value.callable == no_node ||
      document.at(value.callable).text != from_type_call)
    return nullptr;
  Node const* const inner = argument(document, value, 0);
  Node const* const type = argument(document, value, 1);
  Node const* const arguments = argument(document, value, 2);
  Node const* const parts = argument(document, value, 3);
  bool const usual = parts != nullptr && parts->kind == Kind::dict && inner->kind == Kind::global &&
                     inner->text == wrapper_call && type->kind == Kind::global &&
                     arguments->kind == Kind::tuple && !arguments->items.empty() &&
                     document.at(arguments->items[0]).kind == Kind::global &&
                     document.at(arguments->items[0]).text == type->text;
  return usual ? arguments : nullptr;
}

NotCarried not_to_carry(Document const& document, NodeId id) {
  NameCheck const check(document);
  Worst worst;
  std::vector<bool> const carried = reachable(document, id);
  for (NodeId node = 0; node < carried.size() && !worst.is_final(); ++node)
    if (carried[node]) worst.add(check.of(node));
  return worst.take();
}

NotCarried not_to_copy(Document const& document) {
  NameCheck const check(document);
  Worst worst;
  for (NodeId node = 0; node < document.nodes.size() && !worst.is_final(); ++node)
    worst.add(check.of(node));
  return worst.take();
}

std::vector<bool> nodes_not_to_carry(Document const& document) {
  NameCheck const check(document);
  std::vector<bool> found(document.nodes.size());
  for (NodeId node = 0; node < found.size(); ++node)
    found[node] = static_cast<bool>(check.of(node));
  return leading_to(document, std::move(found));
}

}  // namespace reshard::pickle
