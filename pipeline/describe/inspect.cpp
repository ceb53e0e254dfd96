#include <map>

#include "core/base/file.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/megatron/report.hpp"
#include "pipeline/describe/inspect_dcp.hpp"
#include "pipeline/describe/inspect_hdf5.hpp"
#include "pipeline/describe/look.hpp"
#include "stages/read/recognise.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Inspection inspect_megatron(fs::path const& path, megatron::UserSizes const& user) {
  megatron::Directory const directory = megatron::open_directory(path);
  std::vector<std::optional<megatron::ShardHeader>> headers;
  std::vector<std::string> damage;
  for (megatron::Shard const& shard : directory.shards) {
    headers.emplace_back();
    if (shard.model_file.empty()) continue;
    auto const error = capture([&] {
      headers.back() = megatron::read_shard_header(File::open_for_reading(shard.model_path()));
    });
    if (error) damage.push_back(error->sentence());
  }
  std::vector<megatron::ShardHeader const*> pointers;
  for (auto const& header : headers) pointers.push_back(header ? &*header : nullptr);
  megatron::Classification classification =
      megatron::classify(megatron::shard_facts(directory, pointers), user);
  for (std::string& sentence : damage)
    classification.mismatches.push_back({std::move(sentence), false});
  Inspection result;
  result.json.set("path", path.string()).set("format", "megatron");
  Json const report = megatron::inspect_json(directory, classification, pointers);
  for (auto const& [key, value] : *report.members()) result.json.set(key, value);
  result.text = fmt::format("path              {}\nformat            megatron\n{}", path.string(),
                            megatron::inspect_text(report));
  Json const* mismatches = report.find("mismatches");
  result.sound =
      mismatches != nullptr && mismatches->items() != nullptr && mismatches->items()->empty();
  return result;
}

/// Tensors and bytes of one dtype.
struct DTypeTotal {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
};

Inspection inspect_huggingface(fs::path const& path) {
  huggingface::Folder const folder = huggingface::open_folder(path);
  huggingface::IndexCheck const check(folder);
  std::map<std::string, DTypeTotal> dtypes;
  std::vector<std::string> notes = folder.warnings;
  std::vector<std::string> mismatches;
  std::int64_t tensors = 0;
  for (std::size_t f = 0; f < folder.files.size(); ++f) {
    auto const error = capture([&] {
      safetensors::Header const header =
          safetensors::read_header(File::open_for_reading(folder.path / folder.files[f]));
      huggingface::FileCheck const found = check.check(f, header);
      notes.insert(notes.end(), found.warnings.begin(), found.warnings.end());
      tensors += static_cast<std::int64_t>(found.indexed.size());
      for (std::size_t const i : found.indexed) {
        DTypeTotal& total = dtypes[std::string(name(header.tensors[i].dtype))];
        ++total.tensors;
        total.bytes += header.tensors[i].size_bytes;
      }
    });
    if (error) mismatches.push_back(error->sentence());
  }
  Json kinds = Json::object();
  std::string kinds_text;
  for (auto const& [dtype, total] : dtypes) {
    kinds.set(dtype, Json().set("tensors", total.tensors).set("bytes", total.bytes));
    kinds_text += fmt::format("{}{}: {} tensors, {}", kinds_text.empty() ? "" : "; ", dtype,
                              total.tensors, human_bytes(total.bytes));
  }
  Json const* type = folder.config.find("model_type");
  std::string const model_type =
      type != nullptr && type->text() != nullptr ? *type->text() : "unknown (no config.json)";
  auto const array = [](std::vector<std::string> const& items) {
    Json::Array list(items.begin(), items.end());
    return Json(std::move(list));
  };
  Inspection result;
  result.json.set("path", path.string())
      .set("format", "huggingface")
      .set("model_type", model_type)
      .set("files", static_cast<std::int64_t>(folder.files.size()));
  result.json.set("index", !folder.weight_map.empty())
      .set("tensors", tensors)
      .set("dtypes", kinds)
      .set("sidecars", array(folder.sidecars));
  result.json.set("mismatches", array(mismatches)).set("notes", array(notes));
  result.text = fmt::format(
      "path              {}\nformat            huggingface\nmodel_type        {}\nfiles             {}{}\ntensors           {}\ndtypes            "
      "{}\n",
      path.string(), model_type, folder.files.size(),
      folder.weight_map.empty() ? "" : " with an index", tensors, kinds_text);
  for (std::string const& sentence : mismatches)
    result.text += "mismatch          " + sentence + "\n";
  for (std::string const& note : notes) result.text += "note              " + note + "\n";
  result.sound = mismatches.empty();
  return result;
}

Inspection inspect_format(fs::path const& path, megatron::UserSizes const& user) {
  switch (kind_of(path)) {
    case CheckpointKind::megatron: break;
    case CheckpointKind::huggingface: return inspect_huggingface(path);
    case CheckpointKind::dcp: return inspect_dcp(path);
    case CheckpointKind::boxed_safetensors: return inspect_boxed_safetensors(path);
    case CheckpointKind::hdf5: return inspect_hdf5(path);
  }
  return inspect_megatron(path, user);
}

}  // namespace

Inspection inspect(fs::path const& path, megatron::UserSizes const& user) {
  Inspection result = inspect_format(path, user);
  auto const hidden = parse_hidden_name(absolute_target(path).filename().string());
  if (!hidden || hidden->kind != HiddenName::Kind::staging) return result;
  std::string const target = (absolute_target(path).parent_path() / hidden->target).string();
  result.sound = false;
  result.json.set("unfinished_target", target);
  result.text += fmt::format(
      "unfinished        a run of reshard that was to make {} has not completed it: run its job again, or `reshard clean {}`\n",
      target, target);
  return result;
}

}  // namespace reshard
