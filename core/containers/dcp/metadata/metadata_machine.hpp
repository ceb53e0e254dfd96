#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/containers/dcp/metadata/metadata_source.hpp"
#include "core/containers/dcp/metadata/metadata_values.hpp"
#include "core/containers/torch/pickle/pickle_opcodes.hpp"

namespace reshard::dcp {

/// The memo of the pickle, by number. In pages, so that growing copies no values.
class Memo {
 public:
  /// Values stored under different numbers.
  std::uint64_t size() const { return size_; }
  void put(std::uint64_t number, Value value) {
    std::uint64_t const page = number / page_values;
    if (page >= pages_.size() || !pages_[page]) add_page(page);
    Value& place = pages_[page][number % page_values];
    size_ += place.tag() == Tag::unset ? 1U : 0U;
    place = value;
  }
  /// Tag::unset if the number has no value.
  Value get(std::uint64_t number) const {
    std::uint64_t const page = number / page_values;
    return page < pages_.size() && pages_[page] ? pages_[page][number % page_values] : Value();
  }
  void clear() { pages_.clear(); }

 private:
  static constexpr std::uint64_t page_values = 1 << 16;
  [[gnu::noinline]] void add_page(std::uint64_t page);

  std::vector<std::unique_ptr<Value[]>> pages_;
  std::uint64_t size_ = 0;
};

/// Runs the pickle of a `.metadata` file over `Records`: a stack, marks on it and a memo. An object
/// of a known class becomes a record, every other one an opaque value; callables and classes are
/// only names, so no opcode can run code.
class Machine {
 public:
  explicit Machine(File const& file) : source_(file), place_(file.path().string()) {}

  /// Runs to the end, or to the writers' plans after all other attributes. To be called once.
  Root run();
  Records& records() { return records_; }

 private:
  using Handler = void (*)(Machine&);
  struct Handlers;

  void read_protocol();
  template <class... Args>
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(fmt::format_string<Args...> format,
                                                     Args&&... args) const {
    fail(ErrorKind::source, "{}: pickle byte {}: {}", place_, op_at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  // The stack. Refusals have functions of their own, so that these stay small enough to be inlined.
  void push(Value value) {
    if (height_ == stack_.size()) grow_stack();
    stack_[height_++] = value;
  }
  Value top() const {
    need(1);
    return stack_[height_ - 1];
  }
  Value pop() {
    need(1);
    return stack_[--height_];
  }
  void need(std::size_t values) const {
    if (height_ - floor_ < values) refuse_small_stack(values);
  }
  void need_mark() const {
    if (marks_.empty()) refuse_no_mark();
  }
  [[gnu::noinline]] void grow_stack();
  [[noreturn, gnu::cold]] void refuse_small_stack(std::size_t values) const;
  [[noreturn, gnu::cold]] void refuse_no_mark() const;
  /// The values above the last mark.
  std::span<Value const> above_mark() const {
    need_mark();
    return {stack_.data() + floor_, height_ - floor_};
  }
  Value below_mark() const;
  void drop_to_mark();

  // One per opcode, or per kind of them.
  void mark();
  void unknown_opcode();
  void stop();
  void pop_value_or_mark();
  void duplicate() { push(top()); }
  template <std::size_t bytes>
  void put();
  template <std::size_t bytes>
  void get();
  void memoize() { store(memo_.size()); }
  void store(std::uint64_t number);
  template <Tag tag, std::uint64_t payload>
  void constant() {
    push({tag, payload});
  }
  template <std::size_t bytes>
  void unsigned_integer() {
    push(Value::integer(static_cast<std::int64_t>(source_.number<bytes>())));
  }
  void signed_integer() { push(Value::integer(static_cast<std::int32_t>(source_.number<4>()))); }
  template <std::size_t bytes>
  void long_integer();
  void real();
  template <std::size_t bytes>
  void string();
  template <std::size_t bytes>
  void byte_string();
  template <std::size_t count>
  void tuple();
  void tuple_to_mark();
  template <Tag tag>
  void container();
  void append();
  void appends();
  void set_item();
  void set_items();
  void add_items();
  void frozen_set();
  void global_by_lines();
  void global_by_strings();
  void frame() { source_.skip(8); }  // a hint about buffering, without effect on values
  void new_object();
  void new_object_with_keywords();
  void call();
  void build();

  void add_to_list(Value list, std::span<Value const> items);
  void add_to_dict(Value dict, std::span<Value const> items);
  std::string_view line();
  Value new_container(Tag tag);
  Value new_record(Known known);
  Value result_of(Value callable, Value arguments);
  bool plans_follow(std::uint32_t string) const;

  // An object gets its state.
  std::span<Value const> state_dict(Value state, Value object);
  IndexLists::Id numbers_of(Value value, std::string_view what);
  std::uint32_t string_of(Value value, std::string_view what);
  std::uint64_t byte_count_of(Value value, std::string_view what);
  void build_chunk(std::uint32_t id, std::span<Value const> state);
  void build_index(std::uint32_t id, std::span<Value const> state);
  void build_place(std::uint32_t id, std::span<Value const> state);
  void build_tensor(std::uint32_t id, std::span<Value const> state);
  void build_properties(std::uint32_t id, Value state);
  void build_metadata(std::uint64_t id, std::span<Value const> state);
  void take_chunks(TensorRecord& record, Value list);
  void refuse_transforms(Value descriptors, PlaceRecord const& place);

  static constexpr std::size_t largest_stack = std::size_t{1} << 22;

  PickleSource source_;
  std::string place_;
  Records records_;
  std::uint64_t op_at_ = 0;
  std::vector<Value> stack_;  ///< its first height_ values; after them is room
  std::size_t height_ = 0;
  std::vector<std::size_t> marks_;
  std::size_t floor_ = 0;  ///< the last mark: values below it cannot be popped
  Memo memo_;
  Root root_;
  std::uint64_t metadata_objects_ = 0;
  bool has_root_ = false;
  bool done_ = false;
};

}  // namespace reshard::dcp
