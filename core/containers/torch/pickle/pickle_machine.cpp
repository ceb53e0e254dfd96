#include "core/containers/torch/pickle/pickle_machine.hpp"

#include <charconv>

#include "core/base/text/json.hpp"
#include "core/containers/torch/pickle/pickle_text.hpp"

namespace reshard::pickle {
namespace {

constexpr std::size_t free_memo = 1 << 17;
constexpr std::size_t longest_line_bytes = 1 << 20;
constexpr std::size_t longest_global_bytes = 1024;
/// The memory of an appended item: a growing vector has room for twice as many, next to the old
/// one.
constexpr std::size_t growing_bytes = 3 * sizeof(NodeId);

}  // namespace

std::string_view Machine::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) throw EndOfBytes{at_, count};
  std::string_view const taken(reinterpret_cast<char const*>(bytes_.data()) + at_,
                               static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return taken;
}

std::uint64_t Machine::number(std::size_t bytes) {
  std::string_view const digits = take(bytes);
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i > 0; --i)
    value = value << 8 | static_cast<unsigned char>(digits[i - 1]);
  return value;
}

std::string_view Machine::line() {
  std::string_view const rest(reinterpret_cast<char const*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
  std::size_t const end = rest.substr(0, longest_line_bytes).find('\n');
  if (end == std::string_view::npos) {
    if (rest.size() >= longest_line_bytes)
      builder_.refuse("a line of text is longer than {} bytes. The file is damaged.",
                      longest_line_bytes);
    throw EndOfBytes{at_, rest.size() + 1};
  }
  at_ += end + 1;
  return rest.substr(0, end);
}

std::uint32_t Machine::decimal_index() {
  std::string_view const digits = line();
  std::uint32_t index = 0;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc{} || end != digits.data() + digits.size())
    builder_.refuse("the memo index {} is not a number below 2^32. The file is damaged.",
                    json_quoted(digits.substr(0, 40)));
  return index;
}

NodeId Machine::top() const {
  if (stack_.size() <= floor())
    builder_.refuse("an opcode needs a value, the stack is empty. The file is damaged.");
  return stack_.back();
}

NodeId Machine::pop() {
  NodeId const id = top();
  stack_.pop_back();
  return id;
}

std::vector<NodeId> Machine::pop_to_mark() {
  if (marks_.empty())
    builder_.refuse("an opcode needs a mark, there is none. The file is damaged.");
  auto const first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<NodeId> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

void Machine::pop_value_or_mark() {
  if (!marks_.empty() && stack_.size() == marks_.back()) return marks_.pop_back();
  NodeId const id = pop();
  if (id == fresh_call_ && builder_.document.at(id).kind == Kind::reduce) dropped_call_ = id;
}

bool Machine::fetched_instead_of(NodeId dropped, Op op) const {
  if ((op != Op::get && op != Op::binget && op != Op::long_binget) || stack_.empty()) return false;
  Node const& old = builder_.document.at(dropped);
  Node const& fetched = builder_.document.at(stack_.back());
  return fetched.kind == Kind::reduce && fetched.callable == old.callable &&
         fetched.arguments == old.arguments;
}

void Machine::push_string(std::string_view text, Kind kind) {
  if (kind == Kind::string && !is_utf8(text))
    builder_.refuse("a string of {} bytes is not UTF-8. The file is damaged.", text.size());
  push_new({.kind = kind, .text = std::string(text)});
}

void Machine::push_python2_string(std::string_view text) {
  push_string(text, is_utf8(text) ? Kind::string : Kind::bytes);
}

void Machine::push_quoted(std::string_view line) {
  auto const text = unquoted(line);
  if (!text)
    builder_.refuse("{} is not a quoted string. The file is damaged.",
                    json_quoted(line.substr(0, 40)));
  push_python2_string(*text);
}

void Machine::push_raw_unicode(std::string_view line) {
  auto const text = utf8_from_raw_unicode_escape(line);
  if (!text)
    builder_.refuse("{} is not an escaped string. The file is damaged.",
                    json_quoted(line.substr(0, 40)));
  push_string(*text);
}

void Machine::push_bytearray(std::string_view bytes) {
  NodeId const content = add({.kind = Kind::bytes, .text = std::string(bytes)});
  NodeId const type = add({.kind = Kind::global, .text = "__builtin__\nbytearray"});
  push(make_call(builder_, type, add({.kind = Kind::tuple, .items = {content}})));
}

void Machine::push_integer_bytes(std::uint64_t count) {
  if (count > largest_integer_bytes)
    builder_.refuse("an integer of {} bytes, at most {} are read. The file is damaged.", count,
                    largest_integer_bytes);
  push_new(integer_from_little_endian(take(count)));
}

void Machine::push_int_line(bool with_suffix) {
  std::string_view digits = line();
  if (!with_suffix && (digits == "00" || digits == "01"))
    return push_new({.kind = Kind::boolean, .boolean = digits == "01"});
  if (with_suffix && digits.ends_with('L')) digits.remove_suffix(1);
  auto node = integer_from_decimal(digits);
  if (!node)
    builder_.refuse("{} is not a decimal integer of at most {} bytes. The file is damaged.",
                    json_quoted(digits.substr(0, 40)), largest_integer_bytes);
  push_new(std::move(*node));
}

void Machine::push_float_line() {
  std::string_view const digits = line();
  double value = 0;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size())
    builder_.refuse("{} is not a number. The file is damaged.", json_quoted(digits.substr(0, 40)));
  push_new({.kind = Kind::real, .real = value});
}

void Machine::push_tuple(std::size_t count) {
  if (stack_.size() - floor() < count)
    builder_.refuse("a tuple of {} needs more values than the stack holds. The file is damaged.",
                    count);
  auto const first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<NodeId> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  push_new({.kind = Kind::tuple, .items = std::move(items)});
}

void Machine::push_dict(std::vector<NodeId> items) {
  if (items.size() % 2 != 0)
    builder_.refuse("a dict is made of {} values, an odd number. The file is damaged.",
                    items.size());
  push_new({.kind = Kind::dict, .items = std::move(items)});
}

void Machine::add_items(std::span<NodeId const> items) {
  Node& node = builder_.document.at(top());
  if (node.kind != Kind::list && node.kind != Kind::reduce)
    builder_.refuse("items are appended to a {}. The file is damaged.", kind_name(node.kind));
  builder_.charge(items.size() * growing_bytes);
  node.items.insert(node.items.end(), items.begin(), items.end());
}

void Machine::add_pairs(std::span<NodeId const> items) {
  Node& node = builder_.document.at(top());
  if (node.kind != Kind::dict && node.kind != Kind::reduce)
    builder_.refuse("keys are set on a {}. The file is damaged.", kind_name(node.kind));
  if (items.size() % 2 != 0)
    builder_.refuse("keys and values are {} together, an odd number. The file is damaged.",
                    items.size());
  builder_.charge(items.size() * growing_bytes);
  std::vector<NodeId>& pairs = node.kind == Kind::dict ? node.items : node.pairs;
  pairs.insert(pairs.end(), items.begin(), items.end());
}

void Machine::add_members(std::span<NodeId const> items) {
  Node& node = builder_.document.at(top());
  if (node.kind != Kind::set)
    builder_.refuse("members are added to a {}, expected a set. The file is damaged.",
                    kind_name(node.kind));
  builder_.charge(items.size() * growing_bytes);
  node.items.insert(node.items.end(), items.begin(), items.end());
}

void Machine::push_global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty() || module.size() + name.size() > longest_global_bytes ||
      !is_utf8(module) || !is_utf8(name) || module.find('\n') != std::string_view::npos ||
      name.find('\n') != std::string_view::npos)
    builder_.refuse("the class name {}.{} is not a name. The file is damaged.",
                    json_quoted(module.substr(0, 40)), json_quoted(name.substr(0, 40)));
  push_new({.kind = Kind::global, .text = fmt::format("{}\n{}", module, name)});
}

void Machine::push_stack_global() {
  NodeId const name = pop();
  NodeId const module = pop();
  Document const& document = builder_.document;
  if (document.at(name).kind != Kind::string || document.at(module).kind != Kind::string)
    builder_.refuse("a class is named by a {} and a {}, expected strings. The file is damaged.",
                    kind_name(document.at(module).kind), kind_name(document.at(name).kind));
  push_global(document.at(module).text, document.at(name).text);
  for (NodeId const text : {module, name}) builder_.note_made_of(top(), text);
}

void Machine::new_object() {
  NodeId const arguments = pop();
  NodeId const type = pop();
  Document& document = builder_.document;
  Kind const kind = document.at(type).kind;
  if ((kind != Kind::global && kind != Kind::reduce) || document.at(arguments).kind != Kind::tuple)
    builder_.refuse(
        "an object is made of a {} and a {}, expected a class and a tuple. The file is damaged.",
        kind_name(kind), kind_name(document.at(arguments).kind));
  fresh_call_ =
      add({.kind = Kind::reduce, .callable = type, .arguments = arguments, .new_object = true});
  push(fresh_call_);
}

/// cls.__new__(cls, *arguments, **keywords), written the way protocol 2 has to:
/// functools.partial(cls.__new__, cls, …)().
void Machine::new_object_with_keywords() {
  NodeId const keywords = pop();
  Node const& node = builder_.document.at(keywords);
  if (node.kind != Kind::dict)
    builder_.refuse("keyword arguments are a {}, expected a dict. The file is damaged.",
                    kind_name(node.kind));
  if (node.items.empty()) return new_object();
  NodeId const arguments = pop();
  NodeId const type = pop();
  if (builder_.document.at(arguments).kind != Kind::tuple)
    builder_.refuse("arguments are a {}, expected a tuple. The file is damaged.",
                    kind_name(builder_.document.at(arguments).kind));
  auto const tuple = [&](std::vector<NodeId> items) {
    return add({.kind = Kind::tuple, .items = std::move(items)});
  };
  auto const global = [&](std::string_view text) {
    return add({.kind = Kind::global, .text = std::string(text)});
  };
  NodeId const method_name = add({.kind = Kind::string, .text = "__new__"});
  // Numbers of nodes shall not depend on the order in which a compiler evaluates arguments.
  NodeId const looked_up = tuple({type, method_name});
  NodeId const method = make_call(builder_, global("__builtin__\ngetattr"), looked_up);
  NodeId const wrapped = tuple({method});
  NodeId const partial = make_call(builder_, global("functools\npartial"), wrapped);
  std::vector<NodeId> bound{type};
  // A long tuple of arguments shared by many objects would be copied into each.
  std::vector<NodeId> const& given = builder_.document.at(arguments).items;
  if (given.size() > 16 && !builder_.first_copy_of(arguments))
    builder_.refuse("objects share {} arguments. The file is damaged.", given.size());
  bound.insert(bound.end(), given.begin(), given.end());
  NodeId const bound_tuple = tuple(std::move(bound));
  NodeId const no_attributes = add({.kind = Kind::none});
  NodeId const partial_state = tuple({method, bound_tuple, keywords, no_attributes});
  builder_.document.at(partial).state = partial_state;
  fresh_call_ = make_call(builder_, partial, tuple({}));
  push(fresh_call_);
}

void Machine::build() {
  NodeId const state = pop();
  Node& node = builder_.document.at(top());
  if (node.kind != Kind::reduce)
    builder_.refuse("a state is set on a {}, expected an object. The file is damaged.",
                    kind_name(node.kind));
  if (node.state != no_node)
    builder_.refuse("an object's state is set twice. The file is damaged.");
  node.state = state;
}

void Machine::get(std::uint64_t index) {
  if (index >= memo_.size() || memo_[index] == no_node)
    builder_.refuse(
        "memo index {} is read, but it is not among the {} stored. The file is "
        "damaged.",
        index, memo_count_);
  push(memo_[index]);
}

void Machine::put(std::uint64_t index) {
  NodeId const value = top();
  // Writers count up, and each number takes some bytes to write.
  if (index > at_ + free_memo)
    builder_.refuse("memo index {} is above the {} bytes read so far. The file is damaged.", index,
                    at_);
  while (memo_.size() <= index) append(memo_, no_node);
  if (memo_[index] == no_node) ++memo_count_;
  memo_[index] = value;
}

}  // namespace reshard::pickle
