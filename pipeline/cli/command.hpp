#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "core/mapping/maps/map_library.hpp"
#include "core/transport/comm.hpp"
#include "pipeline/messages/phase_line.hpp"

namespace reshard {

/// The program's share of every command.
struct Surroundings {
  MapLibrary library;                       ///< where maps are looked for
  std::atomic<bool> const* stop = nullptr;  ///< set by a signal
};

/// A command of the program: its options and its work.
class Command {
 public:
  virtual ~Command() = default;
  Command() = default;
  Command(Command const&) = delete;
  Command& operator=(Command const&) = delete;

  /// Adds the command with its options, which write into this object: it must outlive `app`. The
  /// footer is its examples.
  virtual CLI::App* add_to(CLI::App& app) = 0;
  /// The contradiction between the options, as a sentence; "" for none.
  virtual std::string mistake() const { return ""; }
  /// Whether it carries out a job: that says itself how long ranks may be silent, and a signal ends
  /// it in order.
  virtual bool is_job() const { return false; }
  /// How what it does is shown on stderr, while nothing else is.
  virtual PhaseLine::Style phases() const;
  /// Collective. The exit code; Errors are thrown, the same on every rank.
  virtual int run(Surroundings const& surroundings, Comm const& comm) = 0;
};

using Commands = std::vector<std::unique_ptr<Command>>;

/// Usual options.
void add_json(CLI::App& command, bool& into);
void add_map(CLI::App& command, std::string& into);
void add_config(CLI::App& command, std::filesystem::path& into);
void add_prefix(CLI::App& command, std::string& into);

/// The words that a key of the job file takes, as a type name: "auto|host".
std::string choices_of(std::string_view key);

}  // namespace reshard
