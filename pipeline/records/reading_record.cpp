#include "pipeline/records/reading_record.hpp"

#include <array>
#include <ctime>
#include <system_error>

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/text/json.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view ending = ".verified";
constexpr std::string_view version_key = "reshard_verified";
constexpr std::int64_t version = 1;
constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20;

[[noreturn]] void refuse(fs::path const& file, std::string_view what) {
  fail(ErrorKind::usage,
       "{}: is not a record of verified files: {}. Name another file with --record, or remove "
       "it.",
       file.string(), what);
}

std::string text_in(fs::path const& file, Json const& json, std::string_view key) {
  Json const* const found = json.find(key);
  if (found == nullptr || found->text() == nullptr)
    refuse(file, fmt::format("'{}' is not a string", key));
  return *found->text();
}

bool good_in(fs::path const& file, Json const& json) {
  Json const* const found = json.find("good");
  if (found == nullptr || found->boolean() == nullptr) refuse(file, "'good' is not true or false");
  return *found->boolean();
}

std::uint64_t count_in(fs::path const& file, Json const& json, std::string_view key) {
  Json const* const found = json.find(key);
  if (found == nullptr || found->integer() == nullptr || *found->integer() < 0)
    refuse(file, fmt::format("'{}' is not a count", key));
  return static_cast<std::uint64_t>(*found->integer());
}

Json::Object const& members_in(fs::path const& file, Json const& json, std::string_view key) {
  Json const* const found = json.find(key);
  if (found == nullptr || found->members() == nullptr)
    refuse(file, fmt::format("'{}' is not an object", key));
  return *found->members();
}

Json parsed(fs::path const& file) {
  Json json;
  if (capture([&] { json = parse_json(read_text_file(file, most_bytes), file.string()); }))
    refuse(file, "it is not JSON");
  Json const* const found = json.find(version_key);
  if (found == nullptr || found->integer() == nullptr)
    refuse(file, fmt::format("it has no '{}'", version_key));
  if (*found->integer() != version)
    refuse(file, fmt::format("its version is {}, expected {}", *found->integer(), version));
  return json;
}

}  // namespace

fs::path reading_record_of(fs::path const& checkpoint) { return hidden_beside(checkpoint, ending); }

std::optional<std::string> target_of_readings(std::string_view file_name) {
  return hidden_for(file_name, ending);
}

ReadingRecord load_readings(fs::path const& file, std::string const& listed) {
  ReadingRecord record;
  record.listed = listed;
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(file, ignored))) return record;
  Json const json = parsed(file);
  if (text_in(file, json, "listed") != listed) return record;
  for (auto const& [path, one] : members_in(file, json, "files"))
    record.files[path] = {text_in(file, one, "read"), good_in(file, one)};
  for (auto const& [part, one] : members_in(file, json, "parts"))
    record.parts[part] = {text_in(file, one, "read"), count_in(file, one, "files"),
                          count_in(file, one, "bytes"), good_in(file, one)};
  return record;
}

void save_readings(fs::path const& file, ReadingRecord const& record) {
  Json parts = Json::object();
  for (auto const& [part, one] : record.parts)
    parts.set(part, Json()
                        .set("read", one.read)
                        .set("files", one.files)
                        .set("bytes", one.bytes)
                        .set("good", one.good));
  Json files = Json::object();
  for (auto const& [path, one] : record.files)
    files.set(path, Json().set("read", one.read).set("good", one.good));
  Json json;
  json.set(version_key, version)
      .set("listed", record.listed)
      .set("parts", std::move(parts))
      .set("files", std::move(files));
  fs::path const whole = absolute_target(file);
  fs::path const made = staging_of(whole, make_token());
  auto const failed = capture([&] {
    write_text_file(made, json.dump(1) + "\n");
    rename_path(made, whole);
  });
  std::error_code stays;
  if (failed) fs::remove(made, stays);
  if (failed) throw *failed;
  sync_directory(whole.parent_path());
}

void forget_readings(fs::path const& checkpoint) {
  fs::path const file = reading_record_of(checkpoint);
  (void)capture([&] {
    if (!fs::is_regular_file(fs::symlink_status(file))) return;
    (void)parsed(file);
    fs::remove(file);
  });
}

std::string utc_text(std::int64_t seconds) {
  auto const time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  std::array<char, 32> text{};
  ::gmtime_r(&time, &utc);
  std::size_t const length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {text.data(), length};
}

}  // namespace reshard
