#include <optional>

#include <fmt/format.h>

#include "core/base/capture.hpp"
#include "core/base/listed_folders.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/shapes.hpp"
#include "pipeline/describe/look.hpp"
#include "pipeline/verify/digest.hpp"
#include "stages/read/open_source.hpp"
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

/// What says how large the model is.
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

/// What is wrong with it, and what else there is to say.
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

}  // namespace

std::string config_misfit(fs::path const& path, MapLibrary const& library, Comm const& comm) {
  bool has_config = false;
  together(comm, [&] {
    std::error_code none;
    has_config = fs::is_regular_file(path / huggingface::config_name, none);
  });
  if (comm.max(has_config ? 1 : 0) == 0) return "";
  std::string misfit;
  auto const error = capture([&] {
    Checkpoint const checkpoint = open_source(path, comm);
    if (checkpoint.format->id() != FormatId::huggingface) return;
    DigestQuery query;
    query.path = path;
    query.library = library;
    auto const refused = capture([&] { (void)open_logical(checkpoint, query, comm); });
    if (refused && refused->kind() == ErrorKind::source) misfit = refused->sentence();
  });
  return error ? "" : misfit;  // what cannot be opened is told by inspect()
}

Inspection inspect(fs::path const& given, megatron::UserSizes const& user,
                   std::string const& misfit) {
  ListedFolders const listed(given);
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

}  // namespace reshard
