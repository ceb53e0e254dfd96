#pragma once

#include <cstdint>
#include <vector>

#include "core/base/error.hpp"
#include "core/containers/id_table.hpp"

namespace reshard {

/// Interned values: each distinct one is stored once, by number. `T` has `hash()` and ==.
template <class T>
class Numbered {
 public:
  T const& operator[](std::uint32_t number) const { return values_[number]; }

  std::uint32_t number_of(T const& value) {
    std::uint64_t const hash = value.hash();
    std::uint32_t const known =
        table_.id(hash, [&](std::uint32_t number) { return values_[number] == value; });
    if (known != IdTable::none) return known;
    if (values_.size() >= IdTable::none)
      fail(ErrorKind::resources, "more than {} different places in files cannot be held.",
           values_.size());
    table_.make_room([&](std::uint32_t number) { return values_[number].hash(); });
    auto const number = static_cast<std::uint32_t>(values_.size());
    values_.push_back(value);
    table_.add(hash, number);
    return number;
  }

 private:
  std::vector<T> values_;
  IdTable table_;
};

}  // namespace reshard
