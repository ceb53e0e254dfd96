#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/formats/megatron/classify.hpp"
#include "pipeline/look.hpp"

namespace reshard {

struct RunCommand {
  std::string job_file;
  std::vector<std::string> overrides;
  std::optional<std::string> trace_file = std::nullopt;
  bool dry_run = false;  ///< `plan`, or `run --dry-run`
  bool json = false;
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
/// Something to print at once, with the exit code that goes with it.
struct PrintCommand {
  std::string text;
  int code = 0;
};
using Command = std::variant<RunCommand, InspectCommand, ListCommand, CheckMapCommand, DigestCommand, VerifyCommand, PrintCommand>;

/// Understands the command line. A mistake gives a PrintCommand with code 2 (to stderr), --help and the like one with code 0.
Command parse_command_line(int argc, char const* const* argv);

}  // namespace reshard
