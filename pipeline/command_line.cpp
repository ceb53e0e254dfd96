#include "pipeline/command_line.hpp"

#include <CLI/CLI.hpp>

#include "pipeline/job_spec.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

constexpr char const* footer = R"(Examples:
  mpirun -n 8 reshard run job.toml --set run.memory="2 GiB"
  reshard inspect /data/model/iter_0001000
  mpirun -n 8 reshard verify /data/model/iter_0001000 /data/model-hf

The job file: reshard --print-defaults shows every key. Under Slurm: srun --mpi=pmix reshard run job.toml
Exit codes: 0 done; verify, diff: same · 1 verify, diff: different · 2 usage or job file · 3 source · 4 target exists or is locked · 5 input/output · 6 disk or memory
            7 self-check · 8 a rank stalled · 70 a bug · 75 interrupted, run again)";

/// What the options write into.
struct Parsed {
  RunCommand run;
  RunCommand plan;
  InspectCommand inspect;
  ListCommand list;
  CheckMapCommand check;
  DigestCommand digest;
  VerifyCommand verify;
  VerifyCommand diff;
  bool logical = false;
  bool version = false;
  bool json = false;
  bool defaults = false;
};

/// Reads an optional positive size.
void add_size(CLI::App& app, std::string const& name, std::optional<int>& into, std::string const& text) {
  app.add_option_function<int>(
         name, [&into](int value) { into = value; }, text)
      ->check(CLI::Range(1, 999999))
      ->type_name("N");
}

void add_run(CLI::App& app, char const* name, char const* text, RunCommand& command, bool may_dry_run) {
  CLI::App* sub = app.add_subcommand(name, text);
  sub->add_option("JOB.toml", command.job_file, "the job file")->required()->type_name("");
  sub->add_option("--set", command.overrides, "override a key of the job file: --set target.layout.tp=4")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sub->add_option_function<std::string>(
         "--device", [&command](std::string const& value) { command.overrides.push_back("run.device=" + value); },
         "short for --set run.device=WHERE: auto, host, cuda or emulated")
      ->type_name("WHERE");
  if (may_dry_run) {
    CLI::Option* dry = sub->add_flag("--dry-run", command.dry_run, "plan only, as `reshard plan` does");
    sub->add_option("--trace", command.trace_file, "write the run's timeline to FILE, for Perfetto or chrome://tracing")
        ->type_name("FILE")
        ->excludes(dry);
  }
  sub->add_flag("--json", command.json, "one JSON document on stdout");
}

void add_looks(CLI::App& app, Parsed& parsed) {
  CLI::App* inspect = app.add_subcommand("inspect", "what a checkpoint is: format and layout, with the reason for each conclusion");
  inspect->add_option("PATH", parsed.inspect.path, "a checkpoint folder")->required()->type_name("");
  add_size(*inspect, "--expert-parallel-size", parsed.inspect.sizes.ep, "what the loader would be told; 1 asks for the non-EP reader");
  add_size(*inspect, "--tensor-parallel-size", parsed.inspect.sizes.tp, "the same for tensor parallelism");
  add_size(*inspect, "--pipeline-parallel-size", parsed.inspect.sizes.pp, "the same for pipeline parallelism");
  add_size(*inspect, "--expert-tensor-parallel-size", parsed.inspect.sizes.etp, "the same for expert tensor parallelism");
  inspect->add_flag("--json", parsed.inspect.json, "one JSON document on stdout");
  CLI::App* list = app.add_subcommand("ls", "every tensor with dtype, shape and place; reads headers only");
  list->add_option("PATH", parsed.list.path, "a checkpoint folder")->required()->type_name("");
  list->add_flag("--logical", parsed.logical, "the model's logical tensors instead of the stored ones");
  list->add_option("--map", parsed.list.map, "model map for --logical (default: auto)")->type_name("MAP");
  list->add_flag("--json", parsed.list.json, "one JSON document on stdout");
  CLI::App* check = app.add_subcommand("check-map", "what a model map says of a model, and whether every element has one place on both sides");
  check->add_option("MAP", parsed.check.map, "a map of the map folder, or a path")->required()->type_name("");
  CLI::Option* config = check->add_option("--config", parsed.check.config, "config.json or its folder: the model to prove it on")->type_name("PATH");
  check->add_option("--args", parsed.check.args, "the same from Megatron's args, as a JSON file")->type_name("FILE")->excludes(config);
  check->add_flag("--json", parsed.check.json, "one JSON document on stdout");
}

constexpr char const* verify_text =
    "compare two checkpoints of any formats and layouts bit by bit; or one with the record of its own files and tensors (reshard.json, "
    "integrity.json): exit code 0 when all is the same, 1 when not (start it with mpirun or srun to read in parallel)";
constexpr char const* diff_text =
    "the same by values, also of different dtypes: by how much each tensor differs, largest first; exit code 0 when nothing differs, 1 when "
    "anything does";

CLI::App* add_comparison(CLI::App& app, char const* name, char const* text, VerifyCommand& command, int least_paths) {
  CLI::App* sub = app.add_subcommand(name, text);
  sub->add_option("PATHS", command.paths, "A and B: two checkpoints. All replicas in B are compared, of those in A one")
      ->required()
      ->expected(least_paths, 2)
      ->type_name("");
  sub->add_option("--map", command.map, "model map (default: auto); none: tensors by their stored names")->type_name("MAP");
  sub->add_option("--config-a", command.config_a, "config.json or its folder, where A has none (default: B's)")->type_name("PATH");
  sub->add_option("--config-b", command.config_b, "the same for B (default: A's)")->type_name("PATH");
  sub->add_option("--limit", command.limit, "rows to show; totals are complete (default: 50)")->type_name("N");
  sub->add_flag("--json", command.json, "one JSON document on stdout, with all rows");
  return sub;
}

void add_digest(CLI::App& app, DigestCommand& command) {
  CLI::App* sub = app.add_subcommand("digest", "read a checkpoint and print the digest of every logical tensor: the same in every layout and format");
  sub->add_option("PATH", command.path, "a checkpoint")->required()->type_name("");
  sub->add_option("--map", command.map, "model map (default: auto); none: tensors by their stored names")->type_name("MAP");
  sub->add_option("--config", command.config, "config.json or its folder, where the checkpoint has none")->type_name("PATH");
  sub->add_flag("--json", command.json, "one JSON document on stdout");
}

Command chosen(CLI::App const& app, Parsed& parsed) {
  if (parsed.version) return PrintCommand{parsed.json ? version_json().dump(2) + "\n" : version_text(), 0};
  if (parsed.defaults) return PrintCommand{default_job_text(), 0};
  if (app.got_subcommand("run")) return parsed.run;
  if (app.got_subcommand("plan")) {
    parsed.plan.dry_run = true;
    return parsed.plan;
  }
  if (app.got_subcommand("inspect")) return parsed.inspect;
  if (app.got_subcommand("ls")) {
    parsed.list.listing = parsed.logical ? Listing::logical : Listing::stored;
    return parsed.list;
  }
  if (app.got_subcommand("check-map")) return parsed.check;
  if (app.got_subcommand("digest")) return parsed.digest;
  if (app.got_subcommand("verify")) {
    if (parsed.verify.paths.size() == 2 && parsed.verify.replicas)
      return PrintCommand{"error: --replicas looks inside one checkpoint. Name one path, or leave it out: of B all replicas are compared anyway.\n",
                          2};
    return parsed.verify;
  }
  if (app.got_subcommand("diff")) {
    parsed.diff.values = true;
    return parsed.diff;
  }
  return PrintCommand{
      "error: what to do? Name a command: run, plan, verify, diff, digest, inspect, ls or check-map. `reshard --help` describes them.\n", 2};
}

}  // namespace

Command parse_command_line(int argc, char const* const* argv) {
  Parsed parsed;
  CLI::App app("Rewrites a large-model checkpoint from any TP x PP x EP layout into any other.", "reshard");
  app.footer(footer);
  app.set_help_flag("-h,--help", "this text, or a command's with `reshard COMMAND --help`");
  app.add_flag("--version", parsed.version, "version and libraries; with --json as JSON");
  app.add_flag("--json", parsed.json, "with --version");
  app.add_flag("--print-defaults", parsed.defaults, "a complete, commented job file");
  app.require_subcommand(0, 1);
  add_run(app, "run", "carry out a job: read, plan, redistribute, write (start it with mpirun or srun)", parsed.run, true);
  add_run(app, "plan", "what the job would do: tensors, bytes, files, rounds, memory, disk; touches no data", parsed.plan, false);
  add_comparison(app, "verify", verify_text, parsed.verify, 1)
      ->add_flag("--replicas", parsed.verify.replicas, "of one checkpoint: all copies inside it are compared, too");
  add_comparison(app, "diff", diff_text, parsed.diff, 2);
  add_digest(app, parsed.digest);
  add_looks(app, parsed);
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    CLI::App const* asked = &app;
    for (CLI::App const* sub : app.get_subcommands()) asked = sub;
    return PrintCommand{asked->help(), 0};
  } catch (CLI::ParseError const& error) {
    return PrintCommand{fmt::format("error: command line: {}. `reshard --help` shows the commands and options.\n", error.what()), 2};
  }
  return chosen(app, parsed);
}

}  // namespace reshard
