#include "core/formats/huggingface/members.hpp"

#include <algorithm>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/sight.hpp"
#include "core/formats/safetensors/safetensors.hpp"

namespace reshard::huggingface {
namespace {

namespace fs = std::filesystem;

/// <repo>/blobs of the cache that the folder belongs to (<repo>/snapshots/<revision>[/…]); empty when it belongs to none.
/// Pre: `folder` is canonical.
fs::path cache_blobs(fs::path const& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path())
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  return {};
}

bool lies_in(fs::path const& file, fs::path const& folder) {
  auto const [file_rest, folder_rest] = std::ranges::mismatch(file, folder);
  return folder_rest == folder.end() && file_rest != file.end();
}

}  // namespace

std::vector<std::string> member_names(fs::path const& folder) {
  return seen_names("names in", folder, [&] {
    std::error_code reason;
    std::vector<std::string> names;
    for (fs::directory_iterator at(folder, reason), end; !reason && at != end; at.increment(reason)) names.push_back(at->path().filename().string());
    if (reason)
      fail(ErrorKind::source, "{}: the folder cannot be listed: {}. Check the path and its permissions.", folder.string(), reason.message());
    std::ranges::sort(names);
    return names;
  });
}

namespace {

MemberKind kind_here(fs::path const& folder, std::string_view name) {
  std::error_code reason;
  fs::path const member = folder / name;
  fs::file_status const status = fs::symlink_status(member, reason);
  if (reason || status.type() == fs::file_type::not_found) return MemberKind::missing;
  if (status.type() == fs::file_type::regular) return MemberKind::file;
  if (status.type() != fs::file_type::symlink) return MemberKind::not_regular;
  fs::path const root = fs::canonical(folder, reason);
  if (reason) return MemberKind::missing;
  fs::path const target = fs::canonical(member, reason);
  if (reason) return MemberKind::missing;
  fs::path const blobs = cache_blobs(root);
  if (!lies_in(target, root) && (blobs.empty() || !lies_in(target, blobs))) return MemberKind::outside;
  return fs::is_regular_file(target, reason) ? MemberKind::file : MemberKind::not_regular;
}

}  // namespace

std::vector<MemberKind> member_kinds(fs::path const& folder, std::span<fs::path const> names) {
  std::string const kinds = seen("kinds in", folder, [&] {
    std::string all;
    for (fs::path const& name : names) all.push_back(static_cast<char>(kind_here(folder, name.string())));
    return all;
  });
  RESHARD_EXPECT(kinds.size() == names.size());
  std::vector<MemberKind> result;
  for (char const kind : kinds) result.push_back(static_cast<MemberKind>(kind));
  return result;
}

MemberKind member_kind(fs::path const& folder, std::string_view name) {
  fs::path const one(name);
  return member_kinds(folder, std::span(&one, 1)).front();
}

fs::path readable_member(fs::path const& folder, std::string_view name) { return readable_member(folder, name, member_kind(folder, name)); }

fs::path readable_member(fs::path const& folder, std::string_view name, MemberKind kind) {
  switch (kind) {
    case MemberKind::file: break;
    case MemberKind::missing: fail(ErrorKind::source, "{}: {} is missing. Download it again.", folder.string(), safetensors::shown(name));
    case MemberKind::outside:
      fail(ErrorKind::source, "{}: {} is a link that leaves the folder. Replace it by the file, or read the folder that it points to.",
           folder.string(), safetensors::shown(name));
    case MemberKind::not_regular: fail(ErrorKind::source, "{}: {} is not a regular file, expected one.", folder.string(), safetensors::shown(name));
  }
  return folder / name;
}

}  // namespace reshard::huggingface
