#include "core/formats/hdf5/source.hpp"

#include <algorithm>
#include <map>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/hdf5/container.hpp"
#include "core/containers/hdf5/keys.hpp"
#include "core/formats/dcp/keys.hpp"
#include "core/formats/dcp/named_settings.hpp"
#include "core/formats/hdf5/parts.hpp"
#include "core/formats/headers/shared_headers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/inspect_lines.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/run/torch_optimizer.hpp"

namespace reshard::hdf5 {
namespace {

namespace fs = std::filesystem;

/// The files of one checkpoint, whose parts must agree.
class Collector {
 public:
  Collector(fs::path const& path, std::vector<fs::path> const& files, std::vector<Found> parts)
      : path_(path), files_(files), parts_(std::move(parts)) {}

  Checkpoint run() {
    Checkpoint checkpoint;
    checkpoint.format = &reshard::format_of(FormatId::hdf5);
    checkpoint.files = files_;
    checkpoint.root = checkpoint.folder = path_;
    check_alike();
    if (parts_.front().container) check_parts(parts_, files_, folder());
    check_names();
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (FoundDataset const& found : parts_[f].tensors) {
        if (found.digest.value_or(0) != 0)
          checkpoint.logical.digests.push_back({found.name, std::string(name(found.dtype)),
                                                found.shape, found.axes, *found.digest, 0});
        checkpoint.stored.add_whole(
            found.name, found.dtype, found.shape,
            {narrow<std::uint32_t>(f), found.offset_bytes, found.size_bytes});
      }
    checkpoint.model.config = config(checkpoint.model.config_text);
    checkpoint.model.config_inside = true;
    if (parts_.front().container && text_of(parts_.front(), names_key) == logical_names)
      add_logical(checkpoint);
    else
      add_named(checkpoint);
    checkpoint.place = checkpoint.folder.string();
    return checkpoint;
  }

 private:
  fs::path folder() const { return sees_folder(path_) ? path_ : path_.parent_path(); }

  void check_alike() const {
    auto const other = std::find_if(parts_.begin(), parts_.end(), [&](Found const& part) {
      return part.container != parts_.front().container;
    });
    if (other == parts_.end()) return;
    std::size_t const at = static_cast<std::size_t>(other - parts_.begin());
    auto const& [container, plain] = parts_.front().container
                                         ? std::pair(files_.front(), files_[at])
                                         : std::pair(files_[at], files_.front());
    fail(ErrorKind::source,
         "{}: is not a container of reshard, and {} is one. Move other files "
         "elsewhere.",
         plain.string(), container.string());
  }

  void check_names() const {
    std::map<std::string_view, std::size_t> file_of;
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (auto const* const list : {&parts_[f].tensors, &parts_[f].objects})
        for (FoundDataset const& one : *list)
          if (auto const [at, is_new] = file_of.emplace(one.name, f); !is_new)
            fail(ErrorKind::source,
                 "{}: holds {}, and so does {}. Move files of other checkpoints elsewhere.",
                 files_[f].string(), json_quoted(one.name), files_[at->second].string());
  }

  /// The bytes of an object; nullopt if there is none of this name.
  std::optional<std::string> object(std::string_view name) const {
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (FoundDataset const& one : parts_[f].objects) {
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

  Json config(std::string& text) const {
    auto const found = object(huggingface::config_name);
    if (!found) return {};
    text = *found;
    return huggingface::parse_config(
        *found, folder().string() + ": " + std::string(huggingface::config_name));
  }

  void add_logical(Checkpoint& checkpoint) const {
    Found const& first = parts_.front();
    checkpoint.names = NameOwner::logical;
    checkpoint.folder = folder();
    checkpoint.logical.map = text_of(first, map_key);
    checkpoint.logical.vocab = number_of(first, vocab_key, files_.front());
    checkpoint.logical.prediction_layers = number_of(first, prediction_layers_key, files_.front());
    if (auto const args = object(args_name)) {
      std::string const place = folder().string() + ": " + std::string(args_name);
      checkpoint.run.args = parse_json(*args, place);
      if (checkpoint.run.args.members() == nullptr)
        fail(ErrorKind::source, "{}: holds no JSON object. The file is damaged: write it again.",
             place);
    }
    checkpoint.state.inventory.slots = slots_of(text_of(first, slots_key));
    if (!checkpoint.state.inventory.slots.empty())
      checkpoint.state.inventory.optimizer = {StateForm::by_weight,
                                              checkpoint.state.inventory.slots.front()};
    add_common(checkpoint);
    for (Found const& part : parts_)
      for (FoundDataset const& tensor : part.tensors)
        checkpoint.logical.labels.push_back({tensor.axes, tensor.domain});
    checkpoint.summary = fmt::format("logical tensors in {}", counted(files_.size(), "HDF5 file"));
  }

  static std::vector<std::string> slots_of(std::string_view text) {
    std::vector<std::string> slots;
    while (!text.empty()) {
      std::size_t const end = std::min(text.find(' '), text.size());
      if (end > 0) slots.emplace_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return slots;
  }

  void add_common(Checkpoint& checkpoint) const {
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (FoundDataset const& one : parts_[f].objects) {
        if (one.name != common_name) continue;
        File const file = File::open_for_reading(files_[f]);
        auto common = std::make_shared<dcp::CommonState>();
        common->file = files_[f];
        common->torch = read_torch_file(FileRange(file, one.offset_bytes, one.size_bytes));
        common->root = common->torch.document.root;
        checkpoint.chunked.common = std::move(common);
      }
  }

  void add_named(Checkpoint& checkpoint) const {
    checkpoint.storage = Storage::chunks;  // in one box each, under any names
    for (std::size_t f = 0; f < parts_.size(); ++f)
      for (FoundDataset const& one : parts_[f].objects)
        if (!is_description(one.name))
          checkpoint.stored.objects.push_back(
              {one.name, {narrow<std::uint32_t>(f), one.offset_bytes, one.size_bytes}});
    checkpoint.summary =
        fmt::format("{} in {}", counted(checkpoint.stored.tensors.size(), "dataset"),
                    counted(files_.size(), "HDF5 file"));
  }

  fs::path const& path_;
  std::vector<fs::path> const& files_;
  std::vector<Found> parts_;
};

std::vector<std::string> hdf5_names(fs::path const& folder) {
  std::error_code ignored;
  std::vector<std::string> names;
  for (std::string const& name : names_in(folder, ignored)) {
    fs::path const ending = fs::path(name).extension();
    if (ending != ".h5" && ending != ".hdf5") continue;
    std::error_code problem;
    fs::file_type const type = fs::status(folder / name, problem).type();
    // A file without read permission may be one: opening it reports the reason.
    if (type == fs::file_type::regular || problem == std::errc::permission_denied)
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> hdf5_files(fs::path const& path) {
  if (sees_file(path)) return looks_like_hdf5(path) ? std::vector{path} : std::vector<fs::path>();
  std::vector<fs::path> files;
  for (std::string const& name :
       seen_names("HDF5 files in", path, [&] { return hdf5_names(path); }))
    files.push_back(allowed_member(path, name));
  return files;
}

/// Stored names may be those of torch's distributed state dicts, which have state under names of
/// parameters.
bool may_name_states(Checkpoint const& checkpoint) { return checkpoint.names == NameOwner::family; }

struct Total {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

FormatWords Hdf5Format::words() const { return {.help = "logical tensors", .sign = "HDF5 file"}; }

bool Hdf5Format::probe(fs::path const& path) const { return !hdf5_files(path).empty(); }

Checkpoint Hdf5Format::open(fs::path const& path, OpenChoice const& choice,
                            HeaderExchange const& exchange) const {
  Checkpoint opened;
  exchange.together_seeing([&] {
    opened.files = hdf5_files(path);
    if (opened.files.empty())
      fail(ErrorKind::source, "{}: holds no HDF5 file (*.h5, *.hdf5). Check the path.",
           path.string());
  });
  auto const packed = shared_headers(
      opened, exchange,
      [](File const& file) {
        return HeaderBytes{pack(read_file(file.path())), {}};
      },
      HeaderReads::in_turn);
  Checkpoint checkpoint;
  exchange.together_seeing([&] {
    std::vector<Found> parts;
    for (std::size_t f = 0; f < packed.size(); ++f)
      parts.push_back(unpack(std::string(packed.own(f))));
    checkpoint = Collector(path, opened.files, std::move(parts)).run();
  });
  checkpoint.stamps.taken = std::move(opened.stamps.taken);
  checkpoint.stamps.rank = std::move(opened.stamps.rank);
  if (may_name_states(checkpoint) && choice.rank_states) {
    StampedFiles files(checkpoint.files);
    checkpoint.state.torch_optimizer =
        dcp::read_named_settings(checkpoint, choice.prefix, files, exchange);
  }
  return checkpoint;
}

Inspection Hdf5Format::describe(fs::path const& path, megatron::UserSizes const& /*sizes*/) const {
  std::map<std::string, Total> dtypes;
  std::vector<std::string> mismatches;
  RootAttributes attributes;
  std::vector<Found> parts;
  std::int64_t tensors = 0;
  std::int64_t objects = 0;
  bool container = false;
  auto const files = hdf5_files(path);
  for (fs::path const& file : files) {
    auto const error = capture([&] {
      Found const& found = parts.emplace_back(read_file(file));
      container = found.container;
      attributes = found.attributes;
      tensors += static_cast<std::int64_t>(found.tensors.size());
      objects += static_cast<std::int64_t>(found.objects.size());
      for (FoundDataset const& tensor : found.tensors) {
        Total& total = dtypes[std::string(reshard::name(tensor.dtype))];
        ++total.tensors;
        total.bytes += tensor.size_bytes;
      }
    });
    if (error) mismatches.push_back(error->sentence());
  }
  bool const whole = mismatches.empty() && std::ranges::all_of(parts, &Found::container);
  if (whole && !parts.empty())
    if (auto const error = capture([&] { check_parts(parts, files, path); }))
      mismatches.push_back(error->sentence());
  Json kinds = Json::object();
  std::string kinds_text;
  for (auto const& [dtype, total] : dtypes) {
    kinds.set(dtype, Json().set("tensors", total.tensors).set("bytes", total.bytes));
    kinds_text += fmt::format("{}{}: {}, {}", kinds_text.empty() ? "" : "; ", dtype,
                              counted(total.tensors, "tensor"), human_bytes(total.bytes));
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
  for (auto const& [key, value] : attributes) result.text += inspect_line(key, value);
  result.sound = mismatches.empty();
  result.mismatches = std::move(mismatches);
  return result;
}

StoredView Hdf5Format::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  if (may_name_states(checkpoint)) return dcp::sorted_keys(checkpoint, prefix);
  StoredView view = Format::view(checkpoint, prefix);
  view.states = checkpoint.state.inventory.slots;
  return view;
}

StateInventory Hdf5Format::inventory(Checkpoint const& checkpoint, StoredView const& view) const {
  return may_name_states(checkpoint) ? dcp::named_inventory(checkpoint, view)
                                     : checkpoint.state.inventory;
}

std::optional<RunRecord> Hdf5Format::run_record(Checkpoint const& checkpoint) const {
  if (checkpoint.state.torch_optimizer != nullptr)
    return empty_record(checkpoint.place, checkpoint.run.iteration.value_or(
                                              whole_steps(*checkpoint.state.torch_optimizer)));
  if (checkpoint.chunked.common == nullptr) return std::nullopt;
  RunRecord record = common_record(*checkpoint.chunked.common);
  record.all = false;
  record.edited = true;  // no file of its own
  pickle::Document const& document = record.document();
  pickle::NodeId const iteration = document.find(document.root, "iteration");
  if (iteration != pickle::no_node && document.at(iteration).kind == pickle::Kind::integer)
    record.iteration = document.at(iteration).integer;
  record.folder_iteration = record.iteration;
  return record;
}

std::optional<huggingface::Folder> Hdf5Format::model_files(Checkpoint const& checkpoint) const {
  return with_config_inside(
      checkpoint.folder, checkpoint.model.config,
      checkpoint.names == NameOwner::logical ? checkpoint.model.config_text : "");
}

}  // namespace reshard::hdf5
