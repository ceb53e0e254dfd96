// For tests/peers/safetensors_test.py: this program's view of files that the Python libraries
// wrote, and copies for them to read.
//
//   probe safetensors list FILE       the header as JSON
//   probe safetensors copy IN OUT     the same tensors, laid out by plan_file
//   probe safetensors index FOLDER    the folder as JSON
//   probe safetensors reshard IN OUT BYTES [REFERENCE]
//                                    the folder IN as shards of at most BYTES in the folder OUT,
//                                    with index, config and sidecars; REFERENCE: a folder whose
//                                    shards are reproduced

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Where the elements of a tensor are.
struct Source {
  fs::path file;
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

template <class Entries>
Json json_of(Entries const& entries) {
  Json::Object object;
  for (auto const& [key, value] : entries)
    object.emplace_back(std::string(key), Json(std::string(value)));
  return Json(std::move(object));
}

Json list(fs::path const& path) {
  safetensors::Header const header = safetensors::read_header(File::open_for_reading(path));
  Json tensors = Json::array();
  for (FileTensor const& tensor : header.tensors) {
    Json shape = Json::array();
    for (Index const extent : tensor.shape) shape.push(Json(extent));
    tensors.push(Json(Json::Object{{"name", Json(tensor.name.text())},
                                   {"dtype", Json(name(tensor.dtype))},
                                   {"shape", std::move(shape)},
                                   {"offset_bytes", Json(tensor.offset_bytes)},
                                   {"size_bytes", Json(tensor.size_bytes)}}));
  }
  return Json(Json::Object{{"header_bytes", Json(header.header_bytes)},
                           {"metadata", json_of(header.metadata)},
                           {"tensors", std::move(tensors)}});
}

void write_file(fs::path const& path, safetensors::FilePlan const& plan,
                std::vector<Source> const& sources) {
  File const out = File::create(path);
  out.resize(plan.size_bytes);
  out.write_at(0, std::as_bytes(std::span(plan.header)));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::vector<std::byte> bytes(sources[i].size_bytes);
    File::open_for_reading(sources[i].file).read_at(sources[i].offset_bytes, bytes);
    out.write_at(plan.offset_bytes[i], bytes);
  }
  out.sync();
}

void copy(fs::path const& from, fs::path const& to) {
  safetensors::Header const header = safetensors::read_header(File::open_for_reading(from));
  std::vector<TensorSpec> tensors;
  std::vector<Source> sources;
  for (FileTensor const& tensor : header.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
    sources.push_back({from, tensor.offset_bytes, tensor.size_bytes});
  }
  write_file(to, safetensors::plan_file(tensors, header.metadata), sources);
}

Json index(fs::path const& path) {
  huggingface::Folder const folder = huggingface::open_folder(path);
  huggingface::IndexCheck const check(folder);
  Json files = Json::array();
  Json sidecars = Json::array();
  Json warnings = Json::array();
  for (std::string const& warning : folder.warnings) warnings.push(Json(warning));
  for (std::size_t i = 0; i < folder.files.size(); ++i) {
    auto const header =
        safetensors::read_header(File::open_for_reading(folder.path / folder.files[i]));
    for (std::string const& warning : check.check(i, header).warnings) warnings.push(Json(warning));
    files.push(Json(folder.files[i].string()));
  }
  for (std::string const& sidecar : folder.sidecars) sidecars.push(Json(sidecar));
  return Json(Json::Object{{"files", std::move(files)},
                           {"weight_map", json_of(folder.weight_map)},
                           {"index_metadata", folder.index_metadata},
                           {"config", folder.config},
                           {"sidecars", std::move(sidecars)},
                           {"warnings", std::move(warnings)}});
}

void reshard_folder(fs::path const& from, fs::path const& to, std::uint64_t largest_shard_bytes,
                    huggingface::WeightMap const& reference) {
  huggingface::Folder const folder = huggingface::open_folder(from);
  huggingface::IndexCheck const check(folder);
  std::map<std::string, std::pair<TensorSpec, Source>> by_name;
  for (std::size_t i = 0; i < folder.files.size(); ++i) {
    fs::path const path = folder.path / folder.files[i];
    auto const header = safetensors::read_header(File::open_for_reading(path));
    for (std::size_t const k : check.check(i, header).indexed) {
      FileTensor const& tensor = header.tensors[k];
      by_name[tensor.name] = {{tensor.name, tensor.dtype, tensor.shape},
                              {path, tensor.offset_bytes, tensor.size_bytes}};
    }
  }
  std::vector<TensorSpec> tensors;
  for (auto const& [name, each] : by_name) tensors.push_back(each.first);
  std::optional<huggingface::Folder> wanted(std::in_place);
  wanted->weight_map = reference;
  huggingface::ReferenceWeights weights(wanted);
  auto const shards = huggingface::plan_shards(tensors, largest_shard_bytes, weights);
  for (auto const& shard : shards) {
    std::vector<Source> sources;
    for (std::size_t const i : shard.tensors) sources.push_back(by_name.at(tensors[i].name).second);
    write_file(to / shard.name, shard.plan, sources);
  }
  if (huggingface::needs_index(shards))
    write_text_file(to / huggingface::index_name,
                    huggingface::index_json(shards, tensors, folder.index_metadata));
  if (!folder.config_text.empty())
    write_text_file(to / huggingface::config_name,
                    huggingface::patched_config_text(folder.config_text, {}, "config.json"));
  for (std::string const& name : folder.sidecars) huggingface::copy_sidecar(folder, name, to);
}

}  // namespace

int probe_safetensors(Words given) {
  std::vector<std::string> const words(given.begin(), given.end());
  if (words.size() == 3 && words[1] == "list") {
    fmt::print("{}\n", list(words[2]).dump());
  } else if (words.size() == 4 && words[1] == "copy") {
    copy(words[2], words[3]);
  } else if (words.size() == 3 && words[1] == "index") {
    fmt::print("{}\n", index(words[2]).dump());
  } else if ((words.size() == 5 || words.size() == 6) && words[1] == "reshard") {
    huggingface::WeightMap const reference = words.size() == 6
                                                 ? huggingface::open_folder(words[5]).weight_map
                                                 : huggingface::WeightMap{};
    reshard_folder(words[2], words[3], std::stoull(words[4]), reference);
  } else {
    fail(
        ErrorKind::usage,
        "probe safetensors list FILE | copy IN OUT | index FOLDER | reshard IN OUT BYTES [REFERENCE]");
  }
  return 0;
}

}  // namespace reshard
