#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/formats/megatron/classify.hpp"
#include "pipeline/commands/look.hpp"
#include "pipeline/run/progress.hpp"

namespace reshard {

struct RunCommand {
  std::string job_file;
  std::vector<std::string> overrides;
  std::optional<std::string> trace_file = std::nullopt;
  std::optional<std::string> events_file = std::nullopt;
  ProgressStyle progress = ProgressStyle::automatic;
  bool dry_run = false;  ///< `plan`, or `run --dry-run`
  bool fresh = false;
  bool quiet = false;
  bool json = false;
};
/// The newest complete checkpoint of a training directory, as `run` would convert it.
struct NightlyCommand {
  RunCommand run;
};
/// Writes a job file for a source.
struct InitCommand {
  std::string source;
  std::string output;         ///< "": to stdout
  std::string target_format;  ///< "": one that suits the source
};
/// Removes what interrupted runs left beside a target.
struct CleanCommand {
  std::string target;
};
struct InspectCommand {
  std::string path;
  megatron::UserSizes sizes;
  bool json = false;
};
struct ListCommand {
  std::string path;
  Listing listing = Listing::stored;
  std::string map = "auto";
  bool json = false;
};
struct CheckMapCommand {
  std::string map;
  std::string config;  ///< config.json or its folder; "" for none
  std::string args;    ///< JSON file with Megatron's args
  bool json = false;
};
struct DigestCommand {
  std::string path;
  std::string map = "auto";
  std::string config;  ///< config.json or its folder; "" for none
  bool json = false;
};
/// `verify A B` and `diff A B`; `verify A` looks at one checkpoint alone.
struct VerifyCommand {
  std::vector<std::string> paths;  ///< one or two
  std::string map = "auto";
  std::string config_a;  ///< config.json or its folder; "" for none
  std::string config_b;
  std::size_t limit = 50;  ///< rows of the text
  bool values = false;     ///< `diff`
  bool replicas = false;   ///< `verify A`: replicas, too
  bool json = false;
};
struct ViewCommand {
  std::string subject;                 ///< a checkpoint, or a job file (a file whose name ends in .toml); "" with trace_file
  std::vector<std::string> overrides;  ///< of a job file
  std::string trace_file;
  std::optional<std::string> map;  ///< of a checkpoint
  std::optional<std::string> config;
  std::optional<std::string> output;  ///< "-" is stdout
  bool plain = false;
  bool json = false;

  bool is_job() const { return subject.ends_with(".toml"); }
};
/// Something to print at once, with the exit code that goes with it.
struct PrintCommand {
  std::string text;
  int code = 0;
};
using Command = std::variant<RunCommand, NightlyCommand, InitCommand, CleanCommand, InspectCommand, ListCommand, CheckMapCommand, DigestCommand,
                             VerifyCommand, ViewCommand, PrintCommand>;

/// Understands the command line. A mistake gives a PrintCommand with code 2 (to stderr), --help and the like one with code 0.
Command parse_command_line(int argc, char const* const* argv);

}  // namespace reshard
