#include "core/base/member_file.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/text/json.hpp"
#include "core/base/threads/workers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// <repo>/blobs of the cache that the folder belongs to (<repo>/snapshots/<revision>[/…]); empty
/// when it belongs to none. Pre: `folder` is canonical.
fs::path cache_blobs(fs::path const& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path())
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  return {};
}

bool lies_in(fs::path const& file, fs::path const& folder) {
  auto const [file_rest, folder_rest] = std::ranges::mismatch(file, folder);
  return !folder.empty() && folder_rest == folder.end() && file_rest != file.end();
}

/// The type of the path itself, links not followed; not_found for names that no file can have. A
/// failure of the file system is an Error of kind io: it must not change the result.
fs::file_type type_of(fs::path const& path) {
  if (auto const listed = listed_type(path)) return *listed;
  std::error_code reason;
  fs::file_status const status = fs::symlink_status(path, reason);
  if (status.type() == fs::file_type::not_found) return fs::file_type::not_found;
  for (int const number : {EIO, ESTALE, EINTR, EACCES, ETIMEDOUT})
    if (reason == std::error_code(number, std::generic_category()))
      fail_errno(path, "stat", number);
  return reason ? fs::file_type::not_found : status.type();
}

/// The kind of the target of a link.
MemberKind kind_behind_link(fs::path const& folder, fs::path const& member, fs::path const& named) {
  std::error_code reason;
  fs::path const root = fs::canonical(folder, reason);
  if (reason) return MemberKind::missing;
  fs::path const target = fs::canonical(folder / member, reason);
  if (reason) return MemberKind::missing;
  bool const inside = lies_in(target, root) || lies_in(target, cache_blobs(root)) ||
                      (!named.empty() && lies_in(target, fs::canonical(named, reason)));
  if (!inside) return MemberKind::outside;
  return fs::is_regular_file(target, reason) ? MemberKind::file : MemberKind::not_regular;
}

MemberKind kind_here(fs::path const& folder, fs::path const& member, fs::path const& named) {
  fs::file_type type = fs::file_type::not_found;
  fs::path at = folder;
  for (fs::path const& name : member) {
    type = type_of(at /= name);
    if (type == fs::file_type::symlink) return kind_behind_link(folder, member, named);
  }
  if (type == fs::file_type::not_found) return MemberKind::missing;
  return type == fs::file_type::regular ? MemberKind::file : MemberKind::not_regular;
}

/// The kind of each member. Many in one folder are answered by one listing, which has the types on
/// most file systems; links are followed.
std::string kinds_here(fs::path const& folder, std::span<fs::path const> members,
                       fs::path const& named) {
  constexpr std::size_t worth_a_listing = 8;
  std::map<fs::path, fs::file_type> listed;
  std::error_code problem;
  if (members.size() >= worth_a_listing && !is_listed_folder(folder))
    for (TreeEntry const& entry : listing_of(folder, problem))
      listed.emplace(entry.path.filename(), entry.type);
  std::string kinds(members.size(), '\0');
  for (fs::path const& member : members)
    if (!member.has_parent_path())
      if (auto const type = listed_type(folder / member)) listed.emplace(member, *type);
  overlapped(members.size(), [&](std::size_t m) {
    auto const known = listed.find(members[m]);
    bool const is_file = known != listed.end() && known->second == fs::file_type::regular;
    kinds[m] = static_cast<char>(is_file ? MemberKind::file : kind_here(folder, members[m], named));
  });
  return kinds;
}

std::string shown(fs::path const& member) {
  constexpr std::size_t most = 200;
  std::string const text = member.string();
  std::string const quoted = json_quoted(text.substr(0, most));
  return quoted.substr(1, quoted.size() - 2) + (text.size() > most ? "…" : "");
}

[[noreturn]] void fail_outside(fs::path const& folder, fs::path const& member) {
  fail(ErrorKind::source,
       "{}: {} is a symbolic link that points outside the folder. Replace it with the file that it "
       "points to, or read the folder that it points to.",
       folder.string(), shown(member));
}

}  // namespace

std::vector<std::string> member_names(fs::path const& folder) {
  return seen_names("names in", folder, [&] {
    std::error_code reason;
    std::vector<std::string> names = names_in(folder, reason);
    if (reason)
      fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
           folder.string(), reason.message());
    std::ranges::sort(names);
    return names;
  });
}

MemberKind member_kind(fs::path const& folder, fs::path const& member, fs::path const& named) {
  return member_kinds(folder, std::span(&member, 1), named).front();
}

std::vector<MemberKind> member_kinds(fs::path const& folder, std::span<fs::path const> members,
                                     fs::path const& named) {
  std::string const what =
      fmt::format("kinds of {} members from {} in {}", members.size(),
                  members.empty() ? "" : members.front().string(), named.string());
  std::string const kinds = seen(what, folder, [&] { return kinds_here(folder, members, named); });
  RESHARD_EXPECT(kinds.size() == members.size());
  std::vector<MemberKind> result;
  for (char const kind : kinds) result.push_back(static_cast<MemberKind>(kind));
  return result;
}

fs::path readable_member(fs::path const& folder, fs::path const& member, fs::path const& named) {
  return readable_member(folder, member, member_kind(folder, member, named));
}

fs::path readable_member(fs::path const& folder, fs::path const& member, MemberKind kind) {
  switch (kind) {
    case MemberKind::file: break;
    case MemberKind::missing:
      fail(ErrorKind::source, "{}: {} is missing. Download it again.", folder.string(),
           shown(member));
    case MemberKind::outside: fail_outside(folder, member);
    case MemberKind::not_regular:
      fail(ErrorKind::source,
           "{}: {} is not a regular file. Put a copy of the file in its "
           "place.",
           folder.string(), shown(member));
  }
  return folder / member;
}

fs::path allowed_member(fs::path const& folder, fs::path const& member, fs::path const& named) {
  if (member_kind(folder, member, named) == MemberKind::outside) fail_outside(folder, member);
  return folder / member;
}

}  // namespace reshard
