#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/torch/pickle/pickle_builder.hpp"
#include "core/containers/torch/pickle/pickle_opcodes.hpp"

namespace reshard::pickle {

/// The pickle machine: a stack, marks on it and a memo, over a Builder. Values are only nodes, so
/// no opcode can run code.
class Machine {
 public:
  Machine(std::span<std::byte const> bytes, std::string_view place, Limits const& limits,
          Trace* trace = nullptr)
      : bytes_(bytes), builder_(place, limits, trace), limits_(limits) {}

  /// Runs to STOP. Running out of bytes throws EndOfBytes.
  Document run();
  std::size_t consumed() const { return at_; }

 private:
  // Each handles its group of opcodes and returns whether the opcode was in it.
  bool run_scalar(Op op);
  bool run_text(Op op);
  bool run_container(Op op);
  bool run_tuple(Op op);
  bool run_stack(Op op);
  bool run_memo(Op op);
  bool run_call(Op op);
  bool run_framing(Op op);
  [[noreturn]] void refuse_opcode(Op op) const;

  // The bytes.
  std::string_view take(std::uint64_t count);
  std::uint64_t number(std::size_t bytes);
  std::string_view line();
  std::uint32_t decimal_index();

  // The stack.
  NodeId add(Node node) { return builder_.add(std::move(node)); }
  /// Accounts for memory that opcodes of one byte can take: the new room of a growing vector next
  /// to the old one.
  template <class T>
  void append(std::vector<T>& to, T value) {
    if (to.size() == to.capacity()) {
      builder_.charge((to.capacity() + 16) * 2 * sizeof(T));
      to.reserve((to.capacity() + 16) * 2);
    }
    to.push_back(value);
  }
  void push(NodeId id) { append(stack_, id); }
  void push_new(Node node) { push(add(std::move(node))); }
  /// None, True, False and the smallest integers are one value each, as they are for Python.
  void push_constant(NodeId& known, Node node) {
    if (known == no_node) known = add(std::move(node));
    push(known);
  }
  NodeId pop();
  NodeId top() const;
  std::vector<NodeId> pop_to_mark();
  void pop_value_or_mark();
  /// Whether a dropped call is harmless; others could have an effect that an inert reading would
  /// lose. Harmless is only an object that its own arguments refer to: Python's pickler makes it
  /// twice, drops the second and fetches the first.
  bool fetched_instead_of(NodeId dropped, Op op) const;
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Opcodes with a body.
  void push_string(std::string_view text, Kind kind = Kind::string);
  void push_python2_string(std::string_view text);
  void push_quoted(std::string_view line);
  void push_raw_unicode(std::string_view line);
  void push_bytearray(std::string_view bytes);
  void push_integer_bytes(std::uint64_t count);
  void push_int_line(bool with_suffix);
  void push_float_line();
  void push_tuple(std::size_t count);
  void push_dict(std::vector<NodeId> items);
  void add_items(std::span<NodeId const> items);
  void add_pairs(std::span<NodeId const> items);
  void add_members(std::span<NodeId const> items);
  void push_global(std::string_view module, std::string_view name);
  void push_stack_global();
  void new_object();
  void new_object_with_keywords();
  void build();
  void get(std::uint64_t index);
  void put(std::uint64_t index);
  Document finish();

  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
  Builder builder_;
  Limits limits_;
  std::vector<NodeId> stack_;
  std::vector<std::size_t>
      marks_;                 ///< heights of the stack; values below the last one cannot be popped
  std::vector<NodeId> memo_;  ///< no_node for unused numbers
  std::uint64_t memo_count_ = 0;  ///< values in memo_
  NodeId none_ = no_node;
  NodeId true_ = no_node;
  NodeId false_ = no_node;
  std::vector<NodeId> small_integers_ = std::vector<NodeId>(256, no_node);
  NodeId fresh_call_ = no_node;    ///< the call of the previous opcode, if it was one
  NodeId dropped_call_ = no_node;  ///< such a call, popped by the previous opcode
};

}  // namespace reshard::pickle
