#include "core/formats/format.hpp"

#include <algorithm>

#include "core/base/sight.hpp"
#include "core/containers/dcp/directory.hpp"
#include "core/formats/foreign.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr int levels = 3;

/// What is in a folder, sorted; folders with a '/' behind.
std::vector<std::string> marked_names(fs::path const& path) {
  std::vector<std::string> names = seen_names("marked names of", path, [&] {
    std::vector<std::string> found;
    std::error_code ended;
    for (fs::directory_iterator it(path, ended); !ended && it != fs::directory_iterator();
         it.increment(ended)) {
      std::error_code unknown;
      found.push_back(it->path().filename().string() + (it->is_directory(unknown) ? "/" : ""));
    }
    if (ended)
      fail(ErrorKind::source, "{}: cannot be listed: {}. Check the path and its permissions.",
           path.string(), ended.message());
    return found;
  });
  std::ranges::sort(names);
  return names;
}

bool is_checkpoint_surely(fs::path const& folder) {
  try {
    std::vector<Format const*> const formats = recognise(folder);
    return !formats.empty() && (!formats.front()->yields() || fs::exists(folder / manifest_name));
  } catch (std::exception const&) {
    return false;
  }
}

/// What the path may be, where it can be a checkpoint at all.
std::vector<Format const*> formats_of_checkpoint(fs::path const& path) {
  if (!sees_anything(path))
    fail(ErrorKind::source, "{}: does not exist. Check the path (source.path of a job file).",
         path.string());
  if (!sees_folder(path)) {
    if (sees_file(path))
      if (auto formats = recognise(path); !formats.empty()) return formats;
    fail(ErrorKind::source, "{}: {}", path.string(), foreign_file(path));
  }
  std::vector<Format const*> formats = recognise(path);
  if (!formats.empty()) return formats;
  if (std::string const answer = foreign_folder(path, marked_names(path)); !answer.empty())
    fail(ErrorKind::source, "{}: {}", path.string(), answer);
  if (sees_anything(path / huggingface::config_name))
    fail(
        ErrorKind::source,
        "{}: holds a {} but no weights, neither *.safetensors nor {}. Name the folder with the weights, or download them.",
        path.string(), huggingface::config_name, huggingface::index_name);
  return formats;
}

Format const& found_format(fs::path const& path, std::vector<Format const*> const& formats) {
  if (formats.size() > 1)
    fail(ErrorKind::source,
         "{}: holds several of Megatron ranks, Hugging Face weights and a {} side by side. Choose "
         "one with source.format.",
         path.string(), dcp::metadata_name);
  // Of nothing that is known the reader of Megatron's folders says what is missing.
  return formats.empty() ? *all_formats().front() : *formats.front();
}

/// Files of another family may be what is wanted once their beginnings are read.
Format const& wanted_format(fs::path const& path, Format const& wanted) {
  if (wanted.probe(path)) return wanted;
  for (Format const* other : all_formats())
    if (other->probe(path))
      if (Format const& refined = other->refined(path); refined.family() == wanted.family())
        return refined;
  return wanted;
}

/// The format that has its family's name.
Format const& head_of_family(Format const& format) {
  for (Format const* other : all_formats())
    if (other->name() == format.family()) return *other;
  return format;
}

}  // namespace

StoredView Format::view(Checkpoint const& checkpoint, std::string const& prefix) const {
  StoredView view;
  auto const& tensors = checkpoint.stored.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t].name.starts_with(prefix))
      view.weights.emplace(tensors[t].name.substr(prefix.size()), t);
    else
      view.unread.push_back(tensors[t].name);
  return view;
}

StateInventory Format::inventory(Checkpoint const& checkpoint, StoredView const& /*view*/) const {
  return checkpoint.state;
}

std::optional<RunRecord> Format::run_record(Checkpoint const& /*checkpoint*/) const {
  return std::nullopt;
}

Format const& format_of(FormatId id) {
  for (Format const* format : all_formats())
    if (format->id() == id) return *format;
  fail(ErrorKind::internal, "there is no format '{}'", name(id));
}

std::vector<Format const*> recognise(fs::path const& path) {
  std::vector<Format const*> found;
  for (Format const* format : all_formats()) {
    if (format->yields() && !found.empty()) continue;
    bool const known = std::ranges::any_of(
        found, [&](Format const* other) { return other->family() == format->family(); });
    if (!known && format->probe(path)) found.push_back(&head_of_family(*format));
  }
  return found;
}

Format const& choose_format(fs::path const& path, FormatId wanted) {
  std::vector<Format const*> const formats = formats_of_checkpoint(path);
  if (wanted == FormatId::automatic) return found_format(path, formats).refined(path);
  return wanted_format(path, format_of(wanted)).refined(path);
}

void check_checkpoint_folder(fs::path const& path) { (void)formats_of_checkpoint(path); }

std::optional<fs::path> enclosing_checkpoint(fs::path const& file) {
  fs::path folder = file.parent_path();
  for (int level = 0; level < levels && folder != folder.root_path();
       ++level, folder = folder.parent_path())
    if (is_checkpoint_surely(folder)) return folder;
  return std::nullopt;
}

Checkpoint open_checkpoint(fs::path const& path, FormatId wanted, OpenChoice choice,
                           HeaderExchange const& exchange) {
  Format const* format = nullptr;
  exchange.together_seeing([&] { format = &choose_format(path, wanted); });
  choice.names_alone = choice.names_alone || wanted == FormatId::dcp;
  Checkpoint checkpoint = format->open(path, choice, exchange);
  // The head of a family is what its members are beyond doubt; names of members are promises.
  bool const stated =
      wanted != FormatId::automatic && format_of(wanted).name() != format_of(wanted).family();
  exchange.together([&] {
    if (!stated || checkpoint.format->id() == wanted) return;
    fail(ErrorKind::source,
         "{}: is a {} checkpoint by its files and keys, source.format is {}. Correct the key, or "
         "leave it out.",
         path.string(), checkpoint.format->name(), name(wanted));
  });
  return checkpoint;
}

Json args_of(Checkpoint const& checkpoint) {
  if (!checkpoint.args.is_null()) return checkpoint.args;
  auto const record = checkpoint.format->run_record(checkpoint);
  if (!record) return {};
  return megatron::args_as_json(record->document(), megatron::find_args(record->document()));
}

}  // namespace reshard
