#include <optional>

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/tables/counted.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/shapes.hpp"
#include "core/mapping/expressions/expression.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "pipeline/describe/look.hpp"
#include "pipeline/describe/run_table.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/job/plan_request.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void add_line(Inspection& result, std::string_view label, std::string_view value) {
  std::string const line = inspect_line(label, value);
  result.text += line;
  if (!result.summary.empty()) result.summary += line;
}

void add(Inspection& result, Json& json, std::string const& key, std::string const& value) {
  json.set(key, value);
  add_line(result, key == "program" ? "saved by" : key == "model" ? "model in" : key, value);
}

/// The place of the facts about the model's size.
std::string facts_of(FoundShape const& shape, Json const& args) {
  if (describe_a_model(args)) return "args";
  if (!shape.facts.is_null()) return shape.settings;
  for (fs::path const& place : shape.configs)
    if (fs::path const config = place / huggingface::config_name; fs::is_regular_file(config))
      return config.string();
  return "nothing here: set source.config to the model's config.json";
}

/// Where the parts of the save are; a folder in which that is not as it should be is a mismatch.
std::optional<FoundShape> shape_of(Inspection& result) {
  std::optional<FoundShape> shape;
  if (result.folder.empty()) return shape;
  auto const damage = capture([&] { shape = find_shape(result.folder, result.args); });
  if (!damage) return shape;
  result.sound = false;
  result.mismatches.push_back(damage->sentence());
  result.json.set("mismatches",
                  Json(Json::Array(result.mismatches.begin(), result.mismatches.end())));
  return std::nullopt;
}

void add_note(Inspection& result, std::string note) {
  Json notes = Json(Json::Array());
  if (Json const* known = result.json.find("notes"); known != nullptr) notes = *known;
  notes.push(note);
  result.json.set("notes", std::move(notes));
  result.notes.push_back(std::move(note));
}

/// Adds mismatches and notes.
void add_findings(Inspection& result) {
  if (!result.summary.empty()) result.summary += inspect_findings(result.mismatches, result.notes);
  std::vector<std::string> notes = result.notes;
  notes.insert(notes.end(), result.details.begin(), result.details.end());
  result.text += inspect_findings(result.mismatches, notes);
}

/// Whose folder it is.
void add_shape(Inspection& result, std::optional<FoundShape> const& shape) {
  if (!shape) return;
  Json json;
  add(result, json, "program", shape->program);
  add(result, json, "evidence", fmt::format("{} in {}", shape->evidence, shape->save.string()));
  add(result, json, "model", facts_of(*shape, result.args));
  if (!shape->origin.empty()) add(result, json, "began from", shape->origin);
  if (!shape->optimizer.empty()) add(result, json, "optimizer in", shape->optimizer);
  result.json.set("shape", std::move(json));
}

/// Such a file is shown as a folder of it alone would be.
bool is_weight_file(fs::path const& path) {
  std::error_code none;
  return path.extension() == ".safetensors" && fs::is_regular_file(path, none);
}

Inspection inspect_one(fs::path const& given, megatron::UserSizes const& user,
                       std::string const& misfit) {
  if (is_weight_file(given)) {
    Inspection result = format_of(FormatId::huggingface).describe(given, user);
    add_findings(result);
    return result;
  }
  fs::path const path = folder_of_weights(given);
  std::optional<ListedFolders> listed_weights;
  if (path != given) listed_weights.emplace(path);
  Inspection result = choose_format(path).describe(path, user);
  auto const shape = shape_of(result);
  if (!result.folder.empty())
    if (std::string note = newer_saves_note(given, result.folder); !note.empty())
      add_note(result, std::move(note));
  if (!misfit.empty()) add_note(result, "a job would refuse it: " + misfit);
  add_findings(result);
  add_shape(result, shape);
  auto const hidden = parse_hidden_name(absolute_target(path).filename().string());
  if (!hidden || hidden->kind != HiddenName::Kind::staging) return result;
  std::string const target = (absolute_target(path).parent_path() / hidden->target).string();
  result.sound = false;
  result.json.set("unfinished_target", target);
  add_line(result, "unfinished",
           fmt::format("a run of reshard that writes {} has not completed: run its job again, or "
                       "`reshard clean {}`",
                       target, target));
  return result;
}

/// How a map reads the names of a checkpoint.
struct Reading {
  bool known = false;  ///< something describes the model
  std::optional<Error> failed;
  JobPlan plan;
};

bool is_asked(CheckpointQuery const& query) {
  return query.map != "auto" || !query.config.empty() || !query.prefix.empty();
}

Reading reading_of(CheckpointQuery const& query) {
  Reading reading;
  reading.known = is_asked(query);
  reading.failed = capture([&] {
    OpenChoice choice;
    choice.without_heads = true;
    Checkpoint const source =
        open_checkpoint(query.path, FormatId::automatic, choice, LoneReader());
    auto const files = files_of(source);
    reading.known = reading.known || files.has_value();
    PlanRequest request = request_without_target(query.map, query.config, query.library);
    request.read.prefix = query.prefix;
    if (files && query.config.empty() && source.names == NameOwner::family)
      request.read.config = files->path;
    if (reading.known)
      with_option_words("--config", [&] { reading.plan = catalogue(source, request); });
  });
  return reading;
}

/// Why the weights of a Hugging Face folder are not those that its config.json describes; "" where
/// they are, or nothing is known of it.
std::string config_misfit(CheckpointQuery const& query) {
  std::error_code none;
  if (query.map == "none" || is_asked(query) ||
      !fs::is_regular_file(query.path / huggingface::config_name, none))
    return "";
  std::optional<FormatId> format;
  if (capture([&] { format = choose_format(query.path).id(); }) || format != FormatId::huggingface)
    return "";
  Reading const reading = reading_of(query);
  if (!reading.known || !reading.failed) return "";
  std::string const sentence = reading.failed->sentence();
  bool const misfit = reading.failed->kind() == ErrorKind::source ||
                      sentence.find(misfit_advice) != std::string::npos;
  return misfit ? sentence : "";
}

void add_reading(Inspection& result, CheckpointQuery const& query) {
  bool const asked = is_asked(query);
  if (query.map == "none" || (!asked && fact(result.json, "format") != Json(name(FormatId::dcp))))
    return;
  Reading const reading = reading_of(query);
  if (!reading.known) return;
  if (reading.failed && asked) {
    result.sound = false;
    result.mismatches.push_back(reading.failed->sentence());
    result.json.set("mismatches",
                    Json(Json::Array(result.mismatches.begin(), result.mismatches.end())));
  }
  if (reading.failed) return add_line(result, "read as", reading.failed->sentence());
  JobPlan const& plan = reading.plan;
  if (plan.map_name.empty()) return;
  std::size_t tensors = 0;
  for (std::size_t t = 0; t < plan.model->tensors().size(); ++t)
    tensors += plan.model->exists(TensorId(t)) ? 1U : 0U;
  std::string text = fmt::format("{}, {}", plan.map_name, counted(tensors, "logical tensor"));
  if (!plan.listing.prefix_note.empty()) text += "; " + plan.listing.prefix_note;
  result.json.set("read_as", text);
  add_line(result, "read as", text);
}

}  // namespace

Inspection inspect(fs::path const& path, megatron::UserSizes const& user) {
  return inspect(CheckpointQuery{.path = path, .map = "none"}, user);
}

Inspection inspect(CheckpointQuery const& query, megatron::UserSizes const& user) {
  fs::path const& given = query.path;
  ListedFolders const listed(given);
  Inspection result;
  auto const failed = capture([&] {
    result = inspect_one(given, user, config_misfit(query));
    add_reading(result, query);
  });
  bool const unknown = !failed && result.folder.empty();  // of formats of one folder
  RunTable const run = run_table(given, unknown ? folder_of_weights(given) : result.folder,
                                 failed || unknown ? nullptr : &result.json);
  if (failed && run.saves == 0) throw *failed;
  if (failed) {
    result.sound = false;
    result.json.set("path", given.string()).set("refused", failed->sentence());
  }
  if (run.saves == 0 || (run.saves == 1 && !failed)) return result;
  result.json.set("saves", run.json);
  result.text += (failed ? "" : "\n") + run.text;
  if (!result.summary.empty()) result.summary += "\n" + run.text;
  return result;
}

}  // namespace reshard
