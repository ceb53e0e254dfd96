#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

// The command line as data: --help, the manual pages and the completions of shells all come from
// this one description.

/// The kind of value that a word of the command line stands for.
enum class WordKind { none, text, number, file, path, map, setting, choice };

struct OptionFacts {
  std::vector<std::string> names;  ///< "-h", "--help"; a positional has one without dashes
  std::string value;               ///< what follows: "KEY=VALUE"; "" for a flag or a positional
  std::string text;
  WordKind kind = WordKind::none;
  std::vector<std::string> choices = {};
  bool required = false;
  bool several = false;  ///< may be given more than once, or takes more than one word

  bool positional() const { return !names.front().starts_with('-'); }
};

struct CommandFacts {
  std::string name;  ///< "" for the program itself
  std::string text;
  std::string examples;  ///< a line each
  std::vector<OptionFacts> options;
};

/// The program first, then its commands; hidden ones are left out.
using CommandTable = std::vector<CommandFacts>;

/// A type name says what a word is: FILE, PATH, MAP, KEY=VALUE, N, or the choices themselves,
/// "auto|host|cuda" (lower case). So does the name of a positional: PATH, JOB.toml,
/// "bash|zsh|fish".
WordKind kind_of_word(std::string_view type_name);
/// The words between the bars.
std::vector<std::string> choices_of_word(std::string_view type_name);

/// "reshard run [OPTIONS] JOB.toml"
std::string synopsis(CommandFacts const& command);

struct ExitCode {
  int code;
  std::string_view text;
};
std::span<ExitCode const> exit_codes();

/// The text of --help, at most 80 columns wide; ends with a newline. Of the program: with its
/// commands.
std::string help_text(CommandTable const& table, std::string_view command);

/// Text with line breaks between words, so that no line is longer than `columns` where a break can
/// help it. Lines after the first begin with `indent` blanks; the first one is thought to have
/// `used` columns before it.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent,
                    std::size_t used);

}  // namespace reshard
