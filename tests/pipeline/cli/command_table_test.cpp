#include "pipeline/cli/command_table.hpp"

#include <array>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "pipeline/cli/command_line.hpp"
#include "pipeline/cli/completion.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard {
namespace {

/// What is printed at once; code -1 for a command.
CommandLine printed(std::vector<char const*> words) {
  words.insert(words.begin(), "reshard");
  Commands const commands = all_commands();
  CommandLine const line =
      parse_command_line(static_cast<int>(words.size()), words.data(), commands);
  return line.command == nullptr ? line : CommandLine{nullptr, "", -1};
}

/// The names in the list of commands.
std::vector<std::string> command_names() {
  std::vector<std::string> names;
  std::istringstream help(printed({"--help"}).text);
  bool inside = false;
  for (std::string line; std::getline(help, line);) {
    inside = line == "Commands:" || (inside && !line.empty());
    if (inside && line.size() > 3 && line.starts_with("  ") && line[2] != ' ')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

TEST(Words, AreToldByTheirTypeNames) {
  EXPECT_EQ(kind_of_word(""), WordKind::none);
  EXPECT_EQ(kind_of_word("KEY=VALUE"), WordKind::setting);
  EXPECT_EQ(kind_of_word("auto|host|cuda"), WordKind::choice);
  EXPECT_EQ(kind_of_word("PATH|JOB.toml"), WordKind::file);
  EXPECT_EQ(kind_of_word("JOB.toml"), WordKind::file);
  EXPECT_EQ(kind_of_word("FILE|-"), WordKind::file);
  EXPECT_EQ(kind_of_word("PATH"), WordKind::path);
  EXPECT_EQ(kind_of_word("MAP"), WordKind::map);
  EXPECT_EQ(kind_of_word("N"), WordKind::number);
  EXPECT_EQ(choices_of_word("auto|host|cuda"), (std::vector<std::string>{"auto", "host", "cuda"}));
  EXPECT_TRUE(choices_of_word("PATH|JOB.toml").empty());
}

TEST(Wrapping, BreaksBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 7, 2, 0), "one two\n  three");
  EXPECT_EQ(wrapped("one two three", 7, 0, 4), "one\ntwo\nthree");
  EXPECT_EQ(wrapped("incomprehensibilities", 5, 0, 0), "incomprehensibilities");
  EXPECT_EQ(wrapped("", 5, 0, 0), "");
}

TEST(Help, OfEveryCommandFitsOneScreenAndHasAnExample) {
  std::vector<std::string> const names = command_names();
  ASSERT_GE(names.size(), 10U);
  for (std::string const& name : names) {
    CommandLine const help = printed({name.c_str(), "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_NE(help.text.find("Usage: reshard " + name), std::string::npos) << help.text;
    EXPECT_NE(help.text.find("\nExample:\n"), std::string::npos) << name;
    EXPECT_NE(help.text.find("reshard " + name, help.text.find("\nExample:\n")), std::string::npos)
        << name;
    EXPECT_LE(std::count(help.text.begin(), help.text.end(), '\n'), 42) << name;
  }
}

TEST(Help, HasNoLineOfMoreThan80Columns) {
  std::vector<std::string> names = command_names();
  names.emplace_back("");
  for (std::string const& name : names) {
    std::istringstream help(name.empty() ? printed({"--help"}).text
                                         : printed({name.c_str(), "--help"}).text);
    for (std::string line; std::getline(help, line);)
      EXPECT_LE(line.size(), 80U) << name << ": " << line;
  }
}

TEST(Help, OfTheProgramNamesExitCodes) {
  std::string text = printed({"--help"}).text;
  std::replace(text.begin(), text.end(), '\n', ' ');
  for (ExitCode const& code : exit_codes())
    EXPECT_NE(text.find(fmt::format("{} ", code.code)), std::string::npos) << code.code;
}

TEST(CommandLine, SaysWhatThereIsToDo) {
  CommandLine const said = printed({});
  EXPECT_EQ(said.code, 2);
  for (std::string const& name : command_names())
    EXPECT_NE(said.text.find(name), std::string::npos) << name;
}

/// The mistake that these words are told to be.
std::string mistake(std::vector<char const*> words) {
  CommandLine const said = printed(std::move(words));
  EXPECT_EQ(said.code, 2);
  EXPECT_TRUE(said.text.starts_with("error: ")) << said.text;
  return said.text;
}

bool says(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(CommandLine, NamesAnOptionThatDoesNotExist) {
  EXPECT_TRUE(
      says(mistake({"run", "--bad"}), "`reshard run` has no option --bad. `reshard run --help`"));
  EXPECT_TRUE(says(mistake({"clean", "-x"}), "`reshard clean` has no option -x."));
  EXPECT_TRUE(says(mistake({"plan", "-j.toml"}), "`reshard plan` has no option -j.toml."));
  EXPECT_TRUE(
      says(mistake({"run", "job.toml", "--evnts=x"}), "no option --evnts. Did you mean --events?"));
  EXPECT_TRUE(
      says(mistake({"--verison"}), "`reshard` has no option --verison. Did you mean --version?"));
  EXPECT_TRUE(says(mistake({"run"}), "`reshard run --help`"));
  EXPECT_FALSE(says(mistake({"run", "--trace"}), "has no option"));
}

TEST(CommandLine, TakesTheWordAfterAnOptionForItsValue) {
  for (std::vector<char const*> const& words :
       {std::vector<char const*>{"run", "--trace", "--odd", "job.toml"},
        {"view", "model", "-o--odd"},
        {"inspect", "--", "--odd"},
        {"verify", "a", "b", "--limit=3", "--map", "-x"}})
    EXPECT_EQ(printed(words).code, -1) << words.front() << ": " << printed(words).text;
}

TEST(CommandLine, NamesACommandThatDoesNotExist) {
  EXPECT_TRUE(says(mistake({"extract", "x", "*", "-o", "-"}), "extract: -o -: all ranks write"));
  EXPECT_TRUE(says(mistake({"convert", "x", "y", "--tp", "2"}), "Did you mean --layout tp=2?"));
  EXPECT_TRUE(says(mistake({"convert", "x", "y", "--ep=4"}), "Did you mean --layout ep=4?"));
  EXPECT_TRUE(
      says(mistake({"run", "job.toml", "--tp=2"}), "Did you mean --set target.layout.tp=2?"));
  EXPECT_TRUE(says(mistake({"rum", "job.toml"}), "unknown command 'rum'. Did you mean run?"));
  EXPECT_TRUE(
      says(mistake({"somethingelse"}), "unknown command 'somethingelse'. `reshard --help`"));
  EXPECT_TRUE(says(mistake({"help", "veriyf"}), "Did you mean verify?"));
}

TEST(CommandLine, AViewIsOfOneThing) {
  auto const view = [](std::vector<char const*> words) {
    words.insert(words.begin(), "view");
    words.insert(words.end(), {"-o", "x.html"});
    return mistake(words);
  };
  EXPECT_TRUE(says(view({}), "no input given"));
  EXPECT_TRUE(says(view({"a", "job.toml"}), "a job file is shown alone"));
  EXPECT_TRUE(says(view({"a", "--prefix-b", "x"}), "belong to two checkpoints"));
  EXPECT_TRUE(says(view({"a", "b", "--prefix", "x"}), "Give --config-a"));
  EXPECT_TRUE(says(view({"a", "b", "--map-b", "none"}), "--map-b none"));
  EXPECT_TRUE(says(view({"a", "b", "--ranks", "4"}), "belong to a job file"));
  EXPECT_TRUE(says(view({"job.toml", "--map-a", "x"}), "names its own map"));
}

TEST(CommandLine, HelpIsACommandToo) {
  EXPECT_EQ(printed({"help"}).text, printed({"--help"}).text);
  EXPECT_EQ(printed({"help"}).code, 0);
  EXPECT_EQ(printed({"help", "view"}).text, printed({"view", "--help"}).text);
}

/// The options of a job, to be looked at.
struct JobOptionsAlone : Command {
  JobOptions options;
  CLI::App* add_to(CLI::App& app) override {
    return add_job_options(app, {"run", "", ""}, options, true);
  }
  int run(Surroundings const&, Comm const&) override { return 0; }
};

JobOptions run_command(std::vector<char const*> words) {
  words.insert(words.begin(), {"reshard", "run", "job.toml"});
  Commands commands;
  commands.push_back(std::make_unique<JobOptionsAlone>());
  CommandLine const line =
      parse_command_line(static_cast<int>(words.size()), words.data(), commands);
  EXPECT_EQ(line.command, commands.front().get());
  return static_cast<JobOptionsAlone&>(*commands.front()).options;
}

TEST(CommandLine, OfAnOptionThatIsRepeatedTheLastOneCounts) {
  EXPECT_EQ(run_command({"--progress", "none", "--progress", "live"}).progress,
            ProgressStyle::live);
  EXPECT_EQ(run_command({"--events", "a", "--events", "b", "--json", "--json"}).events_file, "b");
  EXPECT_EQ(run_command({"--set", "a=1", "--set", "b=2"}).overrides,
            (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_EQ(run_command({"--device", "cuda", "--device", "host"}).overrides,
            std::vector<std::string>{"run.device=host"});
  EXPECT_EQ(
      printed({"inspect", "a", "--tensor-parallel-size", "2", "--tensor-parallel-size", "4"}).code,
      -1);
}

TEST(CommandLine, APlanHasNoEventsAndNoTrace) {
  for (char const* command : {"run", "nightly"})
    for (char const* option : {"--events", "--trace"})
      EXPECT_TRUE(says(mistake({command, "job.toml", "--dry-run", option, "x"}), "--dry-run"));
}

TEST(CommandLine, AnEmptyPathIsNone) {
  for (char const* command : {"init", "run", "plan", "nightly", "clean", "inspect", "ls", "digest",
                              "suspects", "verify", "view"})
    EXPECT_TRUE(says(mistake({command, ""}), "the path is empty")) << command;
  EXPECT_TRUE(says(mistake({"diff", "a", ""}), "the path is empty"));
  EXPECT_TRUE(says(mistake({"convert", "", "b"}), "the path is empty"));
  EXPECT_TRUE(says(mistake({"extract", "", "*", "-o", "b"}), "the path is empty"));
  EXPECT_TRUE(says(mistake({"extract", "a", "*", "-o", ""}), "the path is empty"));
  EXPECT_TRUE(
      says(mistake({"verify", "a", "--subset", "1/2", "--record", ""}), "the path is empty"));
  EXPECT_TRUE(says(mistake({"init", "a", "-o", ""}), "init: --output: the path is empty"));
  EXPECT_TRUE(says(mistake({"run", "a", "--events", ""}), "the path is empty"));
}

/// A line each, of what `reshard __complete` offers for the last word.
std::string offered(std::vector<char const*> words) {
  words.insert(words.begin(), "__complete");
  CommandLine const line = printed(words);
  EXPECT_EQ(line.code, 0);
  return line.text;
}

TEST(Completion, OffersCommandsOptionsAndKeys) {
  for (std::string const& name : command_names())
    EXPECT_TRUE(says("\n" + offered({"bash", ""}), ("\n" + name + "\n").c_str())) << name;
  EXPECT_FALSE(says(offered({"bash", ""}), "man\n"));
  EXPECT_EQ(offered({"bash", "diff", "a", "--config-"}), "--config-a\n--config-b\n");
  std::string const keys = offered({"bash", "run", "--set", ""});
  for (job::Field const& field : job::fields())
    EXPECT_TRUE(says(keys, (field.key() + "=\n").c_str()));
  EXPECT_EQ(printed({"completion", "tcsh"}).code, 2);
}

/// The commands without --json, and why.
std::map<std::string, std::string> const without_json{{"completion", "prints a script of a shell"}};

/// The long options in the help of a command, except --help.
std::set<std::string> options_of(std::string const& help) {
  std::set<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    std::size_t const at = line.find("--");
    if (!line.starts_with("  -") || at == line.npos) continue;
    options.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  options.erase("--help");
  return options;
}

/// A page of roff as plain words.
std::string without_roff(std::string text) {
  for (std::string_view const mark : {"\\-", "\\fB", "\\fI", "\\fR"})
    for (std::size_t at = 0; (at = text.find(mark, at)) != text.npos;)
      text.replace(at, mark.size(), mark == "\\-" ? "-" : "");
  return text;
}

TEST(Commands, HaveJsonAManualAPageAndCompletions) {
  std::string const manual = without_roff(printed({"man", "reshard.1"}).text);
  std::string const page = read_text_file(RESHARD_SOURCE_DIR "/docs/commands.md", 1U << 20U);
  for (std::string const& name : command_names()) {
    if (name == "help") continue;
    std::string const help = printed({name.c_str(), "--help"}).text;
    EXPECT_NE(options_of(help).contains("--json"), without_json.contains(name)) << name;
    EXPECT_TRUE(says(manual, ("reshard " + name).c_str())) << name;
    EXPECT_TRUE(says(page, ("\n| `reshard " + name).c_str())) << name;
    std::string const completed = "\n" + offered({"bash", name.c_str(), "--"});
    for (std::string const& option : options_of(help)) {
      EXPECT_TRUE(says(completed, ("\n" + option + "\n").c_str()) ||
                  says(completed, ("\n" + option + "=\n").c_str()))
          << name << " " << option;
      EXPECT_TRUE(says(manual, option.c_str())) << name << " " << option;
    }
  }
}

TEST(Commands, EndWithExitCodesThatTheManualAndThePageList) {
  std::string const manual = without_roff(printed({"man", "reshard.1"}).text);
  std::string const page = read_text_file(RESHARD_SOURCE_DIR "/docs/troubleshooting.md", 1U << 20U);
  for (ExitCode const& code : exit_codes()) {
    EXPECT_TRUE(says(page, fmt::format("\n| {} | ", code.code))) << code.code;
    EXPECT_TRUE(says(manual, fmt::format("\n{}\n", code.code))) << code.code;
  }
}

TEST(Completion, ALineIsWhatTheShellPutsInPlaceOfTheWord) {
  EXPECT_EQ(offered({"bash", "run", "--set", "run.io", "=", "d"}), "direct\n");
  EXPECT_EQ(offered({"bash", "run", "--set", "run.io=d"}), "run.io=direct\n");
  EXPECT_EQ(offered({"fish", "run", "--set", "run.io=d"}), "run.io=direct\n");
  EXPECT_EQ(offered({"zsh", "run", "--set", "run.io=d"}), "direct:\n");
  EXPECT_EQ(offered({"bash", "run", "--device", "=", "e"}), "emulated\n");
  EXPECT_EQ(offered({"bash", "run", "--device=e"}), "--device=emulated\n");
  EXPECT_EQ(offered({"bash", "run", "--set=run.io=d"}), "--set=run.io=direct\n");
  EXPECT_EQ(offered({"zsh", "run", "--set=run.io=d"}), "direct:\n");
  EXPECT_EQ(offered({"bash", "digest", "--map", "=", "n"}), "none\n:files *.toml\n");
  EXPECT_TRUE(offered({"fish", "run", "--dry"}).starts_with("--dry-run\t"));
}

TEST(Completion, FilesAreLeftToTheShell) {
  EXPECT_EQ(offered({"bash", "run", ""}), ":files *.toml\n");
  EXPECT_EQ(offered({"fish", "inspect", ""}), ":files *\n");
  EXPECT_EQ(offered({"zsh", "run", "--set", "target.path="}), ":files *\n");
  EXPECT_EQ(offered({"bash", "no-such-command", ""}), "");
  EXPECT_EQ(offered({"bash"}), offered({"bash", ""}));
}

TEST(Version, SaysInJsonWhatItWasBuiltWith) {
  Json const json = parse_json(printed({"--version", "--json"}).text, "--version --json");
  for (std::string_view const key :
       {"name", "version", "commit", "date", "build_type", "compiler", "flags", "built_for",
        "built_with", "mpi", "hdf5", "seccomp", "cuda", "nccl"}) {
    ASSERT_NE(json.find(key), nullptr) << key;
    ASSERT_NE(json.find(key)->text(), nullptr) << key;
    EXPECT_FALSE(json.find(key)->text()->empty()) << key;
  }
  EXPECT_GT(json.find("mpi")->text()->size(), 10U) << "which library, not only which standard";
  Json const* libraries = json.find("libraries");
  ASSERT_NE(libraries, nullptr);
  for (std::string_view const name : {"cli11", "fmt", "libyaml", "openssl", "simdjson", "spdlog",
                                      "tomlplusplus", "xxhash", "zlib"}) {
    Json const* version = libraries->find(name);
    ASSERT_NE(version, nullptr) << name;
    EXPECT_NE(version->text()->find('.'), std::string::npos) << name << ": " << *version->text();
  }
  std::string const text = printed({"--version"}).text;
  EXPECT_NE(text.find(*json.find("commit")->text()), std::string::npos);
  EXPECT_NE(text.find("fmt " + *libraries->find("fmt")->text()), std::string::npos) << text;
}

}  // namespace
}  // namespace reshard
