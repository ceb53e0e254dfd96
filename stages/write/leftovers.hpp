#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace reshard {

// What lies beside a target while a run writes it, and after one that was interrupted. TOKEN is 16
// hexadecimal digits that each run draws for itself: a run that still writes under another run's
// names finds nothing there.
//
//   /data/out                the target
//   /data/.out.part-TOKEN    the staging folder: the target while it is built
//   /data/.out.resume-TOKEN  the journal of the runs that fill it, and the mark of the run that
//   owns both /data/.out.old-TOKEN     the checkpoint that is being replaced, where the file system
//   cannot exchange two names /data/.out.lock          held by the job that writes
//
// Earlier versions wrote the same names without "-TOKEN".

/// A target's path, absolute, without a slash at the end. Error of kind target for a root.
std::filesystem::path absolute_target(std::filesystem::path const& target);

std::string make_token();
std::filesystem::path staging_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path journal_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path old_of(std::filesystem::path const& target, std::string_view token);
std::filesystem::path lock_of(std::filesystem::path const& target);

/// What the name of a hidden entry says.
struct HiddenName {
  enum class Kind { staging, journal, old };
  std::string target;  ///< the target's name
  Kind kind = Kind::staging;
  std::string token;  ///< "": of an earlier version
};
std::optional<HiddenName> parse_hidden_name(std::string_view name);

/// What runs have left beside one target, or are filling now.
struct Leftovers {
  std::vector<std::filesystem::path> staging;
  std::vector<std::filesystem::path> journals;
  std::vector<std::filesystem::path>
      old;  ///< an earlier version's counts only while the target's name is free
  /// In the order in which they may be removed: the journals, which say whose the rest is, come
  /// last.
  std::vector<std::filesystem::path> all() const;
  bool empty() const { return staging.empty() && journals.empty() && old.empty(); }
};
/// An Error of kind target or io when the folder cannot be listed.
Leftovers leftovers_of(std::filesystem::path const& target);

/// The target and all names beside it that belong to it, as far as they are known: nothing else may
/// be written there.
std::vector<std::filesystem::path> places_of(std::filesystem::path const& target);

/// Whether something has this name, also a link to nothing.
bool is_there(std::filesystem::path const& path);

/// Whose a journal folder is: its file `owner`. A run touches it every half minute while it is
/// alive.
struct Owner {
  std::string token;
  std::string boot;    ///< which life of which machine
  std::string host;    ///< human-readable
  bool ended = false;  ///< in good order: nothing writes there any more
};
inline constexpr std::string_view owner_name = "owner";
/// How often it is touched, and after how long without a touch or any other change a run counts as
/// over.
inline constexpr int life_sign_seconds = 30;
inline constexpr int quiet_seconds = 180;
/// The same for the leftovers of earlier versions, which did not touch anything while they read
/// back.
inline constexpr int quiet_seconds_of_earlier_versions = 3600;

Owner this_owner(std::string_view token);
void write_owner(std::filesystem::path const& journal, Owner const& owner);
std::optional<Owner> read_owner(std::filesystem::path const& journal);

/// Why leftovers may be those of a run that is active, as a sentence that names a path and a time;
/// nothing when all of their runs are over. `locked`: the caller holds the target's lock, which
/// says enough of runs of this machine, and of other machines where locks reach that far. `now_ns`:
/// the time of the file system, by whose clock changes are dated.
std::optional<std::string> sign_of_life(Leftovers const& left, bool locked, std::int64_t now_ns);

/// The file of a nightly job's journal that names its source. It is the last to go: a night that
/// finds a journal must know whose it is.
inline constexpr std::string_view journal_source_name = "source";

/// Removes a folder and what is in it, a journal's `source` last.
void remove_folder(std::filesystem::path const& folder, std::error_code& error);

/// Gives what has one of these names another one first, under which no other run writes; then
/// removes it. False when it was gone already. Error of kind target when it cannot be removed.
bool discard(std::filesystem::path const& left, std::filesystem::path const& own_name);

/// The checkpoint that a run was replacing when it was killed between two renames gets its name
/// back. False when there is none, or the name is taken.
bool put_back_old(std::filesystem::path const& target, Leftovers const& left);

}  // namespace reshard
