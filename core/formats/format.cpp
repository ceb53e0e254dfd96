#include "core/formats/format.hpp"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "core/base/files/listed_folders.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/saves.hpp"
#include "core/formats/foreign.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "core/formats/megatron/writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr int levels = 3;
/// The number of subfolders that are checked in a folder that is not a checkpoint.
constexpr int most_folders_looked_into = 32;

/// The entries of a folder, sorted; folders with a trailing '/'.
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

/// Whether a folder with *.safetensors is a model's or an adapter's: any program may write such a
/// file anywhere.
bool holds_a_model(fs::path const& folder) {
  for (std::string_view const name :
       {huggingface::config_name, huggingface::index_name, huggingface::single_file_name,
        huggingface::adapter_file_name, huggingface::adapter_index_name, manifest_name})
    if (fs::exists(folder / name)) return true;
  return false;
}

bool is_checkpoint_surely(fs::path const& folder) {
  try {
    std::vector<Format const*> const formats = recognise(folder);
    if (!formats.empty() && formats.front()->id() == FormatId::huggingface)
      return holds_a_model(folder);
    return !formats.empty() && (!formats.front()->yields() || fs::exists(folder / manifest_name));
  } catch (std::exception const&) {
    return false;
  }
}

/// The possible formats of a path.
struct Candidates {
  std::vector<Format const*> formats = {};  ///< as recognise() finds them
  Format const* damaged = nullptr;          ///< if `formats` is empty: the format of the remains
  std::string sign = {};                    ///< the name of the remains
};

/// The format whose remains have one of these names.
Candidates damaged_format(std::span<std::string const> names) {
  for (Format const* format : all_formats())
    for (std::string_view const pattern : format->words().remains)
      for (std::string const& name : names)
        if (matches_glob(pattern, name)) return {.damaged = format, .sign = name};
  return {};
}

std::vector<std::string_view> all_signs() {
  std::vector<std::string_view> signs;
  for (Format const* format : all_formats())
    if (std::string_view const sign = format->words().sign;
        std::ranges::find(signs, sign) == signs.end())
      signs.push_back(sign);
  return signs;
}

/// Folders in a folder that are checkpoints, among the first of them.
std::vector<std::string> checkpoints_in(fs::path const& path, std::span<std::string const> names) {
  std::vector<std::string> found;
  int looked = 0;
  for (std::string const& name : names) {
    if (!name.ends_with('/') || name.starts_with('.')) continue;
    if (++looked > most_folders_looked_into) break;
    std::string const folder = name.substr(0, name.size() - 1);
    if (!recognise(path / folder).empty()) found.push_back(folder);
  }
  return found;
}

/// Fails where the path cannot be a checkpoint.
Candidates candidates(fs::path const& path) {
  if (!sees_anything(path) && path.string().find(":/") != std::string::npos)
    fail(ErrorKind::source,
         "{}: is an address, and only local paths are read. Mount that storage, or download the "
         "checkpoint first.",
         path.string());
  if (!sees_anything(path))
    fail(ErrorKind::source, "{}: does not exist, or is a link to nothing. Check the path.",
         path.string());
  if (!sees_folder(path)) {
    if (sees_file(path))
      if (auto formats = recognise(path); !formats.empty()) return {.formats = std::move(formats)};
    fail(ErrorKind::source, "{}: {}", path.string(), foreign_file(path));
  }
  if (auto formats = recognise(path); !formats.empty()) return {.formats = std::move(formats)};
  std::vector<std::string> const names = marked_names(path);
  Candidates found = damaged_format(names);
  if (found.damaged == nullptr)
    fail(ErrorKind::source, "{}: {}", path.string(),
         foreign_folder(path, names, checkpoints_in(path, names), all_signs()));
  if (std::string const other = folder_of_another_program(path, names); !other.empty())
    fail(ErrorKind::source, "{}: {}", path.string(), other);
  if (!sees_anything(path / huggingface::config_name)) return found;
  if (auto const inside = checkpoints_in(path, names); !inside.empty())
    fail(ErrorKind::source, "{}: {}", path.string(),
         foreign_folder(path, names, inside, all_signs()));
  fail(ErrorKind::source,
       "{}: holds a {} but no weights, neither *.safetensors nor {}. Name the folder with the "
       "weights, or fetch the files that are missing.",
       path.string(), huggingface::config_name, huggingface::index_name);
}

/// The format found; if only remains are found, its reader reports the missing parts.
Format const& found_format(fs::path const& path, Candidates const& found) {
  if (found.formats.size() > 1) {
    std::vector<std::string_view> names;
    for (Format const* format : found.formats) names.push_back(format->name());
    fail(ErrorKind::source,
         "{}: holds files of several formats side by side: {}. Choose one with source.format.",
         path.string(), fmt::join(names, ", "));
  }
  if (!found.formats.empty()) return *found.formats.front();
  if (std::string const why = found.damaged->why_incomplete(path); !why.empty())
    fail(ErrorKind::source,
         "{}: holds {} and {}. The save was interrupted, or files are missing: restore them.",
         path.string(), found.sign, why);
  return *found.damaged;
}

/// Files of another family may be of the wanted format by their beginnings.
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
    if (tensors.name(t).starts_with(prefix))
      view.weights.emplace(tensors.name(t).substr(prefix.size()), t);
    else
      view.unread.push_back(tensors.name(t));
  return view;
}

StateInventory Format::inventory(Checkpoint const& checkpoint, StoredView const& /*view*/) const {
  return checkpoint.state.inventory;
}

std::optional<RunRecord> Format::run_record(Checkpoint const& /*checkpoint*/) const {
  return std::nullopt;
}

void Format::lay_out(MappedTarget const& /*job*/, TargetDraft& /*draft*/) const {
  fail(ErrorKind::internal, "the format '{}' is not written", name());
}

void Format::lay_out_named(NamedTarget const& /*job*/, TargetDraft& /*draft*/) const {
  fail(ErrorKind::internal, "the format '{}' is not written", name());
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
  Candidates const found = candidates(path);
  if (wanted == FormatId::automatic) return found_format(path, found).refined(path);
  return wanted_format(path, format_of(wanted)).refined(path);
}

void check_checkpoint_folder(fs::path const& path) {
  ListedFolders const listed(path);
  (void)candidates(folder_of_weights(path));
}

std::optional<fs::path> enclosing_checkpoint(fs::path const& file) {
  fs::path folder = file.parent_path();
  for (int level = 0; level < levels && folder != folder.root_path();
       ++level, folder = folder.parent_path())
    if (is_checkpoint_surely(folder)) return folder;
  return std::nullopt;
}

Checkpoint open_checkpoint(fs::path const& given, FormatId wanted, OpenChoice choice,
                           HeaderExchange const& exchange) {
  Format const* format = nullptr;
  fs::path path;
  ListedFolders const listed(given);
  std::optional<ListedFolders> listed_weights;
  exchange.together_seeing([&] {
    path = folder_of_weights(given);
    if (path != given) listed_weights.emplace(path);
    format = &choose_format(path, wanted);
    if (choice.by_headers && format->family() != name(FormatId::huggingface))
      fail(ErrorKind::usage,
           "[source] index = \"rebuild\": {} is a {} checkpoint, which has no index of Hugging "
           "Face. Leave the key out.",
           path.string(), format->name());
  });
  choice.names_alone = choice.names_alone || wanted == FormatId::dcp;
  Checkpoint checkpoint = format->open(path, choice, exchange);
  // All members are certain to be of the head of their family; names of other members have to be
  // checked.
  bool const stated =
      wanted != FormatId::automatic && format_of(wanted).name() != format_of(wanted).family();
  exchange.together([&] {
    if (!stated || checkpoint.format->id() == wanted) return;
    fail(ErrorKind::source,
         "{}: is a {} checkpoint by its files and keys, source.format is {}. Correct the key, or "
         "leave it out.",
         path.string(), checkpoint.format->name(), name(wanted));
  });
  exchange.together_seeing([&] {
    checkpoint.run.newer_saves = newer_saves_note(given, checkpoint.folder);
    if (!checkpoint.run.newer_saves.empty())
      checkpoint.warnings.insert(checkpoint.warnings.begin(), checkpoint.run.newer_saves);
    if (checkpoint.names != NameOwner::megatron) return;
    checkpoint.shares.shape = find_shape(checkpoint.folder, args_of(checkpoint));
    if (!checkpoint.shares.shape) return;
    if (!checkpoint.run.iteration) checkpoint.run.iteration = step_of(*checkpoint.shares.shape);
    if (!checkpoint.shares.shape->optimizer.empty())
      checkpoint.state.inventory.optimizer = {
          StateForm::by_layout, checkpoint.shares.shape->optimizer,
          fmt::format(
              "optimizer state is not beside the weights but in {}, which is not read: "
              "name a save that has both in one folder",
              (checkpoint.shares.shape->save / checkpoint.shares.shape->optimizer).string())};
    if (!checkpoint.shares.shape->rng.empty())
      checkpoint.state.inventory.rng = {StateForm::in_rank_files, checkpoint.shares.shape->rng};
  });
  return checkpoint;
}

Json args_of(Checkpoint const& checkpoint) {
  if (!checkpoint.run.args.is_null()) return checkpoint.run.args;
  auto const record = checkpoint.format->run_record(checkpoint);
  if (!record) return {};
  return megatron::args_as_json(record->document(), megatron::find_args(record->document()));
}

}  // namespace reshard
