#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// When the files of a checkpoint were last read and compared with what is recorded of them. It is
/// a file of its own, because what a checkpoint says about itself is never changed.
struct ReadingRecord {
  struct File {
    std::string read;  ///< when, as utc_text() has it
    bool good = true;  ///< it was as recorded
  };
  struct Part {
    std::string read;
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;
    bool good = true;
  };
  std::string listed;                 ///< the digest of what is recorded of all files
  std::map<std::string, File> files;  ///< by path in the checkpoint; only those that were read
  std::map<std::string, Part> parts;  ///< "3/30"
};

/// `.NAME.verified` beside the checkpoint.
std::filesystem::path reading_record_of(std::filesystem::path const& checkpoint);
/// The checkpoint's name where a file has the name of such a record.
std::optional<std::string> target_of_readings(std::string_view file_name);

/// Reads the record of files that are recorded like `listed`; an empty one where there is none, or
/// it is of a checkpoint with other content. Error of kind usage for anything else that has the
/// name.
ReadingRecord load_readings(std::filesystem::path const& file, std::string const& listed);
/// Replaces the file in one step. Errors: io, resources.
void save_readings(std::filesystem::path const& file, ReadingRecord const& record);
/// Removes what reading_record_of() names, if it is a record. Never an Error.
void forget_readings(std::filesystem::path const& checkpoint);

/// "2026-11-26T03:12:06Z", of seconds since 1970.
std::string utc_text(std::int64_t seconds);

}  // namespace reshard
