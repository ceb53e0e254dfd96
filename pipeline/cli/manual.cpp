#include "pipeline/cli/manual.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/cli/roff.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

using job::Field;

constexpr std::string_view about =
    "reshard converts a checkpoint of a large model to the parallel layout and format that the "
    "next program needs. It is one MPI job with bounded memory. Formats are Megatron mp_rank_* "
    "files, torch_dist, fsdp_dtensor, PyTorch distributed checkpoints, Hugging Face folders of "
    "safetensors, and HDF5. The source is never changed; the target appears under its name "
    "only when it is complete and verified.";

constexpr std::string_view about_jobs =
    "A job file is TOML. It states what to read ([source]), what to write ([target]), how to "
    "interpret the model ([model]) and which resources to use ([run]). Keys that are left out "
    "have their defaults. Unknown keys, keys that do not apply to target.format and "
    "contradictory values are refused, all in one message. On the command line --set KEY=VALUE "
    "overrides a key, such as --set target.layout.tp=4. Paths are relative to the current "
    "directory. A size is a number of bytes or a string such as \"512 MiB\" or \"5 GB\". A "
    "model map may define more parallel axes: each has a key in target.layout.";

constexpr std::string_view example_job = R"([source]
path = "/data/training-run"
optimizer = "drop"
rng = "drop"

[target]
path = "/data/resharded"
format = "megatron"
layout.tp = 4
layout.pp = 2
layout.ep = 8)";

std::string_view title_of(std::string_view table) {
  if (table == "source") return "what to read";
  if (table == "target") return "what to write";
  if (table == "model") return "how to interpret the model";
  if (table == "run") return "which resources to use";
  return "for `reshard nightly` only";
}

std::string value_of(Field const& field) {
  switch (field.kind) {
    case keys::Kind::text: return "a string";
    case keys::Kind::texts: return "an array of strings";
    case keys::Kind::choice: {
      std::string words;
      for (std::string const& word : field.choices)
        words += fmt::format("{}\"{}\"", words.empty() ? "" : ", ", word);
      return words;
    }
    case keys::Kind::number: return "a number, " + field.range;
    case keys::Kind::flag: return "true or false";
    case keys::Kind::size: break;
  }
  return "a size";
}

std::string default_of(Field const& field) {
  return field.required() ? std::string() : field.show(JobSpec());
}

/// The comment of the default job file as one line.
std::string meaning_of(Field const& field) {
  std::string text(field.comment);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string term_of(OptionFacts const& option) {
  if (option.positional()) return "<" + option.names.front() + ">";
  return fmt::format("{}{}", fmt::join(option.names, ", "),
                     option.value.empty() ? "" : " <" + option.value + ">");
}

void add_options(Roff& page, CommandFacts const& command) {
  for (bool const positional : {true, false})
    for (OptionFacts const& option : command.options)
      if (option.positional() == positional && option.names.back() != "--help")
        page.item(
            term_of(option),
            option.text + (option.several && !positional ? ". May be given more than once." : "."));
}

void add_exit_status(Roff& page) {
  page.section("EXIT STATUS");
  for (ExitCode const& code : exit_codes())
    page.item(std::to_string(code.code), fmt::format("{}.", code.text));
}

void add_environment_and_files(Roff& page) {
  page.section("ENVIRONMENT");
  page.item("RESHARD_MAPS",
            "a folder of model maps that is searched first; then share/reshard/models beside the "
            "installed program.");
  page.item(
      "RESHARD_NCCL_LIBRARY",
      "the NCCL library to load, with its path, where run.transport = \"nccl\" does not find the right one.");
  page.section("FILES");
  page.item(
      "reshard.json",
      "in a target: from which source and by which job it was made, the digest of every tensor, sizes and digests of all files.");
  page.item(".<NAME>.part-<TOKEN>",
            "beside a target NAME: the target while it is built; each run has its own TOKEN.");
  page.item(
      ".<NAME>.resume-<TOKEN>",
      "its journal of completed work: after an interruption the same command resumes from there; "
      "reshard clean removes both.");
  page.item(
      ".<NAME>.old-<TOKEN>",
      "the checkpoint that is being replaced, briefly, if the file system cannot exchange two "
      "names.");
  page.item(".<NAME>.lock", "held by the job that writes the target.");
}

std::string command_page(CommandTable const& table) {
  Roff page("RESHARD", 1, version_date(), "reshard " + version_number(), "User Commands");
  page.section("NAME").paragraph(
      "reshard - convert checkpoints of large models between parallel layouts and formats");
  page.section("SYNOPSIS");
  for (CommandFacts const& command : table) page.paragraph(synopsis(command));
  page.section("DESCRIPTION")
      .paragraph(about)
      .paragraph(
          "Commands that move or read much data are started with mpirun(1) or srun(1), on as many "
          "ranks as are useful.");
  page.section("OPTIONS");
  add_options(page, table.front());
  page.section("COMMANDS");
  for (CommandFacts const& command : table) {
    if (command.name.empty()) continue;
    page.subsection(synopsis(command)).paragraph(command.text + ".");
    add_options(page, command);
    if (!command.examples.empty()) page.code(command.examples);
  }
  add_exit_status(page);
  add_environment_and_files(page);
  page.section("EXAMPLES").code(table.front().examples);
  page.section("SEE ALSO").paragraph("reshard.toml(5), mpirun(1), srun(1)");
  return page.text();
}

std::string job_page() {
  Roff page("RESHARD.TOML", 5, version_date(), "reshard " + version_number(), "File Formats");
  page.section("NAME").paragraph("reshard.toml - the job file of reshard");
  page.section("DESCRIPTION")
      .paragraph(about_jobs)
      .paragraph(
          "reshard --print-defaults prints a complete, commented job file; reshard init writes one for a source.");
  std::string_view table;
  for (Field const& field : job::fields()) {
    if (field.table != table)
      page.section(fmt::format("[{}]", field.table))
          .paragraph(fmt::format("{}:", title_of(field.table)));
    table = field.table;
    std::string const usual =
        field.required() ? "Required." : fmt::format("Default: {}.", default_of(field));
    page.item(fmt::format("{} = <{}>", field.name, value_of(field)),
              fmt::format("{} {}", meaning_of(field), usual));
  }
  page.section("EXAMPLE").code(example_job);
  page.section("SEE ALSO").paragraph("reshard(1)");
  return page.text();
}

/// A cell of a table: bars would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (char const c : text)
    out += c == '|' ? "\\|" : c == '*' ? "\\*" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

std::string code_cell(std::string_view text) {
  std::string out;
  for (char const c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out.empty() ? out : "`" + out + "`";
}

}  // namespace

std::string job_spec_markdown() {
  std::string text = fmt::format("# The job file\n\n{}\n\n```toml\n{}\n```\n",
                                 wrapped(about_jobs, 150, 0, 0), example_job);
  text +=
      "\n`reshard --print-defaults` prints a complete, commented job file, `reshard init SOURCE` writes one for a source. This page is made from "
      "the\n"
      "same table (`reshard man job-spec.md`), and so is reshard.toml(5).\n";
  std::string_view table;
  for (Field const& field : job::fields()) {
    if (field.table != table)
      text +=
          fmt::format("\n## [{}]: {}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                      field.table, title_of(field.table));
    table = field.table;
    text += fmt::format("| `{}` | {} | {} | {} |\n", field.name, cell(value_of(field)),
                        field.required() ? "required" : code_cell(default_of(field)),
                        cell(meaning_of(field)));
  }
  return text;
}

std::vector<std::string> manual_pages() { return {"reshard.1", "reshard.toml.5", "job-spec.md"}; }

std::string manual_page(std::string_view name, CommandTable const& table) {
  if (name == "reshard.1") return command_page(table);
  return name == "reshard.toml.5" ? job_page() : job_spec_markdown();
}

}  // namespace reshard
