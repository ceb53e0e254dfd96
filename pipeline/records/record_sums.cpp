#include "pipeline/records/record_sums.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/formats/manifest/manifest.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest_manifest = std::uint64_t{1} << 30;

/// `digest` gives the SHA-256 of the manifest, where a SHA256SUMS is there to compare it with.
SumsOfRecord sums_beside(fs::path const& folder, std::function<std::string()> const& digest) {
  SumsOfRecord result;
  std::optional<std::vector<FileSum>> sums;
  auto const unread = capture([&] {
    sums = find_sums(folder);
    if (!sums) return;
    FileSum const own{std::string(manifest_name), digest()};
    result.contradicts = std::ranges::find(*sums, own) == sums->end();
  });
  if (unread) result.contradicts = true;
  if (sums && !result.contradicts) result.sums = *std::move(sums);
  return result;
}

}  // namespace

SumsOfRecord record_sums(fs::path const& folder) {
  return sums_beside(folder, [&] {
    return sha256_of_text(read_text_file(folder / manifest_name, largest_manifest));
  });
}

SumsOfRecord record_sums(fs::path const& folder, std::string_view manifest) {
  return sums_beside(folder, [&] { return sha256_of_text(manifest); });
}

bool is_record_contradicted(fs::path const& checkpoint) {
  fs::path const folder = full_path(checkpoint);
  for (fs::path const& place : {folder, folder.parent_path()})
    if (sees_file(place / manifest_name)) return record_sums(place).contradicts;
  return false;
}

}  // namespace reshard
