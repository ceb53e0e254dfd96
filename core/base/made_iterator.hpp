#pragma once

#include <cstddef>
#include <iterator>

namespace reshard {

/// An iterator over a list whose elements are made on access (`list[i]`).
template <class List, class Value>
class MadeIterator {
 public:
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  MadeIterator() = default;
  MadeIterator(List const* list, std::size_t at) : list_(list), at_(at) {}
  Value operator*() const { return (*list_)[at_]; }
  MadeIterator& operator++() { return ++at_, *this; }
  MadeIterator operator++(int) { return {list_, at_++}; }
  friend bool operator==(MadeIterator const&, MadeIterator const&) = default;

 private:
  List const* list_ = nullptr;
  std::size_t at_ = 0;
};

}  // namespace reshard
