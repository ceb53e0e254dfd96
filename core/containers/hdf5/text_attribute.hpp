#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/containers/hdf5/child/calls.hpp"

namespace reshard::hdf5 {

// Attributes that are texts. A fixed-length text has no terminator; an empty one is a single NUL,
// as HDF5 has no type of no bytes.

/// The attribute with the names of dimensions, of HDF5's dimension scales.
inline constexpr char const* labels_attribute = "DIMENSION_LABELS";

/// Creates a fixed-length text attribute. Pre: the value has no NUL.
void create_text(Calls const& calls, hid_t object, char const* name, std::string_view value);
/// Creates the labels, in one step and as H5DSset_label does it one by one: variable-length
/// strings.
void create_labels(Calls const& calls, hid_t dataset, std::span<std::string const> labels);

/// The value of one string, of fixed or variable length; nullopt if there is no such attribute or
/// it is not a single string.
std::optional<std::string> read_text(Calls const& calls, hid_t object, char const* name);
/// The labels of the dimensions, "" for those without one; nullopt if there is no such attribute.
std::optional<std::vector<std::string>> read_labels(Calls const& calls, hid_t dataset);
/// Names of an object's attributes, ascending. More than `most` are an Error.
std::vector<std::string> attribute_names(Calls const& calls, hid_t object, std::size_t most);

}  // namespace reshard::hdf5
