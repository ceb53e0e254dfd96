#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::huggingface {

// What folder.cpp needs of the file system; nobody else includes this header.

/// What a name in a folder leads to.
enum class MemberKind {
  file,         ///< a regular file of the folder, or a link to one that may be followed
  missing,      ///< nothing, or a link to nothing
  outside,      ///< a link that leaves the folder and is not a link into the blobs of a Hugging Face cache
  not_regular,  ///< a directory, a socket, a device …
};

/// The names at the top of the folder, sorted. A folder that cannot be listed is an Error of kind source.
std::vector<std::string> member_names(std::filesystem::path const& folder);

/// Follows links, opens nothing (docs/formats/huggingface.md, rule 9). `name` is one component.
MemberKind member_kind(std::filesystem::path const& folder, std::string_view name);

/// The same of several names, in one look.
std::vector<MemberKind> member_kinds(std::filesystem::path const& folder, std::span<std::filesystem::path const> names);

/// folder/name when it is a file that may be read; else an Error of kind source.
std::filesystem::path readable_member(std::filesystem::path const& folder, std::string_view name);
/// The same, once its kind is known.
std::filesystem::path readable_member(std::filesystem::path const& folder, std::string_view name, MemberKind kind);

}  // namespace reshard::huggingface
