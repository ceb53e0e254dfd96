#include "pipeline/describe/inspect_hdf5.hpp"

#include <map>

#include "core/base/file.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/transport/comm.hpp"
#include "stages/read/open_hdf5.hpp"

namespace reshard {
namespace {

struct Total {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

Inspection inspect_hdf5(std::filesystem::path const& path) {
  std::map<std::string, Total> dtypes;
  std::vector<std::string> mismatches;
  hdf5::RootAttributes attributes;
  std::int64_t tensors = 0;
  std::int64_t objects = 0;
  bool container = false;
  auto const files = hdf5_files(path);
  for (std::filesystem::path const& file : files) {
    auto const error = capture([&] {
      hdf5::Found const found = hdf5::read_file(file);
      container = found.container;
      attributes = found.attributes;
      tensors += static_cast<std::int64_t>(found.tensors.size());
      objects += static_cast<std::int64_t>(found.objects.size());
      for (hdf5::FoundDataset const& tensor : found.tensors) {
        Total& total = dtypes[std::string(name(tensor.dtype))];
        ++total.tensors;
        total.bytes += tensor.size_bytes;
      }
    });
    if (error) mismatches.push_back(error->sentence());
  }
  for (auto const& [key, value] : attributes)
    if (key == hdf5::parts_key && value != std::to_string(files.size()))
      mismatches.push_back(fmt::format("{}: {} HDF5 files are here, the checkpoint has {}",
                                       path.string(), files.size(), value));
  Json kinds = Json::object();
  std::string kinds_text;
  for (auto const& [dtype, total] : dtypes) {
    kinds.set(dtype, Json().set("tensors", total.tensors).set("bytes", total.bytes));
    kinds_text += fmt::format("{}{}: {} tensors, {}", kinds_text.empty() ? "" : "; ", dtype,
                              total.tensors, human_bytes(total.bytes));
  }
  Json root = Json::object();
  for (auto const& [key, value] : attributes) root.set(key, value);
  Inspection result;
  std::string_view const written_by = container ? "reshard" : "another program";
  result.json.set("path", path.string())
      .set("format", "hdf5")
      .set("written_by", written_by)
      .set("files", static_cast<std::int64_t>(files.size()));
  result.json.set("tensors", tensors)
      .set("objects", objects)
      .set("dtypes", kinds)
      .set("attributes", root);
  result.json.set("mismatches", Json(Json::Array(mismatches.begin(), mismatches.end())));
  result.text = fmt::format(
      "path              {}\nformat            hdf5, written by {}\nfiles             {}\ntensors           {}\nobjects           {}\ndtypes         "
      "   {}\n",
      path.string(), written_by, files.size(), tensors, objects, kinds_text);
  for (auto const& [key, value] : attributes) result.text += fmt::format("{:<18}{}\n", key, value);
  for (std::string const& sentence : mismatches)
    result.text += "mismatch          " + sentence + "\n";
  result.sound = mismatches.empty();
  return result;
}

}  // namespace reshard
