#include "core/containers/dcp/metadata/metadata_machine.hpp"

#include <algorithm>
#include <array>

#include "core/containers/torch/pickle/pickle_text.hpp"

namespace reshard::dcp {
namespace {

using pickle::Op;

constexpr std::uint8_t oldest_protocol = 2;
constexpr std::uint8_t newest_protocol = 5;
constexpr std::size_t longest_global_bytes = 1024;
/// Every list and dict takes some bytes to be filled and named; those of an honest file are mostly
/// consumed.
constexpr std::uint64_t bytes_per_container = 8;
constexpr std::uint64_t free_containers = 4096;
constexpr std::uint64_t bytes_per_number = 2;
constexpr std::uint64_t free_numbers = 256;
/// SETITEMS, BUILD, STOP: how the pickle of an object with several attributes ends.
constexpr std::string_view last_bytes = "ub.";

}  // namespace

void Memo::add_page(std::uint64_t page) {
  if (page >= pages_.size()) pages_.resize(page + 1);
  pages_[page] = std::make_unique<Value[]>(page_values);
}

/// The handler of each opcode.
struct Machine::Handlers {
  std::array<Handler, 256> of{};

  template <auto member>
  static void handle(Machine& machine) {
    (machine.*member)();
  }
  template <auto member>
  constexpr void set(Op op) {
    of[static_cast<std::size_t>(op)] = handle<member>;
  }
  constexpr Handlers() {
    of.fill(handle<&Machine::unknown_opcode>);
    set_values();
    set_containers();
    set<&Machine::mark>(Op::mark);
    set<&Machine::stop>(Op::stop);
    set<&Machine::pop_value_or_mark>(Op::pop);
    set<&Machine::drop_to_mark>(Op::pop_mark);
    set<&Machine::duplicate>(Op::dup);
    set<&Machine::put<1>>(Op::binput);
    set<&Machine::put<4>>(Op::long_binput);
    set<&Machine::memoize>(Op::memoize);
    set<&Machine::get<1>>(Op::binget);
    set<&Machine::get<4>>(Op::long_binget);
    set<&Machine::frame>(Op::frame);
    set<&Machine::global_by_lines>(Op::global);
    set<&Machine::global_by_strings>(Op::stack_global);
    set<&Machine::new_object>(Op::newobj);
    set<&Machine::new_object_with_keywords>(Op::newobj_ex);
    set<&Machine::call>(Op::reduce);
    set<&Machine::build>(Op::build);
  }
  constexpr void set_values() {
    set<&Machine::constant<Tag::none, 0>>(Op::none);
    set<&Machine::constant<Tag::boolean, 1>>(Op::newtrue);
    set<&Machine::constant<Tag::boolean, 0>>(Op::newfalse);
    set<&Machine::unsigned_integer<1>>(Op::binint1);
    set<&Machine::unsigned_integer<2>>(Op::binint2);
    set<&Machine::signed_integer>(Op::binint);
    set<&Machine::long_integer<1>>(Op::long1);
    set<&Machine::long_integer<4>>(Op::long4);
    set<&Machine::real>(Op::binfloat);
    set<&Machine::string<1>>(Op::short_binunicode);
    set<&Machine::string<4>>(Op::binunicode);
    set<&Machine::string<8>>(Op::binunicode8);
    set<&Machine::byte_string<1>>(Op::short_binbytes);
    set<&Machine::byte_string<4>>(Op::binbytes);
    set<&Machine::byte_string<8>>(Op::binbytes8);
    set<&Machine::byte_string<8>>(Op::bytearray8);
  }
  constexpr void set_containers() {
    set<&Machine::tuple<0>>(Op::empty_tuple);
    set<&Machine::tuple<1>>(Op::tuple1);
    set<&Machine::tuple<2>>(Op::tuple2);
    set<&Machine::tuple<3>>(Op::tuple3);
    set<&Machine::tuple_to_mark>(Op::tuple);
    set<&Machine::container<Tag::list>>(Op::empty_list);
    set<&Machine::container<Tag::dict>>(Op::empty_dict);
    set<&Machine::constant<Tag::opaque, 0>>(Op::empty_set);
    set<&Machine::append>(Op::append);
    set<&Machine::appends>(Op::appends);
    set<&Machine::set_item>(Op::setitem);
    set<&Machine::set_items>(Op::setitems);
    set<&Machine::add_items>(Op::additems);
    set<&Machine::frozen_set>(Op::frozenset);
  }
};

Root Machine::run() {
  static constexpr Handlers handlers;
  read_protocol();
  while (!done_) {
    op_at_ = source_.at();
    handlers.of[source_.byte()](*this);
  }
  memo_.clear();
  return root_;
}

void Machine::read_protocol() {
  if (source_.byte() != static_cast<std::uint8_t>(Op::proto))
    refuse("the file does not begin as a pickle of protocol 2 or later. It is not DCP metadata.");
  std::uint8_t const protocol = source_.byte();
  if (protocol < oldest_protocol || protocol > newest_protocol)
    refuse("the pickle has protocol {}, expected {} to {}. Write it with another Python.", protocol,
           oldest_protocol, newest_protocol);
}

void Machine::unknown_opcode() {
  refuse("opcode 0x{:02x} does not occur in DCP metadata. The file is damaged.",
         static_cast<unsigned char>(source_.taken()));
}

void Machine::grow_stack() {
  if (stack_.size() >= largest_stack)
    refuse("more than {} values are on the stack. The file is damaged.", largest_stack);
  stack_.resize(std::max<std::size_t>(1024, 2 * stack_.size()));
}

void Machine::refuse_small_stack(std::size_t values) const {
  if (values == 1) refuse("an opcode needs a value, the stack is empty. The file is damaged.");
  refuse("an opcode needs more values than the stack holds: {}. The file is damaged.", values);
}

void Machine::refuse_no_mark() const {
  refuse("an opcode needs a mark, there is none. The file is damaged.");
}

Value Machine::below_mark() const {
  if (floor_ <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0))
    refuse("an opcode needs a value below the mark, there is none. The file is damaged.");
  return stack_[floor_ - 1];
}

void Machine::drop_to_mark() {
  need_mark();
  height_ = floor_;
  marks_.pop_back();
  floor_ = marks_.empty() ? 0 : marks_.back();
}

void Machine::mark() {
  if (marks_.size() >= largest_stack)
    refuse("more than {} marks are on the stack. The file is damaged.", largest_stack);
  marks_.push_back(height_);
  floor_ = height_;
}

void Machine::stop() {
  Value const result = pop();
  if (height_ > 0 || !marks_.empty())
    refuse("{} values and {} marks are left over at the end. The file is damaged.", height_,
           marks_.size());
  if (result.tag() != Tag::metadata || !has_root_)
    refuse("the file holds {}, expected a Metadata with its state. It is not DCP metadata.",
           records_.describe(result));
  if (source_.left() > 0)
    refuse(
        "{} bytes follow the end of the pickle. The file is damaged: compare its size with the original.",
        source_.left());
  done_ = true;
}

void Machine::pop_value_or_mark() {
  if (!marks_.empty() && height_ == floor_)
    drop_to_mark();
  else
    pop();
}

template <std::size_t bytes>
void Machine::put() {
  store(source_.number<bytes>());
}

/// Writers count up, and store a value once: it takes a byte or more to make and another one to be
/// stored.
void Machine::store(std::uint64_t number) {
  if (number > free_numbers + source_.at() / bytes_per_number)
    refuse("memo index {} is too large for the {} bytes read so far. The file is damaged.", number,
           source_.at());
  memo_.put(number, top());
}

template <std::size_t bytes>
void Machine::get() {
  std::uint64_t const number = source_.number<bytes>();
  Value const value = memo_.get(number);
  if (value.tag() == Tag::unset)
    refuse("memo index {} is read, but nothing was stored there. The file is damaged.", number);
  push(value);
}

template <std::size_t bytes>
void Machine::long_integer() {
  std::uint64_t const size = source_.number<bytes>();
  if (size > sizeof(std::int64_t)) {
    source_.skip(size);
    return push({Tag::opaque, 0});  // an int of Python that no offset, size or length can be
  }
  if (size == 0) return push(Value::integer(0));
  std::uint64_t const unsigned_bits = source_.number(size);
  auto const shift = 64 - 8 * static_cast<unsigned>(size);
  push(records_.add_integer(static_cast<std::int64_t>(unsigned_bits << shift) >> shift));
}

void Machine::real() {
  source_.skip(8);
  push({Tag::opaque, 0});
}

template <std::size_t bytes>
void Machine::string() {
  std::uint64_t const size = source_.number<bytes>();
  if (size > PickleSource::largest_take) {
    source_.skip(size);
    return push({Tag::opaque, 0});  // no name is that long
  }
  std::string_view const text = source_.take(size);
  std::uint32_t const known = records_.strings.size();
  std::uint32_t const string = records_.strings.add(text);
  if (string == known && !pickle::is_utf8(text))
    refuse("a string of {} bytes is not UTF-8. The file is damaged.", size);
  if (!plans_follow(string)) return push({Tag::string, string});
  if (source_.tail(last_bytes.size()) != last_bytes)
    refuse(
        "the last bytes of the file are not the end of a pickle. It is truncated: compare its "
        "size with the original.");
  build_metadata(stack_[0].id(), above_mark());
  done_ = true;
}

/// all_local_plans comes after every other attribute of the Metadata and can be larger than all of
/// them together.
bool Machine::plans_follow(std::uint32_t string) const {
  if (string != static_cast<std::uint32_t>(Word::all_local_plans) || marks_.size() != 1 ||
      floor_ != 2 || height_ % 2 != 0)
    return false;
  if (stack_[0].tag() != Tag::metadata || stack_[1].tag() != Tag::dict) return false;
  int found = 0;
  for (std::size_t i = floor_; i < height_; i += 2) {
    Word const word = records_.word(stack_[i]);
    found += word == Word::state_dict_metadata || word == Word::storage_data ? 1 : 0;
  }
  return found == 2;
}

template <std::size_t bytes>
void Machine::byte_string() {
  source_.skip(source_.number<bytes>());
  push({Tag::opaque, 0});
}

template <std::size_t count>
void Machine::tuple() {
  need(count);
  height_ -= count;
  push(records_.add_tuple({stack_.data() + height_, count}));
}

void Machine::tuple_to_mark() {
  Value const value = records_.add_tuple(above_mark());
  drop_to_mark();
  push(value);
}

Value Machine::new_container(Tag tag) {
  if (records_.containers.alive() > free_containers + source_.at() / bytes_per_container)
    refuse("{} lists and dicts come from {} bytes. The file is damaged.",
           records_.containers.alive(), source_.at());
  return records_.containers.add(tag);
}

template <Tag tag>
void Machine::container() {
  push(new_container(tag));
}

void Machine::add_to_list(Value list, std::span<Value const> items) {
  if (list.tag() == Tag::opaque) return;
  std::vector<Value>* const values =
      list.tag() == Tag::list ? records_.containers.find(list) : nullptr;
  if (values == nullptr)
    refuse("items are appended to {}, expected a list that is not in use. The file is damaged.",
           records_.describe(list));
  values->insert(values->end(), items.begin(), items.end());
}

void Machine::add_to_dict(Value dict, std::span<Value const> items) {
  if (items.size() % 2 != 0)
    refuse("keys and values are {} together, an odd number. The file is damaged.", items.size());
  if (dict.tag() == Tag::opaque) return;
  std::vector<Value>* const values =
      dict.tag() == Tag::dict ? records_.containers.find(dict) : nullptr;
  if (values == nullptr)
    refuse("keys are set on {}, expected a dict that is not in use. The file is damaged.",
           records_.describe(dict));
  values->insert(values->end(), items.begin(), items.end());
}

void Machine::append() {
  Value const item = pop();
  add_to_list(top(), {&item, 1});
}

void Machine::appends() {
  add_to_list(below_mark(), above_mark());
  drop_to_mark();
}

void Machine::set_item() {
  Value const value = pop();
  Value const key = pop();
  add_to_dict(top(), std::array{key, value});
}

void Machine::set_items() {
  add_to_dict(below_mark(), above_mark());
  drop_to_mark();
}

void Machine::add_items() {
  if (below_mark().tag() != Tag::opaque)
    refuse("members are added to {}, expected a set. The file is damaged.",
           records_.describe(below_mark()));
  drop_to_mark();
}

void Machine::frozen_set() {
  drop_to_mark();
  push({Tag::opaque, 0});
}

}  // namespace reshard::dcp
