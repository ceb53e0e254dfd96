#include "pipeline/program.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/messages/phase_line.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "core/base/heap.hpp"
#include "core/base/text/json.hpp"
#include "core/base/threads/activity.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "pipeline/cli/command_line.hpp"
#include "pipeline/cli/map_folders.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/run/agreement.hpp"

namespace reshard {
namespace {

constexpr std::string_view error_word = "error: ";

std::atomic<bool> stop_requested = false;

extern "C" void request_stop(int) { stop_requested = true; }

int execute(Command& command, std::vector<std::string> const& words, Comm const& comm) {
  std::optional<Heartbeat> heartbeat;
  int code = 0;
  auto const error = capture([&] {
    heartbeat.emplace(comm, usual_silence_seconds);
    check_same_start(comm, words);
    if (command.is_job()) heartbeat.reset();
    begin_phase("reading headers");
    code = command.run({MapLibrary(map_folders()), &stop_requested}, comm);
  });
  if (error) comm.end_with(*error);
  return code;
}

/// Whether a launcher has started other processes of this program, and another one is the first.
bool is_later_process() {
  for (char const* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (char const* const rank = std::getenv(name); rank != nullptr)
      return std::string_view(rank) != "0";
  return false;
}

/// Told on stderr. With --json a script finds the reason where it looks for the answer, too.
void tell_failure(std::vector<std::string> const& words, int code, std::string_view sentence) {
  PhaseLine::hold(true);  // nothing follows an error while MPI ends
  log(LogLevel::error, sentence);
  if (std::find(words.begin(), words.end(), "--json") == words.end()) return;
  capture([&] {
    write_to_stdout(Json().set("exit_code", code).set("error", sentence).dump(2) + "\n");
  });
}

/// Carries out a command line that needs no rank.
int print_only(CommandLine const& line, std::vector<std::string> const& words) {
  if (line.code != 0) {
    std::string_view text = line.text;
    if (text.starts_with(error_word)) text.remove_prefix(error_word.size());
    while (text.ends_with('\n')) text.remove_suffix(1);
    // Every process has found the same: stdout shall have one document.
    tell_failure(is_later_process() ? std::vector<std::string>() : words, line.code, text);
    return line.code;
  }
  auto const error = capture([&] { write_to_stdout(line.text); });
  if (!error) return 0;
  log(LogLevel::error, error->sentence());
  return exit_code(error->kind());
}

void take_signals() {
  for (int const signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) std::signal(signal, request_stop);
  std::signal(SIGPIPE, SIG_IGN);  // who reads our words may go, the job stays
}

int understand_and_run(int argc, char** argv, Commands const& commands) {
  std::vector<std::string> const words(argv + std::min(argc, 1), argv + argc);
  CommandLine const line = parse_command_line(argc, argv, commands);
  if (line.command == nullptr) return print_only(line, words);
  return_large_memory_at_once();
  if (line.command->is_job()) take_signals();
  begin_phase("starting");
  PhaseLine const phases(is_later_process() ? PhaseLine::Style::none : line.command->phases());
  int code = 0;
  int rank = 0;
  auto const error = capture([&] {
    MpiSession const session(&argc, &argv);
    Comm const comm = Comm::world();
    rank = comm.rank();
    auto const failed = capture([&] { code = execute(*line.command, words, comm); });
    if (!failed) return;
    // Every rank has this error: the lowest one reports it.
    code = exit_code(failed->kind());
    if (rank == 0) tell_failure(words, code, failed->sentence());
  });
  if (!error) return code;
  tell_failure(words, exit_code(error->kind()), error->sentence());
  return exit_code(error->kind());
}

}  // namespace

int run_program(int argc, char** argv, Commands const& commands) {
  int code = 0;
  set_log_format(LogFormat::automatic);
  auto const error = capture([&] { code = understand_and_run(argc, argv, commands); });
  if (!error) return code;
  log(LogLevel::error, error->sentence());
  return exit_code(error->kind());
}

}  // namespace reshard
