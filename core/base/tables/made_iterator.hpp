#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

namespace reshard {

/// An iterator over a list whose elements are made on access (`list[i]`).
template <class List, class Value>
class MadeIterator {
 public:
  using value_type = Value;
  using difference_type = std::ptrdiff_t;
  MadeIterator() = default;
  MadeIterator(List const* list, std::size_t at) : list_(list), at_(at) {}
  /// The element that `->` reaches into, for as long as the expression.
  class Arrow {
   public:
    explicit Arrow(Value value) : value_(std::move(value)) {}
    Value const* operator->() const { return &value_; }

   private:
    Value value_;
  };

  Value operator*() const { return (*list_)[at_]; }
  Arrow operator->() const { return Arrow(**this); }
  MadeIterator& operator++() { return ++at_, *this; }
  MadeIterator operator++(int) { return {list_, at_++}; }
  friend bool operator==(MadeIterator const&, MadeIterator const&) = default;
  friend difference_type operator-(MadeIterator const& a, MadeIterator const& b) {
    return static_cast<difference_type>(a.at_) - static_cast<difference_type>(b.at_);
  }

 private:
  List const* list_ = nullptr;
  std::size_t at_ = 0;
};

}  // namespace reshard
