#include "pipeline/describe/init_job.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/tables/counted.hpp"
#include "core/plan/plan.hpp"
#include "pipeline/cli/command_table.hpp"
#include "pipeline/job/plan_request.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/state/state_policy.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t columns = 120;
/// A target format and what came of planning it.
struct Attempt {
  FormatId format;
  JobSpec job;
  std::string map;
  std::string tensors;
  std::optional<Error> refusal;
  std::string first_refusal;  ///< of the defaults; "" when they do
  bool rng_stays = false;     ///< the plan leaves the state of generators behind
};

/// Policies that are tried after the defaults, the least first.
struct Choice {
  StatePolicy optimizer;
  StatePolicy rng;
  Unmapped unmapped;
};
constexpr std::array choices = {Choice{StatePolicy::refuse, StatePolicy::refuse, Unmapped::refuse},
                                Choice{StatePolicy::drop, StatePolicy::refuse, Unmapped::refuse},
                                Choice{StatePolicy::refuse, StatePolicy::drop, Unmapped::refuse},
                                Choice{StatePolicy::drop, StatePolicy::drop, Unmapped::refuse},
                                Choice{StatePolicy::refuse, StatePolicy::refuse, Unmapped::keep},
                                Choice{StatePolicy::drop, StatePolicy::drop, Unmapped::keep}};

/// Whether its tensors are cut by Megatron's parallel axes.
bool laid_out(FormatId format) { return format_of(format).target().names == NameOwner::megatron; }

/// A folder of a model as its family's programs load it.
bool is_model_folder(TargetTraits const& traits) {
  return traits.names == NameOwner::family && traits.storage == Storage::whole;
}

/// The most likely targets of a source come first.
std::vector<FormatId> by_likelihood(Format const& source) {
  bool const from_model_folder = is_model_folder(source.target());
  std::vector<FormatId> formats;
  for (Format const* format : all_formats())
    if (format->target().written) formats.push_back(format->id());
  std::stable_partition(formats.begin(), formats.end(), [&](FormatId format) {
    TargetTraits const traits = format_of(format).target();
    return from_model_folder ? traits.storage == Storage::shares : is_model_folder(traits);
  });
  std::stable_partition(formats.begin(), formats.end(),
                        [&](FormatId format) { return format != source.id(); });
  return formats;
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
  /// `with_states`: the source with the optimizer state of its rank files, where it has any that
  /// can be read; else nullptr.
  Draft(InitRequest const& request, Checkpoint const& source, Checkpoint const* with_states)
      : request_(request),
        source_(source),
        with_states_(with_states),
        found_(source.format->id()) {}

  std::string text() {
    for (FormatId const format : by_likelihood(*source_.format))
      attempts_.push_back(attempt(format));
    Attempt const& chosen = choose();
    std::string const text = heading() + source_table(chosen) + target_table(chosen) + rest(chosen);
    JobSpec const read = parse_job_spec(text, "the job file of `reshard init`", {});
    RESHARD_EXPECT(read == chosen.job);
    return text;
  }

 private:
  JobSpec first_job(FormatId format) const {
    JobSpec job;
    job.source.path = full_path(request_.source).string();
    job.target.format = format;
    job.target.path = target_path(format).string();
    if (!laid_out(format) || source_.shares.places.empty()) return job;
    for (MeshAxis const& axis : source_.shares.file_mesh.axes())
      job.target.layout.sizes[axis.name] = narrow<int>(axis.size);
    if (source_.shares.mesh.size("etp") != source_.shares.mesh.size("tp"))
      job.target.layout.sizes["etp"] = narrow<int>(source_.shares.mesh.size("etp"));
    return job;
  }

  /// In the current directory, or beside the source when that lies inside it.
  fs::path target_path(FormatId format) const {
    fs::path const source = full_path(request_.source);
    std::error_code ignored;
    fs::path const folder = fs::is_directory(source, ignored) ? source : source.parent_path();
    fs::path const here = fs::current_path();
    fs::path const parent =
        holds(resolved_path(folder), resolved_path(here)) ? folder.parent_path() : here;
    return parent / fmt::format("{}-{}", source.stem().string(), name(format));
  }

  Attempt attempt(FormatId format) const {
    Attempt result{.format = format,
                   .job = {},
                   .map = {},
                   .tensors = {},
                   .refusal = {},
                   .first_refusal = {},
                   .rng_stays = false};
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
        if (!result.refusal || choice.unmapped == Unmapped::refuse) result.refusal = error;
        if (error->kind() == ErrorKind::internal || error->kind() == ErrorKind::resources)
          return result;
      }
    return result;
  }

  bool takes_rank_states(Attempt const& attempt) const {
    return with_states_ != nullptr && format_of(attempt.format).target().rank_states;
  }

  /// State that the format could hold is not left out unless the user says so.
  Attempt settled(Attempt attempt) const {
    attempt.refusal.reset();
    if (takes_rank_states(attempt) ||
        (found_ == attempt.format && source_.format->target().carries_state))
      attempt.job.source.optimizer = StatePolicy::refuse;
    return attempt;
  }

  void plan(Attempt& attempt) const {
    bool const with_states =
        takes_rank_states(attempt) && attempt.job.source.optimizer != StatePolicy::drop;
    JobPlan const made = make_job_plan(with_states ? *with_states_ : source_,
                                       plan_request(attempt.job, request_.library), PlanLimits());
    attempt.map = fs::path(made.map_name).stem().string();
    attempt.rng_stays = std::ranges::any_of(made.warnings, [](std::string const& warning) {
      return warning.starts_with(rng_stays_behind);
    });
    attempt.tensors = fmt::format("{}, {}", counted(made.plan.logical_tensors, "logical tensor"),
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
    std::string const files = counted(source_.files.size(), "file");
    if (source_.shares.places.empty()) return fmt::format("{}, {}", name(found_), files);
    return fmt::format("{}, {}, {}", name(found_), source_.shares.mesh.text(", "), files);
  }

  std::string heading() const {
    return "# A job file, written by `reshard init`. Read it, see what it would do, run it:\n#   reshard plan job.toml\n#   mpirun -n 4 reshard run job.toml\n# All keys: "
           "reshard.toml(5), or `reshard --print-defaults`.\n";
  }

  static std::string kept(std::string_view key, bool held, std::string_view what) {
    return held
               ? fmt::format("# {} = \"drop\"  # would leave out the {}, which this target keeps\n",
                             key, what)
               : fmt::format("# {} = \"drop\"  # not needed: the source has no {}\n", key, what);
  }

  bool has_optimizer_state() const {
    return with_states_ != nullptr || source_.state.torch_optimizer ||
           bool(source_.format->inventory(source_, view_of(source_)).optimizer);
  }

  std::string optimizer_policy(Attempt const& chosen) const {
    if (chosen.job.source.optimizer == StatePolicy::drop) return dropped_optimizer(chosen);
    if (chosen.first_refusal.empty())
      return kept("optimizer", has_optimizer_state(), "optimizer state");
    return comment_lines("The job is refused as it is: " + shown_line(chosen.first_refusal)) +
           "# optimizer = \"drop\"  # would leave out the optimizer state: training would start "
           "with a new one\n";
  }

  /// Users who change the target's format later shall not lose state that it can hold.
  std::string dropped_optimizer(Attempt const& chosen) const {
    std::vector<std::string> keeping;
    for (Attempt const& attempt : attempts_)
      if (!attempt.refusal && attempt.job.source.optimizer == StatePolicy::refuse)
        keeping.push_back(fmt::format("\"{}\"", name(attempt.format)));
    std::string const text = fmt::format(
        "A \"{}\" target cannot hold the optimizer state.{}", name(chosen.format),
        keeping.empty() ? "" : fmt::format(" Remove this line for {}.", fmt::join(keeping, ", ")));
    return comment_lines(text) + "optimizer = \"drop\"\n";
  }

  std::string rng_policy(Attempt const& chosen) const {
    if (chosen.job.source.rng == StatePolicy::drop)
      return "rng = \"drop\"  # random-number state belongs to the old layout\n";
    if (chosen.rng_stays)
      return "# rng = \"drop\"  # not needed: random-number state belongs to the old layout and "
             "is left out\n";
    bool const held = bool(source_.format->inventory(source_, view_of(source_)).rng);
    return kept("rng", held, "random-number state");
  }

  std::string source_table(Attempt const& chosen) const {
    std::string text =
        "\n[source]\n" + comment_lines(fmt::format("Found: {}; {}.", found_text(), chosen.tensors));
    for (std::string const& warning : source_.warnings) text += comment_lines(shown_line(warning));
    text += fmt::format("path = {}\n", json_quoted(chosen.job.source.path));
    return text + prefix_hint() + optimizer_policy(chosen) + rng_policy(chosen);
  }

  /// Of a state dict of transformers that was saved below a key.
  std::string prefix_hint() const {
    bool behind = source_.names == NameOwner::family;
    bool twice = false;
    each_stored(source_, view_of(source_), [&](std::string const& name, auto const&) {
      behind = behind && name.starts_with("model.");
      twice = twice || name.starts_with("model.model.");
    });
    return behind && twice ? "# prefix = \"model.\"  # names are then those of transformers\n" : "";
  }

  /// A message of one line: names in it may hold anything.
  static std::string shown_line(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
    return text;
  }

  /// Without the place in the job file, which a reader has not written.
  static std::string reason_of(Attempt const& attempt) {
    std::string const reason = shown_line(attempt.refusal->sentence());
    std::string const place = fmt::format("[target] format = \"{}\": ", name(attempt.format));
    return reason.starts_with(place) ? reason.substr(place.size()) : reason;
  }

  std::string target_table(Attempt const& chosen) const {
    std::vector<std::string> possible;
    std::vector<std::pair<std::string, std::vector<std::string>>>
        reasons;  // a reason, and the formats that it is true of
    for (Attempt const& attempt : attempts_) {
      std::string const format = fmt::format("\"{}\"", name(attempt.format));
      if (!attempt.refusal) {
        bool const without_state = attempt.job.source.optimizer == StatePolicy::drop &&
                                   chosen.job.source.optimizer != StatePolicy::drop;
        possible.push_back(format + (without_state ? " (with source.optimizer = \"drop\")" : ""));
        continue;
      }
      std::string const reason = reason_of(attempt);
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
    if (target.format != found_ && is_model_folder(format_of(target.format).target()))
      text +=
          "# reference = \"/path/to/original-model\"  # its config.json, tokenizer and generation settings go into the target\n";
    return text + (laid_out(target.format) ? layout_lines(target.layout) : "");
  }

  std::string layout_lines(JobSpec::Layout const& layout) const {
    std::string const why =
        !source_.shares.places.empty() ? "The layout of the source." : "One rank.";
    std::string text = comment_lines(why + " Set the sizes that the next program runs with.");
    for (std::string_view const axis : {"tp", "pp", "ep"})
      text += fmt::format("layout.{} = {}\n", axis, layout.size(axis));
    return text + fmt::format("{}layout.etp = {}  # 0 means: equal to tp\n",
                              layout.size("etp") == 0 ? "# " : "", layout.size("etp"));
  }

  static std::string rest(Attempt const& chosen) {
    std::string text;
    if (!chosen.map.empty() || chosen.job.model.unmapped == Unmapped::keep) text += "\n[model]\n";
    if (!chosen.map.empty())
      text +=
          fmt::format("# map = {}  # found by looking at the source\n", json_quoted(chosen.map));
    if (chosen.job.model.unmapped == Unmapped::keep)
      text +=
          "unmapped = \"keep\"  # parts that the map does not describe, such as a vision tower, "
          "are copied byte for byte; or \"drop\"\n";
    return text +
           "\n[run]\n# memory = \"128 MiB\"  # of each rank; a smaller size changes no byte of the result\n";
  }

  InitRequest const& request_;
  Checkpoint const& source_;
  Checkpoint const* with_states_;
  FormatId found_;
  std::vector<Attempt> attempts_;
};

/// Whether a source has state that it does not show unless it is asked for it.
bool may_have_states(Checkpoint const& source) {
  if (source.storage == Storage::shares) return bool(source.state.inventory.optimizer);
  return source.names == NameOwner::family && source.storage == Storage::chunks &&
         !source.state.torch_optimizer && !view_of(source).states.empty();
}

/// Nothing where such a source holds no optimizer state that can be read.
std::optional<Checkpoint> opened_with_states(InitRequest const& request, Checkpoint const& source,
                                             Comm const& comm) {
  if (!may_have_states(source)) return std::nullopt;
  OpenChoice choice;
  choice.rank_states = true;
  std::optional<Checkpoint> result;
  auto const unreadable =
      capture([&] { result = open_source(request.source, FormatId::automatic, choice, comm); });
  if (unreadable && unreadable->kind() != ErrorKind::source) throw *unreadable;
  bool const found = result && (result->state.rank_states || result->state.torch_optimizer);
  return found ? std::move(result) : std::nullopt;
}

}  // namespace

std::string init_job(InitRequest const& request, Comm const& comm) {
  Checkpoint const source = open_source(request.source, comm);
  std::optional<Checkpoint> const with_states = opened_with_states(request, source, comm);
  std::string text;
  together(comm, [&] {
    if (comm.rank() == 0)
      text = Draft(request, source, with_states ? &*with_states : nullptr).text();
  });
  return comm.broadcast(std::move(text), 0);
}

void write_new_job(fs::path const& path, std::string const& text, std::string_view option) {
  int const descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  int const reason = errno;
  if (descriptor < 0 && reason == EEXIST)
    fail(ErrorKind::target,
         "{}: exists already, and is not overwritten. Choose another name with {}, or remove it.",
         path.string(), option);
  if (descriptor < 0 && (reason == ENOSPC || reason == EDQUOT || reason == EIO))
    fail_errno(path, "create", reason);
  if (descriptor < 0)
    fail(ErrorKind::usage, "{} {}: the job file cannot be written: {}. Choose another path for {}.",
         option, path.string(), system_reason(reason), option);
  ::close(descriptor);
  auto const error = capture([&] { write_text_file(path, text); });
  if (!error) return;
  ::unlink(path.c_str());  // half a file would be in the way of the next attempt
  throw *error;
}

}  // namespace reshard
