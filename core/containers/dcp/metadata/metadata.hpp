#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/stored_table.hpp"

namespace reshard::dcp {

/// A step of the path that leads to a key's value in the nested state dict: a dict key or an index
/// of a list.
using PathStep = std::variant<std::string, std::int64_t>;
using Path = std::vector<PathStep>;

/// The content of `.metadata` (docs/formats/dcp.md). No item was read, so payload offsets are
/// unknown. Tensors are in the order of the file; empty boxes next to others are left out.
struct Metadata : StoredTable {
  std::vector<std::string> files;  ///< relative paths, each a plain name or names joined by '/',
                                   ///< never leading out of the folder
  /// How many of them are of this file, and not of one that was joined to it.
  std::size_t first_joined = std::numeric_limits<std::size_t>::max();
  std::optional<std::vector<std::pair<std::string, Path>>> planner_data;  ///< nothing: None
  /// Megatron's mcore_data: the shape that a flattened tensor has in the model
  /// (nd_reformulated_orig_global_shape), by key.
  std::vector<std::pair<std::string, std::vector<Index>>> flattened;
};

/// Reads a `.metadata` file in one pass: a pickle that is interpreted, never executed. It takes
/// about 200 bytes of memory per chunk, less than a tenth of Python's. The writers' plans
/// (all_local_plans), when they come last, are not read. Errors of kind source, with the path and
/// the byte or the key: damage, an unexpected opcode or class, a chunk outside its tensor or
/// without item, compressed items (transform_descriptors), dtypes and layouts without a counterpart
/// here, absurd counts, names that leave the folder.
Metadata read_metadata(File const& file);

/// The use of the memo by write_metadata(): `compact` fetches repeated values from it (the smallest
/// pickle); `plain` has no memo.
enum class MetadataStyle { compact, plain };

/// The bytes of `.metadata` (pickle protocol 4) for these tensors, chunks and objects, with
/// planner_data as given (nullopt: an empty dict), without storage_meta, plans or mcore_data. torch
/// 2.3 and later read it. Keys are in the order of planner_data, followed by those that it lacks.
/// Equal input gives equal bytes. Pre: every chunk belongs to one tensor. A dtype that torch lacks
/// is an Error of kind source.
std::string write_metadata(Metadata const& metadata, MetadataStyle style = MetadataStyle::compact);

}  // namespace reshard::dcp
