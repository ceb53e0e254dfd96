#include "pipeline/describe/draft_map.hpp"

#include <set>

#include "core/base/files/file.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "stages/plan/draft/map_draft.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

bool is_folder(fs::path const& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void add_index(fs::path const& path, std::set<std::string>& known,
               std::vector<DraftTensor>& tensors) {
  Json const index =
      parse_json(read_text_file(path, huggingface::largest_index_bytes), path.string());
  Json const* map = index.find("weight_map");
  if (map == nullptr || map->members() == nullptr)
    fail(ErrorKind::usage,
         "{}: has no weight_map. Give a model.safetensors.index.json, or the folder of the "
         "weights.",
         path.string());
  for (auto const& [name, file] : *map->members())
    if (known.insert(name).second) tensors.push_back({name, std::nullopt});
}

/// Names and shapes from the headers in a folder; of files that are not there, the names of the
/// index.
std::vector<DraftTensor> tensors_of(fs::path const& folder) {
  std::set<fs::path> files;
  for (auto const& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors" && entry.is_regular_file())
      files.insert(entry.path());
  std::vector<DraftTensor> tensors;
  std::set<std::string> known;
  for (fs::path const& file : files)
    for (FileTensor const& tensor : safetensors::read_header(File::open_for_reading(file)).tensors)
      if (known.insert(tensor.name).second) tensors.push_back({tensor.name, tensor.shape});
  std::error_code ignored;
  fs::path const index = folder / huggingface::index_name;
  if (fs::exists(index, ignored)) add_index(index, known, tensors);
  return tensors;
}

Json groups_json(std::vector<NameGroup> const& groups) {
  Json list = Json::array();
  for (NameGroup const& group : groups) {
    Json item;
    item.set("name", group.text).set("count", group.count);
    if (group.shape) {
      Json shape = Json::array();
      for (Index const extent : *group.shape) shape.push(extent);
      item.set("shape", std::move(shape));
    }
    list.push(std::move(item));
  }
  return list;
}

MapDraft draft(std::string const& base, std::vector<std::string> const& paths,
               MapLibrary const& library) {
  DraftRequest request{
      base, read_facts(paths.front(), huggingface::largest_config_bytes), {}, library};
  fs::path const names = paths.back();
  if (is_folder(names)) {
    request.tensors = tensors_of(names);
  } else if (paths.size() > 1) {
    std::set<std::string> known;
    add_index(names, known, request.tensors);
  } else {
    request.tensors = tensors_of(names.has_parent_path() ? names.parent_path() : fs::path("."));
  }
  if (request.tensors.empty())
    fail(ErrorKind::usage,
         "{}: no stored names are known: there is neither a safetensors file nor an index. Give "
         "the index as a second path: --draft config.json model.safetensors.index.json.",
         paths.back());
  return draft_map(request);
}

}  // namespace

MapReport draft_map_report(std::string const& base, std::vector<std::string> const& paths,
                           MapLibrary const& library) {
  try {
    MapDraft const found = draft(base, paths, library);
    Json json;
    json.set("base", found.base)
        .set("model_type", found.model_type.empty() ? Json() : Json(found.model_type))
        .set("described", static_cast<std::int64_t>(found.described))
        .set("left", groups_json(found.left));
    Json lacking = Json::array();
    for (std::string const& name : found.lacking) lacking.push(name);
    json.set("lacking", std::move(lacking)).set("map", found.toml);
    return {json, found.toml, ""};
  } catch (Error const& error) {
    if (error.kind() == ErrorKind::internal) throw;
    throw Error(ErrorKind::usage, error.sentence());
  } catch (fs::filesystem_error const& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
}

}  // namespace reshard
