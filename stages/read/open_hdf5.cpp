#include "stages/read/open_hdf5.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/base/file.hpp"
#include "core/base/member_file.hpp"
#include "core/base/sight.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/formats/huggingface/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/transport/shared_sight.hpp"
#include "stages/read/shared_headers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::string const* attribute(hdf5::Found const& part, std::string_view key) {
  for (auto const& [name, value] : part.attributes)
    if (name == key) return &value;
  return nullptr;
}

std::string text_of(hdf5::Found const& part, std::string_view key) {
  std::string const* const value = attribute(part, key);
  return value == nullptr ? std::string() : *value;
}

Index number_of(hdf5::Found const& part, std::string_view key, fs::path const& path) {
  std::string const text = text_of(part, key);
  Index number = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0)
    fail(ErrorKind::source,
         "{}: its attribute '{}' is '{}', expected a number. The file is damaged: write it again.",
         path.string(), key, text);
  return number;
}

/// The files of one checkpoint, whose parts all say the same.
class Collector {
 public:
  Collector(fs::path const& path, std::vector<fs::path> const& files,
            std::vector<hdf5::Found> parts)
      : path_(path), files_(files), parts_(std::move(parts)) {}

  SourceCheckpoint run() {
    SourceCheckpoint source;
    source.files = files_;
    check_alike();
    if (parts_.front().container) check_parts();
    check_names();
    for (hdf5::Found const& part : parts_)
      for (hdf5::FoundDataset const& found : part.tensors)
        if (found.digest.value_or(0) != 0)
          source.recorded.push_back({found.name, std::string(name(found.dtype)), found.shape,
                                     found.axes, *found.digest, 0});
    if (parts_.front().container && text_of(parts_.front(), hdf5::names_key) == hdf5::logical_names)
      source.logical = logical();
    else
      source.dcp = stored();
    return source;
  }

 private:
  fs::path folder() const { return sees_folder(path_) ? path_ : path_.parent_path(); }

  void check_alike() const {
    auto const other = std::find_if(parts_.begin(), parts_.end(), [&](hdf5::Found const& part) {
      return part.container != parts_.front().container;
    });
    if (other == parts_.end()) return;
    std::size_t const at = static_cast<std::size_t>(other - parts_.begin());
    auto const& [container, plain] = parts_.front().container
                                         ? std::pair(files_.front(), files_[at])
                                         : std::pair(files_[at], files_.front());
    fail(ErrorKind::source, "{}: is no container of reshard, {} is one. Put other files elsewhere.",
         plain.string(), container.string());
  }

  void check_parts() const {
    std::set<Index> seen;
    for (std::size_t f = 0; f < parts_.size(); ++f) {
      Index const count = number_of(parts_[f], hdf5::parts_key, files_[f]);
      Index const number = number_of(parts_[f], hdf5::part_key, files_[f]);
      if (count != static_cast<Index>(parts_.size()))
        fail(
            ErrorKind::source,
            "{}: is part {} of {}, {} HDF5 files are here. Restore the missing ones, or put files of other checkpoints elsewhere.",
            files_[f].string(), number, count, parts_.size());
      if (!seen.insert(number).second || number < 1 || number > count)
        fail(
            ErrorKind::source,
            "{}: says that it is part {} of {}, as another file does. Put files of other checkpoints elsewhere.",
            files_[f].string(), number, count);
      for (std::string_view const key : {hdf5::names_key, hdf5::map_key})
        if (text_of(parts_[f], key) != text_of(parts_.front(), key))
          fail(
              ErrorKind::source,
              "{}: its attribute '{}' is '{}', that of {} is '{}'. The files belong to several checkpoints: put those of others elsewhere.",
              files_[f].string(), key, text_of(parts_[f], key), files_.front().string(),
              text_of(parts_.front(), key));
    }
  }

  void check_names() const {
    std::map<std::string_view, std::size_t> file_of;
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (auto const* const list : {&parts_[f].tensors, &parts_[f].objects})
        for (hdf5::FoundDataset const& one : *list)
          if (auto const [at, is_new] = file_of.emplace(one.name, f); !is_new)
            fail(ErrorKind::source,
                 "{}: holds {}, as {} does. Put files of other checkpoints elsewhere.",
                 files_[f].string(), json_quoted(one.name), files_[at->second].string());
  }

  /// The bytes of an object; nothing when there is none of this name.
  std::optional<std::string> object(std::string_view name) const {
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (hdf5::FoundDataset const& one : parts_[f].objects) {
        if (one.name != name) continue;
        if (one.size_bytes > huggingface::largest_config_bytes)
          fail(ErrorKind::source,
               "{}: {} has {}, {} are read at most. The file is damaged: write it again.",
               files_[f].string(), json_quoted(name), human_bytes(one.size_bytes),
               human_bytes(huggingface::largest_config_bytes));
        std::string text(static_cast<std::size_t>(one.size_bytes), '\0');
        File::open_for_reading(files_[f]).read_at(one.offset_bytes,
                                                  std::as_writable_bytes(std::span(text)));
        return text;
      }
    return std::nullopt;
  }

  Json config(std::string* text = nullptr) const {
    auto const found = object(huggingface::config_name);
    if (!found) return {};
    if (text != nullptr) *text = *found;
    return huggingface::parse_config(
        *found, folder().string() + ": " + std::string(huggingface::config_name));
  }

  LogicalCheckpoint logical() const {
    LogicalCheckpoint checkpoint;
    hdf5::Found const& first = parts_.front();
    checkpoint.folder = folder();
    checkpoint.map = text_of(first, hdf5::map_key);
    checkpoint.vocab = number_of(first, hdf5::vocab_key, files_.front());
    checkpoint.prediction_layers = number_of(first, hdf5::prediction_layers_key, files_.front());
    checkpoint.config = config(&checkpoint.config_text);
    if (auto const args = object(hdf5::args_name)) {
      std::string const place = folder().string() + ": " + std::string(hdf5::args_name);
      checkpoint.args = parse_json(*args, place);
      if (checkpoint.args.members() == nullptr)
        fail(ErrorKind::source, "{}: holds no JSON object. The file is damaged: write it again.",
             place);
    }
    checkpoint.parts = parts_;
    return checkpoint;
  }

  DcpCheckpoint stored() const {
    DcpCheckpoint checkpoint;
    checkpoint.container = TensorContainer::hdf5;
    checkpoint.directory.root = checkpoint.directory.folder = path_;
    checkpoint.config = config();
    dcp::Metadata& metadata = checkpoint.metadata;
    for (std::size_t f = 0; f < parts_.size(); ++f) {
      auto const file = narrow<std::uint32_t>(f);
      metadata.files.push_back(files_[f].filename().string());
      for (hdf5::FoundDataset const& tensor : parts_[f].tensors) {
        auto const first = narrow<std::uint32_t>(metadata.chunks.size());
        std::vector<Index> const origin(tensor.shape.size(), 0);
        metadata.chunks.push_back({metadata.lists.add(origin),
                                   metadata.lists.add(tensor.shape),
                                   {file, tensor.offset_bytes, tensor.size_bytes}});
        metadata.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, first, 1});
        checkpoint.payload_offset_bytes.push_back(tensor.offset_bytes);
      }
      for (hdf5::FoundDataset const& one : parts_[f].objects)
        if (!hdf5::is_description(one.name))
          metadata.objects.push_back({one.name, {file, one.offset_bytes, one.size_bytes}});
    }
    return checkpoint;
  }

  fs::path const& path_;
  std::vector<fs::path> const& files_;
  std::vector<hdf5::Found> parts_;
};

std::vector<std::string> hdf5_names(fs::path const& folder) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder, ignored))
    if ((entry.path().extension() == ".h5" || entry.path().extension() == ".hdf5") &&
        entry.is_regular_file(ignored))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<fs::path> hdf5_files(fs::path const& path) {
  if (sees_file(path))
    return hdf5::looks_like_hdf5(path) ? std::vector{path} : std::vector<fs::path>();
  std::vector<fs::path> files;
  for (std::string const& name :
       seen_names("HDF5 files in", path, [&] { return hdf5_names(path); }))
    files.push_back(allowed_member(path, name));
  return files;
}

bool looks_like_hdf5_checkpoint(fs::path const& path) { return !hdf5_files(path).empty(); }

SourceCheckpoint open_hdf5(fs::path const& path, Comm const& comm) {
  SourceCheckpoint opened;
  std::vector<fs::path>& files = opened.files;
  together_seeing(comm, [&] {
    files = hdf5_files(path);
    if (files.empty())
      fail(ErrorKind::source, "{}: holds no HDF5 file (*.h5, *.hdf5). Check the path.",
           path.string());
  });
  std::vector<hdf5::Found> parts;
  auto const packed = shared_headers(
      opened, comm, [](File const& file) { return hdf5::pack(hdf5::read_file(file.path())); });
  SourceCheckpoint source;
  together_seeing(comm, [&] {
    for (std::string const& bytes : packed) parts.push_back(hdf5::unpack(bytes));
    source = Collector(path, files, std::move(parts)).run();
  });
  source.stamps = std::move(opened.stamps);
  source.stamped_by = std::move(opened.stamped_by);
  return source;
}

}  // namespace reshard
