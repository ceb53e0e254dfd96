#include <bit>

#include "core/containers/torch/pickle/pickle_graph.hpp"
#include "core/containers/torch/pickle/pickle_machine.hpp"

namespace reshard::pickle {
namespace {

constexpr std::uint64_t newest_protocol = 5;

/// Drops the tensors no value of the document leads to (such as the one inside a Parameter) and
/// renumbers the others.
void drop_unused_tensors(Document& document) {
  std::vector<bool> const used = reachable(document, document.root);
  std::vector<std::uint32_t> place(document.tensors.size(), no_node);
  for (NodeId id = 0; id < document.nodes.size(); ++id)
    if (used[id] && document.at(id).kind == Kind::tensor) place[document.at(id).index] = 0;
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (place[i] == no_node) continue;
    if (kept != i) document.tensors[kept] = std::move(document.tensors[i]);
    place[i] = kept++;
  }
  document.tensors.resize(kept);
  // An unreachable tensor keeps no index: it becomes None.
  for (Node& node : document.nodes)
    if (node.kind == Kind::tensor) {
      if (place[node.index] == no_node)
        node = Node{};
      else
        node.index = place[node.index];
    }
}

}  // namespace

bool Machine::run_scalar(Op op) {
  switch (op) {
    case Op::none: push_constant(none_, {.kind = Kind::none}); return true;
    case Op::newtrue: push_constant(true_, {.kind = Kind::boolean, .boolean = true}); return true;
    case Op::newfalse: push_constant(false_, {.kind = Kind::boolean}); return true;
    case Op::binint1: {
      std::uint64_t const value = number(1);
      NodeId one_of_its_own = no_node;
      push_constant(builder_.trace == nullptr ? small_integers_[value] : one_of_its_own,
                    {.kind = Kind::integer, .integer = static_cast<std::int64_t>(value)});
      return true;
    }
    case Op::binint2:
      push_new({.kind = Kind::integer, .integer = static_cast<std::int64_t>(number(2))});
      return true;
    case Op::binint:
      push_new({.kind = Kind::integer, .integer = static_cast<std::int32_t>(number(4))});
      return true;
    case Op::long1: push_integer_bytes(number(1)); return true;
    case Op::long4:
      push_integer_bytes(number(4));
      return true;  // a negative size is above the limit
    case Op::int_text: push_int_line(false); return true;
    case Op::long_text: push_int_line(true); return true;
    case Op::float_text: push_float_line(); return true;
    case Op::binfloat: {
      std::uint64_t const bits =
          __builtin_bswap64(number(8));  // the one big-endian number of the format
      push_new({.kind = Kind::real, .real = std::bit_cast<double>(bits)});
      return true;
    }
    default: return false;
  }
}

bool Machine::run_text(Op op) {
  switch (op) {
    case Op::binunicode: push_string(take(number(4))); return true;
    case Op::short_binunicode: push_string(take(number(1))); return true;
    case Op::binunicode8: push_string(take(number(8))); return true;
    case Op::binbytes: push_string(take(number(4)), Kind::bytes); return true;
    case Op::short_binbytes: push_string(take(number(1)), Kind::bytes); return true;
    case Op::binbytes8: push_string(take(number(8)), Kind::bytes); return true;
    case Op::binstring: push_python2_string(take(number(4))); return true;
    case Op::short_binstring: push_python2_string(take(number(1))); return true;
    case Op::string: push_quoted(line()); return true;
    case Op::unicode: push_raw_unicode(line()); return true;
    case Op::bytearray8: push_bytearray(take(number(8))); return true;
    default: return false;
  }
}

bool Machine::run_container(Op op) {
  switch (op) {
    case Op::empty_list: push_new({.kind = Kind::list}); return true;
    case Op::empty_dict: push_new({.kind = Kind::dict}); return true;
    case Op::empty_set: push_new({.kind = Kind::set}); return true;
    case Op::list: push_new({.kind = Kind::list, .items = pop_to_mark()}); return true;
    case Op::dict: push_dict(pop_to_mark()); return true;
    case Op::frozenset: push_new({.kind = Kind::frozen_set, .items = pop_to_mark()}); return true;
    case Op::append: {
      NodeId const item = pop();
      add_items(std::span(&item, 1));
      return true;
    }
    case Op::appends: add_items(pop_to_mark()); return true;
    case Op::additems: add_members(pop_to_mark()); return true;
    case Op::setitem: {
      NodeId const value = pop();
      NodeId const pair[] = {pop(), value};
      add_pairs(pair);
      return true;
    }
    case Op::setitems: add_pairs(pop_to_mark()); return true;
    default: return false;
  }
}

bool Machine::run_tuple(Op op) {
  switch (op) {
    case Op::empty_tuple: push_tuple(0); return true;
    case Op::tuple1: push_tuple(1); return true;
    case Op::tuple2: push_tuple(2); return true;
    case Op::tuple3: push_tuple(3); return true;
    case Op::tuple: push_new({.kind = Kind::tuple, .items = pop_to_mark()}); return true;
    default: return false;
  }
}

bool Machine::run_stack(Op op) {
  switch (op) {
    case Op::mark: append(marks_, stack_.size()); return true;
    case Op::pop: pop_value_or_mark(); return true;
    case Op::pop_mark: pop_to_mark(); return true;
    case Op::dup: push(top()); return true;
    default: return false;
  }
}

bool Machine::run_memo(Op op) {
  switch (op) {
    case Op::get: get(decimal_index()); return true;
    case Op::binget: get(number(1)); return true;
    case Op::long_binget: get(number(4)); return true;
    case Op::put: put(decimal_index()); return true;
    case Op::binput: put(number(1)); return true;
    case Op::long_binput: put(number(4)); return true;
    case Op::memoize: put(memo_count_); return true;
    default: return false;
  }
}

bool Machine::run_call(Op op) {
  switch (op) {
    case Op::global: {
      std::string_view const module = line();
      push_global(module, line());
      return true;
    }
    case Op::stack_global: push_stack_global(); return true;
    case Op::reduce: {
      NodeId const arguments = pop();
      fresh_call_ = make_call(builder_, pop(), arguments);
      push(fresh_call_);
      return true;
    }
    case Op::newobj: new_object(); return true;
    case Op::newobj_ex: new_object_with_keywords(); return true;
    case Op::build: build(); return true;
    case Op::binpersid: push(make_storage(builder_, pop())); return true;
    default: return false;
  }
}

bool Machine::run_framing(Op op) {
  if (op == Op::proto) {
    std::uint64_t const protocol = number(1);
    if (protocol > newest_protocol)
      builder_.refuse(
          "pickle protocol {}, at most {} is known. Save the file with an older protocol.",
          protocol, newest_protocol);
    return true;
  }
  if (op != Op::frame) return false;
  // A frame only helps streaming readers, but one with more bytes than there are is an error to
  // report.
  std::uint64_t const length = number(8);
  if (length > bytes_.size() - at_) throw EndOfBytes{at_, length};
  return true;
}

void Machine::refuse_opcode(Op op) const {
  unsigned const code = static_cast<unsigned>(op);
  switch (op) {
    case Op::inst:
    case Op::obj:
      builder_.refuse(
          "opcode 0x{:02x} creates objects in a way that torch never uses. The file is "
          "not from torch.",
          code);
    case Op::ext1:
    case Op::ext2:
    case Op::ext4:
      builder_.refuse(
          "opcode 0x{:02x} names a class by a number that only the writer's machine knows. The "
          "file is not from torch.",
          code);
    case Op::persid: builder_.refuse("a persistent id in text form. The file is not from torch.");
    case Op::next_buffer:
    case Op::readonly_buffer:
      builder_.refuse(
          "opcode 0x{:02x} needs bytes from outside the file. Save it without out-of-band "
          "buffers.",
          code);
    default: builder_.refuse("opcode 0x{:02x} is unknown. The file is damaged.", code);
  }
}

Document Machine::run() {
  while (true) {
    builder_.offset = at_;
    if (at_ == bytes_.size()) throw EndOfBytes{at_, 1};
    Op const op = static_cast<Op>(bytes_[at_++]);
    NodeId const called_before = fresh_call_;
    NodeId const dropped_before = dropped_call_;
    if (op == Op::stop && dropped_before == no_node) return finish();
    bool const known = run_memo(op) || run_scalar(op) || run_text(op) || run_tuple(op) ||
                       run_container(op) || run_stack(op) || run_call(op) || run_framing(op);
    if (!known && op != Op::stop) refuse_opcode(op);
    if (fresh_call_ == called_before) fresh_call_ = no_node;
    if (dropped_before != no_node) {
      if (!fetched_instead_of(dropped_before, op))
        builder_.refuse("the result of a call is thrown away. The file is of an unknown kind.");
      dropped_call_ = no_node;
    }
  }
}

Document Machine::finish() {
  Document& document = builder_.document;
  document.root = pop();
  if (!stack_.empty() || !marks_.empty())
    builder_.refuse("the pickle ends with {} values and {} marks left over. The file is damaged.",
                    stack_.size(), marks_.size());
  if (deeper_than(document, limits_.deepest))
    builder_.refuse("values are nested more than {} deep. No checkpoint is: the file is damaged.",
                    limits_.deepest);
  drop_unused_tensors(document);
  return std::move(document);
}

Document parse_prefix(std::span<std::byte const> bytes, std::string_view place,
                      std::size_t* consumed, Limits const& limits, Trace* trace) {
  Machine machine(bytes, place, limits, trace);
  Document document = machine.run();
  if (consumed != nullptr) *consumed = machine.consumed();
  return document;
}

Document parse(std::span<std::byte const> bytes, std::string_view place, std::size_t* consumed,
               Limits const& limits) {
  try {
    return parse_prefix(bytes, place, consumed, limits);
  } catch (EndOfBytes const& end) {
    fail(ErrorKind::source,
         "{}: pickle byte {}: {} more bytes are needed, {} are left. The file is truncated or "
         "damaged.",
         place, end.offset, end.wanted_bytes, bytes.size() - end.offset);
  }
}

}  // namespace reshard::pickle
