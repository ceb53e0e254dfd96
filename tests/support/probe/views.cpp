// For tests/peers/test_dequantise.py: computed tensors of a safetensors file, as the reader makes
// them.
//
//   probe views FILE VIEWS OUT [SEED]   the views that the JSON file VIEWS lists, one behind the
//   other in OUT, each read in random extents
//
// A view: {"kind": "cast" | "add" | "dequantise", "stored": NAME, "shape": […], "dtype": "F32",
// "constant": 1,
//          "codes": "e2m1", "bits": 4, "block": [1, 32], "second": "times", "scale": NAME,
//          "second_scale": NAME, "zero_points": NAME}

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/text/json.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/plan/catalog.hpp"
#include "stages/read/extent_reader.hpp"
#include "tests/support/probe/probe.hpp"

namespace reshard {
namespace {

using Places = std::map<std::string, StoredPlace>;

Places places_of(std::string const& path) {
  Places places;
  for (FileTensor const& tensor : safetensors::read_header(File::open_for_reading(path)).tensors)
    places[tensor.name] = {.file = 0,
                           .offset_bytes = tensor.offset_bytes,
                           .dtype = tensor.dtype,
                           .shape = tensor.shape};
  return places;
}

/// The value that a word stands for.
template <class Value>
Value chosen(Json const& view, char const* key, std::map<std::string, Value> const& words) {
  auto const found = words.find(*view.find(key)->text());
  if (found == words.end())
    fail(ErrorKind::usage, "{}: {} is unknown", key, view.find(key)->dump());
  return found->second;
}

std::optional<StoredPlace> place_of(Json const& view, char const* key, Places const& places) {
  Json const* const name = view.find(key);
  if (name == nullptr) return std::nullopt;
  return places.at(*name->text());
}

quant::Scheme scheme_of(Json const& view) {
  using quant::CodeFormat;
  quant::Scheme scheme;
  scheme.codes = chosen<CodeFormat>(view, "codes",
                                    {{"e4m3", CodeFormat::e4m3},
                                     {"e5m2", CodeFormat::e5m2},
                                     {"i8", CodeFormat::i8},
                                     {"e2m1", CodeFormat::e2m1},
                                     {"integer", CodeFormat::integer}});
  if (Json const* const bits = view.find("bits"))
    scheme.integer_bits = static_cast<int>(*bits->integer());
  Json::Array const& block = *view.find("block")->items();
  scheme.block_rows = *block.at(0).integer();
  scheme.block_columns = *block.at(1).integer();
  using quant::SecondScale;
  if (view.find("second") != nullptr)
    scheme.second = chosen<SecondScale>(
        view, "second", {{"times", SecondScale::times}, {"divided_by", SecondScale::divided_by}});
  return scheme;
}

SourceView view_of(Json const& json, Places const& places) {
  SourceView view;
  view.kind = chosen<ViewKind>(
      json, "kind",
      {{"cast", ViewKind::cast}, {"add", ViewKind::add}, {"dequantise", ViewKind::dequantise}});
  view.name = *json.find("stored")->text();
  view.stored = *place_of(json, "stored", places);
  for (Json const& extent : *json.find("shape")->items()) view.shape.push_back(*extent.integer());
  if (Json const* const dtype = json.find("dtype"))
    view.dtype = dtype_from_name(*dtype->text()).value();
  if (Json const* const constant = json.find("constant"))
    view.constant = static_cast<int>(*constant->integer());
  if (view.kind != ViewKind::dequantise) return view;
  view.scheme = scheme_of(json);
  view.scale = place_of(json, "scale", places);
  view.second = place_of(json, "second_scale", places);
  view.zero_points = place_of(json, "zero_points", places);
  return view;
}

std::vector<std::byte> computed(ExtentReader& reader, SourceView const& view, std::uint32_t file,
                                std::mt19937_64& random) {
  auto const element = static_cast<std::uint64_t>(bits(view.dtype) / 8);
  std::uint64_t const bytes = static_cast<std::uint64_t>(elements_of(view)) * element;
  std::vector<Extent> extents;
  for (std::uint64_t at = 0; at < bytes;) {
    std::uint64_t const part = std::min(bytes - at, element * (1 + random() % (bytes / element)));
    extents.push_back({file, at, part, at});
    at += part;
  }
  std::shuffle(extents.begin(), extents.end(), random);
  std::vector<std::byte> staging(bytes);
  for (Extent const& extent : extents) reader.read({&extent, 1}, staging.data());
  return staging;
}

}  // namespace

int probe_views(Words given) {
  std::vector<std::string> const words(given.begin(), given.end());
  if (words.size() != 4 && words.size() != 5)
    fail(ErrorKind::usage, "probe views FILE VIEWS OUT [SEED]");
  Places const places = places_of(words[1]);
  Json const json = parse_json(read_text_file(words[2], 1U << 20), words[2]);
  Catalog catalog;
  catalog.files = {words[1]};
  for (Json const& view : *json.items()) catalog.add_view(view_of(view, places));
  FileSet files({words[1]}, FileSet::Access::read);
  ExtentReader reader(files, catalog.views);
  std::mt19937_64 random(words.size() == 5 ? std::stoull(words[4]) : 1);
  File const out = File::create(words[3]);
  std::uint64_t at = 0;
  for (std::uint32_t v = 0; v < catalog.views.size(); ++v) {
    std::vector<std::byte> const bytes = computed(reader, catalog.views[v], 1 + v, random);
    out.write_at(at, bytes);
    at += bytes.size();
  }
  return 0;
}

}  // namespace reshard
