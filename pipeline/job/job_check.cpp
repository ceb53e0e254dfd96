#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "core/base/divisors.hpp"
#include "core/base/error.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/format.hpp"
#include "core/layout/pipeline_layout.hpp"
#include "pipeline/job/job_field.hpp"

namespace reshard::job {
namespace {

/// The checks of one job: each member function checks one group of keys.
class Checker {
 public:
  Checker(JobSpec const& spec, std::span<Given const> given) : spec_(spec), given_(given) {}

  std::vector<std::string> run() {
    check_scopes();
    check_paths();
    if (format_of(spec_.target.format).target().storage == Storage::shares)
      check_expert_tensor_size();
    check_pipeline();
    check_chunks();
    check_kept_names();
    check_target_names();
    check_adapter();
    check_average();
    check_changes();
    check_transport();
    check_sums();
    return std::move(found_);
  }

 private:
  Given const* find(std::string_view key) const {
    for (Given const& given : given_)
      if (given.field->key() == key) return &given;
    return nullptr;
  }

  void add(Given const& given, std::string const& sentence) {
    found_.push_back(label(given) + ": " + sentence);
  }

  void check_scopes() {
    if (find("target.format") == nullptr) return;  // missing or refused: already reported
    for (Given const& given : given_) {
      if (has_meaning(*given.field, spec_.target.format)) continue;
      std::string formats;
      for (Format const* known : all_formats())
        if (FormatId const format = known->id(); has_meaning(*given.field, format))
          formats += fmt::format("{}\"{}\"", formats.empty() ? "" : " or ", name(format));
      std::string_view const target = name(spec_.target.format);
      add(given,
          is_further_axis(given)
              ? fmt::format(
                    "the files of target.format = \"{}\" have no place for this axis. Remove it, or set target.format = {}",
                    target, formats)
              : fmt::format("the key does not apply to target.format = \"{}\". Remove it, or set "
                            "target.format = {}",
                            target, formats));
    }
  }

  bool is_default(Given const& given) const {
    return given.field->show(spec_) == given.field->show(JobSpec{});
  }

  static bool is_further_axis(Given const& given) {
    return std::ranges::none_of(
        fields(), [key = given.field->key()](Field const& field) { return field.key() == key; });
  }

  void check_paths() {
    for (std::string_view const key : {"source.path", "target.path", "model.map"})
      if (Given const* given = find(key);
          given != nullptr && std::get<std::string>(given->value).empty())
        add(*given, "the string is empty");
    for (std::string_view const key :
         {"source.path", "source.config", "source.adapter", "target.path", "target.reference",
          "target.incremental_from", "target.rows_from", "target.mtp_from"})
      if (Given const* const given = find(key); given != nullptr)
        check_local(*given, std::get<std::string>(given->value));
    if (Given const* const given = find("source.average"); given != nullptr)
      for (std::string const& path : spec_.source.average) check_averaged(*given, path);
    Given const* const target = find("target.path");
    if (target == nullptr || spec_.source.path.empty() || spec_.target.path.empty()) return;
    auto const from = resolved_path(spec_.source.path);
    auto const to = resolved_path(spec_.target.path);
    std::string const source = json_quoted(spec_.source.path);
    if (from == to)
      add(*target, "is also source.path. The source is never changed: choose another folder");
    else if (holds(to, from))
      add(*target,
          fmt::format("the source {} is inside it. Choose a folder that does not hold the source",
                      source));
    else if (holds(from, to))
      add(*target,
          fmt::format("is inside the source {}, which is never changed. Choose a folder outside it",
                      source));
  }

  /// Words that a shell would expand, and addresses of other storage, are folders of such names
  /// here.
  void check_averaged(Given const& given, std::string const& path) {
    if (path.empty()) return add(given, "a string in it is empty");
    check_local(given, path);
    if (spec_.target.path.empty()) return;
    auto const from = resolved_path(path);
    auto const to = resolved_path(spec_.target.path);
    if (from == to || holds(to, from) || holds(from, to))
      add(given,
          fmt::format("{} and target.path are one folder, or one is inside the other. Choose "
                      "another folder for the target",
                      json_quoted(path)));
  }

  void check_local(Given const& given, std::string const& path) {
    if (path == "~" || path.starts_with("~/"))
      add(given, "'~' is not known, because HOME is not set. Write your home folder out");
    if (path.starts_with('$') && path.find_first_not_of('/', 1) == 1)
      add(given,
          "begins with an environment variable, and a job file replaces none. Write the path out, "
          "or give it with --set, where the shell replaces it");
    std::string_view const scheme = std::string_view(path).substr(0, path.find("://"));
    if (scheme.size() < path.size() && scheme.find('/') == std::string_view::npos)
      add(given,
          "is an address, and only local paths are read and written. Mount that storage, or copy "
          "the files");
  }

  /// Nothing would come of such a key, and Megatron could not load what it expects.
  void check_kept_names() {
    if (spec_.model.map != "none") return;
    for (Given const& given : given_)
      if (given.field->key().starts_with("target.layout."))
        add(given,
            "model.map = \"none\" copies every tensor and all optimizer state as stored, in the "
            "layout of the source. Remove the key, or set model.map to \"auto\"");
  }

  /// Keys of a DCP target that need, or exclude, names of a map.
  void check_target_names() {
    if (spec_.target.format != FormatId::dcp) return;
    Given const* const map = find("target.map");
    bool const mapped = map != nullptr && !spec_.target.options.dcp.map.empty();
    if (mapped && spec_.model.map == "none")
      add(*map, "model.map = \"none\" keeps the names of the source. Remove one of the two");
    for (Given const& given : given_)
      if (!mapped && given.field->key().starts_with("target.layout.") && !is_default(given))
        add(given,
            "with target.format = \"dcp\" it applies only with target.map, where names depend "
            "on the layout. Remove the key; target.chunks states how tensors are split");
    if (Given const* const reference = find("target.reference");
        reference != nullptr && !mapped && !spec_.target.options.huggingface.reference.empty())
      add(*reference,
          "with target.format = \"dcp\" it applies only with target.map, which gives the tensors "
          "the names of a model. Add that key, or remove this one");
  }

  /// Neither the state of the optimizer nor a merge has a mean.
  void check_average() {
    if (spec_.source.average.empty()) return;
    if (!spec_.source.adapter.empty())
      add(*find("source.average"),
          "is not combined with source.adapter. Merge the adapter in a job of its own");
    if (spec_.run.self_check > 0)
      add(*find("source.average"),
          "is not combined with run.self_check, which looks for values of one source. Remove one of "
          "the keys");
    if (!spec_.target.incremental_from.empty() && spec_.target.incremental_from != no_previous)
      add(*find("source.average"),
          "is not combined with target.incremental_from, which compares one source with what was made of it "
          "before. Remove one of the keys");
    if (spec_.model.quant == QuantChoice::dequantise_bf16)
      add(*find("source.average"),
          "is not combined with model.quant = \"dequantise-bf16\". Dequantise each checkpoint in "
          "a job of its own");
  }

  /// Keys that look for values of the source find others there, or none.
  void check_changes() {
    if (!spec_.target.changes.any()) return;
    for (Given const& given : given_) {
      std::string const key = given.field->key();
      if ((key == "run.self_check" && spec_.run.self_check > 0) ||
          (key == "target.incremental_from" && !spec_.target.incremental_from.empty()) ||
          (key == "model.map" && spec_.model.map == "none") ||
          (key == "source.average" && !spec_.source.average.empty() &&
           !spec_.target.changes.mtp_from.empty()))
        add(given,
            "is not combined with target.vocab_size, keep_layers, keep_experts, mtp and mtp_from, "
            "which make another model. Remove it, or these");
    }
  }

  /// An adapter that is named is merged.
  void check_adapter() {
    bool const merges = spec_.model.adapter == AdapterUse::merge;
    if (!spec_.source.adapter.empty() && spec_.model.adapter == AdapterUse::keep)
      add(*find("source.adapter"),
          "is only read to be merged. Set model.adapter = \"merge\", or remove the key");
    if (merges && spec_.model.map == "none")
      add(*find("model.adapter"),
          "needs a map, which describes the weights of an adapter, but model.map = \"none\". "
          "Set model.map to \"auto\"");
  }

  void check_expert_tensor_size() {
    Given const* const etp = find("target.layout.etp");
    int const tp = spec_.target.layout.size("tp");
    int const size = spec_.target.layout.size("etp");
    if (etp != nullptr && size != 0 && tp % size != 0)
      add(*etp,
          fmt::format(
              "mp_rank_* folders can hold this only when etp divides tp = {}. Sizes that fit: {}, or 0 for tp itself. Choose one of them",
              tp, listed_divisors(tp)));
  }

  void check_pipeline() {
    if (Given const* const chunks = find("target.layout.vpp");
        chunks != nullptr && spec_.target.layout.size("vpp") > 1 &&
        spec_.target.layout.size("pp") == 1)
      add(*chunks,
          "Megatron has several model chunks per rank only with layout.pp above 1, and layout.pp = 1. Set vpp to 1 or raise pp");
    Given const* const given = find("target.layout.pipeline");
    if (given == nullptr || spec_.target.layout.pipeline.empty()) return;
    auto const& layout = spec_.target.layout;
    if (layout.first_stage_layers >= 0 || layout.last_stage_layers >= 0)
      add(*given,
          "describes every stage, so first_stage_layers and last_stage_layers do not apply. "
          "Keep one of the two");
    try {
      check_stages(*given, pipeline_stages(layout.pipeline));
    } catch (Error const& problem) {
      add(*given, problem.sentence());
    }
  }

  /// Keys that belong to one choice of target.chunks.
  void check_chunks() {
    struct Companion {
      std::string_view key;
      ChunkGrid::Kind chunks;
      std::string_view word;
    };
    for (Companion const& companion :
         {Companion{"target.ranks", ChunkGrid::Kind::ranks, "ranks"},
          Companion{"target.mesh", ChunkGrid::Kind::mesh, "mesh"},
          Companion{"target.placements", ChunkGrid::Kind::mesh, "mesh"}}) {
      Given const* const given = find(companion.key);
      bool const chosen = spec_.target.options.dcp.chunks == companion.chunks;
      JobSpec const usual;
      bool const is_default =
          given != nullptr && given->field->show(spec_) == given->field->show(usual);
      if (given != nullptr && !chosen && !is_default)
        add(*given, fmt::format("applies only with target.chunks = \"{}\"", companion.word));
      if (given == nullptr && chosen && find("target.chunks") != nullptr)
        add(*find("target.chunks"), fmt::format("needs {} as well", companion.key));
    }
  }

  /// NCCL moves the memory of GPUs only.
  void check_transport() {
    Given const* const given = find("run.transport");
    bool const no_gpu =
        spec_.run.device == DeviceChoice::host || spec_.run.device == DeviceChoice::emulated;
    if (given == nullptr || spec_.run.transport != TransportChoice::nccl || !no_gpu) return;
    add(*given,
        fmt::format("\"nccl\" sends from GPU to GPU, and run.device = \"{}\" uses no GPU. Set "
                    "run.transport to mpi or auto, or run.device to cuda",
                    spec_.run.device == DeviceChoice::host ? "host" : "emulated"));
  }

  /// The sums are taken of what is read back.
  void check_sums() {
    Given const* const given = find("target.sha256sums");
    if (given == nullptr || spec_.target.sha256sums != SumsChoice::always ||
        spec_.run.verify == VerifyChoice::written)
      return;
    add(*given,
        "needs run.verify = \"written\": sums are taken while files are read back. Set that, "
        "or remove the key");
  }

  void check_stages(Given const& given, std::int64_t stages) {
    int const pp = spec_.target.layout.size("pp");
    int const vpp = spec_.target.layout.size("vpp");
    if (stages % pp != 0)
      return add(given, fmt::format("has {}, which pp = {} does not divide. Sizes of pp that "
                                    "fit: {}. Choose one of them, or another layout",
                                    counted(stages, "stage"), pp, listed_divisors(stages)));
    if (find("target.layout.vpp") != nullptr && stages != std::int64_t{pp} * vpp)
      add(given, fmt::format("has {}, but pp x vpp = {} x {}. Leave vpp out, or set it to {}",
                             counted(stages, "stage"), pp, vpp, stages / pp));
  }

  JobSpec const& spec_;
  std::span<Given const> given_;
  std::vector<std::string> found_;
};

}  // namespace

std::string label(Given const& given) {
  return fmt::format("{}: [{}] {} = {}", given.place, given.field->table, given.field->name,
                     keys::shown(given.value));
}

std::int64_t pipeline_stages(std::string_view layout) {
  return static_cast<std::int64_t>(parse_pipeline_layout(layout).size());
}

std::vector<std::string> contradictions(JobSpec const& spec, std::span<Given const> given) {
  return Checker(spec, given).run();
}

}  // namespace reshard::job
