#include "pipeline/describe/init_job.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "core/base/file.hpp"
#include "core/base/paths.hpp"
#include "core/plan/plan.hpp"
#include "pipeline/cli/command_table.hpp"
#include "pipeline/job/target_request.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Format = CheckpointFormat;

constexpr std::size_t columns = 120;
constexpr std::array all_formats = {Format::megatron,     Format::huggingface, Format::torch_dist,
                                    Format::fsdp_dtensor, Format::dcp,         Format::hdf5};

bool has_layout(Format format) {
  return format == Format::megatron || format == Format::torch_dist ||
         format == Format::fsdp_dtensor;
}

/// A target format and what came of planning it.
struct Attempt {
  Format format;
  JobSpec job;
  std::string map;
  std::string tensors;
  std::optional<Error> refusal;
  std::string first_refusal;  ///< of the defaults; "" when they do
};

/// Whether optimizer state of some form can go from one to the other.
bool carries_optimizer(Format from, Format to) { return from == to && to == Format::torch_dist; }

/// What is tried after the defaults, the least first.
struct Choice {
  StatePolicy optimizer;
  StatePolicy rng;
  UnmappedChoice unmapped;
};
constexpr std::array choices = {
    Choice{StatePolicy::refuse, StatePolicy::refuse, UnmappedChoice::refuse},
    Choice{StatePolicy::drop, StatePolicy::refuse, UnmappedChoice::refuse},
    Choice{StatePolicy::refuse, StatePolicy::drop, UnmappedChoice::refuse},
    Choice{StatePolicy::drop, StatePolicy::drop, UnmappedChoice::refuse},
    Choice{StatePolicy::drop, StatePolicy::drop, UnmappedChoice::keep}};

/// The formats that people most likely want to make of a source come first.
std::vector<Format> by_likelihood(Format source) {
  std::vector<Format> formats(all_formats.begin(), all_formats.end());
  Format const first = source == Format::huggingface ? Format::megatron : Format::huggingface;
  std::stable_partition(formats.begin(), formats.end(),
                        [&](Format format) { return format == first; });
  std::stable_partition(formats.begin(), formats.end(),
                        [&](Format format) { return format != source; });
  return formats;
}

Format format_named(std::string_view word) {
  auto const found = std::find_if(all_formats.begin(), all_formats.end(),
                                  [&](Format format) { return name(format) == word; });
  RESHARD_EXPECT(found != all_formats.end());
  return *found;
}

std::string comment(std::string_view text) { return "# " + wrapped(text, columns, 0, 2) + "\n"; }

/// Every line of a wrapped text is a comment.
std::string comment_lines(std::string_view text) {
  std::string lines = comment(text);
  for (std::size_t at = lines.find('\n'); at + 1 < lines.size(); at = lines.find('\n', at + 1))
    lines.insert(at + 1, "# ");
  return lines;
}

class Draft {
 public:
  Draft(InitRequest const& request, SourceCheckpoint const& source)
      : request_(request), source_(source), found_(format_named(format_of(source))) {}

  std::string text() {
    for (Format const format : by_likelihood(found_)) attempts_.push_back(attempt(format));
    Attempt const& chosen = choose();
    std::string const text = heading() + source_table(chosen) + target_table(chosen) + rest(chosen);
    JobSpec const read = parse_job_spec(text, "the job file of `reshard init`", {});
    RESHARD_EXPECT(read == chosen.job);
    return text;
  }

 private:
  JobSpec first_job(Format format) const {
    JobSpec job;
    job.source.path = full_path(request_.source).string();
    job.target.format = format;
    job.target.path = target_path(format).string();
    if (!has_layout(format) || !source_.megatron) return job;
    MeshSizes const& sizes = source_.megatron->classification.sizes;
    job.target.layout.tp = sizes.tp;
    job.target.layout.pp = sizes.pp;
    job.target.layout.ep = sizes.ep;
    if (sizes.etp != sizes.tp) job.target.layout.etp = sizes.etp;
    return job;
  }

  /// In the current directory, or beside the source when that lies inside it.
  fs::path target_path(Format format) const {
    fs::path const source = full_path(request_.source);
    std::error_code ignored;
    fs::path const folder = fs::is_directory(source, ignored) ? source : source.parent_path();
    fs::path const here = fs::current_path();
    fs::path const parent =
        holds(resolved_path(folder), resolved_path(here)) ? folder.parent_path() : here;
    return parent / fmt::format("{}-{}", source.stem().string(), name(format));
  }

  Attempt attempt(Format format) const {
    Attempt result{
        .format = format, .job = {}, .map = {}, .tensors = {}, .refusal = {}, .first_refusal = {}};
    for (bool const plain_layout : {false, true})
      for (Choice const& choice : choices) {
        result.job = first_job(format);
        if (plain_layout) result.job.target.layout = {};
        result.job.source.optimizer = choice.optimizer;
        result.job.source.rng = choice.rng;
        result.job.model.unmapped = choice.unmapped;
        auto const error = capture([&] { plan(result); });
        if (!error) return settled(std::move(result));
        if (result.first_refusal.empty()) result.first_refusal = error->sentence();
        // Of several refusals the last one is about what no choice helps.
        if (!result.refusal || choice.unmapped == UnmappedChoice::refuse) result.refusal = error;
        if (error->kind() == ErrorKind::internal || error->kind() == ErrorKind::resources)
          return result;
      }
    return result;
  }

  /// State that the format could hold is not left out unless somebody says so.
  Attempt settled(Attempt attempt) const {
    attempt.refusal.reset();
    if (carries_optimizer(found_, attempt.format))
      attempt.job.source.optimizer = StatePolicy::refuse;
    return attempt;
  }

  void plan(Attempt& attempt) const {
    JobPlan const made =
        make_job_plan(source_, target_request(attempt.job, request_.map_folders), PlanLimits());
    attempt.map = fs::path(made.map_name).stem().string();
    attempt.tensors = fmt::format("{} logical tensors, {}", made.plan.logical_tensors,
                                  human_bytes(made.plan.source_bytes));
  }

  Attempt const& choose() const {
    for (Attempt const& attempt : attempts_) {
      if (request_.format && attempt.format != *request_.format) continue;
      if (!attempt.refusal) return attempt;
      if (request_.format)
        throw attempt.refusal->in(fmt::format("--target-format {}", name(attempt.format)));
    }
    throw *attempts_.front().refusal;
  }

  std::string found_text() const {
    std::string const files =
        source_.files.size() == 1 ? "1 file" : fmt::format("{} files", source_.files.size());
    if (!source_.megatron) return fmt::format("{}, {}", name(found_), files);
    MeshSizes const& s = source_.megatron->classification.sizes;
    return fmt::format("{}, tp {}, pp {}, vpp {}, ep {}, etp {}, {}", name(found_), s.tp, s.pp,
                       s.vpp, s.ep, s.etp, files);
  }

  std::string heading() const {
    return "# A job of reshard, made by `reshard init`. Look at it, see what it would do, carry it out:\n#   reshard plan job.toml\n#   mpirun -n 4 "
           "reshard run job.toml\n# All keys: reshard.toml(5), or `reshard --print-defaults`.\n";
  }

  static std::string policy(std::string_view key, StatePolicy chosen, std::string_view what) {
    if (chosen == StatePolicy::refuse)
      return fmt::format("# {} = \"drop\"  # not needed: no {} of the source would be left out\n",
                         key, what);
    return fmt::format("{} = \"drop\"  # {} of the source has no place in this target\n", key,
                       what);
  }

  static std::string optimizer_policy(Attempt const& chosen) {
    if (chosen.first_refusal.empty() || chosen.job.source.optimizer == StatePolicy::drop)
      return policy("optimizer", chosen.job.source.optimizer, "optimizer state");
    return comment_lines("As it is, the job is refused: " + shown_line(chosen.first_refusal)) +
           "# optimizer = \"drop\"  # would leave the optimizer state out: the training that goes on would begin with a new one\n";
  }

  std::string source_table(Attempt const& chosen) const {
    JobSpec::Source const& source = chosen.job.source;
    std::string text =
        "\n[source]\n" + comment_lines(fmt::format("Found: {}; {}.", found_text(), chosen.tensors));
    for (std::string const& warning : source_.warnings) text += comment_lines(shown_line(warning));
    text += fmt::format("path = {}\n", json_quoted(source.path));
    return text + optimizer_policy(chosen) + policy("rng", source.rng, "random-number state");
  }

  /// A message of one line: names in it may hold anything.
  static std::string shown_line(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
    return text;
  }

  std::string target_table(Attempt const& chosen) const {
    std::vector<std::string> possible;
    std::vector<std::pair<std::string, std::vector<std::string>>>
        reasons;  // a reason, and the formats that it is true of
    for (Attempt const& attempt : attempts_) {
      std::string const format = fmt::format("\"{}\"", name(attempt.format));
      if (!attempt.refusal) {
        possible.push_back(format);
        continue;
      }
      std::string const reason = shown_line(attempt.refusal->sentence());
      auto const same = std::find_if(reasons.begin(), reasons.end(),
                                     [&](auto const& one) { return one.first == reason; });
      if (same != reasons.end())
        same->second.push_back(format);
      else
        reasons.push_back({reason, {format}});
    }
    std::string others;
    for (auto const& [reason, formats] : reasons)
      others += comment_lines(
          fmt::format("Not possible as it is: {}: {}", fmt::join(formats, ", "), reason));
    JobSpec::Target const& target = chosen.job.target;
    std::string text = fmt::format(
        "\n[target]\npath = {}\n{}{}format = \"{}\"\n", json_quoted(target.path),
        comment_lines(fmt::format("Possible for this source: {}.", fmt::join(possible, ", "))),
        others, name(target.format));
    if (target.format == Format::huggingface && found_ != Format::huggingface)
      text +=
          "# reference = \"/path/to/original-model\"  # its config.json, tokenizer and generation settings go into the target\n";
    return text + (has_layout(target.format) ? layout_lines(target.layout) : "");
  }

  std::string layout_lines(JobSpec::Layout const& layout) const {
    std::string const why = source_.megatron ? "That of the source" : "One rank";
    std::string text = comment_lines(why + ". Set what the next program runs with.");
    text += fmt::format("layout.tp = {}\nlayout.pp = {}\nlayout.ep = {}\n", layout.tp, layout.pp,
                        layout.ep);
    return text + fmt::format("{}layout.etp = {}  # 0 stands for: equal to tp\n",
                              layout.etp == 0 ? "# " : "", layout.etp);
  }

  static std::string rest(Attempt const& chosen) {
    std::string text = "\n[model]\n";
    if (!chosen.map.empty())
      text +=
          fmt::format("# map = {}  # found by looking at the source\n", json_quoted(chosen.map));
    if (chosen.job.model.unmapped == UnmappedChoice::keep)
      text +=
          "unmapped = \"keep\"  # parts that the map does not explain, such as a vision tower, are carried byte for byte; or \"drop\"\n";
    return text +
           "\n[run]\n# memory = \"512 MiB\"  # of each rank; a smaller size changes no byte of the result\n";
  }

  InitRequest const& request_;
  SourceCheckpoint const& source_;
  Format found_;
  std::vector<Attempt> attempts_;
};

}  // namespace

std::string init_job(InitRequest const& request, Comm const& comm) {
  SourceCheckpoint const source = open_source(request.source, SourceFormat::found, {}, comm);
  std::string text;
  together(comm, [&] {
    if (comm.rank() == 0) text = Draft(request, source).text();
  });
  return comm.broadcast(std::move(text), 0);
}

void write_new_job(fs::path const& path, std::string const& text) {
  int const descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  int const reason = errno;
  if (descriptor < 0 && reason == EEXIST)
    fail(ErrorKind::target,
         "{}: exists already, and is not written over. Choose another name with -o, or remove it.",
         path.string());
  if (descriptor < 0 && (reason == ENOSPC || reason == EDQUOT || reason == EIO))
    fail_errno(path, "create", reason);
  if (descriptor < 0)
    fail(ErrorKind::usage, "-o {}: the job file cannot be written: {}. Choose another path for -o.",
         path.string(), system_reason(reason));
  ::close(descriptor);
  auto const error = capture([&] { write_text_file(path, text); });
  if (!error) return;
  ::unlink(path.c_str());  // half a file would stand in the way of the next attempt
  throw *error;
}

}  // namespace reshard
