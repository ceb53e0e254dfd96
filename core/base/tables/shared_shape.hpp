#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// The shape of a tensor, for objects that are held in great number: the process stores each
/// distinct shape once, until it ends. A copy is four bytes. Thread safe.
class SharedShape {
 public:
  SharedShape() = default;
  SharedShape(std::span<Index const> sizes) : number_(number_of(sizes)) {}
  SharedShape(std::vector<Index> const& sizes) : SharedShape(std::span(sizes)) {}
  SharedShape(std::initializer_list<Index> sizes)
      : SharedShape(std::span(sizes.begin(), sizes.size())) {}

  /// The reference stays valid until the process ends.
  std::vector<Index> const& sizes() const;
  operator std::vector<Index> const&() const { return sizes(); }

  bool empty() const { return number_ == 0; }
  std::size_t size() const { return sizes().size(); }
  Index const* data() const { return sizes().data(); }
  Index const* begin() const { return data(); }
  Index const* end() const { return data() + size(); }
  Index operator[](std::size_t dim) const { return sizes()[dim]; }
  Index front() const { return sizes().front(); }
  Index back() const { return sizes().back(); }

  friend bool operator==(SharedShape a, SharedShape b) { return a.number_ == b.number_; }
  friend bool operator==(SharedShape a, std::vector<Index> const& b) { return a.sizes() == b; }

 private:
  static std::uint32_t number_of(std::span<Index const> sizes);

  std::uint32_t number_ = 0;  ///< 0: no dimensions
};

}  // namespace reshard
