// Reads and rewrites distributed checkpoints of torch, so that tests in Python can compare with
// torch itself.
//
//   probe dcp metadata FILE                      JSON: everything that a .metadata file says
//   probe dcp count FILE                         JSON: how much it says, the seconds that reading
//   it took, and the peak memory of this process probe dcp rewrite IN OUT [plain|compact]     reads
//   a .metadata file and writes it anew probe dcp golden-metadata OUT                the example of
//   docs/formats/dcp.md in the plain style

#include <chrono>
#include <cstdio>
#include <string>

#include <sys/resource.h>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/dcp/metadata/metadata.hpp"
#include "tests/support/dcp_metadata.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

Json json_of(std::span<Index const> list) {
  Json json = Json::array();
  for (Index const number : list) json.push(Json(number));
  return json;
}

Json json_of(dcp::Metadata const& metadata, ItemPlace const& item) {
  Json json = Json::object();
  json.set("file", metadata.files[item.file])
      .set("offset", item.offset_bytes)
      .set("length", item.size_bytes);
  return json;
}

Json json_of(dcp::Metadata const& metadata, StoredTensor const& tensor) {
  Json chunks = Json::array();
  for (StoredChunk const& chunk : metadata.chunks_of(tensor)) {
    Json json = json_of(metadata, chunk.item);
    chunks.push(json.set("offsets", json_of(metadata.offsets(chunk)))
                    .set("sizes", json_of(metadata.sizes(chunk))));
  }
  Json json = Json::object();
  json.set("name", tensor.name.text())
      .set("dtype", std::string(name(tensor.dtype)))
      .set("shape", json_of(tensor.shape))
      .set("chunks", std::move(chunks));
  return json;
}

Json json_of(dcp::Path const& path) {
  Json json = Json::array();
  for (dcp::PathStep const& step : path)
    json.push(std::visit([](auto const& word) { return Json(word); }, step));
  return json;
}

Json json_of(dcp::Metadata const& metadata) {
  Json tensors = Json::array();
  for (StoredTensor const& tensor : metadata.tensors) tensors.push(json_of(metadata, tensor));
  Json objects = Json::array();
  for (StoredObject const& object : metadata.objects)
    objects.push(json_of(metadata, object.item).set("name", object.name));
  Json planner;
  if (metadata.planner_data) {
    planner = Json::array();
    for (auto const& [key, path] : *metadata.planner_data)
      planner.push(Json::array().push(key).push(json_of(path)));
  }
  Json flattened = Json::array();
  for (auto const& [key, shape] : metadata.flattened)
    flattened.push(Json::array().push(key).push(json_of(shape)));
  Json json = Json::object();
  json.set("tensors", std::move(tensors))
      .set("objects", std::move(objects))
      .set("planner_data", std::move(planner));
  return json.set("flattened", std::move(flattened));
}

void count(char const* path) {
  File const file = File::open_for_reading(path);
  auto const begin = std::chrono::steady_clock::now();
  dcp::Metadata const metadata = dcp::read_metadata(file);
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  Json json = Json::object();
  json.set("tensors", metadata.tensors.size())
      .set("chunks", metadata.chunks.size())
      .set("objects", metadata.objects.size());
  json.set("seconds", seconds).set("peak_kib", std::int64_t{usage.ru_maxrss});
  std::puts(json.dump().c_str());
}

void rewrite(char const* from, char const* to, dcp::MetadataStyle style) {
  write_text_file(to, dcp::write_metadata(dcp::read_metadata(File::open_for_reading(from)), style));
}

}  // namespace

int probe_dcp(Words words) {
  std::string_view const verb = words.size() > 1 ? words[1] : "";
  if (verb == "metadata" && words.size() == 3)
    return std::puts(json_of(dcp::read_metadata(File::open_for_reading(words[2]))).dump().c_str()),
           0;
  if (verb == "count" && words.size() == 3) return count(words[2]), 0;
  if (verb == "rewrite" && words.size() == 4)
    return rewrite(words[2], words[3], dcp::MetadataStyle::compact), 0;
  if (verb == "rewrite" && words.size() == 5 && words[4] == std::string_view("compact"))
    return rewrite(words[2], words[3], dcp::MetadataStyle::compact), 0;
  if (verb == "rewrite" && words.size() == 5 && words[4] == std::string_view("plain"))
    return rewrite(words[2], words[3], dcp::MetadataStyle::plain), 0;
  if (verb == "golden-metadata" && words.size() == 3)
    return write_text_file(words[2],
                           dcp::write_metadata(golden_metadata(), dcp::MetadataStyle::plain)),
           0;
  std::fputs(
      "usage: probe dcp metadata FILE | count FILE | rewrite IN OUT [plain|compact] | golden-metadata OUT\n",
      stderr);
  return 2;
}

}  // namespace reshard
