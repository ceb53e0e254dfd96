#include "pipeline/verify/own_record.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "core/transport/gathered_texts.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The records in one folder; nothing where it has none. A manifest and SHA256SUMS stand together,
/// and integrity.json counts where neither is.
std::optional<OwnRecord> record_in(fs::path const& place) {
  OwnRecord own{place, find_manifest(place)};
  if (own.manifest) own.names.emplace_back(manifest_name);
  own.sums = find_sums(place);
  if (own.sums) own.names.emplace_back(sums_name);
  fs::path const file = place / integrity_name;
  if (own.names.empty() && sees_file(file)) {
    allowed_member(place, integrity_name);
    own.sums.emplace();
    for (Integrity::Entry& entry :
         parse_integrity(read_text_file(file, std::uint64_t{1} << 30U), file.string()).files)
      own.sums->push_back({std::move(entry.path), std::move(entry.sha256)});
    own.names.emplace_back(integrity_name);
  }
  return own.names.empty() ? std::nullopt : std::optional(std::move(own));
}

/// Whether the record is one of what lies at `path`: it lists a file there or below it. Where a job
/// did not read its target back, the record lists none, and is one of its own folder.
bool speaks_of(OwnRecord const& own, fs::path const& path) {
  if (!own.lists_files()) return own.root == path || !sees_folder(path);
  auto const lists = [&](auto const& list) {
    return std::ranges::any_of(
        list, [&](auto const& one) { return holds(path, normal_path(own.root / one.path)); });
  };
  return (own.manifest && lists(own.manifest->files)) || (own.sums && lists(*own.sums));
}

/// Looks at files 0 … count - 1, each rank at its share.
std::vector<std::string> over_files(std::size_t count, Comm const& comm,
                                    std::function<std::string(std::size_t)> const& fault_of) {
  std::vector<std::string> mine;
  together(comm, [&] {
    for (std::size_t i = static_cast<std::size_t>(comm.rank()); i < count;
         i += static_cast<std::size_t>(comm.size()))
      if (std::string fault = fault_of(i); !fault.empty()) mine.push_back(std::move(fault));
  });
  return gathered_texts(mine, comm);
}

}  // namespace

OwnRecord find_record(fs::path const& path, std::span<fs::path const> files, bool in_shares) {
  fs::path const named = full_path(path);
  std::vector<fs::path> places{named, named.parent_path()};
  std::set<fs::path> seen(
      places.begin(), places.end());  // a Megatron checkpoint has a folder for each of its files
  for (fs::path const& file : files)
    if (fs::path folder = full_path(file).parent_path(); seen.insert(folder).second)
      places.push_back(std::move(folder));
  for (fs::path const& place : places) {
    if (place == named.parent_path() && sees_folder(named) &&
        !sees_anything(named / dcp::metadata_name) && !in_shares &&
        !sees_anything(place / manifest_name))
      continue;
    if (auto own = record_in(place); own && speaks_of(*own, named)) return *std::move(own);
  }
  fail(ErrorKind::usage,
       "{}: has no {}, {} or {}, so there is nothing to verify it against. Compare it with "
       "another checkpoint (`reshard verify A B`), or look for values that a sound model does not "
       "have (`reshard suspects`).",
       path.string(), manifest_name, sums_name, integrity_name);
}

std::vector<ExpectedFile> expected_files(OwnRecord const& own) {
  std::map<std::string_view, ExpectedFile> files;
  if (own.manifest)
    for (FileRecord const& record : own.manifest->files) files[record.path].record = &record;
  if (own.sums)
    for (FileSum const& sum : *own.sums) files[sum.path].sum = &sum;
  std::vector<ExpectedFile> expected;
  for (auto const& [path, file] : files) expected.push_back(file);
  return expected;
}

std::string fault_without_reading(fs::path const& root, ExpectedFile const& expected) {
  fs::path const path = root / expected.path();
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return fmt::format("{}: is missing", path.string());
  std::uint64_t const size = fs::file_size(path, ignored);
  if (expected.record != nullptr && size != expected.record->size_bytes)
    return fmt::format("{}: has {} bytes, {} are recorded", path.string(), size,
                       expected.record->size_bytes);
  return {};
}

std::string fault_of(fs::path const& root, ExpectedFile const& expected) {
  if (std::string fault = fault_without_reading(root, expected); !fault.empty()) return fault;
  auto const [record, sum] = expected;
  fs::path const path = root / expected.path();
  FileFound found;
  if (sum == nullptr)
    found.record = record_of(path, root);
  else if (record == nullptr)
    found.sha256 = sha256_of(path);
  else
    found = found_file(path, root);
  if (record != nullptr && found.record.xxh3 != record->xxh3)
    return fmt::format("{}: has the XXH3 {}, {} is recorded", path.string(),
                       hex64(found.record.xxh3), hex64(record->xxh3));
  if (sum != nullptr && found.sha256 != sum->sha256)
    return fmt::format("{}: has the SHA-256 {}, {} is recorded", path.string(), found.sha256,
                       sum->sha256);
  return {};
}

void add_unlisted(OwnRecord const& own, Checkpoint const& checkpoint,
                  std::vector<std::string>& faults) {
  auto const look = [&](auto const& list, std::string const& name) {
    std::set<std::string_view> paths;
    for (auto const& one : list) paths.insert(one.path);
    for (fs::path const& file : checkpoint.files) {
      std::string const path = full_path(file).lexically_relative(own.root).generic_string();
      if (!paths.contains(path))
        faults.push_back(
            fmt::format("{}: is not listed in {}", file.string(), (own.root / name).string()));
    }
  };
  if (own.manifest && !own.manifest->files.empty()) look(own.manifest->files, own.names.front());
  if (own.sums) look(*own.sums, own.names.back());
  if (!own.manifest || !own.sums) return;
  std::set<std::string_view> summed;
  for (FileSum const& sum : *own.sums) summed.insert(sum.path);
  std::set<fs::path> with_tensors;  // of these it was said above
  for (fs::path const& file : checkpoint.files) with_tensors.insert(full_path(file));
  auto const expect = [&](std::string_view path) {
    if (!summed.contains(path) && !with_tensors.contains(normal_path(own.root / path)))
      faults.push_back(fmt::format("{}: has no line for {}, which {} lists",
                                   (own.root / sums_name).string(), path, manifest_name));
  };
  for (FileRecord const& record : own.manifest->files) expect(record.path);
  if (!summed.contains(manifest_name))
    faults.push_back(
        fmt::format("{}: has no line for {}", (own.root / sums_name).string(), manifest_name));
}

std::vector<std::string> faults_of_files(OwnRecord const& own, Comm const& comm) {
  std::vector<ExpectedFile> const expected = expected_files(own);
  return over_files(expected.size(), comm,
                    [&](std::size_t i) { return fault_of(own.root, expected[i]); });
}

}  // namespace reshard
