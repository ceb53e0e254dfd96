#include "core/formats/huggingface/source.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/capture.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/text_order.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/huggingface/config/config_dtype.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "core/formats/inspect_lines.hpp"

namespace reshard::huggingface {
namespace {

namespace fs = std::filesystem;

/// Shards whose index is still to come look like a folder with one file.
std::string lone_shard(fs::path const& folder) {
  for (std::string_view const name : {index_name, single_file_name, adapter_index_name,
                                      adapter_file_name, consolidated_index_name})
    if (sees_file(folder / name)) return "";
  std::error_code error;
  for (std::string const& name : names_in(folder, error))
    if (matches_glob("*-of-*.safetensors", name))
      return fmt::format("has {} and no {} yet", name, index_name);
  return "";
}

/// "LoRA adapter of /models/base, r 8, alpha 16"
std::string adapter_summary(Json const& config) {
  auto const said = [&config](char const* key) {
    Json const* const value = config.find(key);
    return value == nullptr || value->is_null() ? std::string("?")
           : value->text() != nullptr           ? *value->text()
                                                : value->dump();
  };
  return fmt::format("{} adapter of {}, r {}, alpha {}", said("peft_type"),
                     said("base_model_name_or_path"), said("r"), said("lora_alpha"));
}

/// Without an index only the headers say which of two tensors of one name counts.
void check_once(Checkpoint const& checkpoint) {
  StoredTable const& stored = checkpoint.stored;
  std::map<std::string_view, std::size_t> seen;
  for (std::size_t t = 0; t < stored.tensors.size(); ++t)
    if (auto const [first, is_new] = seen.emplace(stored.tensors.name(t), t); !is_new)
      fail(ErrorKind::source,
           "{}: '{}' is in several files, and without an index it is not known which is meant. "
           "Remove the files of another save or download.",
           checkpoint.place, safetensors::shown(stored.tensors.name(t)));
}

/// Tensors and bytes of one dtype.
struct DTypeTotal {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

FormatWords HuggingFaceFormat::words() const {
  return {.help = "safetensors", .sign = "*.safetensors (Hugging Face)", .remains = {config_name}};
}

bool HuggingFaceFormat::probe(fs::path const& path) const {
  return sees_folder(path) && looks_like_folder(path);
}

Format const& HuggingFaceFormat::refined(fs::path const& path) const {
  if (dcp::looks_like_boxed_safetensors(path)) return dcp::boxed_safetensors();
  return sees_folder(path) && has_consolidated_alone(path) ? format_of(FormatId::mistral) : *this;
}

std::string HuggingFaceFormat::why_incomplete(fs::path const& path) const {
  return lone_shard(path);
}

Checkpoint HuggingFaceFormat::open(fs::path const& path, OpenChoice const& choice,
                                   HeaderExchange const& exchange) const {
  Checkpoint checkpoint;
  checkpoint.format = this;
  Folder folder;
  exchange.together_seeing([&] { folder = opened(path, choice.by_headers); });
  for (fs::path const& file : folder.files) checkpoint.files.push_back(folder.path / file);
  std::vector<safetensors::Header> headers = shared_safetensors_headers(checkpoint, exchange);
  checkpoint.root = checkpoint.folder = folder.path;
  checkpoint.place = folder.path.string();
  checkpoint.warnings = folder.warnings;
  checkpoint.summary = fmt::format("{} safetensors file{}", checkpoint.files.size(),
                                   checkpoint.files.size() == 1 ? "" : "s");
  exchange.together([&] {
    IndexCheck const index(folder);
    for (std::size_t f = 0; f < headers.size(); ++f) {
      FileCheck const check = index.check(f, headers[f]);
      add_metadata(folder.file_metadata, folder.files[f].string(), headers[f].metadata);
      if (check.indexed.size() < headers[f].tensors.size()) {
        std::set<std::size_t> const listed(check.indexed.begin(), check.indexed.end());
        for (std::size_t i = 0; i < headers[f].tensors.size(); ++i)
          if (!listed.contains(i)) checkpoint.index.unlisted.push_back(headers[f].tensors[i].name);
      }
      for (std::size_t const i : check.indexed) {
        FileTensor& tensor = headers[f].tensors[i];
        checkpoint.stored.add_whole(
            std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
            {narrow<std::uint32_t>(f), tensor.offset_bytes, tensor.size_bytes},
            std::move(tensor.strides));
      }
      checkpoint.warnings.insert(checkpoint.warnings.end(), check.warnings.begin(),
                                 check.warnings.end());
    }
  });
  if (choice.by_headers) exchange.together([&] { check_once(checkpoint); });
  checkpoint.index.promised.reserve(folder.weight_map.size());
  WeightMap const& map = folder.weight_map;
  auto const name_of = [&map](std::size_t i) -> std::string_view { return map[i].first; };
  for (std::uint32_t const i : text_order(map.size(), name_of))
    checkpoint.index.promised.push_back(map[i].first);
  checkpoint.model.config = folder.config;
  checkpoint.model.beside = std::move(folder);
  return checkpoint;
}

namespace {

std::uint64_t elements_of(std::vector<Index> const& shape) {
  std::uint64_t count = 1;
  for (Index const size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

/// "7615616512 (7.62 billion)".
std::string with_short_form(std::uint64_t count) {
  if (count < 1'000'000) return fmt::format("{}", count);
  auto const number = static_cast<double>(count);
  return count < 1'000'000'000 ? fmt::format("{} ({:.1f} million)", count, number / 1e6)
                               : fmt::format("{} ({:.2f} billion)", count, number / 1e9);
}

/// One file of weights as a folder of it alone: config.json and index are of all files.
Folder folder_of_file(fs::path const& file) {
  Folder folder;
  folder.path = file.parent_path();
  folder.files = {file.filename()};
  folder.warnings = {fmt::format("one file alone: `reshard inspect {}` shows its folder",
                                 folder.path.empty() ? "." : folder.path.string())};
  return folder;
}

/// The method that config.json names; "none" where it names none.
std::string quantisation_of(Json const& config) {
  Json const* const settings = config.find("quantization_config");
  if (settings == nullptr || settings->is_null()) return "none";
  Json const* const method = settings->find("quant_method");
  return method != nullptr && method->text() != nullptr ? *method->text() : "by an unknown method";
}

}  // namespace

/// Most bytes are of another floating point type than config.json says; "" where they are not.
static std::string dtype_note(Json const& config, std::map<std::string, DTypeTotal> const& dtypes) {
  std::optional<DType> stated;
  for (std::string_view const member : dtype_members)
    if (Json const* const word = config.find(member); word != nullptr && word->text() && !stated)
      stated = dtype_of_word(*word->text());
  if (!stated || dtypes.empty()) return "";
  auto const most =
      std::ranges::max_element(dtypes, {}, [](auto const& one) { return one.second.bytes; });
  bool const is_float = most->first == "BF16" || most->first == "F16" || most->first == "F32";
  if (!is_float || most->first == reshard::name(*stated)) return "";
  return fmt::format(
      "config.json says {}, and {} are {}: transformers converts them when it loads them",
      reshard::name(*stated), counted(most->second.tensors, "tensor"), most->first);
}

Inspection HuggingFaceFormat::describe(fs::path const& path,
                                       megatron::UserSizes const& /*sizes*/) const {
  bool const is_file = fs::is_regular_file(path);
  Folder const folder = is_file ? folder_of_file(path) : opened(path, false);
  IndexCheck const check(folder);
  std::map<std::string, DTypeTotal> dtypes;
  std::vector<std::string> notes = folder.warnings;
  std::vector<std::string> mismatches;
  std::int64_t tensors = 0;
  std::uint64_t values = 0;
  std::vector<safetensors::Header> headers(folder.files.size());
  std::vector<std::optional<Error>> unread(headers.size());
  overlapped(headers.size(), [&](std::size_t f) {
    unread[f] = capture([&] {
      headers[f] = safetensors::read_header(File::open_for_reading(folder.path / folder.files[f]));
    });
  });
  for (std::size_t f = 0; f < folder.files.size(); ++f) {
    auto const error = capture([&] {
      if (unread[f]) throw *unread[f];
      safetensors::Header const header = std::exchange(headers[f], {});
      FileCheck const found = check.check(f, header);
      notes.insert(notes.end(), found.warnings.begin(), found.warnings.end());
      tensors += static_cast<std::int64_t>(found.indexed.size());
      for (std::size_t const i : found.indexed) {
        DTypeTotal& total = dtypes[std::string(reshard::name(header.tensors[i].dtype))];
        ++total.tensors;
        total.bytes += header.tensors[i].size_bytes;
        values += elements_of(header.tensors[i].shape);
      }
    });
    if (error) mismatches.push_back(error->sentence());
  }
  Json kinds = Json::object();
  std::string kinds_text;
  for (auto const& [dtype, total] : dtypes) {
    kinds.set(dtype, Json().set("tensors", total.tensors).set("bytes", total.bytes));
    kinds_text += fmt::format("{}{}: {}, {}", kinds_text.empty() ? "" : "; ", dtype,
                              counted(total.tensors, "tensor"), human_bytes(total.bytes));
  }
  Json const* type = folder.config.find("model_type");
  bool const adapter = !folder.adapter.is_null();
  std::string const model_type = type != nullptr && type->text() != nullptr ? *type->text()
                                 : adapter ? adapter_summary(folder.adapter)
                                 : is_file ? "unknown (one file)"
                                           : "unknown (no config.json)";
  auto const array = [](std::vector<std::string> const& items) {
    Json::Array list(items.begin(), items.end());
    return Json(std::move(list));
  };
  Inspection result;
  result.json.set("path", path.string())
      .set("format", name())
      .set("model_type", model_type)
      .set("files", static_cast<std::int64_t>(folder.files.size()));
  std::string const quantisation = quantisation_of(folder.config);
  if (std::string note = quantisation == "none" ? dtype_note(folder.config, dtypes) : "";
      !note.empty())
    notes.push_back(std::move(note));
  std::string floats;  // of eight bits, which weights have only where they are quantised
  for (auto const& [dtype, total] : dtypes)
    if (dtype.starts_with("F8_E4") || dtype.starts_with("F8_E5")) floats = dtype;
  result.json.set("index", !folder.weight_map.empty())
      .set("tensors", tensors)
      .set("elements", values)
      .set("quantisation", quantisation)
      .set("dtypes", kinds)
      .set("sidecars", array(folder.sidecars));
  result.json.set("mismatches", array(mismatches)).set("notes", array(notes));
  result.text = fmt::format(
      "path              {}\nformat            {}\nmodel_type        {}\nfiles             {}{}\ntensors           {}\nelements          {}\nquantised         {}\ndtypes            "
      "{}\n",
      path.string(), name(), model_type, folder.files.size(),
      folder.weight_map.empty() ? "" : " with an index", tensors, with_short_form(values),
      quantisation != "none" ? quantisation
      : floats.empty()       ? "no"
                             : floats + ", and the config names no method",
      kinds_text);
  result.text += inspect_line("layout", "none: every tensor is complete");
  result.text += inspect_config(folder.config, result.json);
  result.sound = mismatches.empty();
  result.mismatches = std::move(mismatches);
  result.notes = std::move(notes);
  return result;
}

std::optional<Folder> HuggingFaceFormat::model_files(Checkpoint const& checkpoint) const {
  return checkpoint.model.beside;
}

}  // namespace reshard::huggingface
