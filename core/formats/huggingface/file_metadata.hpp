#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/containers/safetensors/safetensors.hpp"

namespace reshard::huggingface {

/// The string map `__metadata__` of a safetensors header. transformers keeps there what a tensor of
/// torchao is: without it no program can load the weights.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// `__metadata__` of a weight file's header, where that has more than "format".
struct FileMetadata {
  std::string file;
  Metadata entries;
};

/// In a target without safetensors: {"FILE": {"KEY": "TEXT"}}, beside config.json.
inline constexpr std::string_view metadata_file_name = "safetensors_metadata.json";

/// Appends the map of a file, unless "format" is all that it has.
void add_metadata(std::vector<FileMetadata>& all, std::string_view file, Metadata const& entries);

std::string metadata_text(std::span<FileMetadata const> all);
/// Reads metadata_text(). Anything else is an Error of kind source; `place` is the file.
std::vector<FileMetadata> parse_metadata(std::string_view text, std::string const& place);

/// Metadata of a file of a target: the entries of the source's file of this name; else those of all
/// of its files, but for keys that have several values, which are added to `lost`.
Metadata metadata_of(std::span<FileMetadata const> all, std::string_view file,
                     std::vector<std::string>& lost);

}  // namespace reshard::huggingface
