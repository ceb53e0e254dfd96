#include <charconv>

#include <CLI/CLI.hpp>

#include "pipeline/cli/standard_output.hpp"
#include "pipeline/commands/all_commands.hpp"
#include "pipeline/commands/job_command.hpp"
#include "pipeline/commands/two_checkpoints.hpp"
#include "pipeline/job/job_field.hpp"
#include "pipeline/verify/compare/file_comparison.hpp"
#include "pipeline/verify/self_check/self_check.hpp"
#include "pipeline/verify/verify_one.hpp"
#include "pipeline/verify/verify_part.hpp"

namespace reshard {
namespace {

/// A difference is no error, but a script must be able to ask.
constexpr int code_of_difference = 1;

bool is_number(std::string_view text) {
  std::uint64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// `verify A B` and `diff A B`; `verify A` checks one checkpoint alone.
class VerifyCommand : public Command {
 public:
  explicit VerifyCommand(Comparison comparison) : comparison_(comparison) {}

  CLI::App* add_to(CLI::App& app) override {
    bool const diff = comparison_ == Comparison::values;
    CLI::App* sub =
        diff
            ? app.add_subcommand(
                     "diff",
                     "show how much two checkpoints differ, tensor by tensor. Rows are sorted by `max "
                     "rel`, the largest |a-b| / max(|a|, |b|) of a tensor; tensors with NaN or "
                     "infinity on one side come first. dtypes may differ too")
                  ->footer(
                      "mpirun -n 8 reshard diff /data/model-hf /data/model-hf-finetuned --limit 10")
            : app.add_subcommand(
                     "verify",
                     "compare two checkpoints bit by bit, in any formats and layouts; or check "
                     "one against its own records. Exit code 1: they differ")
                  ->footer("mpirun -n 8 reshard verify /data/model/iter_0001000 /data/model-hf");
    sub->add_option("PATH", paths_,
                    "A and B: two checkpoints. All replicas in B are compared, and one of each in "
                    "A")
        ->required()
        ->expected(diff ? 2 : 1, 2)
        ->type_name("");
    add_map(*sub, sides_.map);
    sides_.add_to(*sub);
    sub->add_option("--limit", limit_, "rows to show; totals are complete (default: 50)")
        ->type_name("N");
    sub->add_flag("--json", json_, "one JSON document on stdout, with all rows");
    if (diff)
      sub->add_flag("--histogram", histogram_,
                    "count differing elements by powers of ten; --json always has this");
    sub->add_flag("--weights-only", weights_only_,
                  "for two checkpoints: leave out optimizer state, master weights and what "
                  "quantisers keep beside weights");
    if (!diff)
      sub->add_flag(
          "--files", files_,
          "for two folders of any content: compare them file by file, and say why files differ");
    if (diff) return sub;
    sub->add_option("--self-check", self_check_,
                    "for two checkpoints: compare K random elements of each stored tensor in B "
                    "with A, at places that a second, separate arithmetic gives")
        ->type_name("K")
        ->check(CLI::Range(std::int64_t{1}, job::most_self_check_elements));
    sub->add_option("--seed", seed_,
                    "with --self-check: which elements; the same seed takes the same (default: 1)")
        ->type_name("N")
        ->check([](std::string const& text) {
          return is_number(text) ? std::string()
                                 : fmt::format("'{}' is not a number from 0 to 2^64 - 1", text);
        });
    sub->add_flag("--replicas", replicas_, "for one checkpoint: compare all copies inside it too");
    sub->add_option("--subset", subset_,
                    "for one checkpoint: read only part K of N of its files, such as 3/30; "
                    "auto/30 is the part of today. All N parts are all files")
        ->type_name("K/N");
    sub->add_option("--record", record_,
                    "with --subset: the file that records what was read, and when (default: "
                    ".NAME.verified beside the checkpoint)")
        ->type_name("FILE");
    return sub;
  }

  std::string mistake() const override {
    if (std::string mistake = sides_.mistake(); !mistake.empty()) return mistake;
    if ((files_ || self_check_ > 0 || !subset_.empty()) &&
        !(sides_.a.source.empty() && sides_.b.source.empty()))
      return "--source-a and --source-b say how tensors are read, which --files, --self-check and "
             "--subset do not do by jobs. Leave them out.";
    if (paths_.size() == 1 && sides_.b.is_given())
      return "--config-b, --map-b, --prefix-b and --source-b say how B is read. Give two paths, or say of the one "
             "with --config-a, --map and --prefix-a how it is.";
    if (paths_.size() == 2 && replicas_)
      return "--replicas checks one checkpoint. Give one path, or leave it out: all replicas in B "
             "are compared in any case.";
    if (files_ && (paths_.size() == 1 || !sides_.adapter.empty()))
      return "--files compares the files of two folders as they are. Give two paths, and no "
             "--adapter.";
    if (!subset_.empty() && (paths_.size() == 2 || replicas_))
      return "--subset reads files of one checkpoint. Give one path, and no --replicas.";
    if (subset_.empty() && !record_.empty())
      return "--record needs --subset. Add the part to read, such as --subset auto, or leave "
             "--record out.";
    if (self_check_ > 0 &&
        (paths_.size() == 1 || files_ || weights_only_ || replicas_ || !sides_.adapter.empty()))
      return "--self-check compares elements of two checkpoints. Give two paths, and none of "
             "--files, --weights-only, --replicas and --adapter.";
    if (self_check_ == 0 && seed_)
      return "--seed chooses the elements of a self-check. Give --self-check K too, or leave --seed "
             "out.";
    if (weights_only_ && (files_ || paths_.size() == 1))
      return "--weights-only compares the tensors of two checkpoints. Give two paths, and no "
             "--files.";
    if (paths_.size() == 1 && !sides_.adapter.empty())
      return "--adapter belongs to a comparison of two checkpoints: the one it was merged into, and "
             "the merged one. Give both paths, or leave it out.";
    return "";
  }

  int run(Surroundings const& surroundings, Comm const& comm) override {
    if (files_) return compare_as_files(comm);
    if (self_check_ > 0) return compare_elements(surroundings, comm);
    if (!subset_.empty()) return verify_subset(comm);
    return paths_.size() == 1 ? verify_alone(surroundings, comm) : compare(surroundings, comm);
  }

 private:
  int verify_alone(Surroundings const& surroundings, Comm const& comm) const {
    DigestQuery query;
    query.path = paths_.front();
    query.map = sides_.a.map.empty() ? sides_.map : sides_.a.map;
    query.config = sides_.a.config;
    query.prefix = sides_.a.prefix;
    query.config_option = "--config-a";
    if (!sides_.a.source.empty()) {
      query.job = read_source_job(sides_.a.source, surroundings.library, comm);
      if (query.job->model.adapter != AdapterUse::keep)
        fail(ErrorKind::usage,
             "[model] adapter: a checkpoint is verified as it was written. Remove the key from {}.",
             sides_.a.source);
      query.map = query.job->model.map;
      query.config = query.job->source.config;
      query.prefix = query.job->source.prefix;
    }
    query.scope = replicas_ ? DigestScope::all : DigestScope::distinct;
    query.library = surroundings.library;
    VerifyReport const report = verify_one(std::move(query), comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return report.sound ? 0 : code_of_difference;
  }

  int verify_subset(Comm const& comm) const {
    PartReport const report = verify_part({paths_.front(), subset_, record_}, comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return report.sound ? 0 : code_of_difference;
  }

  int compare_as_files(Comm const& comm) const {
    FileComparison const result = compare_files(paths_.front(), paths_.back(), limit_, comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? result.json.dump(2) + "\n" : result.text);
    return result.same ? 0 : code_of_difference;
  }

  int compare_elements(Surroundings const& surroundings, Comm const& comm) const {
    SelfCheckRequest const request{
        compare_request(surroundings, comm), self_check_, seed_.value_or(1), {}};
    SelfCheckResult const result = self_check(request, comm);
    if (!result.why_not.empty() && result.why_kind != ErrorKind::usage)
      fail(result.why_kind, "{}", result.why_not);
    if (!result.why_not.empty())
      fail(ErrorKind::usage, "{} and {}: nothing could be compared: {} {}", paths_.front(),
           paths_.back(), result.why_not,
           result.understood ? "Leave out --self-check: then all values are compared."
                             : "Name the map with --map, or the model's config.json with "
                               "--config-a or --config-b.");
    if (comm.rank() == 0)
      write_to_stdout(json_ ? self_check_json(result).dump(2) + "\n" : self_check_text(result));
    return result.sound() ? 0 : code_of_difference;
  }

  CompareRequest compare_request(Surroundings const& surroundings, Comm const& comm) const {
    CompareRequest request = sides_.request(paths_, comparison_, surroundings.library, comm);
    request.weights_only = weights_only_;
    request.histogram = histogram_;
    request.row_limit = limit_;
    return request;
  }

  int compare(Surroundings const& surroundings, Comm const& comm) const {
    CompareRequest request = compare_request(surroundings, comm);
    CompareReport const report = compare_checkpoints(request, comm);
    if (comm.rank() == 0) write_to_stdout(json_ ? report.json.dump(2) + "\n" : report.text);
    return report.same ? 0 : code_of_difference;
  }

  Comparison comparison_;
  std::vector<std::string> paths_;  ///< one or two
  TwoCheckpoints sides_;
  std::size_t limit_ = 50;  ///< rows of the text
  bool files_ = false;      ///< compare files, not tensors
  bool weights_only_ = false;
  bool histogram_ = false;
  std::uint64_t self_check_ = 0;  ///< elements of each tensor; 0: not asked for
  std::optional<std::uint64_t> seed_;
  bool replicas_ = false;  ///< `verify A`: replicas, too
  std::string subset_;     ///< `verify A`: "" for all
  std::string record_;     ///< "" for the usual one
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_verify_command() {
  return std::make_unique<VerifyCommand>(Comparison::bytes);
}
std::unique_ptr<Command> make_diff_command() {
  return std::make_unique<VerifyCommand>(Comparison::values);
}

}  // namespace reshard
