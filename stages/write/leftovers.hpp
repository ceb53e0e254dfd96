#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace reshard {

// The files next to a target while a run writes it, and after an interrupted one. TOKEN is 16
// random hexadecimal digits of each run: a run whose folders were taken over by another run finds
// them missing.
//
//   /data/out                the target
//   /data/.out.part-TOKEN    the staging folder: the target while it is built
//   /data/.out.resume-TOKEN  the journal of the runs that fill it, and its owner's mark
//   /data/.out.old-TOKEN     the checkpoint that is being replaced, on file systems
//                            that cannot exchange two names
//   /data/.out.lock          held by the job that writes
//
// Earlier versions wrote the same names without "-TOKEN".

/// A target's path, absolute, without a slash at the end. Error of kind target for a root.
std::filesystem::path absolute_target(std::filesystem::path const& target);

std::string make_token();
std::filesystem::path staging_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path journal_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path old_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path lock_of(std::filesystem::path const& target);

/// The parts of the name of a hidden entry.
struct HiddenName {
  enum class Kind { staging, journal, old };
  std::string target;  ///< the target's name
  Kind kind = Kind::staging;
  std::string token;  ///< "": of an earlier version
};
std::optional<HiddenName> parse_hidden_name(std::string_view name);

/// The files of interrupted or active runs next to one target.
struct Leftovers {
  std::vector<std::filesystem::path> staging;
  std::vector<std::filesystem::path> journals;
  std::vector<std::filesystem::path>
      old;  ///< that of an earlier version counts only while the target's name is free
  /// All paths, in the order in which they may be removed: the journals, which name the owner of
  /// the rest, come last.
  std::vector<std::filesystem::path> all() const;
  bool empty() const { return staging.empty() && journals.empty() && old.empty(); }
};
/// An Error of kind target or io if the folder cannot be listed.
Leftovers leftovers_of(std::filesystem::path const& target);

/// The target and the known names next to it that belong to it: no other output may be written
/// there.
std::vector<std::filesystem::path> places_of(std::filesystem::path const& target);

/// Whether the path exists, also as a dangling link.
bool is_there(std::filesystem::path const& path);

/// The owner of a journal folder: its file `owner`, which a run touches every half minute while it
/// is alive.
struct Owner {
  std::string token;
  std::string boot;    ///< boot id of the machine
  std::string host;    ///< human-readable
  bool ended = false;  ///< the run has ended regularly and writes no more
};
inline constexpr std::string_view owner_name = "owner";
/// The interval of touches, and the time without a touch or another change after which a run counts
/// as ended.
inline constexpr int life_sign_seconds = 30;
inline constexpr int quiet_seconds = 180;
/// The latter for leftovers of earlier versions, which touched no file while they read back.
inline constexpr int quiet_seconds_of_earlier_versions = 3600;

Owner this_owner(std::string_view token);
void write_owner(std::filesystem::path const& journal, Owner const& owner);
std::optional<Owner> read_owner(std::filesystem::path const& journal);

/// The reason for which leftovers may be those of an active run, as a sentence with a path and a
/// time; nullopt if all of their runs have ended. `locked`: the caller holds the target's lock,
/// which excludes runs of this machine, and of other machines if locks extend to them. `now_ns`:
/// the time by the clock of the file system, as its time stamps.
std::optional<std::string> sign_of_life(Leftovers const& left, bool locked, std::int64_t now_ns);

/// The file of a nightly job's journal that names its source. It is removed last: a night that
/// finds a journal must know its source.
inline constexpr std::string_view journal_source_name = "source";

/// Removes a folder with its content, a journal's `source` last.
void remove_folder(std::filesystem::path const& folder, std::error_code& error);

/// Renames a leftover to a name under which no other run writes, then removes it. False if it did
/// not exist any more. An Error of kind target if it cannot be removed.
bool discard(std::filesystem::path const& left, std::filesystem::path const& own_name);

/// Restores the name of a checkpoint whose replacing run was killed between two renames. False if
/// there is none, or the name is taken.
bool put_back_old(std::filesystem::path const& target, Leftovers const& left);

}  // namespace reshard
