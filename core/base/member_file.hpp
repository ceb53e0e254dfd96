#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace reshard {

// The one rule for links in a checkpoint, of any format. The folder that the user names may be
// reached through links, and so may the folder of one iteration in it. From there on a link is
// followed only into that folder, into the one that the user named, or, from
// <repo>/snapshots/<revision>/… in a Hugging Face cache, into <repo>/blobs. Any other link is
// refused: a checkpoint from an untrusted source could otherwise name any file of the machine.

/// The kind of file that a path in a folder leads to.
enum class MemberKind {
  file,         ///< a regular file, perhaps through links that may be followed
  missing,      ///< no file, or a dangling link
  outside,      ///< a link that may not be followed
  not_regular,  ///< a directory, a socket, a device …
};

/// The names at the top of the folder, sorted. A folder that cannot be listed is an Error of kind
/// source.
std::vector<std::string> member_names(std::filesystem::path const& folder);

/// Follows links without opening files. `member` is a path relative to `folder`, without "..".
/// `named`: the folder that the user named, where it is another.
MemberKind member_kind(std::filesystem::path const& folder, std::filesystem::path const& member,
                       std::filesystem::path const& named = {});

/// member_kind() of several members, in one question to Sight.
std::vector<MemberKind> member_kinds(std::filesystem::path const& folder,
                                     std::span<std::filesystem::path const> members,
                                     std::filesystem::path const& named = {});

/// folder/member if it is a file that may be read; else an Error of kind source.
std::filesystem::path readable_member(std::filesystem::path const& folder,
                                      std::filesystem::path const& member,
                                      std::filesystem::path const& named = {});

/// readable_member() with the result of member_kind().
std::filesystem::path readable_member(std::filesystem::path const& folder,
                                      std::filesystem::path const& member, MemberKind kind);

/// folder/member, of any type or missing; an Error of kind source if a link that may not be
/// followed leads to it.
std::filesystem::path allowed_member(std::filesystem::path const& folder,
                                     std::filesystem::path const& member,
                                     std::filesystem::path const& named = {});

}  // namespace reshard
