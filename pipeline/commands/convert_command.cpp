#include <algorithm>
#include <filesystem>
#include <tuple>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/base/files/file.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/transport/monitor/heartbeat.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/describe/init_job.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/job/job_paths.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/messages/log.hpp"
#include "pipeline/run/agreement.hpp"

namespace reshard {
namespace {

/// Keys that a message names are options here.
std::string with_advice(std::string sentence) {
  for (auto const& [key, option] :
       {std::pair("set target.replace = true", "give --replace"),
        std::pair("target.replace = true", "--replace"),
        std::pair("another target.path", "another TARGET"),
        std::pair("set source.path", "give SOURCE"), std::pair("source.path", "SOURCE")})
    replace_all(sentence, key, option);
  if (sentence.starts_with("--set ")) return sentence;
  bool const names_key = std::ranges::any_of(job::fields(), [&](job::Field const& field) {
    return sentence.find(" " + field.key()) != std::string::npos;
  });
  if (!names_key) return sentence;
  bool const ended = sentence.ends_with('.') || sentence.ends_with('?');
  return sentence + (ended ? "" : ".") + " `convert` takes keys as --set KEY=VALUE.";
}

/// `run` without a job file.
class ConvertCommand : public Command {
 public:
  CLI::App* add_to(CLI::App& app) override {
    CLI::App* sub =
        app.add_subcommand("convert", "convert a checkpoint without a job file")
            ->footer(
                "reshard convert /train/iter_0001000 /models/next --dtype bf16\n"
                "reshard convert /models/moe /train/moe --format torch_dist --layout tp=2,ep=4");
    sub->add_option("SOURCE", source_, "the checkpoint")->required()->type_name("");
    sub->add_option("TARGET", target_, "the checkpoint to make")->required()->type_name("");
    sub->add_option("--format", format_, "the target's format (default: huggingface)")
        ->type_name(choices_of("target.format"));
    sub->add_option("--layout", layout_, "sizes of parallel axes, such as tp=2,ep=4")
        ->type_name("SIZES");
    sub->add_option("--dtype", dtype_, "the dtype of floating weights")
        ->type_name(choices_of("target.dtype"));
    sub->add_option("--reference", reference_,
                    "config and tokenizer files of the target are from here")
        ->type_name("FOLDER");
    sub->add_flag("--replace", replace_, "replace an existing target");
    sub->add_option("--save", save_, "write the job file (- for stdout)")->type_name("FILE");
    add_running_options(*sub, options_);
    return sub;
  }

  bool is_job() const override { return true; }
  PhaseLine::Style phases() const override { return phases_of(options_); }

  std::string mistake() const override {
    if (save_ == "-" && (options_.json || options_.events_file == "-"))
      return "convert: --save -: stdout is that of the report. Give --save a file, or leave out "
             "--json and --events -.";
    return "";
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    int code = 0;
    with_words(with_advice, [&] { code = convert(surroundings, comm); });
    return code;
  }

 private:
  int convert(Surroundings const& surroundings, Comm const& comm) {
    JobSpec const job = job_of_options(surroundings, comm);
    save(job, comm);
    return run_job(options_, job, surroundings, comm);
  }

  JobSpec job_of_options(Surroundings const& surroundings, Comm const& comm) {
    Heartbeat const heartbeat(comm, usual_silence_seconds);
    settle_format(comm);
    JobSpec job;
    together_seeing(comm, [&] {
      job =
          job_of_keys(keys(), options_.overrides, [&] { return surroundings.library.mesh_axes(); });
    });
    check_same_folder(comm, job);
    return job;
  }

  bool sets_format() const {
    return std::ranges::any_of(options_.overrides, [](std::string const& text) {
      return text.substr(0, text.find('=')) == "target.format";
    });
  }

  /// Hugging Face, but not a copy of such a folder.
  void settle_format(Comm const& comm) {
    if (!format_.empty() || sets_format()) return;
    bool const changes_values = !dtype_.empty() || !options_.overrides.empty();
    together_seeing(comm, [&] {
      if (!changes_values && choose_format(source_).id() == FormatId::huggingface)
        fail(ErrorKind::usage,
             "convert: {} is a Hugging Face folder, so the target's format is not known. Give "
             "--format {}.",
             source_, choices_of("target.format"));
    });
    format_ = name(FormatId::huggingface);
  }

  /// The options as keys of a job file.
  std::vector<GivenKey> keys() const {
    std::vector<GivenKey> keys{{fmt::format("SOURCE {}", source_), "source.path", source_},
                               {fmt::format("TARGET {}", target_), "target.path", target_}};
    for (auto const& [option, key, word] :
         {std::tuple("--format", "target.format", format_),
          std::tuple("--dtype", "target.dtype", dtype_),
          std::tuple("--reference", "target.reference", reference_)})
      if (!word.empty()) keys.push_back({fmt::format("{} {}", option, word), key, word});
    if (replace_) keys.push_back({"--replace", "target.replace", "true"});
    for (std::size_t at = 0; at < layout_.size();) {
      std::size_t const end = std::min(layout_.find(',', at), layout_.size());
      std::string const part = layout_.substr(at, end - at);
      std::size_t const equals = part.find('=');
      if (equals == std::string::npos || equals == 0)
        fail(ErrorKind::usage,
             "--layout {}: expected AXIS=SIZE, found '{}'. Write it such as --layout tp=2,ep=4.",
             layout_, part);
      keys.push_back({fmt::format("--layout {}", part),
                      fmt::format("target.layout.{}", part.substr(0, equals)),
                      part.substr(equals + 1)});
      at = end + 1;
    }
    return keys;
  }

  /// A file that says the same is that of the run before.
  void save(JobSpec const& job, Comm const& comm) const {
    if (save_.empty()) return;
    together(comm, [&] {
      if (comm.rank() != 0) return;
      std::string const text = short_job_text(job);
      if (save_ == "-") return write_to_stdout(text);
      check_outside_job(save_, "--save", job, {});
      std::error_code ignored;
      if (std::filesystem::is_regular_file(save_, ignored) &&
          read_text_file(save_, text.size() + 1) == text)
        return;
      write_new_job(save_, text, "--save");
    });
  }

  std::string source_;
  std::string target_;
  std::string format_;
  std::string layout_;
  std::string dtype_;
  std::string reference_;
  std::string save_;
  bool replace_ = false;
  JobOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_convert_command() { return std::make_unique<ConvertCommand>(); }

}  // namespace reshard
