// For tests/peers/test_hdf5_files.py: containers for the Python libraries to read, and this
// program's view of files.
//
//   probe hdf5 list FILE          what read_file finds, as JSON
//   probe hdf5 make SPEC OUT      a finished container. SPEC is a JSON file: {"tensors": [{"name",
//   "dtype", "shape", "axes"?, "domain"?, "data": hex}],
//                                "objects": [{"name", "data": hex}], "attributes": {name: value},
//                                "alignment"?, "finish"?: false}
//   probe hdf5 plan COUNT BYTES   plans COUNT tensors of BYTES bytes with labels, and prints sizes
//   and seconds

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "core/base/files/file.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/hdf5/container.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Json json_of(hdf5::FoundDataset const& dataset) {
  Json shape = Json::array();
  for (Index const extent : dataset.shape) shape.push(Json(extent));
  Json axes = Json::array();
  for (std::string const& axis : dataset.axes) axes.push(Json(axis));
  return Json(Json::Object{
      {"name", Json(dataset.name)},
      {"dtype", Json(name(dataset.dtype))},
      {"shape", std::move(shape)},
      {"axes", std::move(axes)},
      {"domain", Json(dataset.domain)},
      {"offset_bytes", Json(dataset.offset_bytes)},
      {"size_bytes", Json(dataset.size_bytes)},
      {"digest", dataset.digest ? Json(fmt::format("{:016x}", *dataset.digest)) : Json()}});
}

Json list(fs::path const& path) {
  hdf5::Found const found = hdf5::read_file(path);
  Json attributes = Json::object();
  for (auto const& [key, value] : found.attributes) attributes.set(key, Json(value));
  Json tensors = Json::array();
  for (auto const& tensor : found.tensors) tensors.push(json_of(tensor));
  Json objects = Json::array();
  for (auto const& object : found.objects) objects.push(json_of(object));
  return Json(Json::Object{{"container", Json(found.container)},
                           {"attributes", std::move(attributes)},
                           {"tensors", std::move(tensors)},
                           {"objects", std::move(objects)}});
}

std::string text_of(Json const& object, std::string_view key) {
  Json const* value = object.find(key);
  return value == nullptr || value->text() == nullptr ? std::string() : *value->text();
}

std::string bytes_of_hex(std::string const& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// What a spec asks for; the bytes are those of the tensors, then those of the objects.
struct Contents {
  std::vector<hdf5::DatasetSpec> tensors;
  std::vector<hdf5::ObjectSpec> objects;
  hdf5::RootAttributes attributes;
  std::vector<std::string> bytes;
};

hdf5::DatasetSpec tensor_of(Json const& json) {
  hdf5::DatasetSpec spec;
  spec.name = text_of(json, "name");
  auto const dtype = dtype_from_name(text_of(json, "dtype"));
  if (!dtype)
    fail(ErrorKind::usage, "tensor '{}': dtype '{}' is unknown", spec.name, text_of(json, "dtype"));
  spec.dtype = *dtype;
  for (Json const& extent : *json.find("shape")->items()) spec.shape.push_back(*extent.integer());
  if (Json const* axes = json.find("axes"))
    for (Json const& axis : *axes->items()) spec.axes.push_back(*axis.text());
  spec.domain = text_of(json, "domain");
  return spec;
}

Contents contents_of(Json const& spec) {
  Contents contents;
  for (Json const& tensor : *spec.find("tensors")->items()) {
    contents.tensors.push_back(tensor_of(tensor));
    contents.bytes.push_back(bytes_of_hex(text_of(tensor, "data")));
  }
  for (Json const& object : *spec.find("objects")->items()) {
    contents.bytes.push_back(bytes_of_hex(text_of(object, "data")));
    contents.objects.push_back({text_of(object, "name"), contents.bytes.back().size()});
  }
  for (auto const& [key, value] : *spec.find("attributes")->members())
    contents.attributes.emplace_back(key, *value.text());
  return contents;
}

void make(fs::path const& spec_path, fs::path const& out) {
  Json const spec =
      parse_json(read_text_file(spec_path, std::uint64_t{1} << 30U), spec_path.string());
  Contents const contents = contents_of(spec);
  Json const* alignment = spec.find("alignment");
  std::uint64_t const alignment_bytes =
      alignment == nullptr ? 4096 : static_cast<std::uint64_t>(*alignment->integer());
  auto const plan = hdf5::plan_container(contents.tensors, contents.objects, contents.attributes,
                                         alignment_bytes);
  std::vector<std::uint64_t> offsets = plan.offset_bytes;
  offsets.insert(offsets.end(), plan.object_offset_bytes.begin(), plan.object_offset_bytes.end());
  File const file = File::create(out);
  file.resize(plan.size_bytes);
  for (FileSegment const& piece : plan.frame)
    file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
  std::vector<std::uint64_t> digests;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    auto const bytes = std::as_bytes(std::span(contents.bytes[i]));
    file.write_at(offsets[i], bytes);
    digests.push_back(crc64(bytes));
  }
  if (Json const* finish = spec.find("finish"); finish == nullptr || *finish->boolean())
    for (FileSegment const& piece : hdf5::finished_frame(
             contents.tensors, contents.objects, contents.attributes, digests, alignment_bytes))
      file.write_at(piece.offset_bytes, std::as_bytes(std::span(piece.bytes)));
}

Json plan(std::uint64_t count, Index bytes) {
  std::vector<hdf5::DatasetSpec> specs;
  for (std::uint64_t i = 0; i < count; ++i)
    specs.push_back({fmt::format("decoder.layers.{}.mlp.experts.{}.weight", i / 64, i % 64),
                     DType::u8,
                     {1, bytes},
                     {"out", "hidden"}});
  auto const begin = std::chrono::steady_clock::now();
  auto const planned = hdf5::plan_container(specs, {}, {});
  std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begin;
  std::uint64_t frame_bytes = 0;
  for (auto const& piece : planned.frame) frame_bytes += piece.bytes.size();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Json(Json::Object{{"seconds", Json(seconds.count())},
                           {"file_bytes", Json(planned.size_bytes)},
                           {"frame_bytes", Json(frame_bytes)},
                           {"frame_pieces", Json(std::uint64_t{planned.frame.size()})},
                           {"peak_memory_kib", Json(std::int64_t{usage.ru_maxrss})}});
}

}  // namespace

int probe_hdf5(Words given) {
  std::vector<std::string> const words(given.begin(), given.end());
  if (words.size() == 3 && words[1] == "list") {
    fmt::print("{}\n", list(words[2]).dump());
  } else if (words.size() == 4 && words[1] == "make") {
    make(words[2], words[3]);
  } else if (words.size() == 4 && words[1] == "plan") {
    fmt::print("{}\n", plan(std::stoull(words[2]), std::stoll(words[3])).dump());
  } else {
    fail(ErrorKind::usage, "probe hdf5 list FILE | make SPEC OUT | plan COUNT BYTES");
  }
  return 0;
}

}  // namespace reshard
