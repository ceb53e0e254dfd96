#pragma once

#include <CLI/CLI.hpp>

#include "pipeline/cli/command.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/messages/log.hpp"

namespace reshard {

/// A command that reads one checkpoint and prints an answer, as text or as JSON. `Query` is a
/// CheckpointQuery with more.
template <class Query>
class CheckpointCommand : public Command {
 public:
  int run(Surroundings const& surroundings, Comm const& comm) final {
    query_.library = surroundings.library;
    follow_job(comm);
    return answer(comm);
  }

 protected:
  /// Asks the query. Collective. The exit code.
  virtual int answer(Comm const& comm) = 0;

  void add_path(CLI::App& command) {
    command.add_option("PATH", query_.path, "a checkpoint")->required()->type_name("");
  }
  /// --map, --config and --prefix, or --source.
  void add_reading(CLI::App& command) {
    add_map(command, query_.map);
    add_config(command, query_.config);
    add_prefix(command, query_.prefix);
    add_source_job(command, source_job_);
  }
  void add_json_choice(CLI::App& command) { add_json(command, json_); }

  /// On rank 0, with its notes on stderr.
  template <class Answer>
  void print(Answer const& answer, Comm const& comm) const {
    if (comm.rank() != 0) return;
    if constexpr (requires { answer.notes; }) warn(answer.notes);
    write_to_stdout(json_ ? answer.json.dump(2) + "\n" : answer.text);
  }

  void add_source(CLI::App& command) { add_source_job(command, source_job_); }

  Query query_;

 private:
  void follow_job(Comm const& comm) {
    if (source_job_.empty()) return;
    if (query_.map != "auto" || !query_.config.empty() || !query_.prefix.empty())
      fail(ErrorKind::usage, "{}", source_job_alone);
    query_.job = read_source_job(source_job_, query_.library, comm);
    query_.map = query_.job->model.map;
    query_.config = query_.job->source.config;
    query_.prefix = query_.job->source.prefix;
  }

  std::string source_job_;  ///< "" for none
  bool json_ = false;
};

}  // namespace reshard
