#include "pipeline/cli/command_line.hpp"

#include <algorithm>
#include <array>

#include <CLI/CLI.hpp>

#include "pipeline/cli/command_facts.hpp"
#include "pipeline/cli/command_words.hpp"
#include "pipeline/cli/completion.hpp"
#include "pipeline/cli/manual.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

constexpr char const* examples = R"(reshard init /data/model/iter_0001000 -o job.toml
mpirun -n 8 reshard run job.toml --set run.memory="2 GiB"
mpirun -n 8 reshard verify /data/model/iter_0001000 /data/model-hf
srun --mpi=pmix reshard run job.toml)";

/// What the options write into.
struct Parsed {
  RunCommand run;
  RunCommand plan;
  RunCommand nightly;
  InitCommand init;
  CleanCommand clean;
  InspectCommand inspect;
  ListCommand list;
  CheckMapCommand check;
  DigestCommand digest;
  VerifyCommand verify;
  VerifyCommand diff;
  ViewCommand view;
  bool logical = false;
  bool version = false;
  bool json = false;
  bool defaults = false;
  std::string shell;
  std::string page;
};

/// The words that a key of the job file takes, as a type name: "auto|host".
std::string choices_of(std::string_view key) {
  for (job::Field const& field : job::fields())
    if (field.key() == key) return fmt::format("{}", fmt::join(field.choices, "|"));
  return "";
}

/// Reads an optional positive size.
void add_size(CLI::App& app, std::string const& name, std::optional<int>& into, std::string const& text) {
  app.add_option_function<int>(
         name, [&into](int value) { into = value; }, text)
      ->check(CLI::Range(1, 999999))
      ->type_name("N");
}

ProgressStyle progress_style(std::string_view word) {
  if (word == "live") return ProgressStyle::live;
  if (word == "lines") return ProgressStyle::lines;
  return word == "none" ? ProgressStyle::none : ProgressStyle::automatic;
}

struct RunTexts {
  char const* name;
  char const* text;
  char const* examples;
};

void add_run(CLI::App& app, RunTexts const& texts, RunCommand& command, bool may_dry_run) {
  CLI::App* sub = app.add_subcommand(texts.name, texts.text)->footer(texts.examples);
  sub->add_option("JOB.toml", command.job_file, "the job file")->required()->type_name("");
  sub->add_option("--set", command.overrides, "override a key of the job file, such as target.layout.tp=4")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sub->add_option_function<std::string>(
         "--device", [&command](std::string const& value) { command.overrides.push_back("run.device=" + value); }, "sets run.device of the job file")
      ->type_name(choices_of("run.device"));
  if (may_dry_run) {
    CLI::Option* dry = sub->add_flag("--dry-run", command.dry_run, "plan only, as `reshard plan` does");
    sub->add_option("--trace", command.trace_file, "write the run's timeline to FILE, for Perfetto or chrome://tracing")
        ->type_name("FILE")
        ->excludes(dry);
    sub->add_option("--events", command.events_file, "append what happens to FILE (- for stdout) as NDJSON; the last line has the exit code")
        ->type_name("FILE")
        ->excludes(dry);
    sub->add_option_function<std::string>(
           "--progress", [&command](std::string const& style) { command.progress = progress_style(style); },
           "how progress is shown on stderr: auto is a live line on a terminal and lines elsewhere (default: auto)")
        ->type_name("auto|live|lines|none")
        ->check(CLI::IsMember(std::vector<std::string>{"auto", "live", "lines", "none"}));
    sub->add_flag("--fresh", command.fresh, "begin anew instead of going on with what an interrupted run left");
    sub->add_flag("--quiet", command.quiet, "only warnings and errors; no report but with --json");
  }
  sub->add_flag("--json", command.json, "one JSON document on stdout");
}

void add_looks(CLI::App& app, Parsed& parsed) {
  CLI::App* inspect = app.add_subcommand("inspect", "what a checkpoint is: format and layout, with the reason for each conclusion")
                          ->footer("reshard inspect /data/model/iter_0001000");
  inspect->add_option("PATH", parsed.inspect.path, "a checkpoint folder")->required()->type_name("");
  add_size(*inspect, "--expert-parallel-size", parsed.inspect.sizes.ep, "what the loader would be told; 1 asks for the non-EP reader");
  add_size(*inspect, "--tensor-parallel-size", parsed.inspect.sizes.tp, "the same for tensor parallelism");
  add_size(*inspect, "--pipeline-parallel-size", parsed.inspect.sizes.pp, "the same for pipeline parallelism");
  add_size(*inspect, "--expert-tensor-parallel-size", parsed.inspect.sizes.etp, "the same for expert tensor parallelism");
  inspect->add_flag("--json", parsed.inspect.json, "one JSON document on stdout");
  CLI::App* list =
      app.add_subcommand("ls", "every tensor with dtype, shape and place; reads headers only")->footer("reshard ls /data/model-hf --logical");
  list->add_option("PATH", parsed.list.path, "a checkpoint folder")->required()->type_name("");
  list->add_flag("--logical", parsed.logical, "the model's logical tensors instead of the stored ones");
  list->add_option("--map", parsed.list.map, "model map for --logical (default: auto)")->type_name("MAP");
  list->add_flag("--json", parsed.list.json, "one JSON document on stdout");
  CLI::App* check = app.add_subcommand("check-map", "what a model map says of a model, and whether every element has one place on both sides")
                        ->footer("reshard check-map qwen3_moe --config /data/model-hf");
  check->add_option("MAP", parsed.check.map, "a map of the map folder, or a path")->required()->type_name("");
  CLI::Option* config = check->add_option("--config", parsed.check.config, "config.json or its folder: the model to prove it on")->type_name("PATH");
  check->add_option("--args", parsed.check.args, "the same from Megatron's args, as a JSON file")->type_name("FILE")->excludes(config);
  check->add_flag("--json", parsed.check.json, "one JSON document on stdout");
}

CLI::App* add_comparison(CLI::App& app, RunTexts const& texts, VerifyCommand& command, int least_paths) {
  CLI::App* sub = app.add_subcommand(texts.name, texts.text)->footer(texts.examples);
  sub->add_option("PATH", command.paths, "A and B: two checkpoints. All replicas in B are compared, of those in A one")
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
  CLI::App* sub = app.add_subcommand("digest", "read a checkpoint and print the digest of every logical tensor: the same in every layout and format")
                      ->footer("mpirun -n 8 reshard digest /data/model-hf --json");
  sub->add_option("PATH", command.path, "a checkpoint")->required()->type_name("");
  sub->add_option("--map", command.map, "model map (default: auto); none: tensors by their stored names")->type_name("MAP");
  sub->add_option("--config", command.config, "config.json or its folder, where the checkpoint has none")->type_name("PATH");
  sub->add_flag("--json", command.json, "one JSON document on stdout");
}

void add_view(CLI::App& app, ViewCommand& command) {
  CLI::App* sub = app.add_subcommand("view", "draw which file holds what, and what a job moves, as one HTML page; or the timeline of a run")
                      ->footer("reshard view job.toml -o layout.html");
  CLI::Option* subject =
      sub->add_option("PATH|JOB.toml", command.subject, "a checkpoint, or a job file: source and target side by side")->type_name("");
  sub->add_option("-o,--output", command.output, "the page to write; - writes it to stdout")->type_name("FILE");
  sub->add_option("--trace", command.trace_file, "show this timeline, which `run --trace` wrote")->type_name("FILE")->excludes(subject);
  sub->add_option("--set", command.overrides, "override a key of the job file")->type_name("KEY=VALUE")->allow_extra_args(false);
  sub->add_option("--map", command.map, "model map of a checkpoint (default: auto); none: tensors by their stored names")->type_name("MAP");
  sub->add_option("--config", command.config, "config.json or its folder, where the checkpoint has none")->type_name("PATH");
  sub->add_flag("--plain", command.plain, "do not compress the data in the page, for browsers older than 2023");
  sub->add_flag("--json", command.json, "the same data as one JSON document on stdout");
}

PrintCommand mistake(std::string const& text) { return {"error: " + text + "\n", 2}; }

/// What the options cannot mean together.
std::string mistake_of(ViewCommand const& view) {
  if (view.subject.empty() && view.trace_file.empty()) return "view: what to show? Name a checkpoint, a job file, or a timeline with --trace.";
  if (!view.output && !view.json) return "view: where to? Name a file with -o, or ask for --json.";
  if (view.output == "-" && view.json) return "view: -o - and --json both write to stdout. Name a file with -o, or leave one out.";
  if (view.is_job() && (view.map || view.config))
    return "view: a job file states map and config itself. Use --set model.map=… or --set source.config=….";
  if (!view.is_job() && !view.overrides.empty()) return "view: --set overrides keys of a job file, and none is named. Leave it out.";
  if (!view.trace_file.empty() && (view.map || view.config)) return "view: --map and --config describe a checkpoint, not a timeline. Leave them out.";
  return "";
}

Command chosen(CLI::App const& app, Parsed& parsed) {
  if (parsed.version) return PrintCommand{parsed.json ? version_json().dump(2) + "\n" : version_text(), 0};
  if (parsed.defaults) return PrintCommand{default_job_text(), 0};
  if (app.got_subcommand("run")) return parsed.run;
  if (app.got_subcommand("plan")) {
    parsed.plan.dry_run = true;
    return parsed.plan;
  }
  if (app.got_subcommand("nightly")) return NightlyCommand{parsed.nightly};
  if (app.got_subcommand("init")) return parsed.init;
  if (app.got_subcommand("clean")) return parsed.clean;
  if (app.got_subcommand("inspect")) return parsed.inspect;
  if (app.got_subcommand("ls")) {
    parsed.list.listing = parsed.logical ? Listing::logical : Listing::stored;
    return parsed.list;
  }
  if (app.got_subcommand("check-map")) return parsed.check;
  if (app.got_subcommand("digest")) return parsed.digest;
  if (app.got_subcommand("verify")) {
    if (parsed.verify.paths.size() == 2 && parsed.verify.replicas)
      return mistake("--replicas looks inside one checkpoint. Name one path, or leave it out: of B all replicas are compared anyway.");
    return parsed.verify;
  }
  if (app.got_subcommand("diff")) {
    parsed.diff.values = true;
    return parsed.diff;
  }
  if (app.got_subcommand("view")) {
    std::string const wrong = mistake_of(parsed.view);
    if (!wrong.empty()) return mistake(wrong);
    return parsed.view;
  }
  if (app.got_subcommand("completion")) return PrintCommand{completion_script(parsed.shell, command_table(app)), 0};
  if (app.got_subcommand("man")) return PrintCommand{manual_page(parsed.page, command_table(app)), 0};
  std::vector<std::string> names;
  for (CommandFacts const& command : command_table(app))
    if (!command.name.empty()) names.push_back(command.name);
  return PrintCommand{fmt::format("error: what to do? Name a command: {}. `reshard --help` describes them.\n", fmt::join(names, ", ")), 2};
}

void add_init(CLI::App& app, InitCommand& command) {
  CLI::App* sub = app.add_subcommand("init", "write a job file for a source: what it is, which targets are possible, which policies they need")
                      ->footer("reshard init /data/model/iter_0001000 -o job.toml");
  std::string const formats = choices_of("target.format");
  sub->add_option("SOURCE", command.source, "a checkpoint")->required()->type_name("");
  sub->add_option("-o,--output", command.output, "the job file to write, which must not exist (default: stdout)")->type_name("FILE");
  sub->add_option("--target-format", command.target_format, "what to make of it (default: what is asked for most)")
      ->check(CLI::IsMember(choices_of_word(formats)))
      ->type_name(formats);
}

/// What shells and packagers need.
void add_texts(CLI::App& app, Parsed& parsed) {
  CLI::App* completion = app.add_subcommand("completion", "the script that completes commands, options and keys in a shell")
                             ->footer("source <(reshard completion bash)");
  completion->add_option("bash|zsh|fish", parsed.shell, "the shell")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  CLI::App* man = app.add_subcommand("man", "a page of the manual, for packagers")->group("");
  man->add_option("PAGE", parsed.page, "the page")->required()->type_name("")->check(CLI::IsMember(manual_pages()));
}

void add_commands(CLI::App& app, Parsed& parsed) {
  add_run(app,
          {"run", "carry out a job: read, plan, redistribute, write (start it with mpirun or srun)",
           "mpirun -n 8 reshard run job.toml --set run.memory=\"2 GiB\""},
          parsed.run, true);
  add_run(app,
          {"plan", "what a job would do: tensors, bytes, files, rounds, memory, disk; writes nothing",
           "reshard plan job.toml --set target.layout.tp=4 --json"},
          parsed.plan, false);
  add_init(app, parsed.init);
  add_run(app,
          {"nightly", "convert the newest complete checkpoint of a training directory, when that is not done yet; keep the last few",
           "srun --mpi=pmix reshard nightly nightly.toml"},
          parsed.nightly, true);
  app.add_subcommand("clean", "remove what interrupted runs left beside a target; the target itself stays")
      ->footer("reshard clean /data/model-hf")
      ->add_option("TARGET", parsed.clean.target, "target.path of the job")
      ->required()
      ->type_name("");
  add_comparison(
      app,
      {"verify", "compare two checkpoints of any formats and layouts bit by bit, or one with its own reshard.json; exit code 1 when they differ",
       "mpirun -n 8 reshard verify /data/model/iter_0001000 /data/model-hf"},
      parsed.verify, 1)
      ->add_flag("--replicas", parsed.verify.replicas, "of one checkpoint: all copies inside it are compared, too");
  add_comparison(app,
                 {"diff", "the same by values, also of different dtypes: by how much each tensor differs, largest first",
                  "mpirun -n 8 reshard diff /data/model-hf /data/model-hf-finetuned --limit 10"},
                 parsed.diff, 2);
  add_digest(app, parsed.digest);
  add_looks(app, parsed);
  add_view(app, parsed.view);
  add_texts(app, parsed);
}

/// Of an option that takes one value, the last one counts: scripts can put defaults before what a user adds.
void let_the_last_win(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    for (CLI::Option* option : command->get_options())
      if (!option->get_positional() && option->get_items_expected_max() <= 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

/// A path that is "", perhaps from a variable of a script that is not set.
std::string empty_path(CLI::App const& command) {
  for (CLI::Option const* option : command.get_options()) {
    WordKind const kind = kind_of_word(option->get_positional() ? option->get_name(true) : option->get_type_name());
    if (kind != WordKind::file && kind != WordKind::path) continue;
    for (std::string const& word : option->results())
      if (word.empty()) return fmt::format("{}: {}: the path is empty. Name one.", command.get_name(), option->get_name(option->get_positional()));
  }
  return "";
}

CLI::App const* command_of(CLI::App const& app) {
  CLI::App const* command = &app;
  for (CLI::App const* sub : app.get_subcommands()) command = sub;
  return command;
}

/// `reshard --json inspect X` means what `reshard inspect --json X` means.
std::vector<std::string> json_behind_command(std::vector<std::string> words) {
  auto const command = std::find_if(words.begin(), words.end(), [](std::string const& word) { return !word.starts_with('-'); });
  auto const json = std::find(words.begin(), command, "--json");
  if (json != command && command != words.end()) std::rotate(json, json + 1, command + 1);
  return words;
}

/// `reshard help`, `reshard help COMMAND`.
PrintCommand help_of(CommandTable const& table, std::span<std::string const> names) {
  std::string const name = names.empty() ? "" : names.front();
  for (CommandFacts const& command : table)
    if (command.name == name) return {help_text(table, name), 0};
  return mistake("command line: " + unknown_command(table, name));
}

}  // namespace

Command parse_command_line(int argc, char const* const* argv) {
  Parsed parsed;
  CLI::App app("Rewrites a large-model checkpoint from any TP x PP x EP layout into any other.", "reshard");
  app.set_help_flag("-h,--help", "this text");
  app.add_flag("--version", parsed.version, "version and libraries; with --json as JSON");
  app.add_flag("--json", parsed.json, "with --version, or in front of a command that has it");
  app.add_flag("--print-defaults", parsed.defaults, "a complete, commented job file");
  app.require_subcommand(0, 1);
  add_commands(app, parsed);
  let_the_last_win(app);
  app.footer(examples);
  app.get_help_ptr()->description("this text, or a command's with `reshard COMMAND --help`");
  std::vector<std::string> const words = json_behind_command({argv + std::min(argc, 1), argv + argc});
  CommandTable const table = command_table(app);
  if (!words.empty() && words.front() == "help") return help_of(table, std::span(words).subspan(1));
  std::string const unknown = unknown_word(table, words, std::array<std::string, 1>{"man"});
  if (!unknown.empty()) return mistake("command line: " + unknown);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them from the back
  } catch (CLI::CallForHelp const&) {
    CLI::App const* asked = command_of(app);
    return PrintCommand{help_text(table, asked == &app ? "" : asked->get_name()), 0};
  } catch (CLI::ParseError const& error) {
    CLI::App const* meant = command_of(app);
    std::string const program = meant == &app ? "reshard" : "reshard " + meant->get_name();
    return mistake(fmt::format("command line: {}. `{} --help` shows what it takes.", error.what(), program));
  }
  std::string const empty = empty_path(*command_of(app));
  return empty.empty() ? chosen(app, parsed) : mistake(empty);
}

}  // namespace reshard
