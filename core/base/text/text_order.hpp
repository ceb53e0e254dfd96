#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace reshard {

/// The numbers from 0 to `count` in ascending order of their texts; those of equal texts stay in
/// order. Each step reads eight bytes of a text, so that names with long common beginnings, which
/// lie all over the memory, are not read again for each comparison.
std::vector<std::uint32_t> text_order(
    std::size_t count, std::function<std::string_view(std::size_t number)> const& text_of);

}  // namespace reshard
