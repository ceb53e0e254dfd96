#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace reshard {

/// A logical tensor, by its number in its Model.
enum class TensorId : std::uint32_t {};

/// The state of a parameter that a logical tensor contains, by its number in Model::slots().
enum class SlotId : std::uint32_t {
  weight = 0  ///< the parameter itself
};

/// The owner of a digest: a logical tensor, by its number in its Model, or opaque bytes of a job,
/// which follow the tensors.
enum class DigestId : std::uint32_t {
  none = 0xffffffffU  ///< bytes that are read and belong to no digest, such as copied padding
};

/// The share of one stored piece in a digest, by its number in DigestWork::shares.
enum class ShareId : std::uint32_t {};

/// The index of an id in lists that are ordered by that id.
template <class Id>
requires std::is_enum_v<Id>
constexpr std::size_t index(Id id) { return static_cast<std::size_t>(id); }

constexpr DigestId digest_of(TensorId tensor) {
  return DigestId{static_cast<std::uint32_t>(tensor)};
}

}  // namespace reshard
